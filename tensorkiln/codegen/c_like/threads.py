"""Loops bound to thread indices, in languages whose functions every thread runs (OpenCL C, WGSL).

Such a loop is printed as its body, shared buffers at the top of the function, and `Sync` as the
language's barrier.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.c_like import loops, memory
from tensorkiln.codegen.c_like.code import COMPARISON, SUM, Code, infix
from tensorkiln.codegen.c_like.types import cast
from tensorkiln.codegen.c_like.values import is_natural
from tensorkiln.codegen.c_like.writer import Statements, TextWriter
from tensorkiln.codegen.expand.offsets import elements
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.launch import launch_of, thread_of
from tensorkiln.ir.stmt import THREAD_INDICES, Alloc, For, Sync
from tensorkiln.ir.visit import walk_stmt


def _for(w: TextWriter, s: For) -> None:
    if s.kind != "thread":
        loops.STATEMENTS[For](w, s)
        return
    if thread_of(s) not in THREAD_INDICES or w.state.in_threads:
        _index(w, s)
        return
    # Names and arrays of a nest are its own, where there are several.
    w.state.in_threads = True
    guards = _guards(w, s)
    if guards or launch_of(w.func).body is not s:
        with w.block(f"if ({' && '.join(guards)})" if guards else ""):
            _index(w, s)
    else:
        _index(w, s)
    w.state.in_threads = False


def _guards(w: TextWriter, s: For) -> list[str]:
    """Conditions on the indices that a nest of threads leaves out: it runs where they are 0."""
    block = launch_of(w.func).block
    mine = {thread_of(t) for t in walk_stmt(s)}
    axes = [k for k, i in enumerate(THREAD_INDICES) if i not in mine and block[k] > 1]
    names = [w.dialect.indices["threadIdx"].format(axis="xyz"[k], number=k) for k in axes]
    return [infix("==", Code(name), "0", COMPARISON) for name in names]


def _index(w: TextWriter, s: For) -> None:
    """Declare the variable of a loop as the index of the thread, and print the body."""
    kind, _, axis = thread_of(s).partition(".")
    var = s.var
    w.tame.loop(var, s.lo, s.extent)
    w.words.loop(var, s.lo, s.extent)
    if is_natural(w, s.lo):
        w.natural.add(var)
    index = w.dialect.indices[kind].format(axis=axis, number="xyz".index(axis))
    place: str = cast(w, Code(index), var.dtype)
    if int_value(s.lo) != 0:
        place = infix("+", place, w.value(s.lo), SUM)
    name = w.state.names[var] = w.name_of(var)
    line_index = len(w.state.lines)
    w.line("")
    whole = launch_of(w.func).block["xyz".index(axis)]
    if kind == "threadIdx" and int_value(s.extent) != whole:
        end = w.value(s.lo + s.extent)
        with w.block(f"if ({name} < {end})"):
            w.statement(s.body)
    else:
        w.statement(s.body)
    is_used = w.is_used(name, line_index + 1)
    t = w.type(var.dtype)
    text = w.dialect.constant.format(type=t, name=name, x=place) if is_used else ""
    w.state.lines[line_index : line_index + 1] = [w.indented(text)] if text else []


def _alloc(w: TextWriter, s: Alloc) -> None:
    """Buffers of a block are declared at the top of the function, where OpenCL C wants them."""
    buf = s.buffer
    if buf.scope != "shared":
        memory.STATEMENTS[Alloc](w, s)
        return
    size = elements(buf)
    if size is None:
        raise InternalError(f"{w.func.name}: shared buffer {buf.name} has a symbolic size")
    name = w.state.names[buf] = w.name_of(buf, 0)
    array = w.dialect.array.format(
        type=w.dialect.element(buf.dtype), name=name, size=max(size, 1), align=buf.align
    )
    w.shared.append(f"{w.dialect.spaces['shared']}{array}")
    w.statement(s.body)


def _sync(w: TextWriter, s: Sync) -> None:
    w.line(w.dialect.barrier)


STATEMENTS: Statements = {For: _for, Alloc: _alloc, Sync: _sync}
