"""Which candidates are proposed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tensorkiln.base import packages
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.knobs import Knob
from tensorkiln.tuning.space import SEARCHES, Space, require_search

Choice = tuple[int, ...]


def space(*sizes: int) -> Space:
    """Knobs of so many values, powers of two, the untuned one in the middle."""
    return Space(
        tuple(
            Knob(f"k{i}", tuple(2**j for j in range(n)), 2 ** (n // 2), "a choice")
            for i, n in enumerate(sizes)
        )
    )


def search(
    s: Space, cost: Callable[[Choice], float], trials: int, strategy: str, seed: int = 0
) -> dict[Choice, float]:
    """Ratios of all that a search tries, the untuned choice among them."""
    ratios = {s.untuned: 1.0}
    base = cost(s.untuned)
    while len(ratios) <= trials:
        candidates = s.propose(8, ratios, search=strategy, seed=(seed, 7))
        if not candidates:
            break
        ratios |= {c: cost(c) / base for c in candidates}
    return ratios


@pytest.mark.parametrize("strategy", SEARCHES)
@pytest.mark.parametrize("sizes", [(1,), (2,), (3, 4), (5, 2, 3), (2, 2, 2, 2, 2)])
def test_a_small_space_is_tried_whole_and_nothing_twice(
    strategy: str, sizes: tuple[int, ...]
) -> None:
    s = space(*sizes)
    proposals: list[Choice] = []
    ratios = {s.untuned: 1.0}
    while candidates := s.propose(4, ratios, search=strategy, seed=(3,)):
        assert len(candidates) <= 4
        proposals += candidates
        ratios |= {c: 1.0 + sum(c) / 100 for c in candidates}
    everything = set(itertools.product(*(k.values for k in s.knobs)))
    assert s.size == len(everything) == len(proposals) + 1
    assert set(proposals) | {s.untuned} == everything


@pytest.mark.parametrize("strategy", SEARCHES)
def test_the_same_measurements_lead_to_the_same_candidates(strategy: str) -> None:
    s = space(6, 6, 6, 6)

    def cost(c: Choice) -> float:
        return sum(abs(math.log2(x) - 1.5) for x in c) + 1

    first, second = (search(s, cost, 60, strategy, seed=5) for _ in range(2))
    assert list(first.items()) == list(second.items())
    assert list(search(s, cost, 60, strategy, seed=6)) != list(first)
    # Also if they were made known in another order.
    shuffled = dict(sorted(first.items(), key=lambda row: row[1]))
    assert s.propose(8, shuffled, search=strategy, seed=(5,)) == s.propose(
        8, first, search=strategy, seed=(5,)
    )


def test_the_model_finds_more_than_chance() -> None:
    """Costs with a valley: 48 of 10,000 choices, the mean of several seeds."""
    s = space(10, 10, 10, 10)

    def cost(c: Choice) -> float:
        a, b, d, e = (math.log2(x) for x in c)
        return 10 + (a - 2) ** 2 + (b - 7) ** 2 + 0.5 * (d - a) ** 2 + abs(e - 8)

    best = {
        strategy: np.mean([min(search(s, cost, 48, strategy, seed=n).values()) for n in range(6)])
        for strategy in SEARCHES
    }
    assert best["model"] < 0.9 * best["random"], best


def test_failures_are_avoided() -> None:
    """Choices of one half fail: the model asks for few of them."""
    s = space(8, 8, 8)

    def cost(c: Choice) -> float:
        return math.inf if c[0] >= 32 else 10 - math.log2(c[1])

    tried = list(search(s, cost, 64, "model"))
    failed = [c[0] >= 32 for c in tried]
    assert sum(failed[32:]) < sum(failed[:32]) or sum(failed[32:]) < len(failed[32:]) / 4


def test_a_large_space_is_sampled() -> None:
    s = space(*[20] * 8)
    ratios = search(s, lambda c: 1 + sum(c), 40, "model")
    assert len(ratios) > 40 and all(len(c) == 8 for c in ratios)
    assert min(ratios.values()) < 1


def test_given_choices_come_first_if_they_are_choices() -> None:
    s = space(4, 4)
    first_choices = [(1, 8), (1, 3), (1,), s.untuned, (8, 8), (1, 8)]
    candidates = s.propose(4, {s.untuned: 1.0}, first=first_choices)
    assert candidates[:2] == [(1, 8), (8, 8)] and len(candidates) == 4


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    require_search("random")
    with pytest.raises(UserError, match=r"tensorkiln\[tune\].*search='random'") as caught:
        require_search("model")
    assert caught.value.code == "missing-package"
