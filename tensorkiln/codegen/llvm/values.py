"""Expressions of tensor programs, emitted where they are used."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.codegen.llvm.addresses import Addresses
from tensorkiln.codegen.llvm.math import expand
from tensorkiln.codegen.llvm.types import float_literal, llvm_type, memory_type
from tensorkiln.ir.buffer import AddressOf, Load
from tensorkiln.ir.dtype import HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import (
    BITCASTS,
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)  # fmt: skip
from tensorkiln.ir.visit import has_load


class Values(Addresses):
    """Emits expressions of any dtype and number of lanes."""

    def value(self, e: Expr) -> str:
        """Emit `e` here; equal subexpressions are emitted once, calls of C functions each time.

        Subexpressions are equal if their instructions are, so that the text does not depend on
        whether they are one shared object or, in a parsed program, several. The `cache` of
        `_value`, by identity, only saves time.
        """
        outermost = self._known is None
        if outermost:
            self._known = {}
        try:
            return self._value(e, {})
        finally:
            if outermost:
                self._known = None

    def _value(self, e: Expr, cache: dict[int, tuple[Expr, str]]) -> str:
        found = cache.get(id(e))
        if found is not None:
            return found[1]
        calls = self._calls
        value = self._emit_value(e, cache)
        if calls == self._calls:
            cache[id(e)] = e, value
        else:
            cache.clear()  # what a C function wrote is loaded again
        return value

    def _emit_value(self, e: Expr, cache: dict[int, tuple[Expr, str]]) -> str:
        dtype = e.dtype
        if isinstance(e, CallExtern):
            return self._extern(e, cache)
        t = llvm_type(dtype)
        match e:
            case IntImm(value):
                return str(bool(value)).lower() if dtype.is_bool else str(value)
            case FloatImm(value):
                return float_literal(value, dtype)
            case Var():
                return self._state.vars[e]
            case AddressOf(buf, indices):
                return self._address(buf, indices)[0]
            case Binary("add", a, b) if dtype == HANDLE:
                start, offset = self._value(a, cache), self._value(b, cache)
                return self._line(f"getelementptr i8, ptr {start}, i64 {offset}")
            case Binary(op, a, b):
                if dtype == INT64 and not has_load(e):
                    return self.index(e)
                return self._binary(op, self._value(a, cache), self._value(b, cache), a.dtype, b)
            case Unary(op, a):
                return self._unary(op, self._value(a, cache), dtype)
            case Select(c, a, b):
                z, x, y = self._value(c, cache), self._value(a, cache), self._value(b, cache)
                lanes = c.dtype.lanes
                cond = f"<{lanes} x i1> {z}" if lanes > 1 else f"i1 {z}"
                return self._line(f"select {cond}, {t} {x}, {t} {y}")
            case Cast(a, _):
                return self._cast(self._value(a, cache), a.dtype, dtype)
            case Load():
                return self._load(e)
            case Broadcast(a, lanes):
                return self._splat(self._value(a, cache), a.dtype, lanes)
            case Ramp(base, stride, lanes):
                start = self._splat(self._value(base, cache), base.dtype, lanes)
                step = self._splat(self._value(stride, cache), base.dtype, lanes)
                element = llvm_type(base.dtype)
                counts = "<" + ", ".join(f"{element} {i}" for i in range(lanes)) + ">"
                return self._line(f"add {t} {start}, {self._line(f'mul {t} {step}, {counts}')}")
            case Shuffle(a, b, lanes):
                x, y = self._value(a, cache), self._value(b, cache)
                ta = llvm_type(a.dtype)
                mask = "<" + ", ".join(f"i32 {i}" for i in lanes) + ">"
                return self._line(f"shufflevector {ta} {x}, {ta} {y}, <{len(lanes)} x i32> {mask}")
            case VectorReduce(op, a):
                return self._vector_reduce(op, self._value(a, cache), a.dtype)
            case Intrin("dot4" | "dot2", args):
                emit = self._dot4 if e.name == "dot4" else self._dot2
                left, right, total = (self._value(x, cache) for x in (*args[1:], args[0]))
                return emit(total, left, right, dtype.lanes)
            case Intrin(name, args):
                return self._intrin(name, [self._value(a, cache) for a in args], args[0].dtype)
        raise InternalError(f"{self.func.name}: cannot emit expression {type(e).__name__}")

    def _load(self, e: Load) -> str:
        dtype, buf = e.dtype, e.buffer
        if buf in self._state.registers:
            slot = self._register(buf, e.indices, dtype)
            return self._line(f"load {llvm_type(dtype)}, ptr {slot}")
        base, offset, stride = self._base(buf, e.indices)
        key = (buf, base, offset, f"{dtype} {stride}")
        if stride is None:
            return self._load_from(e, base, stride)
        found = self._state.loaded.get(key)
        if found is None:
            ptr = base
            if offset:
                ptr = self._line(f"getelementptr inbounds i8, ptr {base}, i64 {offset}")
            found = self._state.loaded[key] = self._load_from(e, ptr, stride)
        return found

    def _load_from(self, e: Load, ptr: str, stride: int | None) -> str:
        dtype, buf = e.dtype, e.buffer
        t = memory_type(dtype)
        if dtype.lanes == 1 or stride == 1:
            align = self._alignment(buf, e.indices)
            v = self._line(f"load {t}, ptr {ptr}, align {align}")
        elif stride == 0:
            x = self._line(f"load {memory_type(dtype.element)}, ptr {ptr}")
            v = self._splat(x, DType("uint8") if dtype.is_bool else dtype.element, dtype.lanes)
        else:
            v = "poison"
            for lane, p in enumerate(self._lane_pointers(buf, e.indices, dtype.lanes)):
                x = self._line(f"load {memory_type(dtype.element)}, ptr {p}")
                v = self._line(
                    f"insertelement {t} {v}, {memory_type(dtype.element)} {x}, i32 {lane}"
                )
        if dtype.is_bool:
            v = self._line(f"icmp ne {t} {v}, {'0' if dtype.lanes == 1 else 'zeroinitializer'}")
        return v

    def _extern(self, e: CallExtern, cache: dict[int, tuple[Expr, str]]) -> str:
        """A call of a C function; narrow integers are extended, as C compilers expect."""
        args, types = [], []
        for a in e.args:
            if isinstance(a, AddressOf):
                value, t = self._address(a.buffer, a.indices)[0], "ptr"
            else:
                value, t = self._value(a, cache), _c_type(a.dtype)
            types.append(t)
            args.append(f"{t} {value}")
        result = " ".join(reversed(_c_type(e.dtype).split()))
        declared = f"declare {result} @{e.name}({', '.join(types)})"
        if any(f" @{e.name}(" in d and d != declared for d in self.declares):
            raise UserError(
                f"C function {e.name} is called with two signatures",
                code="extern-signature",
                where=self.func.name,
                hint="give all calls the same types, with T.Cast",
            )
        self.declares.add(declared)
        self._calls += 1
        self._state.written(None)
        call = f"call {result} @{e.name}({', '.join(args)})"
        name = "" if e.dtype == VOID else self._fresh()
        self._emit(f"  {name} = {call}" if name else f"  {call}")
        self._known = {}
        return name

    def _intrin(self, name: str, args: list[str], dtype: DType) -> str:
        t = llvm_type(dtype)
        if name in ("fma", "isnan") and dtype.bits == 16:
            wide = DType("float32", dtype.lanes)
            result = self._intrin(name, [self._cast(a, dtype, wide) for a in args], wide)
            return result if name == "isnan" else self._cast(result, wide, dtype)
        if name == "fma":
            return self._call("fmuladd", dtype, args)
        if name == "isnan":
            return self._line(f"fcmp uno {t} {args[0]}, {args[0]}")
        if name in BITCASTS:
            return self._line(f"bitcast {t} {args[0]} to "
                              f"{llvm_type(DType(BITCASTS[name][1], dtype.lanes))}")  # fmt: skip
        params, lets, answer = expand(name, dtype)
        st = self._state
        for p, arg in zip(params, args, strict=True):
            st.vars[p], st.depths[p] = arg, len(st.scopes) - 1
        for var, e in lets:
            st.vars[var], st.depths[var] = self.value(e), len(st.scopes) - 1
        return self.value(answer)


def _c_type(dtype: DType) -> str:
    """How C passes or returns a value of this type."""
    if dtype == VOID:
        return "void"
    if dtype == HANDLE:
        return "ptr"
    extended = dtype.bits < 32 and not dtype.is_float
    attribute = " zeroext" if dtype.is_unsigned else " signext"
    return llvm_type(dtype) + (attribute if extended else "")
