"""MaxUnpool: pictures made of maxima and the places of these."""

from __future__ import annotations

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.scattering import scatter_along
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Ints, Table
from tensorkiln.ir.expr import as_expr


def max_unpool(
    g: Context,
    x: Val,
    indices: Val,
    output_shape: Val | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Pictures of zeros with the elements of x [N, C, ...] at the places `indices`, which count
    through all pictures of the extents that follow from the windows; each element lies in its own
    picture, as MaxPool has it. `output_shape` may be larger, with zeros behind."""
    shape, n = g.static(x, "the operand"), g.rank(x) - 2
    steps, around = strides or (1,) * n, pads or (0,) * (2 * n)
    if n < 1 or not (len(kernel_shape) == len(steps) == n and len(around) == 2 * n):
        raise malformed("kernel_shape, strides and pads differ in length from the picture")
    if g.shape(indices) != g.shape(x):
        raise malformed("x and indices differ in shape")
    extents = [
        (shape[2 + i] - 1) * steps[i] + kernel_shape[i] - around[i] - around[n + i]
        for i in range(n)
    ]
    if min(extents) < 1:
        raise malformed(f"pictures of {extents}")
    size, count = int(np.prod(extents)), int(np.prod(shape[2:]))
    planes = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1) * size
    indices = g.inside(indices, as_expr(shape[0] * shape[1] * size), negative=False)
    places = g.reshape(g.cast(indices, "int64"), (*shape[:2], count))
    local = g.emit("sub", places, g.const(planes, "int64"))
    zeros = g.emit("full", shape=(*shape[:2], size), value=0.0, dtype=g.dtype(x))
    y = scatter_along(g, zeros, local, g.reshape(x, (*shape[:2], count)), "none")
    y = g.reshape(y, (*shape[:2], *extents))
    if output_shape is None:
        return y
    target = g.ints(output_shape, "output_shape")
    if target[:2] != shape[:2] or len(target) != n + 2:
        raise malformed(f"output_shape={list(target)} for pictures {[*shape[:2], *extents]}")
    margins = [a - b for a, b in zip(target[2:], extents, strict=True)]
    if min(margins) < 0:
        raise malformed(f"output_shape={list(target)} is less than {[*shape[:2], *extents]}")
    return pad(g, y, (*[0] * n, *margins), range(2, n + 2), "constant", 0.0)


TABLE: Table = {"MaxUnpool": {9: max_unpool}}
