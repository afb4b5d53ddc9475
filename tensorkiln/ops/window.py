"""Sliding windows over the last two dimensions, shared by convolution and pooling."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value, maximum, minimum
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.need import Need, at_least
from tensorkiln.ops.rules import bad_attribute


@dataclass(frozen=True, slots=True)
class Window:
    """The windows along one dimension: output i reads inputs i*stride - before + k*dilation, for
    0 <= k < kernel. `before` and `after` are the padding; with `ceil_mode` the number of outputs is
    rounded up."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def span(self) -> int:
        """Input elements from the first tap to the last, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, extent: ExprLike) -> Expr:
        """Return the number of windows that fit into the padded input. With ceil_mode one more may
        end past the padding, if it starts inside the input or the padding before it."""
        room = as_expr(extent) + (self.before + self.after - self.span)
        if not self.ceil_mode:
            return simplify(room // self.stride + 1)
        whole = (room + (self.stride - 1)) // self.stride + 1
        starts = (as_expr(extent) + (self.before - 1)) // self.stride + 1
        return simplify(minimum(whole, starts))

    def tap(self, i: Expr, k: ExprLike) -> Expr:
        """Return the input position of tap k of window i; in the padding it is out of bounds."""
        return i * self.stride + as_expr(k) * self.dilation - self.before

    def place(self, position: Expr, extent: Expr) -> tuple[Expr, list[Expr]]:
        """Return the position clamped into the input, and conditions that all hold if it was
        inside. Sides without padding are neither clamped nor tested."""
        conds = []
        if self.before:
            conds.append(position >= 0)
        if self.after or self.ceil_mode:
            conds.append(position < extent)
            position = minimum(position, extent - 1)
        return (maximum(position, 0) if self.before else position), conds


def windows(
    a: Attrs, kernel: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> tuple[Window, Window]:
    """Return the windows along height and width for the attributes `strides`, `padding` (top,
    left, bottom, right) and `ceil_mode` of an operator."""
    strides, (top_pad, left_pad, bottom_pad, right_pad) = a.strides, a.padding
    ceil = a.get("ceil_mode", False)
    return (
        Window(kernel[0], strides[0], top_pad, bottom_pad, dilation[0], ceil),
        Window(kernel[1], strides[1], left_pad, right_pad, dilation[1], ceil),
    )


def output_extents(x: TensorType, pair: tuple[Window, Window]) -> tuple[Expr, Expr]:
    """Return output height and width."""
    return pair[0].count(x.shape[2]), pair[1].count(x.shape[3])


def window_needs(x: TensorType, pair: tuple[Window, Window]) -> Iterator[Need]:
    """A window fits into the padded input, and none reads an input without elements: with
    ceil_mode, one may end up to stride - 1 elements past it. Of symbolic extents there may be no
    window, which is an empty result, as long as their number does not become negative."""
    for name, w, extent in zip(("height", "width"), pair, x.shape[2:], strict=True):
        if int_value(extent) is None:
            # of more elements there are as many windows or more
            minimum = bisect_left(range(w.span), 0, key=partial(_windows_of, w))
            minimum = 1 if _windows_of(w, 0) > 0 else minimum
        else:
            minimum = w.span - w.before - w.after - (w.stride - 1 if w.ceil_mode else 0)
            minimum = max(minimum, 1)
        expected = f"a {name} of {minimum} or more (kernel {w.kernel})"
        yield at_least(extent, minimum, 0, expected)


def _windows_of(w: Window, extent: int) -> int:
    return int_value(w.count(extent)) or 0


def check_pool_padding(op: str, a: Attrs, pair: tuple[Window, Window]) -> None:
    """Raise UserError if a pooling window could lie entirely in the padding."""
    for w in pair:
        if max(w.before, w.after) >= w.kernel:
            raise bad_attribute(op, "padding", "less than the kernel on each side", a.padding)
