"""Calls of C functions and of other kernels."""

from __future__ import annotations

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.c_like.code import call, prefix
from tensorkiln.codegen.c_like.writer import Expressions, Statements, TextWriter
from tensorkiln.ir.dtype import BOOL, VOID, DType
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.stmt import CallKernel


def _extern(w: TextWriter, e: CallExtern) -> str:
    """A call of a C function, under a name of its own: the types with which a program calls it need
    not be those of the C library's headers."""
    types = ", ".join(_c_type(w, a.dtype) for a in e.args) or "void"
    local_name = f"call_{e.name}"
    declared = w.dialect.extern.format(
        result=_c_type(w, e.dtype), name=local_name, types=types, symbol=e.name
    )
    if w.file.externs.setdefault(local_name, declared) != declared:
        raise UserError(
            f"C function {e.name} is called with two signatures",
            code="extern-signature",
            where=w.func.name,
            hint="give all calls the same types, with T.Cast",
        )
    text = call(local_name, *(w.value(a) for a in e.args))
    if e.dtype == VOID:
        w.line(f"{text};")
        return ""
    return w.constant(text, e)


def _c_type(w: TextWriter, dtype: DType) -> str:
    return "void" if dtype == VOID else w.dialect.scalar(dtype)


def _call_kernel(w: TextWriter, s: CallKernel) -> None:
    types = ", ".join(w.dialect.element(a.dtype) for a in s.args) or "void"
    w.file.externs[s.name] = f"void {s.name}({types});"
    byte = f"({w.dialect.element(BOOL)})"
    values = [prefix(byte, w.value(a)) if a.dtype.is_bool else w.value(a) for a in s.args]
    w.line(f"{call(s.name, *values)};")


EXPRESSIONS: Expressions = {CallExtern: _extern}
STATEMENTS: Statements = {CallKernel: _call_kernel}
