"""Index arithmetic and addresses: emitted once, in the outermost scope that can hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tensorkiln.codegen.expand.offsets import Offset, flat_offset, with_constants_apart
from tensorkiln.codegen.llvm.arithmetic import int_binary
from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.types import memory_type
from tensorkiln.codegen.llvm.writer import COMPARE, CodeScope, KernelWriter
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    IntImm,
    Select,
    Unary,
    Var,
    cast,
    int_value,
)
from tensorkiln.ir.visit import has_load


def address(w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int | None]:
    """A pointer to lane 0, and the distance between lanes as in `flat_offset`."""
    ptr, offset, lane_stride = base_address(w, buf, indices)
    if offset:
        ptr = w.line(f"getelementptr inbounds i8, ptr {ptr}, i64 {offset}")
    return ptr, lane_stride


def base_address(
    w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...]
) -> tuple[str, int, int | None]:
    """Lane 0 as a pointer (one GEP per loop depth) and a constant number of bytes, and the
    distance between lanes. Accesses that differ only in that number share the pointer."""
    flat, lane_stride = _offset(w, buf, indices)
    if lane_stride is None:
        return "", 0, None
    if w.constants_apart:
        flat = with_constants_apart(flat)
    st = w.state
    size = buf.dtype.bytes
    by_depth: dict[int, list[tuple[int, Expr]]] = {}
    for scale, e in flat.terms:
        depth = max(w.scope_of(e).depth, st.views.get(buf, 0))
        by_depth.setdefault(depth, []).append((scale, e))
    ptr = st.buffers[buf]
    for depth in sorted(by_depth):
        scope = st.scopes[depth]
        # Keyed by emitted values, not by expressions: an index may load memory that changed.
        parts = tuple((index(w, e), scale * size) for scale, e in by_depth[depth])
        pointer = scope.memo.get(("gep", ptr, parts))
        if pointer is None:
            offset = ""
            for value, scale in parts:
                term = value
                if scale != 1:
                    term = w.line(f"mul nsw i64 {value}, {scale}", scope)
                if offset:
                    term = w.line(f"add nsw i64 {offset}, {term}", scope)
                offset = term
            pointer = w.line(f"getelementptr inbounds i8, ptr {ptr}, i64 {offset}", scope)
            scope.memo["gep", ptr, parts] = pointer
        ptr = pointer
    return ptr, flat.constant * size, lane_stride


def _offset(w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Offset, int | None]:
    """As `flat_offset`, whose result is kept: unrolled loops share the indices of an access."""
    key = (id(buf), id(indices))
    entry = w.offsets.get(key)
    if entry is None:
        entry = w.offsets[key] = (*flat_offset(buf, indices), buf, indices)
    return entry[0], entry[1]


def alignment(buf: Buffer, indices: tuple[Expr, ...], start: int = 0) -> int:
    """The alignment of the address in bytes, as far as constant strides and factors tell; `start`
    is that of the buffer, if more is known than the buffer says."""
    return _alignment(buf, flat_offset(buf, indices)[0], start)


def alignment_of(w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...]) -> int:
    """As `alignment`, with all that is known of the buffer's start."""
    return _alignment(buf, _offset(w, buf, indices)[0], w.aligns.get(buf, 0))


def _alignment(buf: Buffer, flat: Offset, start: int) -> int:
    size = buf.dtype.bytes
    align = max(start, buf.align)
    for n in [flat.constant, *(scale * _factor(e) for scale, e in flat.terms)]:
        n *= size
        while n % align:
            align //= 2
    return max(align, 1)


def lane_pointers(
    w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...], lanes: int
) -> Iterable[str]:
    """One pointer per lane for accesses without a unit stride."""
    ptr, stride = address(w, buf, indices)
    size = buf.dtype.bytes
    if stride is not None:
        for lane in range(lanes):
            yield w.line(f"getelementptr i8, ptr {ptr}, i64 {lane * stride * size}")
        return
    offset = "zeroinitializer"
    vector = f"<{lanes} x i64>"
    for i, s in zip(indices, buf.strides, strict=True):
        wide = i if i.dtype.lanes > 1 else Broadcast(i, lanes)
        iv = w.value(cast(wide, INT64.with_lanes(lanes)))
        sv = w.value(Broadcast(s, lanes))
        prod = w.line(f"mul nsw {vector} {iv}, {sv}")
        offset = w.line(f"add nsw {vector} {offset}, {prod}")
    for lane in range(lanes):
        x = w.line(f"extractelement {vector} {offset}, i32 {lane}")
        t = memory_type(buf.dtype)
        yield w.line(f"getelementptr {t}, ptr {w.state.buffers[buf]}, i64 {x}")


def index(w: KernelWriter, e: Expr) -> str:
    """A scalar int64, emitted once in the outermost scope that can hold it."""
    if isinstance(e, IntImm):
        return str(e.value)
    if e.dtype != INT64:
        return convert(w, w.value(e), e.dtype, INT64)
    if isinstance(e, Var):
        return w.state.vars[e]
    if has_load(e):
        return w.value(e)
    scope = w.scope_of(e)
    register = scope.memo.get(e)
    if register is None:
        register = scope.memo[e] = _compute(w, e, scope)
    return register


def _compute(w: KernelWriter, e: Expr, scope: CodeScope) -> str:
    match e:
        case Binary(op, a, b):
            return int_binary(w, op, index(w, a), index(w, b), INT64, scope, b)
        case Select(c, a, b):
            x, y = index(w, a), index(w, b)
            return w.line(f"select i1 {_cond(w, c, scope)}, i64 {x}, i64 {y}", scope)
        case Unary("neg", a):
            return w.line(f"sub i64 0, {index(w, a)}", scope)
        case Unary("abs", a):
            x = index(w, a)
            minus = w.line(f"sub i64 0, {x}", scope)
            return w.call("smax", INT64, [x, minus], scope)
        case Unary("floor" | "ceil" | "round" | "trunc", a):
            return index(w, a)
        case Cast(a, _):
            return convert(w, w.value(a), a.dtype, INT64)
    return w.value(e)


def _cond(w: KernelWriter, e: Expr, scope: CodeScope) -> str:
    """A scalar condition on index expressions."""
    match e:
        case Binary(op, a, b) if op in COMPARE and a.dtype == INT64:
            x, y = index(w, a), index(w, b)
            code = op if op in ("eq", "ne") else "s" + COMPARE[op]
            return w.line(f"icmp {code} i64 {x}, {y}", scope)
        case Binary(op, a, b) if op in ("and", "or"):
            x, y = _cond(w, a, scope), _cond(w, b, scope)
            return w.line(f"{op} i1 {x}, {y}", scope)
        case Unary("not", a):
            return w.line(f"xor i1 {_cond(w, a, scope)}, true", scope)
        case Select(c, a, b):
            z, x, y = (_cond(w, p, scope) for p in (c, a, b))
            return w.line(f"select i1 {z}, i1 {x}, i1 {y}", scope)
        case IntImm(value):
            return "true" if value else "false"
    return w.value(e)


def _factor(e: Expr) -> int:
    """An integer whose powers of two divide `e`, also where a narrow type wraps around; 0 for 0."""
    match e:
        case Binary("mul", a, b):
            return _factor(a) * _factor(b)
        case Binary("add" | "sub", a, b):
            return math.gcd(_factor(a), _factor(b))
        case Cast(a, _) if a.dtype.is_int:
            return _factor(a)
    n = int_value(e)
    return 1 if n is None else n
