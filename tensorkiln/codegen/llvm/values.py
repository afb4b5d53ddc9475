"""Literals, variables and operations of expressions."""

from __future__ import annotations

from tensorkiln.codegen.llvm.addresses import index
from tensorkiln.codegen.llvm.arithmetic import binary, unary
from tensorkiln.codegen.llvm.types import float_literal, llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.dtype import HANDLE, INT64
from tensorkiln.ir.expr import Binary, FloatImm, IntImm, Select, Unary, Var
from tensorkiln.ir.visit import has_load


def _int(w: KernelWriter, e: IntImm) -> str:
    return str(bool(e.value)).lower() if e.dtype.is_bool else str(e.value)


def _float(w: KernelWriter, e: FloatImm) -> str:
    return float_literal(e.value, e.dtype)


def _var(w: KernelWriter, e: Var) -> str:
    return w.state.vars[e]


def _binary(w: KernelWriter, e: Binary) -> str:
    if e.dtype == HANDLE and e.op == "add":
        start, offset = w.value(e.a), w.value(e.b)
        return w.line(f"getelementptr i8, ptr {start}, i64 {offset}")
    if e.dtype == INT64 and not has_load(e):
        return index(w, e)
    return binary(w, e.op, w.value(e.a), w.value(e.b), e.a.dtype, e.b)


def _unary(w: KernelWriter, e: Unary) -> str:
    return unary(w, e.op, w.value(e.a), e.dtype)


def _select(w: KernelWriter, e: Select) -> str:
    z, x, y = w.value(e.cond), w.value(e.a), w.value(e.b)
    t, cond = llvm_type(e.dtype), llvm_type(e.cond.dtype)
    return w.line(f"select {cond} {z}, {t} {x}, {t} {y}")


EXPRESSIONS: Expressions = {
    IntImm: _int,
    FloatImm: _float,
    Var: _var,
    Binary: _binary,
    Unary: _unary,
    Select: _select,
}
