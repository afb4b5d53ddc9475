"""Which candidates are tried next: all of a small space, of a large one those from which a model of
the measurements so far expects most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln.base.packages import require_package
from tensorkiln.kernels.knobs import Knob
from tensorkiln.tuning.workloads import Choice

SEARCHES = ("model", "random")
_LISTED = 20_000  # choices of a space that is looked at as a whole
_SAMPLED = 4_000  # of a larger one, at a time
_TREES = 64
_LEAST = 6  # measurements from which a model is made
_BLIND = 4  # one of so many proposals is not the model's
_FAILED = math.log(2)  # a failure is as bad as twice the slowest


def require_search(search: str) -> None:
    """Raise UserError (code `missing-package`) if what a search needs is not installed."""
    if search == "model":
        require_package("sklearn", "tuning by a model", "search='random' does without")


@dataclass(frozen=True, slots=True)
class Space:
    """All choices of values for knobs."""

    knobs: tuple[Knob, ...]

    @property
    def size(self) -> int:
        """How many choices there are."""
        return math.prod(len(k.values) for k in self.knobs)

    @property
    def untuned(self) -> Choice:
        """The choice that is taken without a record."""
        return tuple(k.untuned for k in self.knobs)

    def propose(
        self,
        count: int,
        ratios: Mapping[Choice, float],
        *,
        first: Sequence[Choice] = (),
        search: str = "model",
        seed: Sequence[int] = (0,),
    ) -> list[Choice]:
        """At most `count` choices that are not among `ratios`, which says of those that were tried
        what they took beside the untuned one, infinity if they failed. `first` come before all
        others, as far as they are of this space. The same arguments give the same choices."""
        rng = np.random.default_rng((*seed, len(ratios)))
        first_choices = [c for c in dict.fromkeys(first) if c not in ratios and self._has(c)][
            :count
        ]
        untried = [
            c for c in self._candidates(ratios, rng) if c not in ratios and c not in first_choices
        ]
        if not untried or len(first_choices) == count:
            return first_choices
        missing_count = count - len(first_choices)
        measured = sum(math.isfinite(r) for r in ratios.values())
        if search == "random" or measured < _LEAST:
            order = (
                self._near(untried, rng)
                if not measured or search == "model"
                else rng.permutation(len(untried))
            )
            return first_choices + [untried[i] for i in order[:missing_count]]
        guided = max(1, missing_count - missing_count // _BLIND)
        order = np.argsort(self._expected(untried, ratios, seed), kind="stable")
        chosen = [untried[i] for i in order[:guided]]
        tail = [untried[i] for i in order[guided:]]
        blind = rng.permutation(len(tail))[: missing_count - len(chosen)]
        return first_choices + chosen + [tail[i] for i in blind]

    def _has(self, choice: Choice) -> bool:
        return len(choice) == len(self.knobs) and all(
            value in k.values for k, value in zip(self.knobs, choice, strict=True)
        )

    def _candidates(self, ratios: Mapping[Choice, float], rng: Any) -> Iterator[Choice]:
        if self.size <= _LISTED:
            yield from itertools.product(*(k.values for k in self.knobs))
            return
        best = sorted(ratios, key=lambda c: (ratios[c], c))[:4]
        candidates: dict[Choice, None] = {}
        for choice in [self.untuned, *best]:
            for i, k in enumerate(self.knobs):
                for value in k.values:
                    candidates[(*choice[:i], value, *choice[i + 1 :])] = None
        columns = [rng.choice(k.values, _SAMPLED) for k in self.knobs]
        for row in zip(*columns, strict=True):
            candidates[tuple(int(v) for v in row)] = None
        yield from candidates

    def _near(self, choices: Sequence[Choice], rng: Any) -> list[int]:
        """Numbers of choices: those that change one knob first, each in a random order."""
        changed = [sum(a != b for a, b in zip(c, self.untuned, strict=True)) for c in choices]
        shuffled = rng.permutation(len(choices))
        return sorted(shuffled.tolist(), key=lambda i: min(changed[i], 2))

    def _expected(
        self, choices: Sequence[Choice], ratios: Mapping[Choice, float], seed: Sequence[int]
    ) -> Any:
        """What an ensemble of trees expects of choices, as logarithms of ratios, less what its
        trees differ by: what is not known may be good."""
        from sklearn.ensemble import ExtraTreesRegressor

        tried = sorted(ratios)
        logs = [math.log(ratios[c]) if math.isfinite(ratios[c]) else math.inf for c in tried]
        worst = max(0.0, *(x for x in logs if math.isfinite(x))) + _FAILED
        y = np.array([min(x, worst) for x in logs])
        model = ExtraTreesRegressor(
            _TREES, min_samples_leaf=2, bootstrap=True, random_state=seed[0] % (1 << 32), n_jobs=1
        )
        model.fit(self._features(tried), y)
        x = self._features(choices).astype(np.float32)
        trees = np.array([tree.predict(x) for tree in model.estimators_])
        return trees.mean(0) - trees.std(0)

    def _features(self, choices: Sequence[Choice]) -> Any:
        """Of each knob the place of its value among all, and the logarithm of its size; then the
        products of two."""
        place = [
            {v: i / max(1, len(k.values) - 1) for i, v in enumerate(k.values)} for k in self.knobs
        ]
        rows = [
            [x for p, v in zip(place, c, strict=True) for x in (p[v], math.log2(1 + abs(v)))]
            + [math.log2(1 + abs(a * b)) for a, b in itertools.combinations(c, 2)]
            for c in choices
        ]
        return np.array(rows, np.float64)
