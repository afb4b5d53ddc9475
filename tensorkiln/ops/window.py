"""Sliding windows over the last two dimensions, shared by convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value, maximum, minimum
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.rules import bad_attribute, mismatch, show_type


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: output i covers inputs i*stride - before + k*dilation, k < kernel."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def span(self) -> int:
        """Input elements from the first tap to the last."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, extent: ExprLike) -> Expr:
        """Windows that fit; with ceil_mode also one that ends past the padding, provided that it
        starts inside the input or the padding before it."""
        room = as_expr(extent) + (self.before + self.after - self.span)
        if not self.ceil_mode:
            return simplify(room // self.stride + 1)
        whole = (room + (self.stride - 1)) // self.stride + 1
        starts = (as_expr(extent) + (self.before - 1)) // self.stride + 1
        return simplify(minimum(whole, starts))

    def tap(self, i: Expr, k: ExprLike) -> Expr:
        """The input position of tap k of window i (may lie outside)."""
        return i * self.stride + as_expr(k) * self.dilation - self.before

    def place(self, position: Expr, extent: Expr) -> tuple[Expr, list[Expr]]:
        """The position clamped into the input, and the conditions under which it was inside."""
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
    """The two windows that an operator's checked attributes describe."""
    strides, (top, left, bottom, right) = a.strides, a.padding
    ceil = a.get("ceil_mode", False)
    return (
        Window(kernel[0], strides[0], top, bottom, dilation[0], ceil),
        Window(kernel[1], strides[1], left, right, dilation[1], ceil),
    )


def output_extents(op: str, x: TensorType, pair: tuple[Window, Window]) -> tuple[Expr, Expr]:
    """Output height and width; UserError where not one window fits into the padded input, or with
    ceil_mode begins so that the next step would be past its end."""
    for name, w, extent in zip(("height", "width"), pair, x.shape[2:], strict=True):
        n = int_value(extent)
        least = w.span - w.before - w.after - (w.stride - 1 if w.ceil_mode else 0)
        if n is not None and n < least:
            expected = f"a {name} of {least} or more (kernel {w.kernel})"
            raise mismatch(op, "x", expected, show_type(x))
    return pair[0].count(x.shape[2]), pair[1].count(x.shape[3])


def check_pool_padding(op: str, a: Attrs, pair: tuple[Window, Window]) -> None:
    """A pooling window must not lie in the padding alone."""
    for w in pair:
        if max(w.before, w.after) >= w.kernel:
            raise bad_attribute(op, "padding", "less than the kernel on each side", a.padding)
