"""Tensor program -> LLVM IR text.

Values are emitted where they are needed, except integer index arithmetic, which is emitted in the
outermost scope whose variables it uses: the text is already free of loop-invariant address code,
so no mid-level optimisation pass is needed but SROA (register buffers are one alloca per vector).
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.by_lane import by_lane
from tensorkiln.codegen.llvm.drop_starts import drop_starts
from tensorkiln.codegen.llvm.lines import FunctionState
from tensorkiln.codegen.llvm.types import llvm_type, memory_type, parameter_type
from tensorkiln.codegen.llvm.unroll import unroll_function
from tensorkiln.codegen.llvm.values import Values
from tensorkiln.codegen.stack import elements
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, Var, cast, const, int_value
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    CallKernel,
    Evaluate,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tensorkiln.ir.visit import has_load, stmt_exprs, substitute_stmt, walk, walk_stmt
from tensorkiln.target import Target


class Emitter(Values):
    """Emits one PrimFunc and the bodies of its parallel loops."""

    def __init__(self, func: PrimFunc, target: Target):
        super().__init__(func, target)
        self.body_count = 0
        self.messages: list[str] = []
        # Whether two buffers may be the same memory: the result in an operand's place, or a view.
        views = any(isinstance(s, MatchBuffer) for s in walk_stmt(func.body))
        self.aliases = bool(func.inplace) or views

    def module(self) -> str:
        """The whole text of the kernel's LLVM module."""
        params: dict[Buffer | Var, str] = {}
        for i, p in enumerate(self.func.params):
            params[p] = f"%p{i}"
        self._function(f"@{self.func.name}", params, self.func.body, extra="")
        text = "\n\n".join([*self.messages, *reversed(self.done)])
        return text + "\n\n" + "\n".join(sorted(self.declares)) + "\n\n!0 = !{i32 1}\n"

    def _function(
        self,
        name: str,
        params: dict[Buffer | Var, str],
        body: Stmt,
        *,
        extra: str,
        failure: str | None = None,
    ) -> None:
        """Emit `define void name(params extra)`. Parallel bodies get i64 %begin, %end in extra."""
        saved = self._state
        self._state = FunctionState(params, failure=failure)
        linkage = "internal " if extra else ""
        alias = "" if self.aliases else " noalias"
        args = [
            f"ptr{alias if v != failure else ''} {v}"
            if isinstance(p, Buffer)
            else f"{(llvm_type if extra else parameter_type)(p.dtype)} {v}"
            for p, v in params.items()
        ]
        root = self._open_scope()
        self._state.enter("entry")
        if extra:
            begin, end = Var("begin"), Var("end")
            self._state.vars[begin], self._state.vars[end] = "%begin", "%end"
            self._state.depths[begin] = self._state.depths[end] = 0
            loop: For = body  # type: ignore[assignment]
            self._loop(For(loop.var, begin, end - begin, "serial", loop.body), begin_at_lo=True)
        else:
            self._take_numbers()
            self._stmt(body)
        self._close_scope()
        lines = ["entry:", *self._state.allocas, *root.lines, "  ret void"]
        head = f"define {linkage}void {name}({', '.join(args)}{extra}) #0 {{"
        self.done.append("\n".join([head, *lines, "}"]))
        self._state = saved

    def _take_numbers(self) -> None:
        """Convert scalar parameters whose type as a parameter is not their type in registers: bool
        and float16."""
        for p, passed in self._state.params.items():
            if isinstance(p, Buffer) or parameter_type(p.dtype) == llvm_type(p.dtype):
                continue
            form = f"{parameter_type(p.dtype)} {passed}"
            self._state.vars[p] = (
                self._line(f"icmp ne {form}, 0")
                if p.dtype.is_bool
                else self._line(f"bitcast {form} to {llvm_type(p.dtype)}")
            )

    def _parallel(self, loop: For) -> None:
        """Outline a parallel loop and run it with kiln_parallel_for; captures are passed in a
        struct."""
        if int_value(loop.lo) != 0:  # tasks count from 0
            task = Var(loop.var.name, loop.var.dtype)
            body = substitute_stmt(loop.body, {loop.var: task + loop.lo})
            loop = replace(loop, var=task, lo=const(0, task.dtype), body=body)
        st = self._state
        k = self.body_count
        self.body_count += 1
        used = _used(loop)
        captured: dict[Buffer | Var, str] = {
            p: v for p, v in (*st.buffers.items(), *st.vars.items()) if p in used
        }
        cell = Buffer("failure", INT64, ())
        fails = any(isinstance(t, Assert) for t in walk_stmt(loop))
        if fails:
            captured[cell] = st.failure or self._failure_cell()
        name = f"@{self.func.name}.body{k}"
        inner: dict[Buffer | Var, str] = {p: f"%c{i}" for i, p in enumerate(captured)}
        types = ["ptr" if isinstance(p, Buffer) else llvm_type(p.dtype) for p in captured]
        struct_type = "{" + ", ".join(types) + "}"
        extra = (", " if inner else "") + "i64 %begin, i64 %end"
        self._function(name, inner, loop, extra=extra, failure=inner.get(cell))
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
        # The outlined body loads vectors with the alignment of their type.
        sizes = [p.dtype.bytes * p.dtype.lanes for p in captured if isinstance(p, Var)]
        align = 1 << (max([8, *sizes]) - 1).bit_length()
        st.allocas.append(f"  {closure} = alloca {struct_type}, align {align}")
        for i, (p, t) in enumerate(zip(captured, types, strict=True)):
            f = self._line(f"getelementptr {struct_type}, ptr {closure}, i32 0, i32 {i}")
            self._emit(f"  store {t} {captured[p]}, ptr {f}")
        self.declares.add("declare void @kiln_parallel_for(ptr, ptr, i64)")
        st.written(None)
        self._emit(f"  call void @kiln_parallel_for(ptr {name}.entry, ptr {closure}, i64 {extent})")
        if fails:
            self._leave_if_failed(captured[cell])

    def _failure_cell(self) -> str:
        """A variable in which bodies of parallel loops store the message of a failed assertion."""
        cell = self._fresh()
        self._state.allocas.append(f"  {cell} = alloca ptr, align 8")
        self._emit(f"  store ptr null, ptr {cell}, align 8")
        return cell

    def _leave_if_failed(self, cell: str) -> None:
        message = self._line(f"load atomic ptr, ptr {cell} monotonic, align 8")
        good, bad = self._label(), self._label()
        failed = self._line(f"icmp ne ptr {message}, null")
        self._emit(f"  br i1 {failed}, label %{bad}, label %{good}")
        self._fail(bad, message)
        self._emit(f"{good}:")
        self._state.enter(good)

    def _fail(self, label: str, message: str) -> None:
        """A block that records the message and leaves the function; in the body of a parallel
        loop the function around it does the recording, in the thread of the caller."""
        self._emit(f"{label}:")
        if self._state.failure is None:
            self.declares.add("declare void @kiln_assertion_failed(ptr)")
            self._emit(f"  call void @kiln_assertion_failed(ptr {message})")
        else:
            self._emit(
                f"  store atomic ptr {message}, ptr {self._state.failure} monotonic, align 8"
            )
        self._emit("  ret void")

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
                if value.dtype == INT64 and not has_load(value):
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
            case While(cond, body):
                self._while(cond, body)
            case Assert(cond, message):
                self._assert(cond, message)
            case Evaluate(value):
                self.value(value)
            case MatchBuffer(buf, source, indices, body):
                self._state.buffers[buf] = self._address(source, indices)[0]
                self._state.views[buf] = len(self._state.scopes) - 1
                self._stmt(body)
            case Prefetch(buf, indices, locality, write):
                ptr, _ = self._address(buf, indices)
                self.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                self._emit(
                    f"  call void @llvm.prefetch.p0(ptr {ptr}, i32 {int(write)}, "
                    f"i32 {locality}, i32 1)"
                )
            case CallKernel(name, args):
                self._call_kernel(name, args)
            case _:
                raise InternalError(f"{self.func.name}: cannot emit {type(s).__name__}")

    def _call_kernel(self, name: str, args: tuple[Expr, ...]) -> None:
        types = [parameter_type(a.dtype) for a in args]
        values = [f"{t} {self._passed(a)}" for t, a in zip(types, args, strict=True)]
        self._state.written(None)
        self.declares.add(f"declare void @{name}({', '.join(types)})")
        self._emit(f"  call void @{name}({', '.join(values)})")

    def _passed(self, e: Expr) -> str:
        """Emit a value in the type of a kernel's parameter."""
        value, t, passed = self.value(e), llvm_type(e.dtype), parameter_type(e.dtype)
        if t == passed:
            return value
        return self._line(f"{'zext' if e.dtype.is_bool else 'bitcast'} {t} {value} to {passed}")

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
            st.enter(label)
            self._stmt(branch)
            self._emit(f"  br label %{end}")
            self._close_scope()
            st.scopes[-1].lines.extend(scope.lines)
        self._close_scope()
        st.scopes[-1].lines.extend(whole.lines)
        self._emit(f"{end}:")
        st.enter(end)

    def _loop(self, s: For, begin_at_lo: bool = False) -> None:
        """A bottom-tested loop, guarded when its extent may be zero."""
        st = self._state
        extent = int_value(s.extent)
        if extent == 0:
            return
        lo = self.index(s.lo)
        last = cast(s.lo, INT64) + cast(s.extent, INT64)
        hi = self.index(last) if not begin_at_lo else "%end"
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
        st.enter(head)
        st.vars[s.var], st.depths[s.var] = self._cast(iv, INT64, s.var.dtype), body.depth
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
        st.enter(end)

    def _while(self, cond: Expr, body: Stmt) -> None:
        """A loop that is tested at its top."""
        st = self._state
        head, inside, end = self._label(), self._label(), self._label()
        whole = self._open_scope()
        self._emit(f"  br label %{head}")
        self._emit(f"{head}:")
        st.enter(head)
        test = self._open_scope()  # its values hold in the body as well
        holds = self.value(cond)
        self._emit(f"  br i1 {holds}, label %{inside}, label %{end}")
        self._emit(f"{inside}:")
        st.enter(inside)
        self._stmt(body)
        self._emit(f"  br label %{head}")
        self._close_scope()
        st.scopes[-1].lines.extend(test.lines)
        self._close_scope()
        st.scopes[-1].lines.extend(whole.lines)
        self._emit(f"{end}:")
        st.enter(end)

    def _assert(self, cond: Expr, message: str) -> None:
        """Emit a branch that continues if the condition holds, else leaves with the message."""
        st = self._state
        text = message.encode() + b"\0"
        name = f"@{self.func.name}.message{len(self.messages)}"
        escaped = "".join(map(_escaped, text))
        self.messages.append(
            f'{name} = private unnamed_addr constant [{len(text)} x i8] c"{escaped}"'
        )
        good, bad = self._label(), self._label()
        self._emit(f"  br i1 {self.value(cond)}, label %{good}, label %{bad}")
        self._fail(bad, name)
        self._emit(f"{good}:")
        st.enter(good)

    def _alloc(self, buf: Buffer) -> None:
        st = self._state
        if buf.scope == "register":
            st.registers[buf] = {}
            return
        size = elements(buf)
        if size is None:
            raise InternalError(f"{self.func.name}: local buffer {buf.name} has a symbolic size")
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
        whole = dtype.lanes == 1 or stride == 1
        pointers = [] if whole else [*self._lane_pointers(s.buffer, s.indices, dtype.lanes)]
        # Only now: the indices may have loaded from this buffer.
        self._state.written(None if self.aliases else s.buffer)
        if dtype.is_bool:
            value = self._line(f"zext {llvm_type(dtype)} {value} to {memory_type(dtype)}")
        if whole:
            align = self._alignment(s.buffer, s.indices)
            hint = ", !nontemporal !0" if s.nontemporal else ""
            self._emit(f"  store {memory_type(dtype)} {value}, ptr {ptr}, align {align}{hint}")
            return
        for lane, p in enumerate(pointers):
            x = self._line(f"extractelement {memory_type(dtype)} {value}, i32 {lane}")
            self._emit(f"  store {memory_type(dtype.element)} {x}, ptr {p}")


def _used(s: Stmt) -> set[Buffer | Var]:
    """Buffers and variables a statement mentions."""
    used: set[Buffer | Var] = set()
    for t in walk_stmt(s):
        if isinstance(t, (Store, Prefetch)):
            used |= _of_buffer(t.buffer)
        elif isinstance(t, MatchBuffer):
            used |= _of_buffer(t.buffer) | _of_buffer(t.source)
        for e in stmt_exprs(t):
            for x in walk(e):
                if isinstance(x, Var):
                    used.add(x)
                elif isinstance(x, Load | AddressOf):
                    used |= _of_buffer(x.buffer)
    return used


def _of_buffer(b: Buffer) -> set[Buffer | Var]:
    """A buffer, and the variables in its shape and strides."""
    sizes = (*b.shape, *(b.strides_given or ()))
    return {b, *(x for d in sizes for x in walk(d) if isinstance(x, Var))}


def _escaped(byte: int) -> str:
    """One byte of an LLVM string."""
    return chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:02X}"


def emit_llvm(func: PrimFunc, target: Target) -> str:
    """LLVM IR text of `func`: `void name(ptr..., i64...)` plus its parallel loop bodies.

    Operations that the processor of `target` lacks are expanded.
    """
    func = drop_starts(unroll_function(func))
    return Emitter(by_lane(func) if target.multiplies_by_lane else func, target).module()
