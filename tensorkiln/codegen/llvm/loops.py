"""Loops: counted ones, those with a condition, and parallel ones, whose bodies become functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.captures import used_in
from tensorkiln.codegen.llvm.addresses import index
from tensorkiln.codegen.llvm.control import failure_cell, leave_if_failed
from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import KernelWriter, Statements
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Var, cast, const, int_value
from tensorkiln.ir.stmt import Assert, For, While
from tensorkiln.ir.visit import substitute_stmt, walk_stmt


def _for(w: KernelWriter, s: For) -> None:
    st, extent = w.state, int_value(s.extent)
    if s.kind == "parallel" and not st.in_parallel:
        _parallel(w, s)
    elif s.kind not in ("serial", "parallel"):
        raise InternalError(f"{w.func.name}: a {s.kind} loop reached LLVM emission")
    elif extent != 0:
        lo, hi = index(w, s.lo), index(w, cast(s.lo, INT64) + cast(s.extent, INT64))
        was_parallel, st.in_parallel = st.in_parallel, s.kind == "parallel" or st.in_parallel
        counted(w, s.var, lo, hi, lambda: w.statement(s.body), guard=extent is None)
        st.in_parallel = was_parallel


def counted(
    w: KernelWriter, var: Var, lo: str, hi: str, body: Callable[[], None], guard: bool
) -> None:
    """A bottom-tested loop over lo .. hi - 1; with `guard` the range may be empty."""
    st = w.state
    head, end = w.label(), w.label()
    before = st.block
    with w.scope() as inside:
        if guard:
            cond = w.line(f"icmp slt i64 {lo}, {hi}")
            w.emit(f"  br i1 {cond}, label %{head}, label %{end}")
        else:
            w.emit(f"  br label %{head}")
        iv, following, latch = w.fresh(), w.fresh(), w.label()
        w.enter(head)
        w.emit(f"  {iv} = phi i64 [ {lo}, %{before} ], [ {following}, %{latch} ]")
        st.vars[var], st.depths[var] = convert(w, iv, INT64, var.dtype), inside.depth
        body()
        w.emit(f"  br label %{latch}")
        w.emit(f"{latch}:")
        w.emit(f"  {following} = add nsw i64 {iv}, 1")
        cond = w.line(f"icmp slt i64 {following}, {hi}")
        w.emit(f"  br i1 {cond}, label %{head}, label %{end}")
    w.enter(end)


def _while(w: KernelWriter, s: While) -> None:
    """A loop that is tested at its top."""
    head, inside, end = w.label(), w.label(), w.label()
    with w.scope():
        w.emit(f"  br label %{head}")
        w.enter(head)
        with w.scope():  # the values of the condition hold in the body as well
            w.emit(f"  br i1 {w.value(s.cond)}, label %{inside}, label %{end}")
            w.enter(inside)
            w.statement(s.body)
            w.emit(f"  br label %{head}")
    w.enter(end)


# ---- parallel loops ----------------------------------------------------------------------------


def _parallel(w: KernelWriter, loop: For) -> None:
    """Outline a parallel loop and run it with kiln_parallel_for; captures are passed in a
    struct."""
    if int_value(loop.lo) != 0:  # tasks count from 0
        task = Var(loop.var.name, loop.var.dtype)
        body = substitute_stmt(loop.body, {loop.var: task + loop.lo})
        loop = replace(loop, var=task, lo=const(0, task.dtype), body=body)
    st = w.state
    name = f"@{w.func.name}.body{w.bodies}"
    w.bodies += 1
    uses = used_in(loop)
    captured: dict[Buffer | Var, str] = {
        p: v for p, v in (*st.buffers.items(), *st.vars.items()) if p in uses
    }
    cell = Buffer("failure", INT64, ())
    fails = any(isinstance(t, Assert) for t in walk_stmt(loop))
    if fails:
        captured[cell] = st.failure or failure_cell(w)
    inner: dict[Buffer | Var, str] = {p: f"%c{i}" for i, p in enumerate(captured)}
    extra = (", " if inner else "") + "i64 %begin, i64 %end"
    with w.function(name, inner, extra, inner.get(cell)):
        counted(w, loop.var, "%begin", "%end", lambda: w.statement(loop.body), guard=True)
    types = ["ptr" if isinstance(p, Buffer) else llvm_type(p.dtype) for p in captured]
    struct = "{" + ", ".join(types) + "}"
    w.functions.append(_entry(name, types, struct))
    extent = index(w, loop.extent)
    closure = w.fresh()
    # The outlined body loads vectors with the alignment of their type.
    sizes = [p.dtype.bytes * p.dtype.lanes for p in captured if isinstance(p, Var)]
    align = 1 << (max([8, *sizes]) - 1).bit_length()
    st.allocas.append(f"  {closure} = alloca {struct}, align {align}")
    for i, (value, t) in enumerate(zip(captured.values(), types, strict=True)):
        f = w.line(f"getelementptr {struct}, ptr {closure}, i32 0, i32 {i}")
        w.emit(f"  store {t} {value}, ptr {f}")
    w.declares.add("declare void @kiln_parallel_for(ptr, ptr, i64)")
    st.written(None)
    w.emit(f"  call void @kiln_parallel_for(ptr {name}.entry, ptr {closure}, i64 {extent})")
    if fails:
        leave_if_failed(w, captured[cell])


def _entry(name: str, types: Sequence[str], struct: str) -> str:
    """The function that kiln_parallel_for calls: it calls `name` with what the struct holds."""
    lines = [f"define internal void {name}.entry(ptr %closure, i64 %begin, i64 %end) #0 {{"]
    for i, t in enumerate(types):
        lines.append(f"  %f{i} = getelementptr {struct}, ptr %closure, i32 0, i32 {i}")
        lines.append(f"  %v{i} = load {t}, ptr %f{i}")
    args = [*(f"{t} %v{i}" for i, t in enumerate(types)), "i64 %begin", "i64 %end"]
    return "\n".join([*lines, f"  call void {name}({', '.join(args)})", "  ret void", "}"])


STATEMENTS: Statements = {For: _for, While: _while}
