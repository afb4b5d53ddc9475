"""Transposed convolutions as other operators: one convolution computes all phases of the strides as
output channels, which are then interleaved.

    y = conv2d_transpose(x, w)  ->  z = conv2d(x, w'); slice(reshape(transpose(reshape(z))))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value, constant
from tensorkiln.ops.transposed import phases_of


def _sizes(*shape: ExprLike) -> tuple[int | Expr, ...]:
    """Extents, as numbers where they are known."""
    extents = [simplify(as_expr(d)) for d in shape]
    return tuple(d if (n := int_value(d)) is None else n for d in extents)


class _Emitter:
    """Collects the calls that replace one call; calls of constants are computed at once."""

    def __init__(self, b: Binding):
        self.call, self.name, self.bindings = b.value, b.var.name, list[Binding]()

    def __call__(self, op: str, *args: Value, **attrs: Any) -> Value:
        assert isinstance(self.call, Call)
        new = ops.call(op, *args, span=self.call.span, **attrs)
        constants = [a for a in args if isinstance(a, Constant)]
        if len(constants) == len(args):
            folded_array = ops.get(op).numpy([a.array for a in constants], new.attrs)
            return constant(np.ascontiguousarray(folded_array), constants[0].name)
        var = RVar(f"{self.name}_{op}{len(self.bindings) + 1}", ops.infer(new))
        self.bindings.append(Binding(var, new))
        return var

    def cropped(self, x: Value, margins: Sequence[int]) -> Value:
        """`x` without the rows and columns that `margins` (top, left, bottom, right) counts."""
        if not any(margins):
            return x
        shape = _shape(x)
        sizes = [n - margins[i] - margins[i + 2] for i, n in enumerate(shape[2:])]
        inner_shape = _sizes(*shape[:2], *sizes)
        return self("slice", x, begin=(0, 0, *margins[:2]), strides=(1,) * 4, shape=inner_shape)


def _shape(x: Value) -> tuple[Expr, ...]:
    assert isinstance(x.type, TensorType)
    return x.type.shape


def decomposed(b: Binding) -> list[Binding]:
    """One convolution whose output channels are (group, phase of rows, of columns, channel)."""
    call, emit = b.value, _Emitter(b)
    assert isinstance(call, Call)
    x, w, *bias = call.args
    assert isinstance(w.type, TensorType)
    pair, groups, step = phases_of(w.type, call.attrs), call.attrs.groups, call.attrs.strides
    # The distance of the last result from stride * (extent - 1), where the last element lies.
    last = [p.kernel - 1 - p.after for p in pair]
    near = [-(-p.kernel // p.stride) - 1 - p.before // p.stride for p in pair]
    far = [n // p.stride for n, p in zip(last, pair, strict=True)]
    pads = [*near, *far]
    image = emit.cropped(x, [max(-n, 0) for n in pads])
    filters = _phases(emit, w, groups, step)
    widened = [_of_phases(emit, v, groups, step) for v in bias]
    padding = tuple(max(n, 0) for n in pads)
    y = emit("conv2d", image, filters, *widened, padding=padding, groups=groups)
    y = _interleaved(emit, y, groups, step)
    before = [p.before % p.stride for p in pair]
    after = [p.stride - 1 - n % p.stride for n, p in zip(last, pair, strict=True)]
    y = emit.cropped(y, [*before, *after])
    # What is computed last computes the value itself.
    (*leading, final) = emit.bindings
    assert final.var is y
    return [*leading, Binding(b.var, final.value)]


def _phases(emit: _Emitter, w: Value, groups: int, step: Sequence[int]) -> Value:
    """[C, M/g, kh, kw] as the weights [g*sh*sw*M/g, C/g, kh/sh, kw/sw] of a convolution.

    kh and kw are first padded with zeros to multiples of the strides sh and sw; the taps of each
    phase are mirrored.
    """
    c, m, *kernel = _shape(w)
    (sh, sw), sizes = step, [int_value(k) or 0 for k in kernel]
    th, tw = (-(-k // s) for k, s in zip(sizes, step, strict=True))
    margins = (0, 0, th * sh - sizes[0], tw * sw - sizes[1])
    whole = emit("pad", w, before=(0,) * 4, after=margins) if any(margins) else w
    inputs = simplify(c // groups)
    shape = _sizes(groups, inputs, m, th, sh, tw, sw)
    split = emit("reshape", whole, shape=shape)
    begin, strides = (0, 0, 0, th - 1, 0, tw - 1, 0), (1, 1, 1, -1, 1, -1, 1)
    turned = emit("slice", split, begin=begin, strides=strides, shape=shape)
    ordered = emit("transpose", turned, axes=(0, 4, 6, 2, 1, 3, 5))
    return emit("reshape", ordered, shape=_sizes(m * (groups * sh * sw), inputs, th, tw))


def _of_phases(emit: _Emitter, bias: Value, groups: int, step: Sequence[int]) -> Value:
    """A bias [M] as [g*sh*sw*M/g]: repeated for each phase."""
    (m,), copies = _shape(bias), step[0] * step[1]
    group_channels = simplify(m // groups)
    apart = emit("reshape", bias, shape=_sizes(groups, 1, group_channels))
    wide = emit("broadcast_to", apart, shape=_sizes(groups, copies, group_channels))
    return emit("reshape", wide, shape=_sizes(m * copies))


def _interleaved(emit: _Emitter, y: Value, groups: int, step: Sequence[int]) -> Value:
    """[N, g*sh*sw*M/g, H, W] as [N, M, H*sh, W*sw]."""
    (n, channels, h, w), (sh, sw) = _shape(y), step
    m = simplify(channels // (groups * sh * sw))
    wide = emit("reshape", y, shape=_sizes(n, groups, sh, sw, m, h, w))
    near = emit("transpose", wide, axes=(0, 1, 4, 5, 2, 6, 3))
    return emit("reshape", near, shape=_sizes(n, m * groups, h * sh, w * sw))
