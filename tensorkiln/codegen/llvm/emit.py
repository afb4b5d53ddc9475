"""Tensor program -> LLVM IR text.

Values are emitted where they are needed, except integer index arithmetic, which is emitted in the
outermost scope whose variables it uses: the text is already free of loop-invariant address code,
so no mid-level optimisation pass is needed but SROA (register buffers are one alloca per vector).
"""

from __future__ import annotations

from tensorkiln.codegen.expand.by_lane import by_lane
from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.codegen.expand.whole_registers import whole_registers
from tensorkiln.codegen.llvm import (
    calls,
    control,
    conversions,
    intrinsics,
    loops,
    memory,
    values,
    vectors,
)
from tensorkiln.codegen.llvm.types import llvm_type, parameter_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter, Statements
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

EXPRESSIONS: Expressions = {
    **values.EXPRESSIONS,
    **conversions.EXPRESSIONS,
    **vectors.EXPRESSIONS,
    **memory.EXPRESSIONS,
    **intrinsics.EXPRESSIONS,
    **calls.EXPRESSIONS,
}
STATEMENTS: Statements = {
    **control.STATEMENTS,
    **loops.STATEMENTS,
    **memory.STATEMENTS,
    **calls.STATEMENTS,
}


def emit_llvm(func: PrimFunc, target: Target) -> str:
    """LLVM IR text of `func`: `void name(ptr..., i64...)` plus its parallel loop bodies.

    Operations that the processor of `target` lacks are expanded.
    """
    func = drop_starts(whole_registers(unroll_function(func)))
    if target.multiplies_by_lane:
        func = by_lane(func)
    w = KernelWriter(func, target, EXPRESSIONS, STATEMENTS)
    with w.function(f"@{func.name}", {p: f"%p{i}" for i, p in enumerate(func.params)}):
        take_numbers(w)
        w.statement(func.body)
    text = "\n\n".join([*w.messages, *reversed(w.functions)])
    return text + "\n\n" + "\n".join(sorted(w.declares)) + "\n\n!0 = !{i32 1}\n"


def take_numbers(w: KernelWriter) -> None:
    """Convert scalar parameters whose type as a parameter is not their type in registers: bool and
    float16."""
    for p, passed in w.state.params.items():
        if isinstance(p, Buffer) or parameter_type(p.dtype) == llvm_type(p.dtype):
            continue
        form = f"{parameter_type(p.dtype)} {passed}"
        w.state.vars[p] = w.line(
            f"icmp ne {form}, 0" if p.dtype.is_bool else f"bitcast {form} to {llvm_type(p.dtype)}"
        )
