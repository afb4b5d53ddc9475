"""Transposed convolutions, on channel blocks. They are split by stride phase: each phase is an
ordinary convolution of the input that writes a strided part of the output.

    y = conv2d_transpose(x, w, strides=(2, 2))  ->   x1 = relayout(x, "A B/16 C+1 D+1 B%16")
                               y: layout="A B/16 C D B%16" = conv2d_transpose(x1, packed w)

Where the kernel does not fit, one convolution computes all phases as output channels, which are
then interleaved:

    y = conv2d_transpose(x, w)  ->  z = conv2d(x, w'); slice(reshape(transpose(reshape(z))))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value, constant
from tensorkiln.kernels.conv2d import panel_vectors
from tensorkiln.kernels.conv_parts import halo_of, packed, phase_parts
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import by_lanes, channel_blocks, is_float32
from tensorkiln.ops.transposed import phases_of
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS

# How much more multiply-adds may take than those of one convolution of all phases, whose result is
# moved three times.
_MORE = 1.5


def _lacks(call: Call, out: TensorType, target: Target) -> str:
    x, w = call.args[0].type, call.args[1]
    assert isinstance(x, TensorType)
    lanes = target.vector_lanes("float32")
    if lanes == 1:
        return "the target has no vectors"
    if not is_float32(call) or out.dtype.name != "float32":
        return "its operands are not all float32"
    if call.attrs.groups > 1:
        return "it has groups"
    if not isinstance(w, Constant):
        return "its weights are computed"
    sizes = [int_value(d) for d in (*x.shape[1:], *out.shape[1:])]
    if None in sizes or 0 in sizes:
        return "its sizes are not known"
    channels, height, width, outputs, *size = (n or 0 for n in sizes)
    if channels < lanes // 2:
        return f"{channels} input channels are fewer than {lanes // 2}"
    pair = phases_of(w.type, call.attrs)
    own, merged = -(-outputs // lanes), outputs
    for p, extent, n in zip(pair, (height, width), size, strict=True):
        own *= p.kernel * extent
        merged *= p.stride * -(-p.kernel // p.stride) * -(-n // p.stride)
    few = own * lanes > _MORE * merged
    return f"{outputs} output channels leave lanes of {lanes} empty" if few else ""


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if KINDS[target.kind].device != "cpu" or _lacks(call, out, target):
        return None
    x, w = call.args[0].type, call.args[1].type
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    lanes, blocks = target.vector_lanes("float32"), channel_blocks(target)
    halo = {
        d: halo_of(phase_parts(p, int_value(out.shape[d]) or 0), int_value(x.shape[d]) or 0)
        for d, p in enumerate(phases_of(w, call.attrs), 2)
    }
    nr = lanes * panel_vectors(TensorType((out.shape[1],), out.dtype), target)[0]
    weights = Layout.parse(f"B/{nr} A/{lanes} C D A%{lanes} B%{nr}")
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((blocks.with_halo(halo), weights, *bias), blocks)


# --- as one convolution --------------------------------------------------------------------------


def _sizes(*shape: ExprLike) -> tuple[int | Expr, ...]:
    """Extents, as numbers where they are known."""
    found = [simplify(as_expr(d)) for d in shape]
    return tuple(d if (n := int_value(d)) is None else n for d in found)


class _Emitter:
    """Collects the calls that replace one call; calls of constants are computed at once."""

    def __init__(self, b: Binding):
        self.call, self.name, self.bindings = b.value, b.var.name, list[Binding]()

    def __call__(self, op: str, *args: Value, **attrs: Any) -> Value:
        assert isinstance(self.call, Call)
        new = ops.call(op, *args, span=self.call.span, **attrs)
        known = [a for a in args if isinstance(a, Constant)]
        if len(known) == len(args):
            made = ops.get(op).numpy([a.array for a in known], new.attrs)
            return constant(np.ascontiguousarray(made), known[0].name)
        var = RVar(f"{self.name}_{op}{len(self.bindings) + 1}", ops.infer(new))
        self.bindings.append(Binding(var, new))
        return var

    def cropped(self, x: Value, more: Sequence[int]) -> Value:
        """`x` without the rows and columns that `more` (top, left, bottom, right) counts."""
        if not any(more):
            return x
        shape = _shape(x)
        sizes = [n - more[i] - more[i + 2] for i, n in enumerate(shape[2:])]
        left = _sizes(*shape[:2], *sizes)
        return self("slice", x, begin=(0, 0, *more[:2]), strides=(1,) * 4, shape=left)


def _shape(x: Value) -> tuple[Expr, ...]:
    assert isinstance(x.type, TensorType)
    return x.type.shape


def _decompose(b: Binding) -> list[Binding]:
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
    (*rest, final) = emit.bindings
    assert final.var is y
    return [*rest, Binding(b.var, final.value)]


def _phases(emit: _Emitter, w: Value, groups: int, step: Sequence[int]) -> Value:
    """[C, M/g, kh, kw] as the weights [g*sh*sw*M/g, C/g, kh/sh, kw/sw] of a convolution.

    kh and kw are first padded with zeros to multiples of the strides sh and sw; the taps of each
    phase are mirrored.
    """
    c, m, *kernel = _shape(w)
    (sh, sw), sizes = step, [int_value(k) or 0 for k in kernel]
    th, tw = (-(-k // s) for k, s in zip(sizes, step, strict=True))
    more = (0, 0, th * sh - sizes[0], tw * sw - sizes[1])
    whole = emit("pad", w, before=(0,) * 4, after=more) if any(more) else w
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
    each = simplify(m // groups)
    apart = emit("reshape", bias, shape=_sizes(groups, 1, each))
    wide = emit("broadcast_to", apart, shape=_sizes(groups, copies, each))
    return emit("reshape", wide, shape=_sizes(m * copies))


def _interleaved(emit: _Emitter, y: Value, groups: int, step: Sequence[int]) -> Value:
    """[N, g*sh*sw*M/g, H, W] as [N, M, H*sh, W*sw]."""
    (n, channels, h, w), (sh, sw) = _shape(y), step
    m = simplify(channels // (groups * sh * sw))
    wide = emit("reshape", y, shape=_sizes(n, groups, sh, sw, m, h, w))
    near = emit("transpose", wide, axes=(0, 1, 4, 5, 2, 6, 3))
    return emit("reshape", near, shape=_sizes(n, m * groups, h * sh, w * sw))


TRANSPOSED = Family(
    op_class="conv2d_transposed",
    operators=("conv2d_transpose",),
    schedule="tensorkiln.schedule.conv_parts.schedule:schedule_conv_parts",
    fits=packed,
    layouts=_layouts,
    lacks=_lacks,
    decompose=_decompose,
    epilogue=elementwise_epilogue,
    inplace=True,
)
