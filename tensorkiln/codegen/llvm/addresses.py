"""Index arithmetic and addresses: emitted once, in the outermost scope that can hold them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.dot import Dots
from tensorkiln.codegen.llvm.lines import COMPARE, Scope
from tensorkiln.codegen.llvm.types import llvm_type, memory_type
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    IntImm,
    Ramp,
    Select,
    Unary,
    Var,
    cast,
    int_value,
)  # fmt: skip
from tensorkiln.ir.visit import has_load


@dataclass(slots=True)
class Linear:
    """constant + sum of (coefficient, expression)."""

    constant: int
    terms: list[tuple[int, Expr]]


class Addresses(Dots, ABC):
    """Emits the addresses of buffer accesses, and the index arithmetic that they consist of."""

    @abstractmethod
    def value(self, e: Expr) -> str:
        """Emit any expression. Declared here for loads inside indices; `Values` defines it."""

    def _register(self, buf: Buffer, indices: tuple[Expr, ...], dtype: DType) -> str:
        key: list[int] = []
        for i in indices:
            base = i.base if isinstance(i, Ramp) else i
            n = int_value(base)
            if n is None:
                raise InternalError(
                    f"{self.func.name}: register buffer {buf.name} needs constant indices"
                )
            key.append(n)
        slots = self._state.registers[buf]
        found = slots.get((tuple(key), dtype.lanes))
        if found is None:
            found = self._fresh()
            self._state.allocas.append(f"  {found} = alloca {llvm_type(dtype)}")
            slots[tuple(key), dtype.lanes] = found
        return found

    def _flat(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Linear, int | None]:
        """The offset of lane 0 and the distance between lanes, in elements; None for lanes that are
        not evenly spaced."""
        total = Linear(0, [])
        lane_stride: int | None = 0
        for i, stride in zip(indices, buf.strides, strict=True):
            if isinstance(i, Ramp):
                step, width = int_value(i.stride), int_value(stride)
                regular = step is not None and width is not None and lane_stride is not None
                lane_stride = lane_stride + step * width if regular else None  # type: ignore
                i = i.base
            elif isinstance(i, Broadcast):
                i = i.a
            elif i.dtype.lanes > 1:
                return total, None
            self._add_linear(total, cast(i, INT64) * stride, 1)
        return total, lane_stride

    def _add_linear(self, total: Linear, e: Expr, scale: int) -> None:
        match e:
            case IntImm(value):
                total.constant += scale * value
            case Binary("add", a, b):
                self._add_linear(total, a, scale)
                self._add_linear(total, b, scale)
            case Binary("sub", a, b):
                self._add_linear(total, a, scale)
                self._add_linear(total, b, -scale)
            case Binary("mul", a, IntImm(value)) | Binary("mul", IntImm(value), a):
                self._add_linear(total, a, scale * value)
            case Binary("mul", Binary("add", a, b), c):
                self._add_linear(total, a * c, scale)
                self._add_linear(total, b * c, scale)
            case Binary("mul", Binary("mul", a, IntImm(value)), c):
                self._add_linear(total, a * c, scale * value)
            case _:
                total.terms.append((scale, e))

    def _address(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int | None]:
        """A pointer to lane 0, and the distance between lanes as in `_flat`."""
        ptr, offset, lane_stride = self._base(buf, indices)
        if offset:
            ptr = self._line(f"getelementptr inbounds i8, ptr {ptr}, i64 {offset}")
        return ptr, lane_stride

    def _base(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int, int | None]:
        """Lane 0 as a pointer (one GEP per loop depth) and a constant number of bytes, and the
        distance between lanes. Accesses that differ only in that number share the pointer."""
        flat, lane_stride = self._flat(buf, indices)
        if lane_stride is None:
            return "", 0, None
        st = self._state
        size = 1 if buf.dtype.is_bool else buf.dtype.bytes
        by_depth: dict[int, list[tuple[int, Expr]]] = {}
        for scale, e in flat.terms:
            depth = max(self._scope_of(e).depth, st.views.get(buf, 0))
            by_depth.setdefault(depth, []).append((scale, e))
        ptr = st.buffers[buf]
        for depth in sorted(by_depth):
            scope = st.scopes[depth]
            # Keyed by emitted values, not by expressions: an index may load memory that changed.
            parts = tuple((self.index(e), scale * size) for scale, e in by_depth[depth])
            found = scope.memo.get(("gep", ptr, parts))
            if found is None:
                offset = ""
                for value, scale in parts:
                    term = value
                    if scale != 1:
                        term = self._line(f"mul nsw i64 {value}, {scale}", scope)
                    if offset:
                        term = self._line(f"add nsw i64 {offset}, {term}", scope)
                    offset = term
                found = self._line(f"getelementptr inbounds i8, ptr {ptr}, i64 {offset}", scope)
                scope.memo["gep", ptr, parts] = found
            ptr = found
        return ptr, flat.constant * size, lane_stride

    def _alignment(self, buf: Buffer, indices: tuple[Expr, ...]) -> int:
        """The alignment of the address in bytes, as far as constant strides and factors tell."""
        size = 1 if buf.dtype.is_bool else buf.dtype.bytes
        flat, _ = self._flat(buf, indices)
        align = buf.align
        for n in [flat.constant, *(scale * _factor(e) for scale, e in flat.terms)]:
            n *= size
            while n % align:
                align //= 2
        return max(align, 1)

    def _lane_pointers(self, buf: Buffer, indices: tuple[Expr, ...], lanes: int) -> Iterable[str]:
        """One pointer per lane for accesses without a unit stride."""
        ptr, stride = self._address(buf, indices)
        size = 1 if buf.dtype.is_bool else buf.dtype.bytes
        if stride is not None:
            for lane in range(lanes):
                yield self._line(f"getelementptr i8, ptr {ptr}, i64 {lane * stride * size}")
            return
        offset = "zeroinitializer"
        vector = f"<{lanes} x i64>"
        for i, s in zip(indices, buf.strides, strict=True):
            wide = i if i.dtype.lanes > 1 else Broadcast(i, lanes)
            iv = self.value(cast(wide, INT64.with_lanes(lanes)))
            sv = self.value(Broadcast(s, lanes))
            prod = self._line(f"mul nsw {vector} {iv}, {sv}")
            offset = self._line(f"add nsw {vector} {offset}, {prod}")
        for lane in range(lanes):
            x = self._line(f"extractelement {vector} {offset}, i32 {lane}")
            t = memory_type(buf.dtype)
            yield self._line(f"getelementptr {t}, ptr {self._state.buffers[buf]}, i64 {x}")

    def index(self, e: Expr) -> str:
        """A scalar int64, emitted once in the outermost scope that can hold it."""
        if isinstance(e, IntImm):
            return str(e.value)
        if e.dtype != INT64:
            return self._cast(self.value(e), e.dtype, INT64)
        if isinstance(e, Var):
            return self._state.vars[e]
        if has_load(e):
            return self.value(e)
        scope = self._scope_of(e)
        found = scope.memo.get(e)
        if found is None:
            found = scope.memo[e] = self._compute(e, scope)
        return found

    def _compute(self, e: Expr, scope: Scope) -> str:
        match e:
            case Binary(op, a, b):
                return self._int_binary(op, self.index(a), self.index(b), INT64, scope, b)
            case Select(c, a, b):
                x, y = self.index(a), self.index(b)
                return self._line(f"select i1 {self._cond(c, scope)}, i64 {x}, i64 {y}", scope)
            case Unary("neg", a):
                return self._line(f"sub i64 0, {self.index(a)}", scope)
            case Unary("abs", a):
                x = self.index(a)
                minus = self._line(f"sub i64 0, {x}", scope)
                return self._call("smax", INT64, [x, minus], scope)
            case Unary("floor" | "ceil" | "round" | "trunc", a):
                return self.index(a)
            case Cast(a, _):
                return self._cast(self.value(a), a.dtype, INT64)
        return self.value(e)

    def _cond(self, e: Expr, scope: Scope) -> str:
        """A scalar condition on index expressions."""
        match e:
            case Binary(op, a, b) if op in COMPARE and a.dtype == INT64:
                x, y = self.index(a), self.index(b)
                code = op if op in ("eq", "ne") else "s" + COMPARE[op]
                return self._line(f"icmp {code} i64 {x}, {y}", scope)
            case Binary(op, a, b) if op in ("and", "or"):
                x, y = self._cond(a, scope), self._cond(b, scope)
                return self._line(f"{op} i1 {x}, {y}", scope)
            case Unary("not", a):
                return self._line(f"xor i1 {self._cond(a, scope)}, true", scope)
            case Select(c, a, b):
                z, x, y = (self._cond(p, scope) for p in (c, a, b))
                return self._line(f"select i1 {z}, i1 {x}, i1 {y}", scope)
            case IntImm(value):
                return "true" if value else "false"
        return self.value(e)


def _factor(e: Expr) -> int:
    """An integer that divides `e`: the product of its constant factors."""
    if isinstance(e, Binary) and e.op == "mul":
        return _factor(e.a) * _factor(e.b)
    return int_value(e) or 1
