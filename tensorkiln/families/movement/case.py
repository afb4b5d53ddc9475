"""Cases of data movement."""

from __future__ import annotations

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, rand


def _transpose(*axes: int) -> Build:
    return lambda g, x: g.transpose(x, axes=axes)


def _channels(g: Graph, x: RVar) -> Value:
    """Rows of pixels become channel blocks with a halo."""
    return g.conv2d(g.neg(x), rand(20, 1, 3, 3), padding=(1, 1, 1, 1), groups=20)


def _plain(g: Graph, x: RVar) -> Value:
    """Blocks of channels, the last one partial, become rows of pixels."""
    return g.conv2d(x, rand(21, 3, 1, 1))


def _pixels(g: Graph, x: RVar) -> Value:
    """Every other pixel, which goes where all of them were."""
    y = g.slice(
        g.conv2d(x, rand(48, 3, 1, 1)),
        begin=(0, 0, 0, 1),
        strides=(1, 1, 2, 2),
        shape=(1, 48, 4, 3),
    )
    return g.conv2d(y, rand(16, 48, 1, 1))


CASES: dict[str, Case] = {
    "relayout_signal": Case("movement", _channels, (1, 20, 1, 2048)),
    "relayout_signal_odd": Case("movement", _channels, (1, 20, 1, 2049)),
    "pixels": Case("movement", _pixels, (1, 3, 7, 7)),
    "transpose": Case("movement", _transpose(1, 0), (37, 53)),
    "transpose_parallel": Case("movement", _transpose(1, 0), (300, 301)),
    "transpose_crowded": Case("movement", _transpose(1, 0), (512, 40)),
    "transpose_crowded_around": Case("movement", _transpose(0, 2, 1), (2, 256, 40)),
    "transpose_around": Case("movement", _transpose(0, 2, 1, 3), (2, 12, 9, 64)),
    "transpose_thin": Case("movement", _transpose(0, 3, 1, 2), (1, 9, 9, 3)),
    "relayout_into": Case("movement", _channels, (1, 20, 5, 9)),
    "relayout_out": Case("movement", _plain, (1, 3, 6, 7)),
    "slice": Case(
        "movement", lambda g, x: g.slice(x, begin=(1, 3), shape=(5, 37), strides=(1, 1)), (7, 41)
    ),
    "slice_with_steps": Case(
        "movement", lambda g, x: g.slice(x, begin=(1, 3), shape=(5, 9), strides=(1, 3)), (7, 41)
    ),
}
