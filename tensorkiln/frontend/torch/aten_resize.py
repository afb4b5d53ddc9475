"""Operators of ATen that resize pictures.

Every one of them is linear along each dimension, and torch itself says how: a dimension of n
elements is resized like the n x n identity, whose result are the weights of all elements. Few of
them are not 0, so the result is a sum of that many elements, each times a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.resize import Sampling, resize
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_nn import along
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import int_value

Scales = Sequence[float] | None
_MOST_TAPS = 4  # of more weights the dimension is multiplied by the whole matrix
_CHUNK = 256  # rows of the identity that are resized at once


def _weights(
    kind: str, n: int, m: int, scale: float | None, align_corners: bool | None, dtype: str
) -> np.ndarray:
    """The matrix [n, m] by which torch resizes a dimension of n elements of a type to m."""
    import torch

    aten = torch.ops.aten
    operator = {
        "nearest": aten.upsample_nearest1d,
        "nearest_exact": aten._upsample_nearest_exact1d,
        "linear": aten.upsample_linear1d,
        "cubic": aten.upsample_bicubic2d,
        "linear_aa": aten._upsample_bilinear2d_aa,
        "cubic_aa": aten._upsample_bicubic2d_aa,
    }[kind].default
    flat = kind in ("nearest", "nearest_exact", "linear")
    corners = [] if align_corners is None else [align_corners]
    parts = []
    for first in range(0, n, _CHUNK):
        rows = torch.zeros(min(_CHUNK, n - first), n, dtype=getattr(torch, dtype))
        rows[torch.arange(len(rows)), first + torch.arange(len(rows))] = 1
        if flat:
            picture = operator(rows[:, None], [m], *corners, scale)
        else:
            picture = operator(rows[:, None, None], [1, m], *corners, None, scale)
        parts.append(picture.reshape(len(rows), m))
    return np.asarray(torch.cat(parts))


def _resized(
    g: AtenContext, x: Val, axis: int, kind: str, scale: float | None, corners: bool | None
) -> Val:
    n, m = int_value(g.shape(x)[axis]), int_value(g.out.shape[axis])
    if n is None or m is None:
        return _computed(g, x, axis, kind, scale, corners)
    exact = "float64" if g.dtype(x) == "float64" else "float32"
    weights = _weights(kind, n, m, scale, corners, exact)
    if n == m and np.array_equal(weights, np.eye(n, dtype=weights.dtype)):
        return x
    taps = int((weights != 0).sum(axis=0).max())
    if taps > _MOST_TAPS:
        return along(g, x, axis, weights)
    places = np.sort(np.argsort(weights == 0, axis=0, kind="stable")[:taps], axis=0)
    total: Val | None = None
    for place in places:
        factor = weights[place, np.arange(m)]
        part = g.emit("take", x, g.const(place, "int64"), axis=axis)
        if not np.all(factor == 1):
            shape = [m if d == axis else 1 for d in range(g.rank(x))]
            part = g.emit("mul", part, g.const(factor.reshape(shape), g.dtype(x)))
        total = part if total is None else g.emit("add", total, part)
    assert total is not None
    return total


def _computed(
    g: AtenContext, x: Val, axis: int, kind: str, scale: float | None, corners: bool | None
) -> Val:
    """A symbolic dimension, by positions that are computed when the function runs."""
    if kind not in ("nearest", "linear"):
        raise unsupported(f"{kind} resizing of a symbolic dimension", "freeze={name: size}")
    mode = "asymmetric" if kind == "nearest" else "align_corners" if corners else "half_pixel"
    sampling, size = Sampling(kind, mode, "floor"), g.dims.simplify(g.out.shape[axis])
    if scale is None or corners:
        return resize(g, x, (axis,), None, [size], sampling)
    return resize(g, x, (axis,), [float(np.float32(scale))], None, sampling)


def _all(
    g: AtenContext, x: Val, n: int, kind: str, scales: Sequence[float | None], corners: bool | None
) -> Val:
    """The last `n` dimensions resized, the innermost first: it has the most elements to lose."""
    dtype = g.dtype(x)
    wide = x if g.type(x).dtype.is_float else g.cast(x, "float32")
    for k in reversed(range(n)):
        wide = _resized(g, wide, g.rank(x) - n + k, kind, scales[k], corners)
    return g.cast(wide, dtype)


def by_factors(kind: str, n: int, corners: bool) -> AtenImporter:
    """`upsample_*.vec`: to a size or by factors."""

    def run(g: AtenContext, x: Val, size: Sequence[Operand] | None, *options: Any) -> Val:
        align, factors = (options[0], options[1]) if corners else (None, options[0])
        return _all(g, x, n, kind, list(factors or (None,) * n), align)

    return run


def to_size(kind: str, n: int, corners: bool) -> AtenImporter:
    """`upsample_*`: to a size, which factors may explain."""

    def run(g: AtenContext, x: Val, size: Sequence[Operand], *options: Any) -> Val:
        align = options[0] if corners else None
        factors = list(options[1:] if corners else options)
        return _all(g, x, n, kind, factors + [None] * (n - len(factors)), align)

    return run


# name of the operator -> kind, number of dimensions, whether it has the argument align_corners
_OPERATORS = {
    **{f"upsample_nearest{n}d": ("nearest", n, False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": ("nearest_exact", n, False) for n in (1, 2, 3)},
    "upsample_linear1d": ("linear", 1, True),
    "upsample_bilinear2d": ("linear", 2, True),
    "upsample_trilinear3d": ("linear", 3, True),
    "upsample_bicubic2d": ("cubic", 2, True),
    "_upsample_bilinear2d_aa": ("linear_aa", 2, True),
    "_upsample_bicubic2d_aa": ("cubic_aa", 2, True),
}

TABLE: AtenTable = {
    **{f"{name}.vec": by_factors(*row) for name, row in _OPERATORS.items()},
    **{name: to_size(*row) for name, row in _OPERATORS.items()},
}
