"""DFT and STFT of signals of static length, and mel weights."""

from __future__ import annotations

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.fourier import bins, transform
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Table
from tensorkiln.frontend.onnx.tensors import dtype_name
from tensorkiln.ir.expr import int_value

# Elements of a matrix that is computed when a model is imported.
LARGEST_MATRIX = 1 << 26


def dft_17(
    g: Context,
    x: Val,
    length: Val | None = None,
    *,
    axis: Int = 1,
    inverse: Int = 0,
    onesided: Int = 0,
) -> Val:
    """DFT with its axis as an attribute (until opset 19)."""
    return _dft(g, x, length, axis, bool(inverse), bool(onesided))


def dft_20(
    g: Context,
    x: Val,
    length: Val | None = None,
    axis: Val | None = None,
    *,
    inverse: Int = 0,
    onesided: Int = 0,
) -> Val:
    """DFT with its axis as an operand; by default the last dimension of the signal."""
    dimension = -2 if axis is None else int(g.scalar(axis, "axis"))
    return _dft(g, x, length, dimension, bool(inverse), bool(onesided))


def _dft(g: Context, x: Val, length: Val | None, axis: int, inverse: bool, onesided: bool) -> Val:
    """The transform of x [..., 1 or 2], whose last dimension holds the real part or both.

    `length` cuts the signal, or fills it up with zeros. With `onesided` a real signal has the first
    half of its transform; the inverse takes that half, and gives a real signal.
    """
    rank = g.rank(x)
    if rank < 2:
        raise malformed(f"expected a signal and its parts, got {rank} dimension(s)")
    dimension = g.axis(axis, rank)
    if dimension == rank - 1:
        raise malformed(f"axis={axis} is the dimension of real and imaginary parts")
    parts = int_value(g.shape(x)[-1])
    if parts not in (1, 2):
        raise malformed(f"the last dimension must be 1 or 2, got {parts}")
    if onesided and parts != 1 + inverse:
        raise malformed(f"onesided takes {1 + inverse} part(s) here, got {parts}")
    extent = int_value(g.shape(x)[dimension])
    if extent is None:
        raise unsupported("the signal's length is symbolic", "freeze={name: size}")
    half = onesided and inverse
    size = 2 * (extent - 1) if half else extent
    if length is not None:
        size = int(g.scalar(length, "dft_length"))
    if size < 1:
        raise malformed(f"a transform of {size} elements")
    order = [i for i in range(rank - 1) if i != dimension] + [dimension]
    signals = []
    for part in range(parts):
        begin, lead = (*[0] * (rank - 1), part), g.shape(x)[:-1]
        component = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=(*lead, 1))
        signals.append(_cut(g, g.transpose(g.reshape(component, lead), order), bins(size, half)))
    factor = float(size) ** -int(inverse)
    results = transform(g, signals, size, inverse=inverse, onesided=onesided, factor=factor)
    back = [order.index(i) for i in range(rank - 1)]
    columns = [g.transpose(y, back) for y in results]
    wide = [g.reshape(y, (*g.shape(y), 1)) for y in columns]
    return wide[0] if len(wide) == 1 else g.emit("concat", *wide, axis=rank - 1)


def _cut(g: Context, x: Val, size: int) -> Val:
    """The first `size` elements of the last dimension, with zeros where it has fewer."""
    rank, shape = g.rank(x), g.shape(x)
    have = int_value(shape[-1]) or 0
    if have < size:
        after = (*[0] * (rank - 1), size - have)
        return g.emit("pad", x, before=(0,) * rank, after=after, value=0.0)
    if have == size:
        return x
    return g.emit("slice", x, begin=(0,) * rank, strides=(1,) * rank, shape=(*shape[:-1], size))


def stft(
    g: Context,
    x: Val,
    frame_step: Val,
    window: Val | None = None,
    frame_length: Val | None = None,
    *,
    onesided: Int = 1,
) -> Val:
    """The transforms of frames of x [N, length, 1 or 2], each multiplied by the window, as
    [N, frames, bins, 2]. A frame begins `frame_step` after the one before."""
    if g.rank(x) != 3:
        raise malformed(f"expected [N, length, parts], got {g.rank(x)} dimensions")
    length, parts = int_value(g.shape(x)[1]), int_value(g.shape(x)[2])
    if length is None or parts is None:
        raise unsupported("the signal's length is symbolic", "freeze={name: size}")
    step = int(g.scalar(frame_step, "frame_step"))
    size = int_value(g.shape(window)[0]) if window is not None and g.rank(window) == 1 else length
    if frame_length is not None:
        size = int(g.scalar(frame_length, "frame_length"))
    if step < 1 or size is None or not 1 <= size <= length:
        raise malformed(f"frames of {size} elements, {step} apart, of {length}")
    if window is not None and (g.rank(window) != 1 or int_value(g.shape(window)[0]) != size):
        raise malformed(f"the window must have the {size} elements of a frame")
    starts = np.arange(0, length - size + 1, step)
    index = starts[:, None] + np.arange(size)
    frames = g.emit("take", x, g.const(index, "int64"), axis=1)
    if window is not None:
        frames = g.emit("mul", frames, g.reshape(window, (size, 1)))
    return _dft(g, frames, None, 2, False, bool(onesided) and parts == 1)


def mel_weight_matrix(
    g: Context,
    num_mel_bins: Val,
    dft_length: Val,
    sample_rate: Val,
    lower: Val,
    upper: Val,
    *,
    output_datatype: Int = 1,
) -> Val:
    """The weights [bins of a transform, num_mel_bins] of triangles that are evenly spaced on the
    mel scale, which is 2595 * log10(1 + f / 700); a constant."""
    bins = int(g.scalar(num_mel_bins, "num_mel_bins"))
    size = int(g.scalar(dft_length, "dft_length"))
    rate = int(g.scalar(sample_rate, "sample_rate"))
    edges = [float(g.scalar(v, "an edge")) for v in (lower, upper)]
    if bins < 1 or size < 1 or rate < 1 or not -700 < edges[0] <= edges[1]:
        raise malformed(f"{bins} bins of a transform of {size} at {rate} Hz, from {edges}")
    if bins * size > LARGEST_MATRIX:
        raise unsupported(f"{bins} bins of a transform of {size}: at most {LARGEST_MATRIX} in all")
    low, high = (2595 * np.log10(1 + f / 700) for f in edges)
    mel = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    places = ((size + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(int)
    rows = size // 2 + 1
    if places[0] < 0 or places[-1] > rows:
        raise malformed(f"frequencies to {edges[1]} Hz are beyond half of {rate} Hz")
    line = np.arange(rows)[:, None]
    start, middle, end = places[:-2], places[1:-1], places[2:]
    with np.errstate(all="ignore"):
        rising = np.where((line >= start) & (line <= middle), (line - start) / (middle - start), 0)
        falling = np.where((line >= middle) & (line < end), (end - line) / (end - middle), 0)
    rising = np.where(start == middle, line == middle, rising)
    weights = np.where((line >= middle) & (end > middle) & (line < end), falling, rising)
    return g.const(weights, dtype_name(output_datatype, "output_datatype"))


TABLE: Table = {
    "DFT": {17: dft_17, 20: dft_20},
    "STFT": {17: stft},
    "MelWeightMatrix": {17: mel_weight_matrix},
}
