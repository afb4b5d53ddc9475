"""Calls of C functions and of other kernels."""

from __future__ import annotations

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.llvm.types import llvm_type, parameter_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter, Statements
from tensorkiln.ir.dtype import HANDLE, VOID, DType
from tensorkiln.ir.expr import CallExtern, Expr
from tensorkiln.ir.stmt import CallKernel, Evaluate


def _extern(w: KernelWriter, e: CallExtern) -> str:
    """A call of a C function; narrow integers are extended, as C compilers expect."""
    types = [_c_type(a.dtype) for a in e.args]
    args = [f"{t} {w.value(a)}" for t, a in zip(types, e.args, strict=True)]
    result = " ".join(reversed(_c_type(e.dtype).split()))
    declared = f"declare {result} @{e.name}({', '.join(types)})"
    if any(f" @{e.name}(" in d and d != declared for d in w.declares):
        raise UserError(
            f"C function {e.name} is called with two signatures",
            code="extern-signature",
            where=w.func.name,
            hint="give all calls the same types, with T.Cast",
        )
    w.declares.add(declared)
    w.called()
    call = f"call {result} @{e.name}({', '.join(args)})"
    name = "" if e.dtype == VOID else w.fresh()
    w.emit(f"  {name} = {call}" if name else f"  {call}")
    return name


def _c_type(dtype: DType) -> str:
    """How C passes or returns a value of this type."""
    if dtype == VOID:
        return "void"
    if dtype == HANDLE:
        return "ptr"
    extended = dtype.bits < 32 and not dtype.is_float
    attribute = " zeroext" if dtype.is_unsigned else " signext"
    return llvm_type(dtype) + (attribute if extended else "")


def _evaluate(w: KernelWriter, s: Evaluate) -> None:
    w.value(s.value)


def _call_kernel(w: KernelWriter, s: CallKernel) -> None:
    types = [parameter_type(a.dtype) for a in s.args]
    values = [f"{t} {_passed(w, a)}" for t, a in zip(types, s.args, strict=True)]
    w.state.written(None)
    w.declares.add(f"declare void @{s.name}({', '.join(types)})")
    w.emit(f"  call void @{s.name}({', '.join(values)})")


def _passed(w: KernelWriter, e: Expr) -> str:
    """Emit a value in the type of a kernel's parameter."""
    value, t, passed = w.value(e), llvm_type(e.dtype), parameter_type(e.dtype)
    if t == passed:
        return value
    return w.line(f"{'zext' if e.dtype.is_bool else 'bitcast'} {t} {value} to {passed}")


EXPRESSIONS: Expressions = {CallExtern: _extern}
STATEMENTS: Statements = {Evaluate: _evaluate, CallKernel: _call_kernel}
