"""Tensor program -> LLVM IR text.

Values are emitted where they are needed, except integer index arithmetic, which is emitted in the
outermost scope whose variables it uses: the text is already free of loop-invariant address code,
so no mid-level optimisation pass is needed but SROA (register buffers are one alloca per vector).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.expansions import Expander, splat
from tensorkiln.codegen.llvm.math import expand
from tensorkiln.codegen.llvm.types import float_literal, llvm_type, memory_type, suffix
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, INT64, DType
from tensorkiln.ir.expr import (
    BITCASTS,
    Binary,
    Broadcast,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    int_value,
)  # fmt: skip
from tensorkiln.ir.stmt import Alloc, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import walk, walk_stmt
from tensorkiln.target import Target

_INT_OPS = {
    "add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor",
    "shl": "shl", "and": "and", "or": "or",
}  # fmt: skip
_FLOAT_OPS = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv"}
_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_FLOAT_UNARY = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven",
    "trunc": "trunc",
}  # fmt: skip


@dataclass(slots=True)
class Scope:
    """A region of straight code that everything emitted inside it is dominated by."""

    depth: int
    lines: list[str] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Linear:
    """constant + sum of (coefficient, expression)."""

    constant: int
    terms: list[tuple[int, Expr]]


class Emitter:
    """Emits one PrimFunc and the bodies of its parallel loops."""

    def __init__(self, func: PrimFunc, target: Target):
        self.func = func
        x86 = target.arch == "x86_64"
        self.rounds = not x86 or target.has("sse4.1")
        self.converts_half = not x86 or target.has("f16c")
        self.done: list[str] = []
        self.declares: set[str] = set()
        self.counter = 0
        self.body_count = 0

    # -- functions -----------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text of the kernel's LLVM module."""
        params: dict[Buffer | Var, str] = {}
        for i, p in enumerate(self.func.params):
            params[p] = f"%p{i}"
        self._function(f"@{self.func.name}", params, self.func.body, extra="")
        text = "\n\n".join(reversed(self.done))
        return text + "\n\n" + "\n".join(sorted(self.declares)) + "\n\n!0 = !{i32 1}\n"

    def _function(
        self, name: str, params: dict[Buffer | Var, str], body: Stmt, *, extra: str
    ) -> None:
        """Emit `define void name(params extra)`. Parallel bodies get i64 %begin, %end in extra."""
        saved = getattr(self, "_state", None)
        self._state = _FunctionState(params)
        linkage = "internal " if extra else ""
        alias = "" if self.func.inplace else " noalias"
        args = [
            f"ptr{alias} {v}" if isinstance(p, Buffer) else f"{llvm_type(p.dtype)} {v}"
            for p, v in params.items()
        ]
        root = self._open_scope()
        self._state.block = "entry"
        if extra:
            begin, end = Var("begin"), Var("end")
            self._state.vars[begin], self._state.vars[end] = "%begin", "%end"
            self._state.depths[begin] = self._state.depths[end] = 0
            loop: For = body  # type: ignore[assignment]
            self._loop(For(loop.var, begin, end - begin, "serial", loop.body), begin_at_lo=True)
        else:
            self._stmt(body)
        self._close_scope()
        lines = ["entry:", *self._state.allocas, *root.lines, "  ret void"]
        head = f"define {linkage}void {name}({', '.join(args)}{extra}) #0 {{"
        self.done.append("\n".join([head, *lines, "}"]))
        self._state = saved  # type: ignore[assignment]

    def _parallel(self, loop: For) -> None:
        """Outline a parallel loop and hand it to the pool; captures travel in a struct."""
        st = self._state
        k = self.body_count
        self.body_count += 1
        used = _used(loop)
        captured: dict[Buffer | Var, str] = {
            p: v for p, v in (*st.buffers.items(), *st.vars.items()) if p in used
        }
        name = f"@{self.func.name}.body{k}"
        inner: dict[Buffer | Var, str] = {p: f"%c{i}" for i, p in enumerate(captured)}
        types = ["ptr" if isinstance(p, Buffer) else llvm_type(p.dtype) for p in captured]
        struct_type = "{" + ", ".join(types) + "}"
        self._function(name, inner, loop, extra=(", " if inner else "") + "i64 %begin, i64 %end")
        thunk = [f"define internal void {name}.entry(ptr %closure, i64 %begin, i64 %end) #0 {{"]
        args = []
        for i, t in enumerate(types):
            thunk.append(f"  %f{i} = getelementptr {struct_type}, ptr %closure, i32 0, i32 {i}")
            thunk.append(f"  %v{i} = load {t}, ptr %f{i}")
            args.append(f"{t} %v{i}")
        call = ", ".join([*args, "i64 %begin", "i64 %end"])
        thunk += [f"  call void {name}({call})", "  ret void", "}"]
        self.done.append("\n".join(thunk))
        extent = self.index(loop.extent)
        closure = self._fresh()
        st.allocas.append(f"  {closure} = alloca {struct_type}, align 8")
        for i, (p, t) in enumerate(zip(captured, types, strict=True)):
            f = self._line(f"getelementptr {struct_type}, ptr {closure}, i32 0, i32 {i}")
            self._emit(f"  store {t} {captured[p]}, ptr {f}")
        self.declares.add("declare void @kiln_parallel_for(ptr, ptr, i64)")
        self._emit(
            f"  call void @kiln_parallel_for(ptr {name}.entry, ptr {closure}, i64 {extent})"
        )

    # -- scopes and lines ----------------------------------------------------------------------

    def _open_scope(self) -> Scope:
        scope = Scope(len(self._state.scopes))
        self._state.scopes.append(scope)
        return scope

    def _close_scope(self) -> Scope:
        return self._state.scopes.pop()

    def _fresh(self) -> str:
        self.counter += 1
        return f"%t{self.counter}"

    def _emit(self, line: str, scope: Scope | None = None) -> None:
        (scope or self._state.scopes[-1]).lines.append(line)

    def _line(self, text: str, scope: Scope | None = None) -> str:
        name = self._fresh()
        self._emit(f"  {name} = {text}", scope)
        return name

    def _label(self) -> str:
        self.counter += 1
        return f"b{self.counter}"

    # -- statements ----------------------------------------------------------------------------

    def _stmt(self, s: Stmt) -> None:
        match s:
            case Seq(stmts):
                for t in stmts:
                    self._stmt(t)
            case For():
                if s.kind == "parallel" and not self._state.in_parallel:
                    self._parallel(s)
                elif s.kind in ("serial", "parallel"):
                    self._loop(s)
                else:
                    raise InternalError(f"{self.func.name}: a {s.kind} loop reached LLVM emission")
            case Store():
                self._store(s)
            case Let(var, value, body):
                st = self._state
                if value.dtype == INT64 and not _has_load(value):
                    scope = self._scope_of(value)
                    st.depths[var] = scope.depth
                    st.vars[var] = self.index(value)
                else:
                    st.depths[var] = len(st.scopes) - 1
                    st.vars[var] = self.value(value)
                self._stmt(body)
            case If(cond, then, orelse):
                self._if(self.value(cond), then, orelse)
            case Alloc(buf, body):
                self._alloc(buf)
                self._stmt(body)
            case Prefetch(buf, indices, locality, write):
                ptr, _ = self._address(buf, indices)
                self.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                self._emit(
                    f"  call void @llvm.prefetch.p0(ptr {ptr}, i32 {int(write)}, "
                    f"i32 {locality}, i32 1)"
                )
            case _:
                raise InternalError(f"{self.func.name}: cannot emit {type(s).__name__}")

    def _if(self, cond: str, then: Stmt, orelse: Stmt | None) -> None:
        st = self._state
        yes, no, end = self._label(), self._label(), self._label()
        # The branch lives in a scope of its own, so that code hoisted out of it lands before it.
        whole = self._open_scope()
        self._emit(f"  br i1 {cond}, label %{yes}, label %{no if orelse else end}")
        branches = [(yes, then)] + ([(no, orelse)] if orelse else [])
        for label, branch in branches:
            scope = self._open_scope()
            self._emit(f"{label}:")
            st.block = label
            self._stmt(branch)
            self._emit(f"  br label %{end}")
            self._close_scope()
            st.scopes[-1].lines.extend(scope.lines)
        self._close_scope()
        st.scopes[-1].lines.extend(whole.lines)
        self._emit(f"{end}:")
        st.block = end

    def _loop(self, s: For, begin_at_lo: bool = False) -> None:
        """A bottom-tested loop, guarded when its extent may be zero."""
        st = self._state
        extent = int_value(s.extent)
        if extent == 0:
            return
        lo = self.index(s.lo)
        hi = self.index(s.lo + s.extent) if not begin_at_lo else "%end"
        head, end = self._label(), self._label()
        pre = st.block
        guard = extent is None
        body = self._open_scope()
        if guard:
            cond = self._line(f"icmp slt i64 {lo}, {hi}")
            self._emit(f"  br i1 {cond}, label %{head}, label %{end}")
        else:
            self._emit(f"  br label %{head}")
        iv, following, latch = self._fresh(), self._fresh(), self._label()
        self._emit(f"{head}:")
        self._emit(f"  {iv} = phi i64 [ {lo}, %{pre} ], [ {following}, %{latch} ]")
        st.block = head
        st.vars[s.var], st.depths[s.var] = iv, body.depth
        was_parallel, st.in_parallel = st.in_parallel, st.in_parallel or s.kind == "parallel"
        self._stmt(s.body)
        st.in_parallel = was_parallel
        self._emit(f"  br label %{latch}")
        self._emit(f"{latch}:")
        self._emit(f"  {following} = add nsw i64 {iv}, 1")
        cond = self._line(f"icmp slt i64 {following}, {hi}")
        self._emit(f"  br i1 {cond}, label %{head}, label %{end}")
        self._close_scope()
        st.scopes[-1].lines.extend(body.lines)
        self._emit(f"{end}:")
        st.block = end

    def _alloc(self, buf: Buffer) -> None:
        st = self._state
        if buf.scope == "register":
            st.registers[buf] = {}
            return
        size = 1
        for d in buf.shape:
            n = int_value(d)
            if n is None:
                where = f"{self.func.name}: local buffer {buf.name}"
                raise InternalError(f"{where} has a symbolic size")
            size *= n
        name = self._fresh()
        st.allocas.append(
            f"  {name} = alloca [{size} x {memory_type(buf.dtype)}], align {buf.align}"
        )
        st.buffers[buf] = name

    def _store(self, s: Store) -> None:
        value = self.value(s.value)
        dtype = s.value.dtype
        if s.buffer in self._state.registers:
            slot = self._register(s.buffer, s.indices, dtype)
            self._emit(f"  store {llvm_type(dtype)} {value}, ptr {slot}")
            return
        ptr, stride = self._address(s.buffer, s.indices)
        if dtype.is_bool:
            value = self._line(
                f"zext {llvm_type(dtype)} {value} to {llvm_type(DType('uint8', dtype.lanes))}"
            )
        if dtype.lanes == 1 or stride == 1:
            align = self._alignment(s.buffer, s.indices)
            hint = ", !nontemporal !0" if s.nontemporal else ""
            self._emit(f"  store {memory_type(dtype)} {value}, ptr {ptr}, align {align}{hint}")
            return
        for lane, p in enumerate(self._lane_pointers(s.buffer, s.indices, dtype.lanes)):
            x = self._line(f"extractelement {memory_type(dtype)} {value}, i32 {lane}")
            self._emit(f"  store {memory_type(dtype.element)} {x}, ptr {p}")

    # -- addresses -----------------------------------------------------------------------------

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

    def _flat(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[_Linear, int | None]:
        """Flat element offset of lane 0, and the lane stride (None: lanes have no pattern)."""
        total = _Linear(0, [])
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
            self._add_linear(total, i * stride, 1)
        return total, lane_stride

    def _add_linear(self, total: _Linear, e: Expr, scale: int) -> None:
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
        """Pointer to lane 0: one GEP per loop depth, then the constant part."""
        flat, lane_stride = self._flat(buf, indices)
        if lane_stride is None:
            return "", None
        st = self._state
        size = 1 if buf.dtype.is_bool else buf.dtype.bytes
        by_depth: dict[int, list[tuple[int, Expr]]] = {}
        for scale, e in flat.terms:
            by_depth.setdefault(self._scope_of(e).depth, []).append((scale, e))
        ptr = st.buffers[buf]
        for depth in sorted(by_depth):
            scope = st.scopes[depth]
            key = ("gep", ptr, tuple(by_depth[depth]))
            found = scope.memo.get(key)
            if found is None:
                parts = [self._scaled(e, scale * size, scope) for scale, e in by_depth[depth]]
                offset = parts[0]
                for p in parts[1:]:
                    offset = self._line(f"add nsw i64 {offset}, {p}", scope)
                found = self._line(f"getelementptr inbounds i8, ptr {ptr}, i64 {offset}", scope)
                scope.memo[key] = found
            ptr = found
        if flat.constant:
            ptr = self._line(f"getelementptr inbounds i8, ptr {ptr}, i64 {flat.constant * size}")
        return ptr, lane_stride

    def _scaled(self, e: Expr, scale: int, scope: Scope) -> str:
        v = self.index(e)
        return v if scale == 1 else self._line(f"mul nsw i64 {v}, {scale}", scope)

    def _alignment(self, buf: Buffer, indices: tuple[Expr, ...]) -> int:
        """Bytes the address is known to be a multiple of, from constant strides alone."""
        size = 1 if buf.dtype.is_bool else buf.dtype.bytes
        flat, _ = self._flat(buf, indices)
        align = buf.align
        for n in [flat.constant, *(scale * _factor(e) for scale, e in flat.terms)]:
            n *= size
            while n % align:
                align //= 2
        return max(align, 1)

    def _lane_pointers(
        self, buf: Buffer, indices: tuple[Expr, ...], lanes: int
    ) -> Iterable[str]:
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
            iv = self.value(i if i.dtype.lanes > 1 else Broadcast(i, lanes))
            sv = self.value(Broadcast(s, lanes))
            prod = self._line(f"mul nsw {vector} {iv}, {sv}")
            offset = self._line(f"add nsw {vector} {offset}, {prod}")
        for lane in range(lanes):
            x = self._line(f"extractelement {vector} {offset}, i32 {lane}")
            t = memory_type(buf.dtype)
            yield self._line(f"getelementptr {t}, ptr {self._state.buffers[buf]}, i64 {x}")

    # -- index arithmetic (hoisted) --------------------------------------------------------------

    def _scope_of(self, e: Expr) -> Scope:
        """The outermost open scope in which `e` can be computed."""
        st = self._state
        depth = 0
        for x in walk(e):
            if isinstance(x, Var):
                depth = max(depth, st.depths[x])
            elif isinstance(x, Load):
                return st.scopes[-1]
        return st.scopes[depth]

    def index(self, e: Expr) -> str:
        """A scalar int64, emitted once in the outermost scope that can hold it."""
        if isinstance(e, IntImm):
            return str(e.value)
        if isinstance(e, Var):
            return self._state.vars[e]
        if e.dtype != INT64 or _has_load(e):
            return self.value(e)
        scope = self._scope_of(e)
        found = scope.memo.get(e)
        if found is None:
            found = scope.memo[e] = self._compute(e, scope)
        return found

    def _compute(self, e: Expr, scope: Scope) -> str:
        match e:
            case Binary(op, a, b):
                y = self.index(b)
                if op in ("floordiv", "floormod") and int_value(b) is None:
                    # Hoisted out of the loops that an extent of 0 keeps from running.
                    none = self._line(f"icmp eq i64 {y}, 0", scope)
                    y = self._line(f"select i1 {none}, i64 1, i64 {y}", scope)
                return self._int_binary(op, self.index(a), y, INT64, scope, b)
            case Select(c, a, b):
                x, y = self.index(a), self.index(b)
                return self._line(f"select i1 {self._cond(c, scope)}, i64 {x}, i64 {y}", scope)
            case Unary("neg", a):
                return self._line(f"sub nsw i64 0, {self.index(a)}", scope)
            case Unary("abs", a):
                x = self.index(a)
                minus = self._line(f"sub i64 0, {x}", scope)
                return self._call("smax", INT64, [x, minus], scope)
            case Cast(a, _):
                return self._cast(self.value(a), a.dtype, INT64)
        return self.value(e)

    def _cond(self, e: Expr, scope: Scope) -> str:
        """A scalar condition on index expressions."""
        match e:
            case Binary(op, a, b) if op in _COMPARE and a.dtype == INT64:
                x, y = self.index(a), self.index(b)
                code = op if op in ("eq", "ne") else "s" + _COMPARE[op]
                return self._line(f"icmp {code} i64 {x}, {y}", scope)
            case Binary(op, a, b) if op in ("and", "or"):
                x, y = self._cond(a, scope), self._cond(b, scope)
                return self._line(f"{op} i1 {x}, {y}", scope)
            case Unary("not", a):
                return self._line(f"xor i1 {self._cond(a, scope)}, true", scope)
            case IntImm(value):
                return "true" if value else "false"
        raise InternalError(f"{self.func.name}: not a condition on indices: {e}")

    # -- values ----------------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """Emit `e` here; identical subexpressions (the same object) are emitted once."""
        cache: dict[int, tuple[Expr, str]] = {}
        return self._value(e, cache)

    def _value(self, e: Expr, cache: dict[int, tuple[Expr, str]]) -> str:
        found = cache.get(id(e))
        if found is None:
            found = cache[id(e)] = (e, self._emit_value(e, cache))
        return found[1]

    def _emit_value(self, e: Expr, cache: dict[int, tuple[Expr, str]]) -> str:
        dtype = e.dtype
        t = llvm_type(dtype)
        match e:
            case IntImm(value):
                return str(bool(value)).lower() if dtype.is_bool else str(value)
            case FloatImm(value):
                return float_literal(value, dtype)
            case Var():
                return self._state.vars[e]
            case Binary(op, a, b):
                if dtype == INT64 and not _has_load(e):
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
                return self._line(
                    f"shufflevector {ta} {x}, {ta} {y}, <{len(lanes)} x i32> {mask}"
                )
            case VectorReduce(op, a):
                return self._vector_reduce(op, self._value(a, cache), a.dtype)
            case Intrin(name, args):
                return self._intrin(name, [self._value(a, cache) for a in args], args[0].dtype)
        raise InternalError(f"{self.func.name}: cannot emit expression {type(e).__name__}")

    def _splat(self, v: str, dtype: DType, lanes: int) -> str:
        t, tv = llvm_type(dtype), llvm_type(dtype.with_lanes(lanes))
        if not v.startswith("%"):
            return "<" + ", ".join([f"{t} {v}"] * lanes) + ">"
        key = ("splat", v, lanes)
        for scope in self._state.scopes:
            if key in scope.memo:
                return scope.memo[key]
        one = self._line(f"insertelement {tv} poison, {t} {v}, i32 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        out = self._line(f"shufflevector {tv} {one}, {tv} poison, {mask}")
        self._state.scopes[-1].memo[key] = out
        return out

    def _load(self, e: Load) -> str:
        dtype, buf = e.dtype, e.buffer
        if buf in self._state.registers:
            slot = self._register(buf, e.indices, dtype)
            return self._line(f"load {llvm_type(dtype)}, ptr {slot}")
        t = memory_type(dtype)
        ptr, stride = self._address(buf, e.indices)
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

    def _call(self, name: str, dtype: DType, args: list[str], scope: Scope | None = None) -> str:
        t = llvm_type(dtype)
        full = f"@llvm.{name}.{suffix(dtype)}"
        self.declares.add(f"declare {t} {full}({', '.join([t] * len(args))})")
        return self._line(f"call {t} {full}({', '.join(f'{t} {a}' for a in args)})", scope)

    def _binary(self, op: str, x: str, y: str, dtype: DType, b: Expr) -> str:
        t = llvm_type(dtype)
        if dtype.is_float and dtype.bits == 16:
            wide = DType("float32", dtype.lanes)
            x, y = self._cast(x, dtype, wide), self._cast(y, dtype, wide)
            result = self._binary(op, x, y, wide, b)
            return result if op in _COMPARE else self._cast(result, wide, dtype)
        if dtype.is_float:
            if op in _FLOAT_OPS:
                return self._line(f"{_FLOAT_OPS[op]} {t} {x}, {y}")
            if op in _COMPARE:
                code = "une" if op == "ne" else "o" + _COMPARE[op]
                return self._line(f"fcmp {code} {t} {x}, {y}")
            if op in ("min", "max"):
                # x < y ? x : y maps to one instruction; a NaN in y is kept, one in x is dropped
                # unless y is NaN too: operand order is chosen by the operator definitions.
                cmp = self._line(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {x}, {y}")
                lanes = f"<{dtype.lanes} x i1>" if dtype.lanes > 1 else "i1"
                return self._line(f"select {lanes} {cmp}, {t} {x}, {t} {y}")
            if op in ("floordiv", "floormod"):
                q = self._round("floor", self._line(f"fdiv {t} {x}, {y}"), dtype)
                if op == "floordiv":
                    return q
                return self._line(f"fsub {t} {x}, {self._line(f'fmul {t} {q}, {y}')}")
        return self._int_binary(op, x, y, dtype, None, b)

    def _int_binary(
        self, op: str, x: str, y: str, dtype: DType, scope: Scope | None, b: Expr
    ) -> str:
        t = llvm_type(dtype)
        sign = "u" if dtype.is_unsigned else "s"
        if op in _INT_OPS:
            return self._line(f"{_INT_OPS[op]} {t} {x}, {y}", scope)
        if op == "shr":
            return self._line(f"{'lshr' if sign == 'u' else 'ashr'} {t} {x}, {y}", scope)
        if op in _COMPARE:
            code = op if op in ("eq", "ne") else sign + _COMPARE[op]
            return self._line(f"icmp {code} {t} {x}, {y}", scope)
        if op in ("min", "max"):
            return self._call(sign + op, dtype, [x, y], scope)
        if op == "div":
            return self._line(f"{sign}div {t} {x}, {y}", scope)
        if op in ("floordiv", "floormod"):
            return self._floor_division(op, x, y, dtype, scope, b)
        raise InternalError(f"{self.func.name}: no integer operation {op}")

    def _floor_division(
        self, op: str, x: str, y: str, dtype: DType, scope: Scope | None, b: Expr
    ) -> str:
        """Rounds to minus infinity; powers of two are a shift or a mask."""
        t = llvm_type(dtype)
        n = int_value(b)
        if n is not None and n > 0 and n & (n - 1) == 0 and not dtype.is_unsigned:
            if op == "floordiv":
                return self._line(f"ashr {t} {x}, {n.bit_length() - 1}", scope)
            return self._line(f"and {t} {x}, {n - 1}", scope)
        if dtype.is_unsigned:
            return self._line(f"{'udiv' if op == 'floordiv' else 'urem'} {t} {x}, {y}", scope)
        zero = "zeroinitializer" if dtype.lanes > 1 else "0"
        flag = llvm_type(BOOL.with_lanes(dtype.lanes))
        r = self._line(f"srem {t} {x}, {y}", scope)
        mixed = self._line(f"xor {t} {r}, {y}", scope)
        differs = self._line(f"icmp slt {t} {mixed}, {zero}", scope)
        nonzero = self._line(f"icmp ne {t} {r}, {zero}", scope)
        adjust = self._line(f"and {flag} {differs}, {nonzero}", scope)
        if op == "floormod":
            fixed = self._line(f"add {t} {r}, {y}", scope)
            return self._line(f"select {flag} {adjust}, {t} {fixed}, {t} {r}", scope)
        q = self._line(f"sdiv {t} {x}, {y}", scope)
        less = self._line(f"sext {flag} {adjust} to {t}", scope)
        return self._line(f"add {t} {q}, {less}", scope)

    def _unary(self, op: str, x: str, dtype: DType) -> str:
        t = llvm_type(dtype)
        if dtype.is_float:
            if dtype.bits == 16:
                wide = DType("float32", dtype.lanes)
                return self._cast(self._unary(op, self._cast(x, dtype, wide), wide), wide, dtype)
            if op == "neg":
                return self._line(f"fneg {t} {x}")
            return self._round(_FLOAT_UNARY[op], x, dtype)
        if op == "not":
            ones = splat("true" if dtype.is_bool else "-1", dtype)
            return self._line(f"xor {t} {x}, {ones}")
        zero = "zeroinitializer" if dtype.lanes > 1 else "0"
        minus = self._line(f"sub {t} {zero}, {x}")
        return minus if op == "neg" else self._call("smax", dtype, [x, minus])

    def _round(self, name: str, x: str, dtype: DType) -> str:
        """A float intrinsic; the roundings are expanded where the processor has none."""
        if name in ("fabs", "sqrt") or self.rounds:
            return self._call(name, dtype, [x])
        return self._expander(dtype.lanes).round(name, x, dtype)

    def _expander(self, lanes: int) -> Expander:
        return Expander(self._line, self._call, lanes)

    def _cast(self, x: str, src: DType, dst: DType) -> str:
        ts, td = llvm_type(src), llvm_type(dst)
        if src == dst:
            return x
        if (src.is_float and src.bits == 16) or (dst.is_float and dst.bits == 16):
            return self._cast_narrow(x, src, dst)
        if dst.is_bool:
            zero = splat(float_literal(0.0, src) if src.is_float else "0", src)
            return self._line(f"{'fcmp une' if src.is_float else 'icmp ne'} {ts} {x}, {zero}")
        if src.is_float and dst.is_float:
            return self._line(f"{'fpext' if dst.bits > src.bits else 'fptrunc'} {ts} {x} to {td}")
        if src.is_float:
            kind = "u" if dst.is_unsigned else "s"
            name = f"@llvm.fpto{kind}i.sat.{suffix(dst)}.{suffix(src)}"
            self.declares.add(f"declare {td} {name}({ts})")
            return self._line(f"call {td} {name}({ts} {x})")
        if dst.is_float:
            return self._line(f"{'ui' if src.is_unsigned else 'si'}tofp {ts} {x} to {td}")
        src_bits = 1 if src.is_bool else src.bits
        if src_bits == dst.bits:
            return x
        if src_bits > dst.bits:
            return self._line(f"trunc {ts} {x} to {td}")
        return self._line(f"{'zext' if src.is_unsigned else 'sext'} {ts} {x} to {td}")

    def _cast_narrow(self, x: str, src: DType, dst: DType) -> str:
        """Casts from or to float16 and bfloat16, by way of float32."""
        single, e = DType("float32", src.lanes), self._expander(src.lanes)
        if src.is_float and src.bits == 16:
            if src.name == "bfloat16":
                wide = e.from_bfloat(x)
            elif self.converts_half:
                wide = e.cast("fpext", x, src, single)
            else:
                wide = e.from_half(x)
            return self._cast(wide, single, dst)
        if src.name == "float64" or (src.is_int and src.bits > 16):
            # Two roundings to nearest may differ from one: the first goes to odd.
            double = DType("float64", src.lanes)
            x = e.to_odd(self._cast(x, src, double))
        else:
            x = self._cast(x, src, single)
        if dst.name == "bfloat16":
            return e.to_bfloat(x)
        return e.cast("fptrunc", x, single, dst) if self.converts_half else e.to_half(x)

    def _vector_reduce(self, op: str, x: str, dtype: DType) -> str:
        """Halve the vector until one lane is left: a fixed order for every target."""
        lanes = dtype.lanes
        name = {"sum": "add", "prod": "mul"}.get(op, op)
        while lanes > 2:
            t, half = llvm_type(dtype.with_lanes(lanes)), dtype.with_lanes(lanes // 2)
            low = ", ".join(f"i32 {i}" for i in range(lanes // 2))
            high = ", ".join(f"i32 {i}" for i in range(lanes // 2, lanes))
            mask = f"<{lanes // 2} x i32>"
            a = self._line(f"shufflevector {t} {x}, {t} poison, {mask} <{low}>")
            b = self._line(f"shufflevector {t} {x}, {t} poison, {mask} <{high}>")
            x = self._binary(name, a, b, half, IntImm(0))
            lanes //= 2
        pair = llvm_type(dtype.with_lanes(2))
        a = self._line(f"extractelement {pair} {x}, i32 0")
        b = self._line(f"extractelement {pair} {x}, i32 1")
        return self._binary(name, a, b, dtype.element, IntImm(0))

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


@dataclass(slots=True)
class _FunctionState:
    """What is known while one LLVM function is written."""

    params: dict[Buffer | Var, str]
    scopes: list[Scope] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    vars: dict[Var, str] = field(default_factory=dict)
    depths: dict[Var, int] = field(default_factory=dict)
    buffers: dict[Buffer, str] = field(default_factory=dict)
    registers: dict[Buffer, dict[tuple[tuple[int, ...], int], str]] = field(default_factory=dict)
    block: str = "entry"
    in_parallel: bool = False

    def __post_init__(self) -> None:
        for p, v in self.params.items():
            if isinstance(p, Buffer):
                self.buffers[p] = v
            else:
                self.vars[p], self.depths[p] = v, 0


def _has_load(e: Expr) -> bool:
    return any(isinstance(x, Load) for x in walk(e))


def _factor(e: Expr) -> int:
    """An integer that divides `e`: its constant factors."""
    if isinstance(e, Binary) and e.op == "mul":
        return _factor(e.a) * _factor(e.b)
    return int_value(e) or 1


def _used(s: Stmt) -> set[Buffer | Var]:
    """Buffers and variables a statement mentions."""
    from tensorkiln.ir.visit import stmt_exprs

    used: set[Buffer | Var] = set()
    for t in walk_stmt(s):
        if isinstance(t, (Store, Prefetch)):
            used.add(t.buffer)
            for d in t.buffer.shape:
                used.update(x for x in walk(d) if isinstance(x, Var))
        for e in stmt_exprs(t):
            for x in walk(e):
                if isinstance(x, Var):
                    used.add(x)
                elif isinstance(x, Load):
                    used.add(x.buffer)
                    for d in x.buffer.shape:
                        used.update(y for y in walk(d) if isinstance(y, Var))
    return used


def emit_llvm(func: PrimFunc, target: Target) -> str:
    """LLVM IR text of `func`: `void name(ptr..., i64...)` plus its parallel loop bodies.

    The text is for `target`: it expands what that processor cannot do itself.
    """
    return Emitter(func, target).module()
