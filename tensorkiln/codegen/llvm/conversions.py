"""`Cast`: conversions between element types, one or a few LLVM instructions each."""

from __future__ import annotations

from tensorkiln.codegen.llvm.expansions import Expander, splat
from tensorkiln.codegen.llvm.types import float_literal, llvm_type, suffix
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.dtype import BFLOAT16, FLOAT32, FLOAT64, DType
from tensorkiln.ir.expr import Cast


def _cast(w: KernelWriter, e: Cast) -> str:
    return convert(w, w.value(e.a), e.a.dtype, e.dtype)


def convert(w: KernelWriter, x: str, src: DType, dst: DType) -> str:
    """The value `x` of type `src` as a value of type `dst`."""
    ts, td = llvm_type(src), llvm_type(dst)
    if src == dst:
        return x
    if src.is_half or dst.is_half:
        return _narrow(w, x, src, dst)
    if dst.is_bool:
        zero = splat(float_literal(0.0, src) if src.is_float else "0", src)
        return w.line(f"{'fcmp une' if src.is_float else 'icmp ne'} {ts} {x}, {zero}")
    if src.is_float and dst.is_float:
        return w.line(f"{'fpext' if dst.bits > src.bits else 'fptrunc'} {ts} {x} to {td}")
    if src.is_float:
        if dst.bits < 32 and src.lanes > 1 and src.element == FLOAT32:
            return _to_bytes(w, x, src, dst)
        kind = "u" if dst.is_unsigned else "s"
        name = f"@llvm.fpto{kind}i.sat.{suffix(dst)}.{suffix(src)}"
        w.declares.add(f"declare {td} {name}({ts})")
        return w.line(f"call {td} {name}({ts} {x})")
    if dst.is_float:
        return w.line(f"{'ui' if src.is_unsigned else 'si'}tofp {ts} {x} to {td}")
    src_bits = 1 if src.is_bool else src.bits
    if src_bits == dst.bits:
        return x
    if src_bits > dst.bits:
        return w.line(f"trunc {ts} {x} to {td}")
    return w.line(f"{'zext' if src.is_unsigned else 'sext'} {ts} {x} to {td}")


def _to_bytes(w: KernelWriter, x: str, src: DType, dst: DType) -> str:
    """Cast a vector of float32 to integers of 8 or 16 bits, saturating, NaN to 0. LLVM's own
    conversion would be done lane by lane."""
    low = 0 if dst.is_unsigned else -(1 << dst.bits - 1)
    high = low + (1 << dst.bits) - 1
    t, wide = llvm_type(src), DType("int32", src.lanes)
    if low:
        zero, real = splat(float_literal(0.0, src), src), f"fcmp ord {t} {x}, {x}"
        x = w.line(f"select <{src.lanes} x i1> {w.line(real)}, {t} {x}, {t} {zero}")
    # For unsigned types: a NaN is not greater than 0, so it becomes 0.
    # An instruction that narrows saturates too; of what is too large for int32, it makes `high`.
    narrows = dst.is_unsigned and src.lanes == 16 and w.target.arch == "x86_64"
    narrows = narrows and w.target.has("avx512bw")
    for compare, edge in (("ogt", low), *([] if narrows else [("olt", high)])):
        limit = splat(float_literal(float(edge), src), src)
        inside = w.line(f"fcmp {compare} {t} {x}, {limit}")
        x = w.line(f"select <{src.lanes} x i1> {inside}, {t} {x}, {t} {limit}")
    if narrows:
        whole = _truncated(w, x)
        whole = w.call("umin", wide, [whole, splat(str(high), wide)])
    else:
        whole = w.line(f"fptosi {t} {x} to {llvm_type(wide)}")
    return w.line(f"trunc {llvm_type(wide)} {whole} to {llvm_type(dst)}")


def _truncated(w: KernelWriter, x: str) -> str:
    """16 non-negative numbers as int32; numbers that are too large become 2**31 as unsigned, where
    LLVM's own conversion is undefined."""
    name, f, i = "llvm.x86.avx512.mask.cvttps2dq.512", "<16 x float>", "<16 x i32>"
    w.declares.add(f"declare {i} @{name}({f}, {i}, i16, i32)")
    # With all lanes, and the current rounding, which truncation does not need.
    return w.line(f"call {i} @{name}({f} {x}, {i} poison, i16 -1, i32 4)")


def _narrow(w: KernelWriter, x: str, src: DType, dst: DType) -> str:
    """Casts from or to float16 and bfloat16, by way of float32."""
    single, e = DType("float32", src.lanes), Expander(w.line, w.call, src.lanes)
    if src.is_half:
        if src.element == BFLOAT16:
            wide = e.from_bfloat(x)
        elif w.converts_half:
            wide = e.cast("fpext", x, src, single)
        else:
            wide = e.from_half(x)
        return convert(w, wide, single, dst)
    if src.element == FLOAT64 or (src.is_int and src.bits > 16):
        # Rounding to nearest twice may differ from doing it once, so the first goes to odd.
        double = DType("float64", src.lanes)
        x = e.to_odd(convert(w, x, src, double))
    else:
        x = convert(w, x, src, single)
    if dst.element == BFLOAT16:
        return e.to_bfloat(x)
    return e.cast("fptrunc", x, single, dst) if w.converts_half else e.to_half(x)


EXPRESSIONS: Expressions = {Cast: _cast}
