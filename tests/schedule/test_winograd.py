"""Winograd convolutions: right on every level, as precise as promised, the same for any threads."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import constant
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import EVERY_LEVEL, TARGETS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery
from tests.transform.graphs import graph, rand

N = Var("N")
SAME = (1, 1, 1, 1)
# The numerics contract: rounding errors at most this many times those of direct sums.
TIMES_DIRECT = 4.0


def _layer(o: int, c: int, tile: tuple[int, int], padding: tuple[int, ...] = SAME):  # noqa: ANN202
    u = constant(ops.winograd.transformed_filter(rand(o, c, 3, 3).array, tile))
    return lambda g, x: g.winograd_conv2d(x, u, rand(o), tile=tile, padding=padding)


def _residual(g, x):  # noqa: ANN001, ANN202
    """Halos of a chain, an epilogue with an operand that may be overwritten."""
    y = g.relu(_layer(24, 24, (4, 4))(g, x))
    return g.relu(g.add(_layer(24, 24, (2, 4))(g, y), x))


def build() -> Battery:
    b = Battery()
    shapes = [(16, 16, 4, 4), (24, 40, 8, 12), (48, 19, 12, 4), (33, 70, 4, 28), (5, 3, 8, 8),
              (16, 32, 7, 7), (40, 24, 13, 10), (20, 33, 3, 27), (16, 16, 1, 2)]  # fmt: skip
    for k, (o, c, h, w) in enumerate(shapes):
        for tile in ((2, 2), (4, 4), (4, 2)):
            name = f"{k}_{tile[0]}x{tile[1]}"
            b.add(f"plain_{name}", _layer(o, c, tile), (2, c, h, w), tolerance=2e-5)
    b.add("valid", _layer(16, 16, (2, 4), (0, 0, 0, 0)), (1, 16, 6, 10), tolerance=2e-5)
    b.add("lopsided", _layer(16, 16, (4, 4), (2, 0, 0, 2)), (1, 16, 8, 8), tolerance=2e-5)
    b.add("batch", _layer(20, 16, (4, 4)), (N, 16, 8, 8), sizes=[{"N": n} for n in (1, 3)],
          tolerance=2e-5)  # fmt: skip
    b.add("valid_overhang", _layer(16, 16, (4, 2), (0, 0, 0, 0)), (1, 16, 5, 11), tolerance=2e-5)
    b.add("lopsided_overhang", _layer(16, 16, (4, 4), (0, 2, 1, 0)), (1, 16, 8, 9), tolerance=2e-5)
    b.add("residual", _residual, (2, 24, 8, 8), tolerance=2e-5)
    b.add("residual_overhang", _residual, (2, 24, 13, 9), tolerance=2e-5)
    b.add("blocks_are_tasks", _layer(64, 48, (4, 4)), (1, 48, 56, 56), tolerance=2e-5)
    b.add("panels_are_tasks", _layer(128, 128, (4, 4)), (1, 128, 28, 28), tolerance=2e-5)
    b.add("blocks_overhang", _layer(64, 48, (4, 4)), (1, 48, 55, 54), tolerance=2e-5)
    b.add("panels_overhang", _layer(128, 128, (4, 4)), (1, 128, 27, 27), tolerance=2e-5)
    b.add("chosen", lambda g, x: g.relu(g.conv2d(x, rand(64, 64, 3, 3), padding=SAME)),
          (1, 64, 24, 24), tolerance=2e-5)  # fmt: skip
    return b


BATTERY = build()


@pytest.fixture(scope="module", params=EVERY_LEVEL)
def run(request: pytest.FixtureRequest) -> Library:
    return load(BATTERY.compile(TARGETS[request.param].replace(winograd=4)))


@pytest.mark.parametrize("name", BATTERY.cases)
def test_matches_float64(name: str, run: Library) -> None:
    BATTERY.check(name, run)


def test_kernels_need_no_support_library() -> None:
    assert BATTERY.undefined(TARGETS["neon"].replace(winograd=4)) == set()


def test_all_of_them_are_winograd_kernels() -> None:
    kinds = [k.kernel_class for k in BATTERY.compile(Target("native").replace(winograd=4)).kernels]
    assert "conv2d_direct" not in kinds
    assert kinds.count("conv2d_winograd") >= len(BATTERY.cases)


@pytest.mark.parametrize("positive", [False, True], ids=["normal", "after_relu"])
@pytest.mark.parametrize(
    ("channels", "size", "tile", "times"),
    [(64, 16, 4, TIMES_DIRECT), (256, 16, 4, TIMES_DIRECT), (64, 14, 2, 1.6), (256, 14, 2, 1.6)],
)
def test_errors_against_direct_sums(
    channels: int, size: int, tile: int, times: float, positive: bool
) -> None:
    """Root mean square and largest error against float64."""
    random = np.random.default_rng([channels, tile])
    x = random.standard_normal((1, channels, size, size)).astype(np.float32)
    x = np.maximum(x, 0) if positive else x
    w = (random.standard_normal((32, channels, 3, 3)) / (3 * channels**0.5)).astype(np.float32)
    conv = ops.get("conv2d")
    wide = [x.astype(np.float64), w.astype(np.float64)]
    exact = conv.numpy(wide, conv.complete({"padding": SAME}))
    mod = graph(lambda g, x: g.conv2d(x, constant(w), padding=SAME), x=x.shape)
    errors = []
    for largest in (0, tile):
        exe = compile_module(mod, Target("native").replace(winograd=largest))
        kind = "conv2d_winograd" if largest else "conv2d_direct"
        assert kind in [k.kernel_class for k in exe.kernels]
        errors.append(np.abs(np.asarray(Executor(exe.jit())["main"](x)) - exact))
    direct, winograd = errors
    assert np.sqrt(np.mean(winograd**2)) <= times * np.sqrt(np.mean(direct**2))
    assert winograd.max() <= 1.5 * times * direct.max()


def test_a_filter_that_is_not_constant_is_refused() -> None:
    mod = graph(lambda g, x, u: g.winograd_conv2d(x, u, tile=(2, 2), padding=SAME),
                x=(1, 16, 8, 8), u=(16, 16, 4, 4))  # fmt: skip
    with pytest.raises(UnsupportedError, match="winograd_conv2d needs a constant float32 filter"):
        compile_module(mod, Target("native"))
