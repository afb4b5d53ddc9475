"""Strassen's products: right on every level, as precise as promised, the same for any threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, constant
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import LEVELS, TARGETS
from tests.schedule.battery import Battery, Build, undefined_by
from tests.transform.graphs import graph

NATIVE = Target("native")
# The numerics contract: rounding errors at most this many times those of direct sums.
TIMES_DIRECT = 4.0
TOLERANCE = 2e-5


def _product(k: int, n: int, *, bias: bool = True) -> Callable[[Graph, RVar], RVar]:
    def build(g: Graph, x: RVar) -> RVar:
        rows = tuple(d.value for d in x.tensor.shape[:-1])  # type: ignore[attr-defined]
        more = [rand(n)] if bias else []
        return g.strassen_linear(g.strassen_parts(x), rand(k, n), *more, rows=rows)

    return build


def _then(k: int, n: int, finish: Build) -> Build:
    return lambda g, x, *others: finish(g, _product(k, n)(g, x), *others)


def build() -> Battery:
    """Odd and even rows, one and several tiles, one and several chunks; every epilogue."""
    b = Battery()
    for rows in (1, 2, 3, 13, 28, 57):
        b.add(f"rows_{rows}", _product(64, 128), (rows, 64), tolerance=TOLERANCE)
    for k in (32, 96, 416, 1024):
        b.add(f"terms_{k}", _product(k, 64), (15, k), tolerance=TOLERANCE)
    b.add("no_bias", _product(64, 192, bias=False), (9, 64), tolerance=TOLERANCE)
    b.add("lead", _product(64, 64), (2, 3, 5, 64), tolerance=TOLERANCE)
    b.add("computed", lambda g, x: _product(64, 64)(g, g.exp(x)), (7, 64), tolerance=TOLERANCE)
    b.add("relu", _then(64, 64, lambda g, y: g.relu(y)), (27, 64), tolerance=TOLERANCE)
    b.add("gelu", _then(64, 64, lambda g, y: g.gelu(y)), (2, 7, 64), tolerance=TOLERANCE)
    # The residual's memory may become the result's: the middle of odd rows is written once.
    b.add(
        "residual",
        _then(64, 64, lambda g, y, r: g.add(y, g.add(r, r))),
        (5, 3, 64),
        (5, 3, 64),
        tolerance=TOLERANCE,
    )
    b.add("scaled", _then(64, 64, lambda g, y, s: g.mul(y, s)), (6, 64), (64,), tolerance=TOLERANCE)
    b.add("panels_are_tasks", _product(512, 512), (65, 512), tolerance=TOLERANCE)
    b.add(
        "chosen",
        lambda g, x: g.relu(g.linear(x, rand(512, 512), rand(512))),
        (113, 512),
        tolerance=TOLERANCE,
    )
    return b


BATTERY = build().in_turn()


@pytest.fixture(scope="module", params=LEVELS)
def run(request: pytest.FixtureRequest) -> Executor:
    return Executor(BATTERY.compile(LEVELS[request.param].replace(strassen=True)).jit())


@pytest.mark.parametrize("name", BATTERY.cases)
def test_matches_float64(name: str, run: Executor) -> None:
    BATTERY.check(name, run)


def test_kernels_need_no_support_library() -> None:
    assert undefined_by(BATTERY.compile(TARGETS["neon"].replace(strassen=True))) == set()


def test_all_of_them_are_strassen_kernels() -> None:
    kinds = [k.kernel_class for k in BATTERY.compile(NATIVE.replace(strassen=True)).kernels]
    assert "linear_packed" not in kinds
    assert kinds.count("linear_strassen") >= len(BATTERY.cases)


def test_nothing_is_divided_by_0() -> None:
    """Rows of a panel are less than a line where lanes are few."""
    narrow = Target({"kind": "llvm", "mcpu": "x86-64-v2", "strassen": True})
    mod = graph(lambda g, x: g.linear(x, rand(768, 768)), x=(128, 768))
    for p in (*relax_passes(narrow), *tir_passes(narrow)):
        mod = p(mod)
    (f,) = (f for f in mod.prim_funcs if f.op_class == "linear_strassen")
    assert "// 0" not in f.script() and "% 0" not in f.script()


def test_symbolic_rows_keep_direct_sums() -> None:
    mod = graph(lambda g, x: g.linear(x, rand(512, 512)), x=(Var("M"), 512))
    kinds = [k.kernel_class for k in compile_module(mod, NATIVE.replace(strassen=True)).kernels]
    assert kinds == ["linear_packed"]


def _errors(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of direct sums and of Strassen's against float64."""
    exact = x.astype(np.float64) @ w.astype(np.float64)
    mod = graph(lambda g, x: g.linear(x, constant(w)), x=x.shape)
    errors = []
    for strassen in (False, True):
        exe = compile_module(mod, NATIVE.replace(strassen=strassen))
        kinds = [k.kernel_class for k in exe.kernels]
        assert ("linear_strassen" in kinds) == strassen
        errors.append(np.abs(np.asarray(Executor(exe.jit())["main"](x)) - exact))
    return errors[0], errors[1]


def _data(kind: str, rows: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([rows, k, n])
    x = random.standard_normal((rows, k))
    w = random.standard_normal((k, n)) / k**0.5
    if kind == "positive":
        x = np.maximum(x, 0)
    elif kind == "both_positive":
        x, w = np.abs(x), np.abs(w)
    elif kind == "large_terms":  # some features are much larger than others, as after layer norms
        x[:, random.integers(0, k, k // 50)] *= 30
    return x.astype(np.float32), w.astype(np.float32)


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", ["normal", "positive", "both_positive", "large_terms"])
@pytest.mark.parametrize(("rows", "k", "n"), [(128, 768, 768), (197, 1536, 384)])
def test_errors_against_direct_sums(kind: str, rows: int, k: int, n: int) -> None:
    """Root mean square and largest error against float64."""
    direct, strassen = _errors(*_data(kind, rows, k, n))
    assert np.sqrt(np.mean(strassen**2)) <= TIMES_DIRECT * np.sqrt(np.mean(direct**2))
    assert strassen.max() <= 1.5 * TIMES_DIRECT * direct.max()


def test_rows_share_the_error_of_the_largest() -> None:
    """What the bound does not promise: a small row is as precise as the large one it is added to,
    whose errors grow no more than others do."""
    x, w = _data("normal", 128, 768, 768)
    x[:64] *= 1000
    direct, strassen = _errors(x, w)
    large, small = slice(0, 64), slice(64, 128)
    assert strassen[large].max() <= 1.5 * TIMES_DIRECT * direct[large].max()
    assert strassen[small].max() <= 1.5 * TIMES_DIRECT * direct[large].max()
    assert strassen[small].max() > 1.5 * TIMES_DIRECT * direct[small].max()


def test_weights_that_are_not_constant_are_refused() -> None:
    mod = graph(
        lambda g, x, w: g.strassen_linear(g.strassen_parts(x), w, rows=(8,)), x=(8, 64), w=(64, 64)
    )
    with pytest.raises(UnsupportedError, match="Strassen's products need constant float32 weights"):
        compile_module(mod, NATIVE)


@pytest.mark.parametrize(("rows", "k", "n"), [(8, 64, 72), (8, 62, 64), (9000, 64, 64)])
def test_sizes_that_do_not_fit_are_refused(rows: int, k: int, n: int) -> None:
    with pytest.raises(UnsupportedError, match="Strassen's products need"):
        compile_module(graph(_product(k, n), x=(rows, k)), NATIVE)
