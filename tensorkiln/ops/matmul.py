"""Matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT16, INT32
from tensorkiln.ir.expr import Expr, Reduce, Var, cast
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    FLOAT,
    NUMERIC,
    bad_attribute,
    broadcast_index,
    broadcast_shapes,
    mismatch,
    product_array,
    product_dtype,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    require_small_weights,
    same_extent,
    show,
    show_type,
)

Ins = Sequence[TensorIn]
Arrays = Sequence[np.ndarray]

# --- matmul: as numpy.matmul; transpose_a and transpose_b first swap the last two dimensions ------
# `wide` multiplies operands of 16 bits, int16 or floats, and returns the sums of the products, in
# int32 or float32.


def _matrix(t: TensorType, transposed: bool) -> tuple[Expr, Expr]:
    """Return the last two extents, (rows, columns), of a tensor of rank 2 or more, swapped if it is
    transposed."""
    rows, cols = t.shape[-2:]
    return (cols, rows) if transposed else (rows, cols)


def _infer_matmul(types: Operands, a: Attrs) -> TensorType:
    lhs, rhs = types
    require_dtype("matmul", "a", lhs, NUMERIC)
    dtype = require_same_dtype("matmul", "ab", types)
    if a.wide:
        if dtype != INT16 and not dtype.is_half:
            raise bad_attribute("matmul", "wide", f"False for {dtype}", repr(a.wide))
        dtype = INT32 if dtype.is_int else dtype.sums
    for name, t, flip in (("a", lhs, a.transpose_a), ("b", rhs, a.transpose_b)):
        if t.ndim == 0 or (flip and t.ndim < 2):
            requirement = "2 or more dimensions to transpose" if flip else "1 or more dimensions"
            raise mismatch("matmul", name, requirement, show_type(t), code="rank-mismatch")
    inner = lhs.shape[0] if lhs.ndim == 1 else _matrix(lhs, a.transpose_a)[1]
    depth = rhs.shape[0] if rhs.ndim == 1 else _matrix(rhs, a.transpose_b)[0]
    if not same_extent(inner, depth):
        expected = f"{show(inner)} rows to meet 'a' {show_type(lhs)}"
        raise mismatch("matmul", "b", expected, f"{show_type(rhs)} with {show(depth)}")
    batch = broadcast_shapes("matmul", "ab", [lhs.shape[:-2], rhs.shape[:-2]])
    rows = () if lhs.ndim == 1 else _matrix(lhs, a.transpose_a)[:1]
    cols = () if rhs.ndim == 1 else _matrix(rhs, a.transpose_b)[1:]
    return TensorType((*batch, *rows, *cols), dtype)


def _program_matmul(ins: Ins, a: Attrs, out: TensorType) -> Element:
    lhs, rhs = ins
    two = (lhs.type.ndim > 1) + (rhs.type.ndim > 1)

    def element(*index: Expr) -> Expr:
        k = Var("k")
        batch = index[: len(index) - two]

        def read(x: TensorIn, flip: bool, free: Sequence[Expr], k_last: bool) -> Expr:
            tail = [*free, k] if k_last else [k, *free]
            tail = tail[::-1] if flip else tail
            return x(*broadcast_index(x.type.shape[:-2], batch), *tail)

        rows = index[len(batch) : len(batch) + 1] if lhs.type.ndim > 1 else ()
        cols = index[-1:] if rhs.type.ndim > 1 else ()
        depth = lhs.type.shape[-2 if a.transpose_a else -1]
        x = cast(read(lhs, a.transpose_a, rows, True), out.dtype)
        y = cast(read(rhs, a.transpose_b, cols, False), out.dtype)
        return Reduce("sum", ((k, depth),), x * y)

    return element


def _np_matmul(arrays: Arrays, a: Attrs) -> np.ndarray:
    lhs, rhs = (x.astype(np.int32) if x.dtype == np.int16 and a.wide else x for x in arrays)
    lhs = lhs.swapaxes(-1, -2) if a.transpose_a else lhs
    rhs = rhs.swapaxes(-1, -2) if a.transpose_b else rhs
    return np.asarray(np.matmul(lhs, rhs))


# --- linear: x [..., K] @ w [K, N] + bias [N] --------------------------------------------------
# `wide`: w is of 16 bits, x too or float32; bias and result are float32.


def _infer_linear(types: Operands, a: Attrs) -> TensorType:
    x, w = types[:2]
    dtype = product_dtype("linear", ("x", "w", "bias"), types, bool(a.get("wide")))
    require_small_weights("linear", types, a)
    require_ndim("linear", "w", w, 2, "(K, N)")
    if x.ndim == 0:
        raise mismatch("linear", "x", "1 or more dimensions", show_type(x), code="rank-mismatch")
    if not same_extent(x.shape[-1], w.shape[0]):
        expected = f"a last dimension of {show(w.shape[0])} to meet 'w' {show_type(w)}"
        raise mismatch("linear", "x", expected, show_type(x))
    if len(types) > 2:
        require_shape("linear", "bias", types[2], w.shape[1:], "one value per column of 'w'")
    return TensorType((*x.shape[:-1], w.shape[1]), dtype)


def _program_linear(ins: Ins, a: Attrs, out: TensorType) -> Element:
    x, w = ins[:2]

    def element(*index: Expr) -> Expr:
        k = Var("k")
        value = cast(x(*index[:-1], k), out.dtype) * cast(w(k, index[-1]), out.dtype)
        total: Expr = Reduce("sum", ((k, w.type.shape[0]),), value)
        return total + ins[2](index[-1]) if len(ins) > 2 else total

    return element


def _np_linear(arrays: Arrays, a: Attrs) -> np.ndarray:
    x, w = (product_array(array, arrays) for array in arrays[:2])
    out = np.asarray(np.matmul(x, w))
    return out + arrays[2] if len(arrays) > 2 else out


# --- attention ---------------------------------------------------------------------------------


def _infer_attention(types: Operands, a: Attrs) -> TensorType:
    names = ("q", "k", "v")
    q, k, v = types[:3]
    for name, t in zip(names, types, strict=False):
        require_ndim("attention", name, t, 4, "(batch, heads, positions, features)")
    require_dtype("attention", "q", q, FLOAT)
    dtype = require_same_dtype("attention", names, types[:3])
    if a.get("wide"):
        if not dtype.is_half:
            raise bad_attribute("attention", "wide", f"False for {dtype}", repr(a.get("wide")))
        dtype = dtype.sums
    batch, heads, length, depth = q.shape
    keys = k.shape[2]
    require_shape("attention", "k", k, (batch, heads, keys, depth), "as 'q'")
    require_shape("attention", "v", v, (batch, heads, keys, v.shape[3]), "as 'k'")
    if len(types) > 3:
        _check_mask(types[3], replace(q, dtype=dtype), (batch, heads, length, keys))
    return TensorType((batch, heads, length, v.shape[3]), dtype)


def _check_mask(mask: TensorType, q: TensorType, scores: tuple[Expr, ...]) -> None:
    if not mask.dtype.is_bool:
        require_same_dtype("attention", ("q", "mask"), (q, mask))
    fits = mask.ndim <= 4 and all(
        same_extent(m, s) or same_extent(m, 1)
        for m, s in zip(reversed(mask.shape), reversed(scores), strict=False)
    )
    if not fits:
        expected = f"a shape that broadcasts to [{', '.join(map(show, scores))}]"
        raise mismatch("attention", "mask", expected, show_type(mask))


def _np_attention(arrays: Arrays, a: Attrs) -> np.ndarray:
    """softmax(q k^T * scale + mask) v, with q [B, H, S, D], k [B, H, T, D] and v [B, H, T, E].

    With `causal`, query i attends to keys 0 .. i + T - S, so the last query attends to all of them.
    A query whose scores are all minus infinity gives zeros, as in ONNX's Attention, or NaN if
    `unseen="nan"`, as in a plain softmax. A finite mask value that is the same for a whole
    row of scores has no effect, however low it is, because softmax ignores a common offset."""
    q, k, v = arrays[:3]
    scores = q @ k.swapaxes(-1, -2) * q.dtype.type(a.scale)
    lengths = scores.shape[-2:]
    if len(arrays) > 3:
        mask = arrays[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if a.causal:
        sees = np.tri(lengths[0], lengths[1], lengths[1] - lengths[0], dtype=bool)
        scores = np.where(sees, scores, -np.inf)
    scores = scores.astype(q.dtype)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    if a.unseen == "zero":
        total = np.where(total == 0, 1, total)
    with np.errstate(invalid="ignore"):
        return np.asarray((weights / total) @ v)


MATMUL: dict[str, OpDef] = {
    "matmul": OpDef(
        "matmul",
        ("a", "b"),
        {"transpose_a": at.flag(False), "transpose_b": at.flag(False), "wide": at.flag(False)},
        "contraction",
        _infer_matmul,
        _np_matmul,
        _program_matmul,
    ),
    "linear": OpDef(
        "linear",
        ("x", "w", "bias?"),
        {"wide": at.flag(at.OPTIONAL), "small_weights": at.flag(at.OPTIONAL)},
        "contraction",
        _infer_linear,
        _np_linear,
        _program_linear,
    ),
    "attention": OpDef(
        "attention",
        ("q", "k", "v", "mask?"),
        {
            "scale": at.number(),
            "causal": at.flag(False),
            # Operands of 16 bits, and a mask and a result of float32.
            "wide": at.flag(at.OPTIONAL),
            # The result of a query whose scores are all minus infinity.
            "unseen": at.choice("zero", "nan", default="zero"),
        },
        "opaque",
        _infer_attention,
        _np_attention,
        None,
    ),
}
