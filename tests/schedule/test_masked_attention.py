"""Attention whose rows are masked in part or whole, by every kind of mask: what softmax gives.

A finite mask that is the same for a whole row hides nothing of it, be it the lowest number there
is; a row that is minus infinity as a whole gives NaN, or zeros where the operator says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import ExprLike, Var, int_value
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import c
from tensorkiln.transform.relax.match_attention import match_attention
from tests.codegen.kernels import LEVELS
from tests.emulated.machine import Library, load
from tests.rotation import family_of, rows_in_turn
from tests.schedule.battery import Battery, typed
from tests.transform.graphs import graph, main

S, T = Var("S"), Var("T")
SCALE = 0.25
LOW = float(np.finfo(np.float32).min)
# Of a block of 128 keys: shorter, longer, no multiple of it or of a vector.
LENGTHS = (1, 17, 128, 257)
STATIC = (40, 530)
TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}


def values_of(dtype: str) -> list[float]:
    low = float(ml_dtypes.finfo(dtype).min)
    return [0.0, -4.0, -1e4, low * 0.88, low * 0.995, low, -np.inf]


def places(keys: int) -> Iterator[np.ndarray]:
    """Which keys of a row a value is added to; the last one: which are masked by it alone."""
    at = np.arange(keys)
    yield np.ones(keys, bool)
    yield at % 3 > 0
    yield at < 128
    yield at >= (keys - 1) // 128 * 128
    yield at != keys // 2
    yield at < keys - 1


def masks(dtype: str, keys: int) -> np.ndarray:
    """A row for each pair of a value and another, in each place."""
    values = values_of(dtype)
    rows = []
    for i, place in enumerate(places(keys)):
        for j, value in enumerate(values):
            other = values[(i + j) % len(values)] if i % 2 else 0.0
            rows.append(np.where(place, value, other))
    return np.array(rows).astype(dtype)


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, causal: bool, unseen: str
) -> np.ndarray:
    """Scores and their masks in the dtype, of 16 bits in float32, softmax in float64."""
    q, k, v = (x.astype(np.float32) if x.itemsize == 2 else x for x in (q, k, v))
    with np.errstate(all="ignore"):
        scores = (q.astype(np.float64) @ k.swapaxes(-1, -2) * SCALE).astype(q.dtype)
        mask = mask if mask.dtype == bool else mask.astype(q.dtype)
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        if causal:
            s, t = scores.shape[-2:]
            scores = np.where(np.tri(s, t, t - s, dtype=bool), scores, -np.inf)
        x = scores.astype(np.float64)
        e = np.exp(x - x.max(-1, keepdims=True))
        weights = e / e.sum(-1, keepdims=True)
        if unseen == "zero":
            weights = np.where(np.isneginf(x).all(-1, keepdims=True), 0, weights)
        return np.asarray(weights @ v.astype(np.float64))


def formula(g: Any, q: Value, k: Value, v: Value, mask: RVar, how: str, fill: float) -> RVar:
    """As exporters spell it out."""
    s = g.mul(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), SCALE)
    if how in ("add", "guard"):
        s = g.add(s, mask)
    else:
        low = c(fill)
        s = g.where(mask, s, low) if how == "keep" else g.where(g.logical_not(mask), low, s)
    w = g.softmax(s, axis=3)
    if how == "guard":
        w = g.where(g.isnan(w), c(0.0), w)
    return g.matmul(w, v)


Case = Callable[[Any, RVar, RVar, RVar, RVar], RVar]


def attended(causal: bool, unseen: str) -> Case:
    """The operator."""
    return lambda g, q, k, v, m: g.attention(q, k, v, m, scale=SCALE, causal=causal, unseen=unseen)


def spelled(how: str, fill: float) -> Case:
    """The formula."""
    return lambda g, q, k, v, m: formula(g, q, k, v, m, how, fill)


@dataclass(frozen=True)
class Masked:
    """One function: `kind` is the mask's dtype, `fill` what formulas select where it is false."""

    name: str
    build: Case
    dtype: str = "float32"
    kind: str = "float32"
    width: int = 16
    keys: ExprLike = T
    causal: bool = False
    unseen: str = "nan"
    fill: float = -np.inf

    def run(self, f: Library, keys: int) -> None:
        """Compare for masks of every value in every place."""
        mask = masks(self.dtype, keys)
        if self.kind == "bool":
            mask = mask == 0
        rows = mask.shape[0]
        random = np.random.default_rng(keys)
        q, k, v = (
            random.standard_normal((2, 1, n, self.width)).astype(self.dtype)
            for n in (rows, keys, keys)
        )
        added = mask
        if self.kind == "bool" and np.isfinite(self.fill):
            added = np.where(mask, 0, self.fill).astype(self.dtype)
        want = reference(q, k, v, added, self.causal, self.unseen)
        got = f[self.name](q, k, v, mask)
        atol = TOLERANCE[self.dtype]
        np.testing.assert_allclose(got, want, rtol=0, atol=atol, err_msg=f"{self.name} {keys}")


def cases() -> Iterator[Masked]:
    """The operator where it has a schedule and where it is taken apart, and its formulas."""
    types = ("float32", 16), ("float32", 5), ("float16", 16), ("bfloat16", 16), ("float64", 16)
    for dtype, width in types:
        for causal, unseen, kind in product((False, True), ("zero", "nan"), (dtype, "bool")):
            name = f"op_{dtype}_{width}_{kind}_{int(causal)}_{unseen}"
            call = attended(causal, unseen)
            yield Masked(name, call, dtype, kind, width, T, causal, unseen)
    for keys, causal in product(STATIC, (False, True)):
        yield Masked(
            f"static_{keys}_{int(causal)}", attended(causal, "nan"), keys=keys, causal=causal
        )
    yield Masked("added", spelled("add", 0))
    yield Masked("guarded", spelled("guard", 0), unseen="zero")
    for k, fill in enumerate((-np.inf, LOW, -1e9)):
        for how in ("keep", "drop"):
            yield Masked(f"{how}_{k}", spelled(how, fill), kind="bool", fill=fill)


# Other tests take the rows of one type and width from these: each has some in every run.
CASES = {
    case.name: case
    for case in rows_in_turn(
        cases(),
        attrgetter("name"),
        lambda case: (family_of(case.name), case.dtype, case.width),
    )
}


@cache
def library(level: str) -> Library:
    """All of them."""
    b = Battery()
    for case in CASES.values():
        kv = (2, 1, case.keys, case.width)
        shapes = [typed(case.dtype, *s) for s in ((2, 1, S, case.width), kv, kv)]
        b.add(case.name, case.build, *shapes, typed(case.kind, S, case.keys))
    return load(b.compile(LEVELS[level]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", ["sse2", "native"])
def test_every_mask_in_every_place(level: str, name: str) -> None:
    keys = int_value(CASES[name].keys)
    for n in LENGTHS if keys is None else (keys,):
        CASES[name].run(library(level), n)


@pytest.mark.parametrize(("how", "fill"), [("add", 0), ("guard", 0), ("keep", LOW)])
def test_formulas_become_the_operator(how: str, fill: float) -> None:
    shapes = {"q": (1, 1, 4, 16), "k": (1, 1, 6, 16), "v": (1, 1, 6, 16)}
    kind = "bool" if how == "keep" else "float32"
    mod = match_attention(graph(spelled(how, fill), **shapes, m=typed(kind, 4, 6)))
    (call,) = (b.value for b in main(mod).bindings if b.value.op == "attention")
    assert call.attrs.unseen == ("zero" if how == "guard" else "nan")  # type: ignore[union-attr]


def test_unseen_is_one_of_two_words() -> None:
    with pytest.raises(UserError, match="attribute 'unseen': expected 'zero' or 'nan'"):
        graph(attended(False, "mean"), **dict.fromkeys("qkv", (1, 1, 4, 16)), m=(4, 4))
