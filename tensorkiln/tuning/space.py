"""The space of choices of one workload, and which candidates are tried next.

A choice is one value for each knob. Spaces of up to `_LISTED` choices are enumerated; larger ones
are sampled. Once some candidates are measured, an ensemble of regression trees is fitted to the
logarithms of their ratios to the untuned kernel, and the choices with the best predictions, less an
allowance for uncertainty, are proposed next, along with some random ones. A candidate that failed
counts as twice as slow as the slowest.
"""

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
_LISTED = 20_000  # the largest space that is enumerated
_SAMPLED = 4_000  # choices that are drawn from a larger one for each proposal
_TREES = 64
_LEAST = 6  # the fewest measurements to which a model is fitted
_BLIND = 4  # one in this many proposals is random instead of the model's
_FAILED = math.log(2)  # a candidate that failed counts as twice as slow as the slowest


def require_search(search: str) -> None:
    """Raise UserError (code `missing-package`) if the search needs a package that is not
    installed."""
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
        """The choice that a compile makes without a record."""
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
        """At most `count` choices that are not in `ratios` yet. `ratios` maps each tried choice to
        its time divided by that of the untuned kernel, infinity for one that failed. The choices of
        `first` that belong to this space are proposed before all others. The same arguments give
        the same choices."""
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
        """Choices by their number: first those that differ from the untuned one in one knob, then
        the others, each part in a random order."""
        changed = [sum(a != b for a, b in zip(c, self.untuned, strict=True)) for c in choices]
        shuffled = rng.permutation(len(choices))
        return sorted(shuffled.tolist(), key=lambda i: min(changed[i], 2))

    def _expected(
        self, choices: Sequence[Choice], ratios: Mapping[Choice, float], seed: Sequence[int]
    ) -> Any:
        """A lower confidence bound of each choice's log ratio: the mean prediction of an ensemble
        of trees minus its spread, so that choices about which the trees disagree get explored."""
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
        """The features of choices: for each knob, the index of its value among all values, and the
        value's logarithm; then all products of two of these."""
        place = [
            {v: i / max(1, len(k.values) - 1) for i, v in enumerate(k.values)} for k in self.knobs
        ]
        rows = [
            [x for p, v in zip(place, c, strict=True) for x in (p[v], math.log2(1 + abs(v)))]
            + [math.log2(1 + abs(a * b)) for a, b in itertools.combinations(c, 2)]
            for c in choices
        ]
        return np.array(rows, np.float64)
