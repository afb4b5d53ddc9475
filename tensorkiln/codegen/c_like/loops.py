"""Loops: counted ones, those with a condition, and parallel ones, whose bodies become functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.base.errors import InternalError
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_like.code import SUM, at_least
from tensorkiln.codegen.c_like.control import fail
from tensorkiln.codegen.c_like.types import cast
from tensorkiln.codegen.c_like.values import is_natural
from tensorkiln.codegen.c_like.writer import FunctionText, Statements, TextWriter
from tensorkiln.codegen.expand.captures import used_in
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Expr, Var, binary, const, int_value
from tensorkiln.ir.expr import cast as cast_to
from tensorkiln.ir.stmt import Assert, For, While
from tensorkiln.ir.visit import has_load, substitute_stmt, walk_stmt


def _for(w: TextWriter, s: For) -> None:
    st = w.state
    if s.kind == "parallel" and not st.in_parallel and w.dialect.parallel_for:
        _parallel(w, s)
    elif s.kind not in ("serial", "parallel"):
        raise InternalError(f"{w.func.name}: a {s.kind} loop reached the printer")
    elif int_value(s.extent) != 0:
        was_parallel, st.in_parallel = st.in_parallel, s.kind == "parallel" or st.in_parallel
        counter = s.var.dtype if w.words.loop(s.var, s.lo, s.extent) else INT64
        lo, extent = cast_to(s.lo, counter), cast_to(s.extent, counter)
        _loop(w, s, _limit(w, lo), _limit(w, binary("add", lo, extent)), counter)
        st.in_parallel = was_parallel


def _limit(w: TextWriter, e: Expr) -> str:
    """The text of a limit, which does not change while the loop runs."""
    text = w.value(e)
    return w.constant(text, e, "end") if has_load(e) and not text.isidentifier() else text


def _loop(w: TextWriter, s: For, first: str, end: str, count: DType = INT64) -> None:
    """A loop from `first` to before `end`, which are of type `count`."""
    var = s.var
    w.tame.loop(var, s.lo, s.extent)
    if is_natural(w, s.lo):
        w.natural.add(var)
    with w.inner():
        name = w.name_of(var)
    plain = var.dtype == count
    counter = name if plain else f"{name}_at"
    last = at_least(end, SUM)
    head = w.dialect.loop.format(type=w.type(count), name=counter, first=first, end=last)
    with w.block(head):
        name = w.state.names[var] = w.name_of(var)
        if not plain:
            line_index = len(w.state.lines)
            w.line("")
        w.statement(s.body)
        if not plain:
            value = cast(w, counter, var.dtype)
            is_used = w.is_used(name, line_index + 1)
            t = w.type(var.dtype)
            text = w.dialect.constant.format(type=t, name=name, x=value) if is_used else ""
            w.state.lines[line_index : line_index + 1] = [w.indented(text)] if text else []


def _while(w: TextWriter, s: While) -> None:
    """A loop that is tested at its top."""
    with w.block("for (;;)"):
        line_index = len(w.state.lines)
        cond = w.value(s.cond)
        simple = len(w.state.lines) == line_index
        if simple:
            w.state.lines[line_index - 1] = w.state.lines[line_index - 1].replace(
                "for (;;)", f"while ({cond})"
            )
        else:
            with w.block(f"if (!({cond}))"):
                w.line("break;")
        w.statement(s.body)


# ---- parallel loops ----------------------------------------------------------------------------


def _parallel(w: TextWriter, loop: For) -> None:
    """Make the body of a parallel loop a function, and run it with kiln_parallel_for; what it uses
    is passed in a struct."""
    if int_value(loop.lo) != 0:  # tasks count from 0
        task = Var(loop.var.name, loop.var.dtype)
        body = substitute_stmt(loop.body, {loop.var: task + loop.lo})
        loop = replace(loop, var=task, lo=const(0, task.dtype), body=body)
    name = unused(f"{w.func.name}_loop", w.file.bodies | w.file.kernels)
    w.file.bodies.add(name)
    uses = used_in(loop)
    captured = [p for p in w.state.names if p in uses and p is not loop.var]
    fails = any(isinstance(t, Assert) for t in walk_stmt(loop))
    members = _body(w, name, loop, captured, fails)
    closure, cell = "NULL", ""
    if members or fails:
        closure = w.name("closure")
        w.line(f"struct {name} {closure};")
        for p in members:
            w.line(f"{closure}.{w.state.names[p]} = {w.state.names[p]};")
        if fails:
            cell = w.name("failure")
            w.line(f"const char *{cell} = NULL;")
            w.line(f"{closure}.failure = &{cell};")
        closure = f"&{closure}"
    w.file.externs["kiln_parallel_for"] = (
        "void kiln_parallel_for(void (*body)(void *, int64_t, int64_t), void *closure, int64_t n);"
    )
    extent = w.value(cast_to(loop.extent, INT64))
    w.line(f"kiln_parallel_for({name}, {closure}, {extent});")
    if fails:
        with w.block(f"if ({cell} != NULL)"):
            fail(w, cell)


def _member(w: TextWriter, p: Buffer | Var) -> str:
    """The type of what a loop uses, as a member of its struct."""
    if isinstance(p, Buffer):
        return w.pointer_to(p)
    if p.dtype.is_bool and p.dtype.lanes > 1:
        return w.mask_type(w.state.masks.get(p, 8), p.dtype.lanes) + " "
    return w.type(p.dtype) + " "


def _body(
    w: TextWriter, name: str, loop: For, captured: Sequence[Buffer | Var], fails: bool
) -> list[Buffer | Var]:
    """Write the function of a loop's body; return those of `captured` that its text mentions."""
    outer = w.state
    with w.function() as inner:
        inner.masks, inner.in_parallel = dict(outer.masks), True
        for reserved_name in ("closure", "begin", "end", "given", "failure"):
            w.name(reserved_name)
        for p in captured:
            inner.names[p] = w.name(outer.names[p])
        inner.failure = "given->failure" if fails else None
        w.words.loop(loop.var, loop.lo, loop.extent)
        _loop(w, loop, "begin", "end")
        members = [p for p in captured if w.is_used(inner.names[p], 0)]
        inner.lines[:0] = _unpacked(w, name, members, outer, fails)
        body = w.body()
    fields = [f"    {_member(w, p)}{outer.names[p]};\n" for p in members]
    fields += ["    const char **failure;\n"] * fails
    struct = f"struct {name} {{\n{''.join(fields)}}};\n\n" if fields else ""
    w.functions.append(
        f"{struct}static void {name}(void *closure, int64_t begin, int64_t end)\n{{\n{body}\n}}\n"
    )
    return members


def _unpacked(
    w: TextWriter, name: str, members: Sequence[Buffer | Var], outer: FunctionText, fails: bool
) -> list[str]:
    """The lines that take what a loop uses out of its struct."""
    if not members and not fails:
        return [w.indented("(void)closure;")]
    lines = [w.indented(f"const struct {name} *const given = closure;")]
    restrict = "" if w.func.inplace else f"{w.dialect.restrict} "
    for p in members:
        t = _member(w, p)
        qualifiers = f"{t}{restrict}const " if isinstance(p, Buffer) else f"const {t}"
        lines.append(w.indented(f"{qualifiers}{w.state.names[p]} = given->{outer.names[p]};"))
    return lines


STATEMENTS: Statements = {For: _for, While: _while}
