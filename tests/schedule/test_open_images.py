"""Convolutions, pooling and layouts of images and signals of unknown size, at sizes around tiles,
patches and windows: against NumPy in float64, with any number of threads.

All sizes run in one library, one after the other: what a smaller image leaves of a larger one in
the workspace would be seen where a halo's zeros are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import RVar, Value, constant
from tensorkiln.kernels.case import Graph, rand
from tests.codegen.kernels import EVERY_LEVEL, FORMS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, arguments, typed

H, W, N = Var("H"), Var("W"), Var("N")
PICTURES = [
    {"H": h, "W": w}
    for h, w in (
        *((31, 20), (1, 1), (1, 2), (2, 1), (3, 5), (7, 7), (8, 14), (13, 29)),
        *((5, 64), (50, 3), (6, 15), (28, 13), (4, 2), (17, 40)),
    )
]
LENGTHS = [{"W": w} for w in (300, 1, 2, 3, 7, 13, 14, 15, 27, 64, 101, 1000, 4)]
SQUARES = [{"H": n} for n in (9, 1, 2, 14, 23)]

Build = Callable[[Graph, RVar], Value]


def _conv(outs: int, ins: int, k: int | tuple[int, int], *, pad: object = None, **attrs: object):  # noqa: ANN202
    kh, kw = (k, k) if isinstance(k, int) else k
    padding = (kh // 2, kw // 2) * 2 if pad is None else pad
    w, b = rand(outs, ins, kh, kw), rand(outs)
    return lambda g, x: g.conv2d(x, w, b, padding=padding, **attrs)


def _chain(*steps: Build) -> Build:
    def build(g: Graph, x: RVar) -> Value:
        for step in steps:
            x = step(g, x)  # type: ignore[assignment]
        return x

    return build


def _residual(channels: int, k: int) -> Build:
    """A block whose sum may be computed in the place of its operand."""

    def build(g: Graph, x: RVar) -> Value:
        x = _conv(channels, int_value(x.tensor.shape[1]) or 0, 1)(g, x)
        y = g.relu(_conv(channels, channels, k)(g, x))
        y = _conv(channels, channels, k)(g, y)
        y = g.relu(g.add(y, x))
        return g.leaky_relu(_conv(channels, channels, 1)(g, y), alpha=0.1)

    return build


def _gated(g: Graph, x: RVar) -> Value:
    values, gate = _conv(32, 8, 3)(g, x), _conv(32, 8, 3)(g, x)
    return _conv(9, 32, 1)(g, g.mul(g.tanh(values), g.sigmoid(gate)))


def _two_readers(g: Graph, x: RVar) -> Value:
    """An image read with borders of two widths, and as it is."""
    y = _conv(20, 8, 1)(g, x)
    return g.add(g.add(_conv(20, 20, 5)(g, y), _conv(20, 20, 3)(g, y)), y)


def _pool(op: str, kernel: tuple[int, int], **attrs: object) -> Build:
    """Between convolutions, the second of which reads a border."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.emit(op, _conv(24, 8, 1)(g, x), kernel=kernel, **attrs)
        return _conv(10, 24, 3)(g, y)

    return build


def _signal(*steps: Build) -> Build:
    """Of a signal [n, c, L]: reshaped around each step, as importers do."""

    def build(g: Graph, x: RVar) -> Value:
        for step in steps:
            n, c, length = x.tensor.shape
            y = step(g, g.reshape(x, shape=(n, c, 1, length)))
            n, c, _, length = y.type.shape  # type: ignore[union-attr]
            x = g.tanh(g.reshape(y, shape=(n, c, length)))
        return x

    return build


def _scaled_signal(g: Graph, x: RVar) -> Value:
    """Between convolutions of signals, operands that broadcast, in every form."""
    n, c, length = x.tensor.shape
    y = g.reshape(
        _conv(16, 8, (1, 3))(g, g.reshape(x, shape=(n, c, 1, length))), shape=(n, 16, length)
    )
    z = g.add(g.mul(y, rand(16, 1)), rand(1, 16, 1))
    z = g.add(g.sub(z, y), 1.0)
    z = g.where(g.less(z, y), z, g.mul(g.sigmoid(y), z))
    return g.reshape(
        _conv(5, 16, (1, 3))(g, g.reshape(z, shape=(n, 16, 1, length))), shape=(n, 5, length)
    )


def _viewed(outs: int, view: Callable[[Expr, Expr], tuple[Expr | int, Expr | int]]) -> Build:
    """A convolution of what is 2 x 3 as many elements in rows of another length, and back."""

    def build(g: Graph, x: RVar) -> Value:
        n, c, *_, h, w = x.tensor.shape
        y = g.reshape(x, shape=(n, c, *view(h, w)))
        y = g.relu(_conv(outs, int_value(c) or 0, 3)(g, y))
        y = g.reshape(y, shape=(n, outs, 2, 3, h, w))
        return g.transpose(y, axes=(0, 1, 2, 4, 3, 5))

    return build


def _bytes(*shape: int) -> Value:
    draw = np.random.default_rng(shape)
    return constant(draw.integers(-128, 128, shape).astype(np.int8))


def _whole(op: str) -> Build:
    return lambda g, x: g.emit(op, g.relu(_conv(40, 8, 3)(g, x)), axes=(2, 3), keepdims=True)


def _cases() -> Battery:
    b = Battery()

    def pictures(name: str, build: Build, channels: int, *, batch: int | Var = 1) -> None:
        sizes = PICTURES
        if batch is N:
            sizes = [{**s, "N": 1 + k % 3} for k, s in enumerate(PICTURES)]
        b.add(name, build, (batch, channels, H, W), sizes=sizes, tolerance=2e-5)

    for outs, ins, k in ((16, 3, 7), (33, 8, 3), (70, 40, 1), (5, 16, 5), (96, 17, 3), (64, 64, 1)):
        pictures(f"conv_{outs}_{ins}_{k}", _conv(outs, ins, k), ins)
    pictures("strides", _conv(33, 16, 3, strides=(2, 2)), 16)
    pictures("other_strides", _conv(20, 16, (5, 3), strides=(3, 1), pad=(2, 1, 2, 1)), 16)
    pictures("dilated", _conv(20, 16, 3, dilation=(2, 3), pad=(2, 3, 2, 3)), 16)
    pictures("one_sided", _conv(20, 16, (3, 4), pad=(2, 0, 0, 3)), 16)
    pictures("grouped", _conv(32, 8, 3, groups=4), 32)
    pictures("grouped_few", _conv(12, 2, 3, groups=6), 12)
    pictures("batch", _conv(33, 16, 3), 16, batch=N)
    pictures("depthwise", _conv(40, 1, 3, groups=40), 40)
    pictures("depthwise_strides", _conv(40, 1, 3, groups=40, strides=(2, 2)), 40, batch=2)
    pictures("depthwise_wide", _conv(19, 1, (5, 7), groups=19), 19)
    pictures("depthwise_dilated", _conv(16, 1, 3, groups=16, dilation=(2, 2), pad=(2,) * 4), 16)
    pictures("residual", _residual(40, 3), 8)
    pictures("winograd", _chain(_conv(64, 8, 1), _residual(64, 3)), 8)
    pictures("winograd_dilated", _conv(64, 64, 3, pad=(2, 3) * 2, dilation=(2, 3)), 64)
    pictures("winograd_batch", _chain(_conv(72, 72, 3), _conv(72, 72, 3)), 72, batch=N)
    pictures("winograd_panels", _conv(256, 128, 3), 128)
    pictures("gated", _gated, 8)
    pictures("two_readers", _two_readers, 8)
    for op, more in (("max_pool2d", {}), ("avg_pool2d", {"count_include_pad": False})):
        pictures(f"{op}_3", _pool(op, (3, 3), strides=(2, 2), padding=(1,) * 4, **more), 8)
        pictures(f"{op}_2", _pool(op, (2, 2), padding=(1, 1, 0, 0)), 8, batch=2)
        pictures(
            f"{op}_ceil",
            _pool(op, (3, 2), strides=(2, 3), padding=(1, 0, 1, 1), ceil_mode=True, **more),
            8,
        )
    for op in ("mean", "max", "sum"):
        pictures(f"whole_{op}", _whole(op), 8, batch=3)
    b.add("rows", _residual(20, 3), (1, 8, H, 9), sizes=SQUARES, tolerance=2e-5)
    b.add("square", _residual(20, 3), (1, 8, H, H), sizes=SQUARES, tolerance=2e-5)
    odd = _conv(64, 64, 3)
    b.add(  # the second parameter gives H
        "odd_extents",
        lambda g, x, _: odd(g, x),
        (1, 64, H * 2 + 1, H + 3),
        (H,),
        sizes=SQUARES,
        tolerance=2e-5,
    )
    b.add("winograd_rows", _conv(64, 64, 3), (1, 64, H, 9), sizes=SQUARES, tolerance=2e-5)
    b.add("winograd_columns", _conv(64, 64, 3), (1, 64, 9, W), sizes=LENGTHS, tolerance=2e-5)
    b.add("few_rows", _conv(40, 16, 3), (2, 16, 3, W), sizes=LENGTHS, tolerance=2e-5)

    def signals(name: str, build: Build, channels: int) -> None:
        b.add(name, build, (2, channels, W), sizes=LENGTHS, tolerance=2e-5)

    for k, d in ((1, 1), (3, 1), (7, 3), (11, 5)):
        pad = (0, (k - 1) * d // 2) * 2
        layer = _conv(20, 20, (1, k), pad=pad, dilation=(1, d))
        signals(f"signal_{k}_{d}", _signal(layer, layer), 20)
    signals("causal", _signal(_conv(20, 8, (1, 3), pad=(0, 8, 0, 0), dilation=(1, 4))), 8)
    signals("signal_strides", _signal(_conv(20, 8, (1, 5), strides=(1, 2))), 8)
    signals("signal_depthwise", _signal(_conv(20, 1, (1, 5), groups=20)), 20)
    signals("signal_grouped", _signal(_conv(40, 10, (1, 3), groups=2)), 20)
    signals("signal_wide", _signal(_conv(300, 8, (1, 3)), _conv(1, 300, (1, 3))), 8)
    signals("scaled_signal", _scaled_signal, 8)
    views = {
        "one_row": lambda h, w: (1, h * w * 6),
        "rows": lambda h, w: (6, h * w),
        "columns": lambda h, w: (h * 6, w),
        "few_columns": lambda h, w: (h * w, 6),
        "both": lambda h, w: (h * 2, w * 3),
    }
    for (name, view), (outs, ins) in product(views.items(), ((16, 16), (20, 3))):
        shape = (1, ins, 2, 3, H, W)
        b.add(f"{name}_{outs}", _viewed(outs, view), shape, sizes=PICTURES, tolerance=2e-5)
    for ins, groups in ((3, 1), (40, 1), (32, 4)):
        w = _bytes(24, ins // groups, 3, 3)
        b.add(
            f"bytes_{ins}_{groups}",
            lambda g, x, w=w, groups=groups: g.conv2d(x, w, padding=(1,) * 4, groups=groups),
            typed("uint8", 1, ins, H, W),
            sizes=PICTURES,
            make=lambda seed, dtype, shape: (
                np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
            ),
            exact=True,
        )
    return b


def _kind(name: str) -> str:
    """Of each some are in every run."""
    words = ("winograd", "depthwise", "signal", "pool", "whole", "bytes", "rows", "columns", "both")
    return next((word for word in words if word in name), "conv")


BATTERY = _cases().in_turn(_kind)


@pytest.fixture(scope="module", params=[*EVERY_LEVEL, "c"])
def run(request: pytest.FixtureRequest) -> Library:
    return load(BATTERY.compile(FORMS[request.param]))


@pytest.mark.parametrize("name", [n for n in BATTERY.cases if not n.startswith("bytes")])
def test_nothing_is_left_of_what_was_in_memory(name: str, run: Library) -> None:
    """After a run on NaN alone, which a halo's zeros, and those of channels that do not exist, must
    keep from the next image: 0 * NaN is NaN."""
    case = BATTERY.cases[name]
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        run[name](*(np.full_like(x, np.nan) for x in inputs.values()))
        smaller = case.sizes[-1 - k]
        found = np.asarray(run[name](*arguments(case, smaller, k).values()))
        assert np.isfinite(found).all(), f"{smaller} after {sizes}"


@pytest.mark.parametrize("name", BATTERY.cases)
def test_against_numpy(name: str, run: Library) -> None:
    BATTERY.check(name, run)
