"""Sequences, variables, branches and assertions."""

from __future__ import annotations

from tensorkiln.codegen.llvm.addresses import index
from tensorkiln.codegen.llvm.writer import KernelWriter, Statements
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.stmt import Assert, If, Let, Seq
from tensorkiln.ir.visit import has_load


def _seq(w: KernelWriter, s: Seq) -> None:
    for t in s.stmts:
        w.statement(t)


def _let(w: KernelWriter, s: Let) -> None:
    st, var = w.state, s.var
    if s.value.dtype == INT64 and not has_load(s.value):
        st.depths[var] = w.scope_of(s.value).depth
        st.vars[var] = index(w, s.value)
    else:
        st.depths[var] = len(st.scopes) - 1
        st.vars[var] = w.value(s.value)
    w.statement(s.body)


def _if(w: KernelWriter, s: If) -> None:
    cond = w.value(s.cond)
    yes, no, end = w.label(), w.label(), w.label()
    # The branch lives in a scope of its own, so that code hoisted out of it lands before it.
    with w.scope():
        w.emit(f"  br i1 {cond}, label %{yes}, label %{no if s.orelse else end}")
        for label, branch in ((yes, s.then), (no, s.orelse)):
            if branch is not None:
                with w.scope():
                    w.enter(label)
                    w.statement(branch)
                    w.emit(f"  br label %{end}")
    w.enter(end)


# ---- assertions --------------------------------------------------------------------------------


def _assert(w: KernelWriter, s: Assert) -> None:
    """Emit a branch that continues if the condition holds, else leaves with the message."""
    text = s.message.encode() + b"\0"
    name = f"@{w.func.name}.message{len(w.messages)}"
    escaped = "".join(map(_escaped, text))
    w.messages.append(f'{name} = private unnamed_addr constant [{len(text)} x i8] c"{escaped}"')
    good, bad = w.label(), w.label()
    w.emit(f"  br i1 {w.value(s.cond)}, label %{good}, label %{bad}")
    _fail(w, bad, name)
    w.enter(good)


def _escaped(byte: int) -> str:
    """One byte of an LLVM string."""
    return chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:02X}"


def _fail(w: KernelWriter, label: str, message: str) -> None:
    """A block that records the message and leaves the function; in the body of a parallel loop the
    function around it does the recording, in the thread of the caller."""
    w.emit(f"{label}:")
    if w.state.failure is None:
        w.declares.add("declare void @kiln_assertion_failed(ptr)")
        w.emit(f"  call void @kiln_assertion_failed(ptr {message})")
    else:
        w.emit(f"  store atomic ptr {message}, ptr {w.state.failure} monotonic, align 8")
    w.emit("  ret void")


def failure_cell(w: KernelWriter) -> str:
    """A variable in which bodies of parallel loops store the message of a failed assertion."""
    cell = w.fresh()
    w.state.allocas.append(f"  {cell} = alloca ptr, align 8")
    w.emit(f"  store ptr null, ptr {cell}, align 8")
    return cell


def leave_if_failed(w: KernelWriter, cell: str) -> None:
    """Leave the function with the message in `cell`, if there is one."""
    message = w.line(f"load atomic ptr, ptr {cell} monotonic, align 8")
    good, bad = w.label(), w.label()
    failed = w.line(f"icmp ne ptr {message}, null")
    w.emit(f"  br i1 {failed}, label %{bad}, label %{good}")
    _fail(w, bad, message)
    w.enter(good)


STATEMENTS: Statements = {Seq: _seq, Let: _let, If: _if, Assert: _assert}
