"""Sequences, variables, branches and assertions."""

from __future__ import annotations

from tensorkiln.codegen.c_like.code import call
from tensorkiln.codegen.c_like.writer import Statements, TextWriter
from tensorkiln.codegen.c_text.text import quote
from tensorkiln.ir.dtype import VOID
from tensorkiln.ir.stmt import Assert, Evaluate, If, Let, Seq


def _seq(w: TextWriter, s: Seq) -> None:
    for t in s.stmts:
        w.statement(t)


def _let(w: TextWriter, s: Let) -> None:
    var, value = s.var, w.value(s.value)
    if var.dtype.is_bool and var.dtype.lanes > 1:
        w.state.masks[var] = w.mask_bits(s.value)
    if not var.dtype.is_float:
        w.tame.let(var, s.value)
        w.words.let(var, s.value)
    t = w.type_of(s.value)
    name = w.state.names[var] = w.name_of(var)
    line_index = len(w.state.lines)
    w.line("")
    w.statement(s.body)
    is_used = w.is_used(name, line_index + 1)
    template = w.dialect.constant if is_used else w.dialect.discard
    value = value if is_used else f"({value})"
    w.state.lines[line_index] = w.indented(template.format(type=t, name=name, x=value))


def _if(w: TextWriter, s: If) -> None:
    with w.block(f"if ({w.value(s.cond)})", "}" if s.orelse is None else "} else {"):
        w.statement(s.then)
    if s.orelse is not None:
        with w.inner():
            w.statement(s.orelse)
        w.line("}")


def _evaluate(w: TextWriter, s: Evaluate) -> None:
    text = w.value(s.value)
    if s.value.dtype != VOID:
        w.line(w.dialect.discard.format(x=text))


# ---- assertions --------------------------------------------------------------------------------


def _assert(w: TextWriter, s: Assert) -> None:
    with w.block(f"if (!({w.value(s.cond)}))"):
        fail(w, quote(s.message))


def fail(w: TextWriter, message: str) -> None:
    """Record the message and leave the function; in the body of a parallel loop the function around
    it does the recording, in the thread of the caller."""
    if w.state.failure is None:
        w.file.externs["kiln_assertion_failed"] = "void kiln_assertion_failed(const char *message);"
        w.line(f"{call('kiln_assertion_failed', message)};")
    else:
        w.line(w.dialect.note_failure.format(cell=w.state.failure, message=message))
    w.line("return;")


STATEMENTS: Statements = {Seq: _seq, Let: _let, If: _if, Evaluate: _evaluate, Assert: _assert}
