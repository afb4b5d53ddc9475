"""Transposed convolution of images [N, C, H, W]: what each element adds to the window around it.

Along one dimension, of stride s and a kernel of k taps, input i adds x[i] * w[t] to element
s * i + t of the full result, of s * (extent - 1) + k elements. Read the other way, element
o = s * q + r (r < s) is the sum of x[q - u] * w[r + s * u] over u: a convolution by every s-th tap.
`r` is the *phase* of the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    Reduce,
    Var,
    as_expr,
    cast,
    const,
    int_value,
    logical_and,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    FLOAT,
    mismatch,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    same_extent,
    show,
    show_type,
)

_NAME = "conv2d_transpose"
_LEAST = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Phases:
    """A transposed convolution along one dimension: `before` and `after` are the elements of the
    full result that are left out at its ends; negative ones are added, without any sum."""

    kernel: int
    stride: int
    before: int
    after: int

    def count(self, extent: ExprLike) -> Expr:
        """The extent of the result, for an image of `extent`."""
        full = (as_expr(extent) - 1) * self.stride + self.kernel
        return simplify(full - (self.before + self.after))

    def taps(self, phase: int) -> int:
        """How many taps the elements stride * q + phase of the result sum up; perhaps none."""
        return max(0, -(-(self.kernel - self.tap(phase)) // self.stride))

    def tap(self, phase: int) -> int:
        """The first of these taps; the next are `stride` apart."""
        return (phase + self.before) % self.stride

    def input(self, phase: int) -> int:
        """The element that the first tap of element `phase` reads; later ones one less each."""
        return (phase + self.before) // self.stride

    def places(self, phase: int, extent: int) -> int:
        """How many elements of a phase there are, of `extent` in all."""
        return max(0, -(-(extent - phase) // self.stride))


def phases_of(w: TensorType, a: Attrs) -> tuple[Phases, Phases]:
    """Along height and width; UserError if the extents of the kernel are symbolic."""
    kernel = [int_value(d) for d in w.shape[2:]]
    if None in kernel:
        raise mismatch(_NAME, "w", "a kernel of known height and width", show_type(w))
    (top_cut, left_cut, bottom_cut, right_cut), (sh, sw) = a.cut, a.strides
    return Phases(kernel[0] or 0, sh, top_cut, bottom_cut), Phases(
        kernel[1] or 0, sw, left_cut, right_cut
    )


def _infer(types: Operands, a: Attrs) -> TensorType:
    x, w = types[:2]
    require_ndim(_NAME, "x", x, 4, "(NCHW)")
    require_ndim(_NAME, "w", w, 4, "(inputs, outputs of a group, height, width)")
    require_dtype(_NAME, "x", x, FLOAT)
    dtype = require_same_dtype(_NAME, ("x", "w", "bias"), types)
    if not same_extent(x.shape[1], w.shape[0]):
        raise mismatch(_NAME, "x", f"{show(w.shape[0])} channels", show_type(x))
    inputs, outputs = int_value(w.shape[0]), simplify(w.shape[1] * a.groups)
    if inputs == 0 or (a.groups > 1 and (inputs is None or inputs % a.groups)):
        raise mismatch(_NAME, "w", f"a multiple of {a.groups} input channels", show_type(w))
    if len(types) > 2:
        require_shape(_NAME, "bias", types[2], (outputs,), "one value per output channel")
    pair = phases_of(w, a)
    for name, p, extent in zip(("height", "width"), pair, x.shape[2:], strict=True):
        n = int_value(extent)
        if not p.kernel or (n is not None and (n < 1 or (int_value(p.count(n)) or 0) < 1)):
            expected = f"a {name} of which cut={a.cut} leaves something"
            raise mismatch(_NAME, "x", expected, show_type(x))
    height, width = (p.count(n) for p, n in zip(pair, x.shape[2:], strict=True))
    return TensorType((x.shape[0], outputs, height, width), dtype)


def _program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
    x, w = ins[:2]
    pair = phases_of(w.type, a)
    group_outputs = w.type.shape[1]

    def element(n: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        channels = simplify(w.type.shape[0] // a.groups)
        axes, places, inside = [(Var("ic"), channels)], [], []
        for name, p, place, extent in zip(
            ("th", "tw"), pair, (i, j), x.type.shape[2:], strict=True
        ):
            step = Var(name)
            full = place + p.before
            tap, source = full % p.stride + step * p.stride, full // p.stride - step
            axes.append((step, as_expr(-(-p.kernel // p.stride))))
            inside += [source >= 0, source < extent]
            if p.kernel % p.stride:
                inside.append(tap < p.kernel)
                tap = minimum(tap, p.kernel - 1)
            places.append((tap, maximum(minimum(source, extent - 1), 0)))
        c = axes[0][0] if a.groups == 1 else o // group_outputs * channels + axes[0][0]
        (kh, y), (kw, z) = places
        m = o if a.groups == 1 else o % group_outputs
        value = select(logical_and(*inside), x(n, c, y, z), const(0, out.dtype))
        total: Expr = Reduce("sum", tuple(axes), value * cast(w(c, m, kh, kw), out.dtype))
        return total + ins[2](o) if len(ins) > 2 else total

    return element


def _numpy(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    """Each tap adds one matrix product to the elements that it is for."""
    x, w = arrays[:2]
    (sh, sw), (top_cut, left_cut, bottom_cut, right_cut) = a.strides, a.cut
    batch, channels, height, width = x.shape
    group_outputs, kh, kw = w.shape[1:]
    size = (height - 1) * sh + kh, (width - 1) * sw + kw
    full = np.zeros((batch, a.groups * group_outputs, *size), x.dtype)
    image = x.reshape(batch, a.groups, channels // a.groups, height * width)
    filters = w.reshape(a.groups, channels // a.groups, group_outputs, kh, kw)
    for r in range(kh):
        for s in range(kw):
            product = filters[..., r, s].transpose(0, 2, 1) @ image
            product = product.reshape(batch, a.groups * group_outputs, height, width)
            full[:, :, r : r + height * sh : sh, s : s + width * sw : sw] += product
    pads = [
        (max(-low, 0), max(-high, 0))
        for low, high in ((top_cut, bottom_cut), (left_cut, right_cut))
    ]
    full = np.pad(full, ((0, 0), (0, 0), *pads))
    rows = slice(max(top_cut, 0), full.shape[2] - max(bottom_cut, 0))
    columns = slice(max(left_cut, 0), full.shape[3] - max(right_cut, 0))
    out = np.ascontiguousarray(full[:, :, rows, columns])
    return out + arrays[2][:, None, None] if len(arrays) > 2 else out


TRANSPOSED: dict[str, OpDef] = {
    _NAME: OpDef(
        _NAME,
        ("x", "w", "bias?"),
        {
            "strides": at.integers(2, 1, (1, 1)),
            "cut": at.integers(4, _LEAST, (0, 0, 0, 0)),
            "groups": at.integer(1, 1),
        },
        "contraction",
        _infer,
        _numpy,
        _program,
    )
}
