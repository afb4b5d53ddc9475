"""The attributes that describe the windows of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, as_expr, int_value, maximum
from tensorkiln.ops.window import Window


def same_padding(
    extent: Expr, kernel: int, stride: int, dilation: int, upper: bool
) -> tuple[int, int]:
    """Padding (before, after) with which the result has ceil(extent / stride) elements.

    An odd total has its larger half after (`upper`) or before.
    """
    size, window = int_value(extent), (kernel - 1) * dilation + 1
    if size is None and stride != 1:
        raise unsupported("auto_pad=SAME with a stride over a symbolic dimension", "use pads")
    total = window - 1
    if size is not None:
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def padded_same(g: Context, x: Val, windows: Windows, fill: float) -> tuple[Val, Windows]:
    """Where `auto_pad` depends on symbolic extents: x [N, C, ...] with the elements `fill` around
    it that it asks for, and the windows without padding; else both as they are."""
    n, rank = len(windows.kernel_shape), g.rank(x)
    strides = windows.strides or (1,) * n
    extents = g.shape(x)[2:]
    symbolic = any(int_value(e) is None and s != 1 for e, s in zip(extents, strides, strict=False))
    if windows.auto_pad not in ("SAME_UPPER", "SAME_LOWER") or not symbolic:
        return x, windows
    kernel = _each(windows.kernel_shape, rank - 2, "kernel_shape")
    strides = _each(strides, n, "strides")
    dilations = _each(windows.dilations or (1,) * n, n, "dilations")
    small: list[Expr] = []
    large: list[Expr] = []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        span = (k - 1) * d + 1
        total = ((extent + (s - 1)) // s - 1) * s + span - extent
        total = g.dims.simplify(total if span >= s else maximum(total, 0))
        small.append(g.dims.simplify(total // 2))
        large.append(g.dims.simplify(total - total // 2))
    before, after = (small, large) if windows.auto_pad == "SAME_UPPER" else (large, small)
    lead = (as_expr(0),) * 2
    y = g.emit("pad", x, before=(*lead, *before), after=(*lead, *after), value=fill)
    return y, replace(windows, auto_pad="NOTSET", pads=None)


@dataclass(frozen=True, slots=True)
class Windows:
    """The attributes that describe windows, as the model gives them; see `along`."""

    kernel_shape: Sequence[int]
    strides: Sequence[int] | None
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    auto_pad: str
    ceil_mode: bool

    def along(self, g: Context, x: Val) -> list[Window]:
        """The windows along each spatial dimension of x [N, C, ...]; NodeProblem if malformed."""
        n = g.rank(x) - 2
        if n < 1:
            raise malformed(f"expected [N, C, ...], got an operand of {g.rank(x)} dimensions")
        kernel = _each(self.kernel_shape, n, "kernel_shape")
        strides = _each(self.strides or (1,) * n, n, "strides")
        dilations = _each(self.dilations or (1,) * n, n, "dilations")
        pads = self._pads(g, x, kernel, strides, dilations)
        return [
            Window(kernel[i], strides[i], *pads[i], dilations[i], self.ceil_mode) for i in range(n)
        ]

    def _pads(
        self,
        g: Context,
        x: Val,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> list[tuple[int, int]]:
        """The padding (before, after) of each dimension."""
        n = len(kernel)
        if self.auto_pad in ("NOTSET", ""):
            pads = _each(self.pads or (0,) * (2 * n), 2 * n, "pads", 0)
            return [(pads[i], pads[n + i]) for i in range(n)]
        if self.auto_pad == "VALID":
            return [(0, 0)] * n
        if self.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            raise malformed(f"auto_pad={self.auto_pad!r}")
        upper = self.auto_pad == "SAME_UPPER"
        extents = g.shape(x)[2:]
        return [
            same_padding(extents[i], kernel[i], strides[i], dilations[i], upper) for i in range(n)
        ]


def _each(values: Sequence[int], count: int, what: str, least: int = 1) -> tuple[int, ...]:
    if len(values) != count or any(v < least for v in values):
        raise malformed(f"{what}={list(values)}: expected {count} of {least} or more")
    return tuple(values)
