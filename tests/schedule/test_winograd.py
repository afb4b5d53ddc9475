"""Winograd convolutions: right on every level, as precise as promised, the same for any threads."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import constant
from tensorkiln.kernels.case import rand
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import EVERY_LEVEL, TARGETS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, undefined_by
from tests.transform.graphs import graph

N = Var("N")
SAME = (1, 1, 1, 1)
# The numerics contract: rounding errors at most this many times those of direct sums.
TIMES_DIRECT = 4.0


def _layer(  # noqa: ANN202
    o: int,
    c: int,
    tile: tuple[int, int],
    padding: tuple[int, ...] = SAME,
    dilation: tuple[int, int] = (1, 1),
):
    u = constant(ops.winograd.transformed_filter(rand(o, c, 3, 3).array, tile))
    attrs = {"tile": tile, "padding": padding, "dilation": dilation}
    return lambda g, x: g.winograd_conv2d(x, u, rand(o), **attrs)


def _residual(g, x):  # noqa: ANN001, ANN202
    """Halos of a chain, an epilogue with an operand that may be overwritten."""
    y = g.relu(_layer(24, 24, (4, 4))(g, x))
    return g.relu(g.add(_layer(24, 24, (2, 4))(g, y), x))


def build() -> Battery:
    b = Battery()
    shapes = [
        (16, 16, 4, 4),
        (24, 40, 8, 12),
        (48, 19, 12, 4),
        (33, 70, 4, 28),
        (5, 3, 8, 8),
        (16, 32, 7, 7),
        (40, 24, 13, 10),
        (20, 33, 3, 27),
        (16, 16, 1, 2),
    ]
    for k, (o, c, h, w) in enumerate(shapes):
        for tile in ((2, 2), (4, 4), (4, 2)):
            name = f"{k}_{tile[0]}x{tile[1]}"
            b.add(f"plain_{name}", _layer(o, c, tile), (2, c, h, w), tolerance=2e-5)
    b.add("valid", _layer(16, 16, (2, 4), (0, 0, 0, 0)), (1, 16, 6, 10), tolerance=2e-5)
    b.add("lopsided", _layer(16, 16, (4, 4), (2, 0, 0, 2)), (1, 16, 8, 8), tolerance=2e-5)
    b.add(
        "batch",
        _layer(20, 16, (4, 4)),
        (N, 16, 8, 8),
        sizes=[{"N": n} for n in (1, 3)],
        tolerance=2e-5,
    )
    b.add("valid_overhang", _layer(16, 16, (4, 2), (0, 0, 0, 0)), (1, 16, 5, 11), tolerance=2e-5)
    b.add("lopsided_overhang", _layer(16, 16, (4, 4), (0, 2, 1, 0)), (1, 16, 8, 9), tolerance=2e-5)
    dilated = [  # dilation, height and width, padding
        ((2, 2), (16, 24), None),
        ((2, 3), (15, 17), None),
        ((4, 4), (28, 28), None),
        ((3, 1), (11, 9), (0, 0, 0, 0)),
        ((1, 5), (7, 13), (2, 1, 0, 6)),
        ((6, 6), (5, 7), None),  # phases of one pixel, or none
    ]
    for (down, across), (h, w), padding in dilated:
        given = padding or (down, across, down, across)
        for tile in ((2, 2), (4, 4)):
            layer = _layer(24, 20, tile, given, (down, across))
            b.add(f"dilated_{down}_{across}_{tile[0]}", layer, (2, 20, h, w), tolerance=2e-5)
    wide = _layer(128, 128, (4, 4), (2,) * 4, (2, 2))
    b.add("dilated_tasks", wide, (1, 128, 27, 30), tolerance=2e-5)
    b.add(
        "dilated_chosen",
        lambda g, x: g.relu(g.conv2d(x, rand(64, 64, 3, 3), padding=(2,) * 4, dilation=(2, 2))),
        (1, 64, 40, 40),
        tolerance=2e-5,
    )
    b.add("residual", _residual, (2, 24, 8, 8), tolerance=2e-5)
    b.add("residual_overhang", _residual, (2, 24, 13, 9), tolerance=2e-5)
    b.add("blocks_are_tasks", _layer(64, 48, (4, 4)), (1, 48, 56, 56), tolerance=2e-5)
    b.add("panels_are_tasks", _layer(128, 128, (4, 4)), (1, 128, 28, 28), tolerance=2e-5)
    b.add("blocks_overhang", _layer(64, 48, (4, 4)), (1, 48, 55, 54), tolerance=2e-5)
    b.add("panels_overhang", _layer(128, 128, (4, 4)), (1, 128, 27, 27), tolerance=2e-5)
    b.add("blocks_past_the_image", _layer(96, 96, (4, 4)), (1, 96, 25, 27), tolerance=2e-5)
    b.add(
        "chosen",
        lambda g, x: g.relu(g.conv2d(x, rand(64, 64, 3, 3), padding=SAME)),
        (1, 64, 40, 40),
        tolerance=2e-5,
    )
    return b


BATTERY = build().in_turn()


@pytest.fixture(scope="module", params=EVERY_LEVEL)
def executable(request: pytest.FixtureRequest) -> Executable:
    return BATTERY.compile(TARGETS[request.param])


@pytest.fixture(scope="module")
def run(executable: Executable) -> Library:
    return load(executable)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_matches_float64(name: str, run: Library) -> None:
    BATTERY.check(name, run)


def test_kernels_need_no_support_library(executable: Executable) -> None:
    assert undefined_by(executable) == set()


def test_all_of_them_are_winograd_kernels(executable: Executable) -> None:
    kinds = [k.kernel_class for k in executable.kernels]
    assert "conv2d_direct" not in kinds
    assert kinds.count("conv2d_winograd") >= len(BATTERY.cases)


# Channels, filters, height and width of layers.
# Of less than two tiles each way the rule takes smaller ones, and a mean of few errors says little.
LAYERS = [
    (16, 32, 11, 9),
    *(
        (int(c), int(o), int(h), int(w))
        for c, o, h, w in np.random.default_rng(0).integers(
            [16, 16, 7, 7], [400, 64, 24, 24], (4, 4)
        )
    ),
]
INPUTS = {
    "normal": lambda x: x,
    "after_relu": lambda x: np.maximum(x, 0),
    "with_mean": lambda x: np.maximum(x + 1, 0),
    "far_from_zero": lambda x: x + 10,
    "few_large": lambda x: x**5,
}
# Tiles, and how much of the contract they may use. Largest errors vary more than their means.
TILES = {(2, 2): 1.6, (2, 4): 2.5, (4, 4): TIMES_DIRECT}
TIMES_LARGEST = 1.5


def _filters(layer: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(layer)
    w = random.standard_normal((layer[1], layer[0], 3, 3)) / (3 * layer[0] ** 0.5)
    return w.astype(np.float32)


@pytest.fixture(scope="module")
def both() -> Executor:
    """Every layer by direct sums, and by each tile."""
    b = Battery()
    for k, layer in enumerate(LAYERS):
        c, _, h, w = layer
        f = _filters(layer)
        b.add(f"direct_{k}", lambda g, x, f=f: g.conv2d(x, constant(f), padding=SAME), (1, c, h, w))
        for t in TILES:
            u = constant(ops.winograd.transformed_filter(f, t))
            b.add(
                f"winograd_{t[0]}{t[1]}_{k}",
                lambda g, x, u=u, t=t: g.winograd_conv2d(x, u, tile=t, padding=SAME),
                (1, c, h, w),
            )
    exe = b.compile(Target("native").replace(winograd=0))
    kinds = [kernel.kernel_class for kernel in exe.kernels]
    assert kinds.count("conv2d_direct") == len(LAYERS)
    return Executor(exe.jit())


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("k", range(len(LAYERS)))
def test_errors_against_direct_sums(k: int, inputs: str, both: Executor) -> None:
    """The numerics contract: root mean square and largest error against float64."""
    c, _, h, w = LAYERS[k]
    x = np.random.default_rng([k, h]).standard_normal((1, c, h, w))
    x = INPUTS[inputs](x).astype(np.float32)
    conv = ops.get("conv2d")
    wide = [x.astype(np.float64), _filters(LAYERS[k]).astype(np.float64)]
    exact = conv.numpy(wide, conv.complete({"padding": SAME}))
    direct = np.abs(np.asarray(both[f"direct_{k}"](x)) - exact)
    for tile, times in TILES.items():
        winograd = np.abs(np.asarray(both[f"winograd_{tile[0]}{tile[1]}_{k}"](x)) - exact)
        mean = np.sqrt(np.mean(winograd**2)) / np.sqrt(np.mean(direct**2))
        largest = winograd.max() / direct.max()
        print(f"{tile}: {mean:.2f} times direct, largest {largest:.2f}: {winograd.max():.2g}")
        assert mean <= times
        assert largest <= TIMES_LARGEST * times


def test_a_filter_that_is_not_constant_is_refused() -> None:
    mod = graph(
        lambda g, x, u: g.winograd_conv2d(x, u, tile=(2, 2), padding=SAME),
        x=(1, 16, 8, 8),
        u=(16, 16, 4, 4),
    )
    with pytest.raises(UnsupportedError, match="winograd_conv2d needs a constant float32 filter"):
        compile_module(mod, Target("native"))
