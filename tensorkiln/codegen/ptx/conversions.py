"""Casts from float32 to bfloat16, for which GPUs of NVIDIA have an instruction and CPUs do not."""

from __future__ import annotations

from tensorkiln.codegen.llvm import conversions
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.dtype import BFLOAT16, FLOAT32
from tensorkiln.ir.expr import Cast
from tensorkiln.target.capability import least_capability

_BFLOATS = 80  # the least compute capability that rounds to bfloat16
_ONE = "llvm.nvvm.f2bf16.rn"
_TWO = "llvm.nvvm.ff2bf16x2.rn"  # of the higher half, then the lower


def _cast(w: KernelWriter, e: Cast) -> str:
    """float32 -> bfloat16 two by two; every NaN becomes the same one."""
    if (e.a.dtype.element, e.dtype.element) != (FLOAT32, BFLOAT16):
        return conversions.EXPRESSIONS[Cast](w, e)
    if least_capability(w.target) < _BFLOATS:
        return conversions.EXPRESSIONS[Cast](w, e)
    lanes, value = e.dtype.lanes, w.value(e.a)
    if lanes == 1:
        w.declares.add(f"declare bfloat @{_ONE}(float)")
        return w.line(f"bitcast bfloat {w.line(f'call bfloat @{_ONE}(float {value})')} to i16")
    w.declares.add(f"declare <2 x bfloat> @{_TWO}(float, float)")
    src_type, vector = llvm_type(e.a.dtype), "poison"
    # An odd last lane is converted twice, which costs no more than once.
    for k in range(0, lanes, 2):
        low = w.line(f"extractelement {src_type} {value}, i32 {k}")
        high = w.line(f"extractelement {src_type} {value}, i32 {min(k + 1, lanes - 1)}")
        pair = w.line(f"call <2 x bfloat> @{_TWO}(float {high}, float {low})")
        bits = w.line(f"bitcast <2 x bfloat> {pair} to <2 x i16>")
        for j in range(k, min(k + 2, lanes)):
            x = w.line(f"extractelement <2 x i16> {bits}, i32 {j - k}")
            vector = w.line(f"insertelement {llvm_type(e.dtype)} {vector}, i16 {x}, i32 {j}")
    return vector


EXPRESSIONS: Expressions = {Cast: _cast}
__all__ = ["EXPRESSIONS"]
