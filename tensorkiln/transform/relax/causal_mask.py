"""Decide whether an attention mask is exactly the causal one: row i sees columns j <= i.

Exporters write it as a constant, or for symbolic extents as comparisons of `arange`s. The latter
are evaluated symbolically; the elements of a value are described as a function of their indices:

    Affine    element [.., i, j] is c1*i + c0*j + c
    Steps     element [.., i, j] is one of three values, by the sign of j - i
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, int_value
from tensorkiln.ir.relax import Bound, Call, Constant, RVar, TensorType, Value
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.rewriting.pattern import uniform

Lookup = Callable[[RVar], Bound | None]
_FAR = 1 << 40  # a distance from the diagonal that no element exceeds


@dataclass(frozen=True, slots=True)
class Affine:
    """A linear function of the indices. `coefficients` holds pairs (dimension, factor), where
    dimensions are counted from the last, which is 0."""

    coefficients: tuple[tuple[int, int], ...]
    offset: float


@dataclass(frozen=True, slots=True)
class DiagonalValues:
    """The values below the diagonal (j < i), on it, and above it, in the last two dimensions."""

    values: np.ndarray  # of 3 elements, in the tensor's dtype


Element = Affine | DiagonalValues


def hides(value: float, dtype: np.dtype) -> bool:
    """Whether a mask value hides a key when it is added to a score: -inf, or within 1% of the most
    negative number, which is equivalent unless scores are of that magnitude themselves."""
    return dtype.kind == "f" and value <= 0.99 * float(np.finfo(dtype).min)


def is_causal(mask: Value, scores: tuple[Expr, ...], lookup: Lookup) -> bool:
    """Whether a mask of scores [.., S, T] is causal, with a last row that sees all columns.

    `scores` is (S, T). A bool mask keeps a score where it is True; a float mask is added. A mask
    that is not a constant is only recognised for S = T.
    """
    t = mask.type
    if not isinstance(t, TensorType) or t.ndim < 2:
        return False
    shape: list[ExprLike] = [*(1 for _ in t.shape[:-2]), *scores]
    if not all(map(same_extent, t.shape, shape)):
        return False
    if isinstance(mask, Constant):
        return mask.type.layout is None and _constant_causal(mask.array)
    if not same_extent(*scores):
        return False
    element = _element(mask, lookup)
    return isinstance(element, DiagonalValues) and _seen(element.values) == [True, True, False]


def _seen(values: np.ndarray) -> list[bool | None]:
    """For each mask value: True if it keeps a score, False if it hides it, None otherwise."""
    if values.dtype.kind == "b":
        return [bool(v) for v in values]
    return [True if v == 0 else False if hides(v, values.dtype) else None for v in values.tolist()]


def _constant_causal(array: np.ndarray) -> bool:
    rows, columns = array.shape[-2:]
    if rows > columns:
        return False
    a = array.reshape(rows, columns)
    sees = np.tri(rows, columns, columns - rows, dtype=bool)
    if a.dtype.kind == "b":
        return bool(np.array_equal(a, sees))
    if a.dtype.kind != "f":
        return False
    hidden = a <= 0.99 * np.finfo(a.dtype).min
    return bool(np.array_equal(a == 0, sees) and np.array_equal(hidden, ~sees))


# --- the elements of a value as a function of their indices --------------------------------------


def _element(v: Value, lookup: Lookup) -> Element | None:
    if isinstance(v, Constant):
        number = uniform(v)
        return None if number is None else Affine((), number)
    definition = lookup(v) if isinstance(v, RVar) else None
    if not isinstance(definition, Call) or not isinstance(v.type, TensorType):
        return None
    if definition.op in ("full", "arange"):
        return _source(definition)
    parts = [_element(a, lookup) for a in definition.args]
    if any(p is None for p in parts):
        return None
    if definition.op in _MOVES:
        return _moved(definition, parts[0], v.type)
    return _computed(definition, parts)  # type: ignore[arg-type]


def _source(call: Call) -> Element | None:
    if call.op == "full":
        return Affine((), float(call.attrs.value))
    start, step = int_value(call.attrs.start), int_value(call.attrs.step)
    return None if start is None or step is None else Affine(((0, step),), start)


def _moved(call: Call, part: Element | None, result: TensorType) -> Element | None:
    """The function after a transpose, a broadcast, or a reshape that only adds or removes
    dimensions of extent 1; None for other reshapes."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if call.op == "broadcast_to" or not (isinstance(part, DiagonalValues) or part.coefficients):  # type: ignore[union-attr]
        return part
    old = range(x.ndim)
    if call.op == "transpose":
        new = {x.ndim - 1 - a: result.ndim - 1 - k for k, a in enumerate(call.attrs.axes)}
    else:
        wide = [d for d in old if x.shape[d] != IntImm(1)]
        places = [d for d in range(result.ndim) if result.shape[d] != IntImm(1)]
        if len(wide) != len(places) or not all(
            same_extent(x.shape[a], result.shape[b]) for a, b in zip(wide, places, strict=True)
        ):
            return None
        new = {x.ndim - 1 - a: result.ndim - 1 - b for a, b in zip(wide, places, strict=True)}
    if isinstance(part, DiagonalValues):
        return part if new.get(0) == 0 and new.get(1) == 1 else None
    assert isinstance(part, Affine)
    if any(d not in new for d, _ in part.coefficients):
        return None
    return Affine(tuple(sorted((new[d], c) for d, c in part.coefficients)), part.offset)


_MOVES = frozenset({"reshape", "transpose", "broadcast_to"})
_COMPARE = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
_LINEAR = {"add": (1, 1), "sub": (1, -1)}


def _computed(call: Call, parts: list[Element]) -> Element | None:
    """The function that results from an operator on operands with functions `parts`; or None."""
    linear = [p for p in parts if isinstance(p, Affine)]
    if len(linear) == len(parts) and any(p.coefficients for p in linear):
        if call.op in _LINEAR:
            return _sum(linear[0], linear[1], *_LINEAR[call.op])
        if call.op == "neg":
            return _sum(linear[0], linear[0], -1, 0)
        if call.op == "cast" and str(call.attrs.dtype).startswith(("int", "float")):
            return linear[0]
        if call.op in _COMPARE:
            return _compared(call.op, _sum(linear[0], linear[1], 1, -1))
        return None
    if any(p.coefficients for p in linear):
        return None
    op = ops.OPS.get(call.op)
    if op is None or op.pattern not in ("elementwise", "broadcast"):
        return None
    arrays = [
        p.values if isinstance(p, DiagonalValues) else np.full(3, p.offset, a.type.dtype.name)  # type: ignore[union-attr]
        for p, a in zip(parts, call.args, strict=True)
    ]
    return DiagonalValues(np.asarray(op.numpy(arrays, call.attrs)))


def _sum(a: Affine, b: Affine, ka: int, kb: int) -> Affine:
    total: dict[int, int] = {}
    for part, k in ((a, ka), (b, kb)):
        for d, c in part.coefficients:
            total[d] = total.get(d, 0) + k * c
    coefficients = tuple(sorted((d, c) for d, c in total.items() if c))
    return Affine(coefficients, ka * a.offset + kb * b.offset)


def _compared(op: str, difference: Affine) -> Element | None:
    """`difference op 0` as Steps; None unless it is constant on each side of the diagonal."""
    of = dict(difference.coefficients)
    slope = of.pop(0, 0)
    if of != {1: -slope} or not slope:
        return None

    def truth(*distances: int) -> bool | None:
        values = {bool(_COMPARE[op](slope * d + difference.offset, 0)) for d in distances}
        return values.pop() if len(values) == 1 else None

    if op in ("equal", "not_equal") and difference.offset:
        return None
    # A linear function is monotonic, so equal values at both ends of a side hold for all of it.
    sides = [truth(-_FAR, -1), truth(0), truth(1, _FAR)]
    return None if None in sides else DiagonalValues(np.array(sides, bool))
