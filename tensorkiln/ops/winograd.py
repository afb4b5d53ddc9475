"""Winograd convolution: a 3x3 convolution as element-wise products in a transformed domain.

F(m, 3) computes m outputs of a row from m + 2 inputs, with m + 2 products instead of 3 m:

    y = A^T ((G w) * (B^T d))        in two dimensions  Y = A^T ((G w G^T) * (B^T D B)) A

A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. The matrices come
from Toom-Cook multiplication: polynomials are multiplied by way of their values at `POINTS` and at
infinity. G w G^T is computed once, in float64, when a convolution is rewritten. The points keep
rounding errors small: with +-2/3 and +-3/2, the error of F(4, 3) is half that with +-1 and +-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tensorkiln.base.threads import in_threads
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import OpDef, Operands
from tensorkiln.ops.rules import (
    FLOAT,
    bad_attribute,
    mismatch,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    same_extent,
    show,
    show_type,
)

Matrix = np.ndarray[Any, np.dtype[np.float64]]

# The finite evaluation points by m, the number of outputs: zero, then pairs p, -p.
POINTS: dict[int, tuple[float, ...]] = {2: (0.0, 1.0, -1.0), 4: (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)}
TAPS = 3
# Bytes of stack that a kernel may use for one block of tiles.
_SCRATCH_BYTES = 900 << 10
_PIECE = 1024  # filters transformed at a time


@cache
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return A^T [m, n], G [n, 3] and B^T [n, n] of F(m, 3) in float64, where n = m + 2."""
    points, n = POINTS[m], m + TAPS - 1
    a_t, g, b_t = np.zeros((m, n)), np.zeros((n, TAPS)), np.zeros((n, n))
    for i, p in enumerate(points):
        other_points = [q for j, q in enumerate(points) if j != i]
        b_t[i, : n - 1] = np.poly(other_points)[::-1]
        g[i] = p ** np.arange(TAPS) / np.prod([p - q for q in other_points])
        a_t[:, i] = p ** np.arange(m)
    # The value of a polynomial at infinity is its leading coefficient.
    b_t[n - 1] = np.poly(points)[::-1]
    g[n - 1, TAPS - 1] = a_t[m - 1, n - 1] = 1
    return a_t, g, b_t


def transformed_filter(w: np.ndarray, tile: Sequence[int]) -> np.ndarray:
    """Return G w G^T for weights w [O, I, 3, 3]: [O, I, m + 2, m' + 2] for output tiles of m x m',
    in the dtype of w and read-only."""
    g, h = (matrices(m)[1] for m in tile)
    kron, flat = np.kron(g, h).T, w.reshape(-1, TAPS * TAPS)
    out = np.empty((len(flat), len(g) * len(h)), w.dtype)

    # In pieces that fit the cache and are too small for BLAS to start threads of its own: ten times
    # as fast as a single product.
    def piece(i: int) -> None:
        out[i : i + _PIECE] = flat[i : i + _PIECE].astype(np.float64) @ kron

    in_threads(piece, range(0, len(flat), _PIECE))
    out.flags.writeable = False  # `compile` copies only arrays that may be written to
    return out.reshape(*w.shape[:2], len(g), len(h))


def tiles_at_once(products: int, input_blocks: int, lanes: int, vectors: int = 2) -> int:
    """Return how many tiles, at least 1, a kernel transforms before it multiplies them.

    For each tile its stack holds, in float32, the transformed inputs, `products` x `input_blocks`
    vectors, and the results for one panel of filters, `products` x `vectors` vectors; a vector has
    `lanes` elements.
    """
    return max(1, _SCRATCH_BYTES // (products * (input_blocks + vectors) * lanes * 4))


def winograd_tile(a: Attrs) -> tuple[int, int]:
    """Return the rows and columns of an output tile; raise UserError `bad-attribute` unless
    `POINTS` has both."""
    tile = a.tile
    for m in tile:
        if m not in POINTS:
            tiles = " or ".join(map(str, POINTS))
            raise bad_attribute("winograd_conv2d", "tile", f"{tiles} each way", repr(tile))
    return tile[0], tile[1]


def _infer(types: Operands, a: Attrs) -> TensorType:
    op, x, u = "winograd_conv2d", types[0], types[1]
    require_ndim(op, "x", x, 4, "(NCHW)")
    require_ndim(op, "u", u, 4, "(filters, channels, transformed rows and columns)")
    require_dtype(op, "x", x, FLOAT)
    require_same_dtype(op, ("x", "u", "bias"), types)
    tile, (top_pad, left_pad, bottom_pad, right_pad) = winograd_tile(a), a.padding
    if not same_extent(x.shape[1], u.shape[1]):
        raise mismatch(op, "x", f"{show(u.shape[1])} channels", show_type(x))
    if [int_value(d) for d in u.shape[2:]] != [m + TAPS - 1 for m in tile]:
        expected = f"a filter transformed for tiles of {tile[0]}x{tile[1]}"
        raise mismatch(op, "u", expected, show_type(u))
    if len(types) > 2:
        require_shape(op, "bias", types[2], (u.shape[0],), "one value per output channel")
    rows, columns = a.dilation
    height = x.shape[2] + (top_pad + bottom_pad - (TAPS - 1) * rows)
    width = x.shape[3] + (left_pad + right_pad - (TAPS - 1) * columns)
    for size in (height, width):
        n = int_value(size)
        if n is not None and n < 1:
            raise mismatch(op, "x", "an image as large as the filter", show_type(x))
    return TensorType((x.shape[0], u.shape[0], height, width), x.dtype)


def _numpy(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    x, u = arrays[:2]
    top_pad, left_pad, bottom_pad, right_pad = a.padding
    x = np.pad(x, ((0, 0), (0, 0), (top_pad, bottom_pad), (left_pad, right_pad)))
    rows, columns = a.dilation
    height, width = (n - (TAPS - 1) * d for n, d in zip(x.shape[2:], a.dilation, strict=True))
    out = np.empty((x.shape[0], u.shape[0], height, width), x.dtype)
    for i in range(min(rows, height)):
        for j in range(min(columns, width)):
            phase = x[:, :, i::rows, j::columns]
            out[:, :, i::rows, j::columns] = _phase(phase, u, a.tile)
    return out + arrays[2][:, None, None] if len(arrays) > 2 else out


def _phase(x: np.ndarray, u: np.ndarray, tile: Sequence[int]) -> np.ndarray:
    """The convolution of padded images without dilation."""
    m, k = tile
    height, width = (n - TAPS + 1 for n in x.shape[2:])
    # The last tiles may extend past the last row and column.
    x = np.pad(x, ((0, 0), (0, 0), (0, -height % m), (0, -width % k)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (m + 2, k + 2), axis=(2, 3))
    tiles = windows[:, :, ::m, ::k]  # N I rows columns n n'
    (a_t, _, b_t), (a_t2, _, b_t2) = matrices(m), matrices(k)
    v = (b_t.astype(x.dtype) @ tiles) @ b_t2.T.astype(x.dtype)
    products = np.einsum("nirsab,oiab->norsab", v, u)
    y = (a_t.astype(x.dtype) @ products) @ a_t2.T.astype(x.dtype)
    n, o, rows, columns = y.shape[:4]
    out: np.ndarray = y.transpose(0, 1, 2, 4, 3, 5).reshape(n, o, rows * m, columns * k)
    return out[:, :, :height, :width]


WINOGRAD: dict[str, OpDef] = {
    # `select_winograd` makes it from `conv2d`. Only a schedule of its own can compute it: it has no
    # program per output element.
    "winograd_conv2d": OpDef(
        "winograd_conv2d",
        ("x", "u", "bias?"),
        {
            "tile": at.integers(2, 1),
            "padding": at.integers(4, 0, (0, 0, 0, 0)),
            "dilation": at.integers(2, 1, (1, 1)),
        },
        "contraction",
        _infer,
        _numpy,
    )
}
