"""Col2Im: pictures made of blocks that overlap."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.transposed_convolution import overlap_add
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Ints, Table
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ops.window import Window


def col2im(
    g: Context,
    x: Val,
    image_shape: Val,
    block_shape: Val,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """x [N, C * elements of a block, blocks] as pictures [N, C, ...], where blocks that overlap are
    added."""
    image, block = g.ints(image_shape, "image_shape"), g.ints(block_shape, "block_shape")
    n = len(image)
    steps, apart = strides or (1,) * n, dilations or (1,) * n
    around = pads or (0,) * (2 * n)
    if g.rank(x) != 3 or not (len(block) == len(steps) == len(apart) == n):
        raise malformed("image_shape, block_shape, strides and dilations differ in length")
    if len(around) != 2 * n or min((*block, *steps, *apart), default=0) < 1 or min(around) < 0:
        raise malformed(f"pads={list(around)}, strides={list(steps)}, dilations={list(apart)}")
    windows = [Window(block[i], steps[i], around[i], around[n + i], apart[i]) for i in range(n)]
    counts = [int_value(w.count(size)) or 0 for w, size in zip(windows, image, strict=True)]
    samples, rows, columns = g.shape(x)
    taps = 1
    for k in block:
        taps *= k
    channels = g.dims.divide(rows, as_expr(taps))
    blocks = 1
    for c in counts:
        blocks *= c
    if channels is None or int_value(columns) not in (None, blocks):
        raise malformed(
            f"{int_value(rows)} rows and {int_value(columns)} columns, expected a multiple of "
            f"{taps} and {blocks}"
        )
    y = g.reshape(x, (samples, channels, *block, *counts))
    for i, (w, size) in enumerate(zip(windows, image, strict=True)):
        # [N, C, placed dimensions, taps that are left, places that are left]
        rank = g.rank(y)
        tap_count = n - i
        order = [*range(2 + i), 2 + i, 2 + i + tap_count, *range(3 + i, 2 + i + tap_count)]
        order += range(3 + i + tap_count, rank)
        y = overlap_add(g, g.transpose(y, order), 2 + i, w.stride, w.dilation)
        over = size + w.before - (int_value(g.shape(y)[2 + i]) or 0)
        y = pad(g, y, (-w.before, over), (2 + i,), "constant", 0.0)
    return y


TABLE: Table = {"Col2Im": {18: col2im}}
