"""Where the elements of a buffer are: offsets as sums of terms, and how far they reach."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.base.errors import InternalError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT32, INT64, DType
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    IntImm,
    Ramp,
    binary,
    cast,
    const,
    int_value,
)
from tensorkiln.ir.visit import has_load

_NARROW = 1 << 31  # no int32 is as large


@dataclass(slots=True)
class Offset:
    """constant + sum of (coefficient, expression)."""

    constant: int
    terms: list[tuple[int, Expr]]


def flat_offset(
    buf: Buffer, indices: tuple[Expr, ...], dtype: DType = INT64
) -> tuple[Offset, int | None]:
    """The offset of lane 0 and the distance between lanes, in elements; None for lanes that are
    not evenly spaced. Terms are of type `dtype`."""
    total = Offset(0, [])
    lane_stride: int | None = 0
    for i, stride in zip(indices, buf.strides, strict=True):
        if isinstance(i, Ramp):
            step, width = int_value(i.stride), int_value(stride)
            if step is None or width is None or lane_stride is None:
                lane_stride = None
            else:
                lane_stride += step * width
            i = i.base
        elif isinstance(i, Broadcast):
            i = i.a
        elif i.dtype.lanes > 1:
            return total, None
        if (scale := int_value(stride)) is None:
            _add(total, cast(i, dtype) * cast(stride, dtype), 1)
        elif scale:
            _add(total, cast(i, dtype), scale)
    return total, lane_stride


def _add(total: Offset, e: Expr, scale: int) -> None:
    """Add `e` times `scale` to the sum, term by term."""
    if isinstance(e, IntImm):
        total.constant += scale * e.value
        return
    if not isinstance(e, Binary):  # nearly all are variables, constants and sums
        total.terms.append((scale, e))
        return
    match e:
        case Binary("add", a, b):
            _add(total, a, scale)
            _add(total, b, scale)
        case Binary("sub", a, b):
            _add(total, a, scale)
            _add(total, b, -scale)
        case Binary("mul", a, IntImm(value)) | Binary("mul", IntImm(value), a):
            _add(total, a, scale * value)
        case Binary("mul", Binary("add", a, b), c):
            _add(total, a * c, scale)
            _add(total, b * c, scale)
        case Binary("mul", Binary("mul", a, IntImm(value)), c):
            _add(total, a * c, scale * value)
        case _:
            total.terms.append((scale, e))


def with_constants_apart(offset: Offset) -> Offset:
    """The same offset, in whose terms nothing constant is added before a narrow index becomes an
    int64: then accesses of one loop that are a constant number of elements apart share a pointer.

    Parts of an index i + c of int32, c > 0, may wrap around, but as it is used to find an element,
    0 <= i + c < 2**31, so -c <= i < 2**31 does not. Loaded numbers stay as they are.
    """
    total = Offset(offset.constant, [])
    for scale, e in offset.terms:
        if isinstance(e, Cast) and e.a.dtype == INT32 and not has_load(e):
            narrow, constant = _apart(e.a)
            if 0 < constant < _NARROW:
                total.constant += scale * constant
                e = cast(narrow, INT64)
        if int_value(e) != 0:
            total.terms.append((scale, e))
    return total


def _apart(e: Expr) -> tuple[Expr, int]:
    """(an index without the constants that are added to it, their sum)"""
    if isinstance(e, IntImm):
        return const(0, e.dtype), e.value
    match e:
        case Binary("add" | "sub" as op, a, b):
            (x, m), (y, n) = _apart(a), _apart(b)
            if m or n:
                return binary(op, x, y), m + n if op == "add" else m - n
        case Binary("mul", a, IntImm(factor)):
            if (apart := _apart(a))[1]:
                return apart[0] * factor, apart[1] * factor
    return e, 0


def register_key(kernel: str, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[int, ...]:
    """The indices of an element, or of the first one of a vector, of a buffer in registers. Raises
    InternalError, which names the kernel, for one that is not constant."""
    key: list[int] = []
    for i in indices:
        n = int_value(i.base if isinstance(i, Ramp) else i)
        if n is None:
            raise InternalError(f"{kernel}: register buffer {buf.name} needs constant indices")
        key.append(n)
    return tuple(key)


def elements(buf: Buffer) -> int | None:
    """How many elements of memory a buffer spans, gaps between strides included; None if that is
    not a constant, or if a stride is negative."""
    total: Expr = const(1)
    if any(int_value(extent) == 0 for extent in buf.shape):
        return 0
    for extent, stride in zip(buf.shape, buf.strides, strict=True):
        step = int_value(stride)
        if step is not None and step < 0:
            return None
        total = total + (extent - 1) * stride
    return int_value(simplify(total))
