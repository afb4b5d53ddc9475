"""How large the rounding errors of an operator may be: the tolerance of `tk.verify`.

This is the usual first-order error analysis, with errors taken as independent. The `error` of a
value is an array of its shape, with the estimated absolute error of each element. An operator adds
its own rounding (eps is the distance from 1 to the next number of its type, y the result),

    sum of n products (conv2d, linear, matmul, sum, mean)   eps (2 + sqrt(n) / 2) sum |x_i| |w_i|
    copies (transpose, slice, max)                          0
    any other, element by element                           2 eps |y|, and eps for what cancels in
                                                            1 + erf(x), exp(x) - 1, log(1 + exp(x)),
                                                            and between the terms of a batch norm
    any other along rows (softmax, layer_norm, attention)   eps (4 + sqrt(n) / 2) |y|, and how much
                                                            y changes if operands change by eps

and propagates the errors of its operands. For a sum of products that is sqrt(sum w_i^2 error_i^2).
Any other operator is evaluated on operands moved by their errors; near a jump (rounding,
comparison, argmax) the change is the whole step. `TIMES` times the estimate is tolerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.base.errors import UserError
from tensorkiln.ops.op import OpDef

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Operator = Callable[[Sequence[Array]], Array]

TIMES = 8.0
# Operators that sum products of their first two operands and add a third; that sum their only one.
_PRODUCTS = ("conv2d", "conv2d_transpose", "linear", "matmul")
_SUMS = ("sum", "mean", "avg_pool2d")
_COPIES = ("max", "min", "max_pool2d", "identity", "relu", "abs", "neg", "maximum", "minimum")


@dataclass(frozen=True, slots=True)
class Epsilon:
    """The relative precisions of an operator: that of its result's type, and that of the operands
    of products, which `compile(precision=)` may round to fewer bits."""

    result: float
    product: float


def rounding(
    op: OpDef,
    run: Operator,
    args: Sequence[Array],
    errors: Sequence[Floats | None],
    out: Array,
    eps: Epsilon,
) -> Floats | None:
    """The estimated errors of the elements of `out = run(args)`, if the operands have `errors`
    (None: they are exact): the operator's own rounding, and what it makes of these errors. None if
    the result is exact."""
    with np.errstate(all="ignore"):
        if op.name in _PRODUCTS and _is_float(out):
            return _product(op.name, run, args, errors, eps)
        if op.name in _SUMS and _is_float(out):
            return _sum(run, args[0], errors[0], out, eps)
        carried = _carried(op, run, args, errors, out)
        if op.pattern == "injective" or op.name in _COPIES or not _is_float(out):
            return carried
        if op.pattern in ("elementwise", "broadcast"):
            op_error = (
                2 * eps.result * (np.abs(out.astype(np.float64)) + _cancelled(op.name, run, args))
            )
        else:
            op_error = _along_rows(run, args, out, eps)
        return op_error if carried is None else np.hypot(op_error, carried)


def _cancelled(name: str, run: Operator, args: Sequence[Array]) -> Floats | float:
    """An operator may be computed as a difference of larger terms, which loses bits. The size of
    those terms, for operators of one element each; its rounding is 2 eps of it."""
    if name == "gelu":  # x / 2 (1 + erf(x / sqrt(2)))
        return np.minimum(np.abs(args[0].astype(np.float64)), 10.0) / 4
    if name == "batch_norm":  # x s + (b - m s)
        x, g, b, m, v = args
        return run([np.abs(x), np.abs(g), np.abs(b), -np.abs(m), v]).astype(np.float64)
    return 0.5 if name in ("elu", "softplus") else 0.0


def _product(
    name: str,
    run: Operator,
    args: Sequence[Array],
    errors: Sequence[Floats | None],
    eps: Epsilon,
) -> Floats:
    x, w, *biases = (np.abs(a.astype(np.float64)) for a in args)
    n = math.prod(w.shape[1:])
    if name in ("linear", "matmul"):
        n = max(set(x.shape[-2:]) & set(w.shape[-2:]), default=x.shape[-1])
    elif name == "conv2d_transpose":
        n = w.size // max(1, w.shape[1])
    terms = run([x, w, *biases]).astype(np.float64)
    if name.startswith("conv2d"):  # Winograd's rounding is that of a whole tile
        terms = np.broadcast_to(terms.max((2, 3), keepdims=True, initial=0.0), terms.shape)
    op_error = eps.result * (2 + math.sqrt(n) / 2) * terms
    squares = [np.zeros_like(op_error)]
    zeros = [np.zeros_like(r) for r in biases]
    if eps.product > eps.result:
        squares.append(2 * eps.product**2 * run([x * x, w * w, *zeros]).astype(np.float64))
    if errors[0] is not None:
        squares.append(run([errors[0] ** 2, w * w, *zeros]).astype(np.float64))
    if errors[1] is not None:
        squares.append(run([x * x, errors[1] ** 2, *zeros]).astype(np.float64))
    for e in errors[2:]:
        if e is not None:  # the error of the bias, which has one element per channel
            by_channel = e[:, None, None] if name.startswith("conv2d") else e
            squares.append(np.broadcast_to(by_channel**2, op_error.shape))
    return np.hypot(op_error, np.sqrt(np.maximum(sum(squares), 0)))


def _sum(run: Operator, x: Array, error: Floats | None, out: Array, eps: Epsilon) -> Floats:
    n = max(1, x.size // max(1, out.size))
    op_error = eps.result * (2 + math.sqrt(n) / 2) * run([np.abs(x.astype(np.float64))])
    if error is None:
        return np.asarray(op_error, np.float64)
    # For a mean this is an overestimate: the squares are divided by n, not by n squared.
    return np.hypot(op_error, np.sqrt(np.maximum(run([error**2]), 0)))


def _carried(
    op: OpDef,
    run: Operator,
    args: Sequence[Array],
    errors: Sequence[Floats | None],
    out: Array,
) -> Floats | None:
    """The errors of the result due to those of the operands, taken as independent: each operand is
    moved by its error, up and down, and the result's changes are added as squares."""
    squares: Floats | None = None
    exact = out.astype(np.float64)
    for k, error in enumerate(errors):
        if error is None:
            continue
        change = np.zeros(exact.shape)
        for sign in (1, -1):
            moved = list(args)
            moved[k] = _moved(args[k], sign * error)
            try:
                moved_out = run(moved).astype(np.float64)
            except (UserError, IndexError, ValueError):  # a moved index is out of range
                continue
            change = np.fmax(change, np.where(moved_out == exact, 0.0, np.abs(moved_out - exact)))
        if op.pattern in ("reduction", "opaque"):
            change = _row(change)
        squares = change**2 if squares is None else squares + change**2
    return None if squares is None else np.sqrt(squares)


def _along_rows(run: Operator, args: Sequence[Array], out: Array, eps: Epsilon) -> Floats:
    """The rounding of operators that pass over rows several times (softmax, layer_norm, attention):
    an estimate from the number of terms, or the change of the result when all operands are randomly
    moved by their precision, whichever is larger."""
    exact = out.astype(np.float64)
    n = max((d for a in args for d in a.shape), default=1)
    scale = eps.result * (4 + math.sqrt(n) / 2) * np.abs(exact)
    largest_eps = max(eps.result, eps.product)
    rng = np.random.default_rng(0)
    for _ in range(2):
        moved = [
            a * (1 + largest_eps * rng.choice((-1.0, 1.0), a.shape)) if _is_float(a) else a
            for a in args
        ]
        moved_out = run(moved).astype(np.float64)
        scale = np.fmax(scale, _row(np.where(moved_out == exact, 0.0, np.abs(moved_out - exact))))
    return scale


def _row(errors: Floats) -> Floats:
    """Each row's largest error, for the whole row: a random experiment shows on single elements
    what may happen to any element of the row."""
    if errors.ndim == 0 or errors.size == 0:
        return errors
    return np.broadcast_to(np.fmax.reduce(errors, -1, keepdims=True), errors.shape)


def _moved(a: Array, by: Floats) -> Array:
    if a.dtype.kind == "f":
        return a + by
    if a.dtype.kind == "b":
        return a ^ (np.abs(by) >= 0.5)
    info = np.iinfo(a.dtype)
    moved = np.clip(np.rint(a.astype(np.float64) + by), info.min, info.max)
    return moved.astype(a.dtype)


def _is_float(a: Array) -> bool:
    return a.dtype.kind == "f"


__all__ = ["TIMES", "Epsilon", "rounding"]
