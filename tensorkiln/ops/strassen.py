"""Matrix products by one level of Strassen's algorithm: seven products of quarters, not eight.

V. Strassen, "Gaussian elimination is not optimal", Numer. Math. 13 (1969). For C = A B, with A, the
weights B and C each split into quarters:

    P0 = (A11 + A22) (B11 + B22)    P3 = A11 (B12 - B22)    P5 = (A21 + A22) B11
    P1 = (A21 - A11) (B11 + B12)    P4 = A22 (B21 - B11)    P6 = (A11 + A12) B22
    P2 = (A12 - A22) (B21 + B22)
    C11 = P0 + P4 - P6 + P2    C12 = P3 + P6    C21 = P5 + P4    C22 = P0 - P5 + P3 + P1

`strassen_parts` computes the seven left operands from A, `strassen_linear` all else. If the number
of rows is odd, both halves contain the middle row. A row of C depends on the same row of A and on
the corresponding row of the other half. So if that row holds larger values, the rounding errors of
this row of C are as large as theirs; and it takes over their infinities and NaNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import IntImm, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import OpDef, Operands
from tensorkiln.ops.rules import (
    FLOAT,
    mismatch,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    show_type,
)

PRODUCTS = 7


def _infer_parts(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    require_dtype("strassen_parts", "x", x, FLOAT)
    sizes = [int_value(d) for d in x.shape]
    if len(sizes) < 2 or None in sizes or (sizes[-1] or 0) % 2:
        expected = "2 or more dimensions of known size, the last one even"
        raise mismatch("strassen_parts", "x", expected, show_type(x))
    rows, k = prod(map(int, sizes[:-1])), int(sizes[-1] or 0)  # type: ignore[arg-type]
    return TensorType(tuple(map(IntImm, (PRODUCTS, -(-rows // 2), k // 2))), x.dtype)


def _np_parts(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    *lead, k = arrays[0].shape
    rows, half = prod(lead), -(-prod(lead) // 2)
    x = arrays[0].reshape(rows, k)
    (a11, a12), (a21, a22) = (
        (part[:, : k // 2], part[:, k // 2 :]) for part in (x[:half], x[rows - half :])
    )
    return np.stack([a11 + a22, a21 - a11, a12 - a22, a11, a22, a21 + a22, a11 + a12])


def _infer_linear(types: Operands, a: Attrs) -> TensorType:
    op, (parts, w) = "strassen_linear", types[:2]
    require_dtype(op, "parts", parts, FLOAT)
    require_same_dtype(op, ("parts", "w", "bias"), types)
    require_ndim(op, "parts", parts, 3, "(7, rows / 2, K / 2)")
    require_ndim(op, "w", w, 2, "(K, N)")
    rows = a.rows
    k, n = map(int_value, w.shape)
    if k is None or n is None or k % 2 or n % 2:
        raise mismatch(op, "w", "even numbers of rows and columns", show_type(w))
    expected = (PRODUCTS, -(-prod(rows) // 2), k // 2)
    if tuple(map(int_value, parts.shape)) != expected:
        raise mismatch(op, "parts", f"[{', '.join(map(str, expected))}]", show_type(parts))
    if len(types) > 2:
        require_shape(op, "bias", types[2], w.shape[1:], "one value per column of 'w'")
    return TensorType((*map(IntImm, rows), w.shape[1]), parts.dtype)


def _np_linear(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    parts, w = arrays[:2]
    k, n = (extent // 2 for extent in w.shape)
    b11, b12, b21, b22 = w[:k, :n], w[:k, n:], w[k:, :n], w[k:, n:]
    factors = (b11 + b22, b11 + b12, b21 + b22, b12 - b22, b21 - b11, b11, b22)
    p = [part @ b for part, b in zip(parts, factors, strict=True)]
    upper = np.hstack([p[0] + p[4] - p[6] + p[2], p[3] + p[6]])
    lower = np.hstack([p[5] + p[4], p[0] - p[5] + p[3] + p[1]])
    again = 2 * len(upper) - prod(a.rows)
    out = np.vstack([upper, lower[again:]]).reshape(*a.rows, 2 * n)
    return out + arrays[2] if len(arrays) > 2 else out


STRASSEN: dict[str, OpDef] = {
    # `select_algorithms` makes these from `linear`. Only schedules of their own can compute them:
    # they have no program per output element.
    "strassen_parts": OpDef("strassen_parts", ("x",), {}, "opaque", _infer_parts, _np_parts),
    "strassen_linear": OpDef(
        "strassen_linear",
        ("parts", "w", "bias?"),
        {"rows": at.counts()},
        "contraction",
        _infer_linear,
        _np_linear,
    ),
}
