"""`top_k`, `scatter`, `tree_leaves` and `coupled` on random data against NumPy: all element types,
ties, NaN, places that are negative, beyond the end or the same, dimensions of 0, symbolic ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from tensorkiln.families.forest.case import forest
from tensorkiln.ir.expr import Var
from tensorkiln.ops.places import REDUCTIONS
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.schedule.battery import Battery, typed

N, M, K = Var("N"), Var("M"), Var("K")
FLOATS = ("float16", "float32", "float64")
INTEGERS = tuple(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64))
SIZES: tuple[Mapping[str, int], ...] = ({"N": 1, "M": 9}, {"N": 5, "M": 200}, {"N": 0, "M": 7})


def ties(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Few different values: both zeros, NaN, infinities, the ends of integers."""
    draw = np.random.default_rng([seed, *shape])
    if dtype.kind == "f":
        some = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, 2.0, 1e-7], dtype)
        wide = draw.standard_normal(shape).astype(dtype)
        return np.where(draw.random(shape) < 0.5, draw.choice(some, shape), wide)
    if dtype.kind == "b":
        return draw.random(shape) < 0.5
    info = np.iinfo(dtype)
    some = np.array([info.min, info.max, 0, 1, 2, info.max - 1], dtype)
    return draw.choice(some, shape)


def ascending(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Rows in order, most elements of which are twice there."""
    return np.sort(np.round(ties(seed, dtype, shape) * 64), axis=-1)


def scattering(seed: int, dtype: np.dtype, shape: tuple[int, ...], below: int = 12) -> np.ndarray:
    """Small numbers, whose sums and products are exact, with NaN among floats; as places, which are
    less than `below`, some of them are twice there, below 0 or beyond the end."""
    draw = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        return draw.random(shape) < 0.5
    low = 0 if dtype.kind == "u" else -3
    made = draw.integers(low, below if dtype.kind in "iu" else 3, shape).astype(dtype)
    if dtype.kind == "f":
        made = np.where(draw.random(shape) < 0.1, dtype.type(np.nan), made)
    return made


def top(k: int, largest: bool) -> Any:
    return lambda g, x: g.top_k(x, k=k, largest=largest)


def all_cases() -> Battery:
    b = Battery()
    for dtype in (*FLOATS, *INTEGERS, "bool"):
        for k, n, largest in ((5, 333, True), (17, 150, False)):
            b.add(f"top_{dtype}_{k}", top(k, largest), typed(dtype, 3, n), make=ties, exact=True)
    for dtype in ("float32", "float64", "int64"):
        b.add(
            f"top_symbolic_{dtype}",
            top(7, True),
            typed(dtype, N, 2, M),
            sizes=SIZES,
            make=ties,
            exact=True,
        )
    for dtype in ("float32", "float16", "bool", "int32", "uint8"):
        for k, largest in ((1, True), (8, False), (16, True)):  # several rows at once
            b.add(
                f"top_of_rows_{dtype}_{k}",
                top(k, largest),
                typed(dtype, 2, 21, 64),
                make=ties,
                exact=True,
            )
    b.add(
        "top_of_symbolic_rows",
        lambda g, x: g.top_k(g.abs(x), k=4, largest=True),
        typed("float32", M, N, 40),
        sizes=[{"N": n, "M": m} for n in (0, 1, 7, 8, 23) for m in (1, 3)],
        make=ties,
        exact=True,
    )
    for dtype in ("float32", "float16", "bool", "int32", "uint8"):
        for k, n, largest in ((40, 350, True), (300, 1400, False), (700, 3000, True)):
            b.add(
                f"top_above_a_floor_{dtype}_{k}",
                top(k, largest),
                typed(dtype, 3, n),
                make=ties,
                exact=True,
            )
    for name, make in (("ascending", ascending), ("descending", lambda *a: ascending(*a)[:, ::-1])):
        b.add(f"top_of_{name}", top(50, True), (2, 999), make=make, exact=True)
    b.add("top_of_all", top(64, True), (3, 64), make=ties, exact=True)
    b.add("top_none", top(0, True), (4, 9), make=ties, exact=True)
    b.add("top_of_a_row", top(200, False), (1000,), make=ties, exact=True)
    b.add("top_of_no_rows", top(2, True), (0, 9), make=ties, exact=True)
    b.add(
        "top_after_others",
        lambda g, x: g.top_k(g.neg(g.abs(x)), k=4, largest=True),
        (3, 99),
        make=ties,
        exact=True,
    )
    widths = itertools.cycle(((1, "int64"), (3, "int32"), (64, "int64")))
    for dtype in (*FLOATS, "int8", "uint16", "int32", "uint64", "bool"):
        for reduction in REDUCTIONS if dtype != "bool" else ("none",):
            columns, places = next(widths)
            b.add(
                f"scatter_{dtype}_{reduction}",
                lambda g, x, at, u, r=reduction: g.scatter(x, at, u, reduction=r),
                typed(dtype, 10, columns),
                typed(places, 40),
                typed(dtype, 40, columns),
                make=scattering,
                exact=True,
            )
    put = lambda g, x, at, u: g.scatter(x, at, u)  # noqa: E731
    b.add(
        "scatter_large", put, (700, 128), typed("int64", 30), (30, 128), make=scattering, exact=True
    )
    for name, rows, columns in (("uneven", 701, 100), ("few_rows", 3, 9600)):
        b.add(
            f"scatter_{name}",
            lambda g, x, at, u: g.scatter(g.relu(x), at, u, reduction="add"),
            (rows, columns),
            typed("int64", 1500),
            (1500, columns),
            make=partial(scattering, below=750),
            exact=True,
        )
    for name, columns in (("rows", 128), ("rows_and_columns", K)):
        b.add(
            f"scatter_symbolic_{name}",
            lambda g, x, at, u: g.scatter(x, at, u, reduction="add"),
            typed("float32", N, columns),
            typed("int64", M),
            typed("float32", M, columns),
            sizes=[
                {"N": n, "M": 70, "K": k}
                for n in (1, 7, 8, 9, 17, 400)
                for k in ((1, 33, 100) if columns is K else (128,))
            ],
            make=partial(scattering, below=750),
            exact=True,
        )
    b.add("scatter_long", put, (90_000, 1), typed("int64", 5), (5, 1), make=scattering, exact=True)
    b.add(
        "scatter_symbolic",
        lambda g, x, at, u: g.scatter(x, at, u, reduction="add"),
        typed("float32", N, 5),
        typed("int64", M),
        typed("float32", M, 5),
        sizes=({"N": 6, "M": 40}, {"N": 0, "M": 3}, {"N": 4, "M": 0}, {"N": 30_000, "M": 2}),
        make=scattering,
        exact=True,
    )
    b.add(
        "scatter_of_itself",
        lambda g, x, at: g.scatter(x, at, x, reduction="add"),
        (10, 4),
        typed("int64", 10),
        make=scattering,
        exact=True,
    )
    b.add(
        "scatter_into_a_result",
        lambda g, x, at, u: g.scatter(g.relu(x), at, g.relu(u), reduction="max"),
        (10, 4),
        typed("int64", 10),
        (10, 4),
        make=scattering,
        exact=True,
    )
    for dtype in FLOATS:
        for trees, nodes in ((1, "int32"), (5, "int32"), (23, "int64")):
            b.add(
                f"trees_{dtype}_{trees}",
                forest(trees, nodes, 6, trees),
                typed(dtype, 150, 6),
                make=ties,
                exact=True,
            )
    for trees in (1, 2, 5, 9, 30):  # sizes around whole chunks, and whole groups of samples
        b.add(
            f"trees_symbolic_{trees}",
            forest(trees, "int32", 5, trees),
            (N, 5),
            sizes=[{"N": n} for n in (0, 1, 7, 8, 9, 12, 13, 64, 65, 131, 1200)],
            make=ties,
            exact=True,
        )
    for features in (1, 16, 20, 127, 300):  # with and without rows of their own
        b.add(
            f"trees_wide_{features}",
            forest(17, "int32", features, 1),
            (50, features),
            make=ties,
            exact=True,
        )
    b.add("trees_many", forest(40, "int32", 5, 2), (999, 5), make=ties, exact=True)
    for k in (2, 3, 7):
        b.add(
            f"coupled_{k}",
            lambda g, x, k=k: g.coupled(g.sigmoid(x), classes=k),
            (N, k * (k - 1) // 2),
            sizes=({"N": 0}, {"N": 1}, {"N": 333}),
            tolerance=2e-3,  # another round is made, or not, where an error is near to the limit
        )
    return b


BATTERY = all_cases().in_turn()


@pytest.fixture(scope="module")
def run() -> Executor:
    return Executor(BATTERY.compile(Target("native")).jit())


@pytest.mark.parametrize("name", BATTERY.cases)
def test_against_numpy(name: str, run: Executor) -> None:
    BATTERY.check(name, run)
