"""`Intrin`: an instruction, or the program of an elementary function."""

from __future__ import annotations

from tensorkiln.codegen.expand.math import expand
from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.dot import DOT
from tensorkiln.codegen.llvm.remainder import remainder
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import BITCASTS, DOTS, Intrin


def _intrin(w: KernelWriter, e: Intrin) -> str:
    if e.name in DOTS:
        lhs, rhs, total = (w.value(x) for x in (*e.args[1:], e.args[0]))
        return DOT[e.name](w, total, lhs, rhs, e.dtype.lanes)
    return _intrinsic(w, e.name, [w.value(a) for a in e.args], e.args[0].dtype)


def _intrinsic(w: KernelWriter, name: str, args: list[str], dtype: DType) -> str:
    t = llvm_type(dtype)
    if name in ("fma", "isnan") and dtype.bits == 16:
        wide = DType("float32", dtype.lanes)
        result = _intrinsic(w, name, [convert(w, a, dtype, wide) for a in args], wide)
        return result if name == "isnan" else convert(w, result, wide, dtype)
    if name == "fmod":
        return remainder(w, args[0], args[1], dtype)
    if name == "fma":
        return w.call("fmuladd", dtype, args)
    if name == "isnan":
        return w.line(f"fcmp uno {t} {args[0]}, {args[0]}")
    if name in BITCASTS:
        to = llvm_type(DType(BITCASTS[name][1], dtype.lanes))
        return w.line(f"bitcast {t} {args[0]} to {to}")
    params, lets, answer = expand(name, dtype)
    st, depth = w.state, len(w.state.scopes) - 1
    for p, arg in zip(params, args, strict=True):
        st.vars[p], st.depths[p] = arg, depth
    for var, e in lets:
        st.vars[var], st.depths[var] = w.value(e), depth
    return w.value(answer)


EXPRESSIONS: Expressions = {Intrin: _intrin}
