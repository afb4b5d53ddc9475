"""Windows on a device of OpenCL, several rows and channels a thread, against float64: images of odd
sizes that are too small to be given such tiles otherwise."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tensorkiln.families.windows import gpu as windows
from tensorkiln.families.windows.gpu import WindowTile, tile_of
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call
from tensorkiln.kernels.case import rand
from tests.schedule.battery import Battery, typed
from tests.schedule.gpu.runner import DeviceRunner, groups_for
from tests.transform.graphs import graph

N, S, T = Var("N"), Var("S"), Var("T")
ONE = (1, 1, 1, 1)
# (channels, outputs, window, groups), (height, width), attributes, the tile of a thread
CONVOLUTIONS: list[tuple[Any, Any, dict[str, object], tuple[int, int]]] = [
    ((5, 5, (3, 3), 5), (9, 11), {"padding": ONE}, (1, 3)),
    ((5, 5, (3, 3), 5), (19, 6), {"padding": ONE}, (1, 4)),
    ((6, 6, (5, 5), 6), (13, 9), {"padding": (2, 2, 2, 2), "strides": (2, 2)}, (1, 7)),
    ((4, 8, (3, 2), 4), (8, 9), {"dilation": (2, 3), "padding": (2, 0, 1, 3)}, (1, 7)),
    ((4, 12, (3, 3), 2), (9, 7), {"padding": ONE}, (3, 3)),
    ((9, 9, (3, 3), 3), (23, 5), {"padding": ONE}, (3, 4)),
    ((6, 5, (2, 3), 1), (11, 8), {}, (1, 5)),
]
POOLS: list[tuple[str, tuple[object, ...], dict[str, object], tuple[int, int]]] = [
    ("max_pool2d", (2, 3, 9, 8), {"kernel": (3, 3), "strides": (2, 2), "padding": ONE}, (1, 5)),
    ("max_pool2d", (1, 3, 10, 7), {"kernel": (2, 3), "strides": (3, 2), "ceil_mode": True}, (1, 4)),
    ("max_pool2d", (N, 2, 12, 5), {"kernel": (3, 3), "dilation": (2, 1)}, (1, 4)),
    ("avg_pool2d", (2, 3, S, T), {"kernel": (3, 2), "padding": ONE}, (1, 4)),
    ("avg_pool2d", (1, 3, 19, 5), {"kernel": (2, 2), "count_include_pad": True}, (1, 3)),
]


def _battery() -> tuple[Battery, dict[str, tuple[int, int]]]:
    b, tiles = Battery(), {}
    for k, ((inputs, outputs, window, groups), size, attrs, tile) in enumerate(CONVOLUTIONS):
        w, bias = rand(outputs, inputs // groups, *window, seed=k), rand(outputs, seed=k)
        tiles[f"conv_{k}"] = tile
        b.add(
            f"conv_{k}",
            lambda g, x, w=w, v=bias, a=attrs, n=groups: g.relu(g.conv2d(x, w, v, groups=n, **a)),
            (2, inputs, *size),
            tolerance=1e-5,
        )
    for k, (op, shape, attrs, tile) in enumerate(POOLS):
        tiles[f"pool_{k}"] = tile
        sizes = [{"N": n, "S": s, "T": t} for n, s, t in ((1, 3, 9), (3, 8, 4))]
        b.add(f"pool_{k}", lambda g, x, o=op, a=attrs: g.emit(o, x, **a), shape, sizes=sizes)
    tiles["bytes"] = (1, 4)
    b.add("bytes", lambda g, x: g.max_pool2d(x, kernel=(2, 2)), typed("int8", 1, 3, 9, 4))
    tiles["residual"] = (1, 3)
    b.add(
        "residual",
        lambda g, x, y: g.add(g.conv2d(g.exp(x), rand(3, 1, 3, 3), groups=3, padding=ONE), y),
        (1, 3, 9, 7),
        (1, 3, 9, 7),
        tolerance=1e-5,
    )
    return b, tiles


BATTERY, TILES = _battery()


@cache
def runner() -> DeviceRunner:
    return DeviceRunner(BATTERY)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_threads_of_several_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_FULL", 1)
    (group,) = (
        g
        for g in groups_for(IRModule((BATTERY.cases[name].function,), name))
        if _is_window(g.anchor)
    )
    assert tile_of(group) == WindowTile(*TILES[name])
    runner().check(name)


def _is_window(anchor: Call | None) -> bool:
    return anchor is not None and anchor.op in ("conv2d", "max_pool2d", "avg_pool2d")


@pytest.mark.parametrize(
    ("shape", "groups", "tile"),
    [
        ((1, 32, 112, 112), 32, (1, 4)),
        ((1, 1024, 7, 7), 1024, (1, 1)),  # fewer sums a thread, or a device is not full
        ((8, 1024, 7, 7), 1024, (1, 7)),
        ((N, 64, 56, 56), 16, (2, 4)),
        ((N, 64, S, 56), 64, (1, 4)),
        ((1, 64, 149, 149), 64, (1, 4)),
    ],
)
def test_tiles_fill_a_device(shape: tuple[object, ...], groups: int, tile: tuple[int, int]) -> None:
    channels = shape[1]
    assert isinstance(channels, int)
    w = rand(channels, channels // groups, 3, 3)
    mod = graph(lambda g, x: g.conv2d(x, w, padding=ONE, groups=groups), x=shape)
    (group,) = groups_for(mod)
    assert tile_of(group) == WindowTile(*tile)
