"""The windows of convolutions and pooling: their strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, as_expr, int_value, maximum
from tensorkiln.ops.window import Window


class Same(Enum):
    """Padding with which there are ceil(extent / stride) windows: where an odd total has its larger
    half."""

    UPPER = "after the elements"
    LOWER = "before the elements"

    def halves(self, total: int) -> tuple[int, int]:
        """A total as (before, after)."""
        small = total // 2
        return (small, total - small) if self is Same.UPPER else (total - small, small)


@dataclass(frozen=True, slots=True)
class Windows:
    """What describes windows, with an entry for each spatial dimension; see `along`. `pads` has
    those before the elements, then those after; with `same` they follow from the extents."""

    kernel: Sequence[int]
    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    same: Same | None = None
    ceil_mode: bool = False

    def along(self, g: Context, x: Val) -> list[Window]:
        """The windows along each spatial dimension of x [N, C, ...]; NodeProblem if malformed."""
        n = spatial_rank(g, x)
        kernel = numbers(self.kernel, n, "kernel_shape")
        strides = numbers(self.strides or (1,) * n, n, "strides")
        dilations = numbers(self.dilations or (1,) * n, n, "dilations")
        if self.same is not None:
            rows = zip(g.shape(x)[2:], kernel, strides, dilations, strict=True)
            pads = [_same_padding(*row, self.same) for row in rows]
        else:
            flat = numbers(self.pads or (0,) * (2 * n), 2 * n, "pads", 0)
            pads = list(zip(flat[:n], flat[n:], strict=True))
        return [
            Window(kernel[i], strides[i], *pads[i], dilations[i], self.ceil_mode) for i in range(n)
        ]


def spatial_rank(g: Context, x: Val) -> int:
    """The number of spatial dimensions of x [N, C, ...]; NodeProblem if it has none."""
    if g.rank(x) < 3:
        raise malformed(f"expected [N, C, ...], got an operand of {g.rank(x)} dimensions")
    return g.rank(x) - 2


def numbers(values: Sequence[int], count: int, subject: str, minimum: int = 1) -> tuple[int, ...]:
    """`count` numbers of `minimum` or more; NodeProblem otherwise."""
    if len(values) != count or any(v < minimum for v in values):
        raise malformed(f"{subject}={list(values)}: expected {count} of {minimum} or more")
    return tuple(values)


def _same_padding(
    extent: Expr, kernel: int, stride: int, dilation: int, rule: Same
) -> tuple[int, int]:
    """The padding (before, after) of one dimension."""
    size, span = int_value(extent), (kernel - 1) * dilation + 1
    if size is None and stride != 1:
        raise unsupported("auto_pad=SAME with a stride over a symbolic dimension", "use pads")
    total = span - 1
    if size is not None:
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
    return rule.halves(total)


def padded_same(g: Context, x: Val, windows: Windows, fill: float) -> tuple[Val, Windows]:
    """Where `same` padding depends on symbolic extents: x [N, C, ...] with the elements `fill`
    around it, and the windows without padding; else both as they are."""
    n, rank = len(windows.kernel), g.rank(x)
    strides = windows.strides or (1,) * n
    extents = g.shape(x)[2:]
    symbolic = any(int_value(e) is None and s != 1 for e, s in zip(extents, strides, strict=False))
    if windows.same is None or not symbolic:
        return x, windows
    kernel = numbers(windows.kernel, rank - 2, "kernel_shape")
    strides = numbers(strides, n, "strides")
    dilations = numbers(windows.dilations or (1,) * n, n, "dilations")
    small: list[Expr] = []
    large: list[Expr] = []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        span = (k - 1) * d + 1
        total = ((extent + (s - 1)) // s - 1) * s + span - extent
        total = g.dims.simplify(total if span >= s else maximum(total, 0))
        small.append(g.dims.simplify(total // 2))
        large.append(g.dims.simplify(total - total // 2))
    before, after = (small, large) if windows.same is Same.UPPER else (large, small)
    lead = (as_expr(0),) * 2
    y = g.emit("pad", x, before=(*lead, *before), after=(*lead, *after), value=fill)
    return y, replace(windows, same=None, pads=None)
