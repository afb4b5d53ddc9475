"""Convolutions in parts: ranges of output elements, along one dimension, whose sums have the same
taps.

Two kinds of convolutions would otherwise sum many products with zeros. A transposed convolution is
split by stride phase: each phase is an ordinary convolution of the input that writes every s-th row
or column of the output (`ops/transposed.py`). A convolution of a large dilation is split at the
places where a tap enters or leaves the image:

    conv2d(x, w, dilation=(12, 12), padding=(12,) * 4), of 28 rows, w of 3:

    rows 0 to 11: taps 1 and 2       rows 12 to 15: all taps       rows 16 to 27: taps 0 and 1

It then needs no halo, which would be larger than the image. Filters of 3x3 with a smaller dilation
are Winograd's, whose tiles take every d-th pixel (`families/winograd/program.py`).

    y = conv2d_transpose(x, w, strides=(2, 2))  ->   x1 = relayout(x, "A B/16 C+1 D+1 B%16")
                               y: layout="A B/16 C D B%16" = conv2d_transpose(x1, packed w)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorkiln.families.conv2d.row import panel_vectors
from tensorkiln.families.conv_parts.decomposition import decomposed
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, Constant, TensorType
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import by_lanes, channel_blocks, is_float32
from tensorkiln.ops.nn import conv_windows
from tensorkiln.ops.transposed import Phases, phases_of
from tensorkiln.ops.window import Window
from tensorkiln.target import Target
from tensorkiln.target.dots import multiplies_pairs
from tensorkiln.target.kinds import KINDS

# Most terms of a dilated convolution that parts sum, of those that a halo would need, for parts to
# be worth their code; where products of pairs of 16 bits would sum them in half of the time.
_MOST, _MOST_OF_PAIRS = 0.8, 0.4
# How much more multiply-adds may take than those of one convolution of all phases, whose result is
# moved three times.
_MORE = 1.5


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `first + p + step * q` of an output, for p < `number` (the *phase*) and q < `count`.

    Each is the sum over j < `taps` of input `source + source_step * q + source_tap * j` times
    weight `tap + p + tap_step * j`.
    """

    first: int
    number: int
    count: int
    step: int
    taps: int
    tap: int
    tap_step: int
    source: int
    source_step: int
    source_tap: int

    @property
    def alike(self) -> tuple[int, int, int]:
        """What the phases of one part share."""
        return self.count, self.taps, self.source

    @property
    def reads(self) -> tuple[int, int]:
        """The first and the last input element that its sums read."""
        if not self.taps:
            return 0, -1
        last = self.source + self.source_step * (self.count - 1)
        ahead = self.source_tap * (self.taps - 1)
        return self.source + min(ahead, 0), last + max(ahead, 0)


def phase_parts(p: Phases, size: int) -> list[Part]:
    """The parts of a transposed convolution with `size` outputs: runs of phases that sum the same
    number of taps over the same inputs."""
    parts: list[Part] = []
    for r in range(min(p.stride, size)):
        taps, tap, source = p.taps(r), p.tap(r), p.input(r)
        new = Part(r, 1, p.places(r, size), p.stride, taps, tap, p.stride, source, 1, -1)
        if parts and (old := parts[-1]).tap + old.number == tap and old.alike == new.alike:
            parts[-1] = replace(old, number=old.number + 1)
            continue
        parts.append(new)
    return parts


def window_parts(w: Window, extent: int, size: int) -> list[Part]:
    """The parts of `size` windows over an image of `extent`: runs of outputs for which the same
    taps are inside."""
    parts: list[Part] = []
    for i in range(size):
        start = i * w.stride - w.before
        inside = [k for k in range(w.kernel) if 0 <= start + k * w.dilation < extent]
        taps, tap = len(inside), inside[0] if inside else 0
        if parts and (parts[-1].taps, parts[-1].tap) == (taps, tap):
            parts[-1] = replace(parts[-1], count=parts[-1].count + 1)
        else:
            source = start + tap * w.dilation
            parts.append(Part(i, 1, 1, 1, taps, tap, 1, source, w.stride, w.dilation))
    return parts


def halo_of(parts: Sequence[Part], extent: int) -> int:
    """How many elements around an image of `extent` the sums read."""
    reads = [p.reads for p in parts]
    return max(0, *(max(-low, high - extent + 1) for low, high in reads))


def dilated_parts(call: Call, out: TensorType) -> tuple[list[Part], list[Part]]:
    """The parts of a conv2d of known sizes, of rows and of columns."""
    x, w = call.args[0].type, call.args[1].type
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    rows, columns = conv_windows(w, call.attrs)
    (height, width), (in_height, in_width) = (
        [int_value(d) or 0 for d in t.shape[2:]] for t in (out, x)
    )
    return window_parts(rows, in_height, height), window_parts(columns, in_width, width)


def _dilated(call: Call, out: TensorType, target: Target) -> bool:
    """Whether a conv2d of float32, of one group, has such a dilation that many taps lie outside of
    the image."""
    x, w, a = call.args[0].type, call.args[1].type, call.attrs
    lanes = target.vector_lanes("float32")
    if lanes == 1 or a.groups > 1 or a.dilation == (1, 1):
        return False
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    sizes = [int_value(d) for d in (*x.shape[1:], *out.shape[1:])]
    if not is_float32(call) or None in sizes or 0 in sizes or (sizes[0] or 0) < lanes // 2:
        return False
    terms, useful_terms = 1, 1
    for parts, size, kernel in zip(dilated_parts(call, out), sizes[4:], w.shape[2:], strict=True):
        terms *= (size or 0) * (int_value(kernel) or 0)
        useful_terms *= sum(p.count * p.taps for p in parts)
    pairs = multiplies_pairs(target, target.precision)
    return useful_terms <= (_MOST_OF_PAIRS if pairs else _MOST) * terms


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if not isinstance(call.args[1], Constant) or not _dilated(call, out, target):
        return None
    lanes, blocks = target.vector_lanes("float32"), channel_blocks(target)
    nr = lanes * panel_vectors(call.args[1].type, target)[0]
    weights = Layout.parse(f"A/{nr} B/{lanes} C D B%{lanes} A%{nr}")
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((blocks, weights, *bias), blocks)


def packed(call: Call, out: TensorType, target: Target) -> bool:
    """Whether the operands and the result of a call have the layouts that its family asks for."""
    types = [a.type for a in call.args]
    return out.layout is not None and all(
        isinstance(t, TensorType) and t.layout is not None for t in types
    )


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return packed(call, out, target) and _dilated(call, out, target)


def _lacks_transposed(call: Call, out: TensorType, target: Target) -> str:
    x, w = call.args[0].type, call.args[1]
    assert isinstance(x, TensorType)
    lanes = target.vector_lanes("float32")
    if lanes == 1:
        return "the target has no vectors"
    if not is_float32(call) or out.dtype != FLOAT32:
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
    separate, merged = -(-outputs // lanes), outputs
    for p, extent, n in zip(pair, (height, width), size, strict=True):
        separate *= p.kernel * extent
        merged *= p.stride * -(-p.kernel // p.stride) * -(-n // p.stride)
    few = separate * lanes > _MORE * merged
    return f"{outputs} output channels leave lanes of {lanes} empty" if few else ""


def _transposed_layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if KINDS[target.kind].device != "cpu" or _lacks_transposed(call, out, target):
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


DILATED = Family(
    op_class="conv2d_dilated",
    operators=("conv2d",),
    fits=_fits,
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    before=("conv2d_tiles",),
)
TRANSPOSED = Family(
    op_class="conv2d_transposed",
    operators=("conv2d_transpose",),
    fits=packed,
    layouts=_transposed_layouts,
    lacks=_lacks_transposed,
    decompose=decomposed,
    epilogue=elementwise_epilogue,
    inplace=True,
)

ROWS = (DILATED, TRANSPOSED)
