"""`Cast`: conversions between element types, one or a few LLVM instructions each."""

from __future__ import annotations

from tensorkiln.codegen.llvm.expansions import Expander, splat
from tensorkiln.codegen.llvm.types import float_literal, llvm_type, suffix
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.dtype import BFLOAT16, FLOAT32, FLOAT64, DType
from tensorkiln.ir.expr import Cast, Unary
from tensorkiln.target import Target


def _cast(w: KernelWriter, e: Cast) -> str:
    rounded = isinstance(e.a, Unary) and e.a.op == "round" and e.a.dtype.element == FLOAT32
    if isinstance(e.a, Unary) and rounded and _converts_by_int32(w.target, e.a.dtype, e.dtype):
        return _to_bytes(w, w.value(e.a.a), e.a.dtype, e.dtype, rounds=True)
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


def _to_bytes(w: KernelWriter, x: str, src: DType, dst: DType, rounds: bool = False) -> str:
    """Cast a vector of float32 to integers of 8 or 16 bits, saturating, NaN to 0. LLVM's own
    conversion would be done lane by lane. `rounds`: to the nearest integer, of two the even one,
    where `_converts_by_int32`."""
    low = 0 if dst.is_unsigned else -(1 << dst.bits - 1)
    high = low + (1 << dst.bits) - 1
    t, wide = llvm_type(src), DType("int32", src.lanes)
    if low:
        zero, real = splat(float_literal(0.0, src), src), f"fcmp ord {t} {x}, {x}"
        x = w.line(f"select <{src.lanes} x i1> {w.line(real)}, {t} {x}, {t} {zero}")
    # Instructions that narrow saturate too. What is not an int32, a NaN as well, becomes -2**31:
    # too large as an unsigned number, too small as a signed one.
    by_int32 = _converts_by_int32(w.target, src, dst)
    unsigned = by_int32 and src.lanes == 16
    edges = {"ogt": low} if unsigned else {"olt": high} if by_int32 else {"ogt": low, "olt": high}
    for compare, edge in edges.items():
        limit = splat(float_literal(float(edge), src), src)
        # For unsigned types: a NaN is not greater than 0, so it becomes 0.
        test = "ule" if by_int32 and not unsigned else compare
        inside = w.line(f"fcmp {test} {t} {x}, {limit}")
        x = w.line(f"select <{src.lanes} x i1> {inside}, {t} {x}, {t} {limit}")
    if unsigned:
        number = w.call("umin", wide, [_to_int32(w, x, 16, rounds), splat(str(high), wide)])
    elif by_int32:
        return _packed(w, _to_int32(w, x, src.lanes, rounds), src.lanes, dst.is_unsigned)
    else:
        number = w.line(f"fptosi {t} {x} to {llvm_type(wide)}")
    return w.line(f"trunc {llvm_type(wide)} {number} to {llvm_type(dst)}")


# Lanes -> the feature, and the intrinsics that convert float32 to int32: by cutting off, and by
# rounding. What is no int32 becomes -2**31, where LLVM's own conversion is undefined.
_INT32_CONVERSIONS = {
    4: ("sse2", "llvm.x86.sse2.cvttps2dq", "llvm.x86.sse2.cvtps2dq"),
    8: ("avx2", "llvm.x86.avx.cvtt.ps2dq.256", "llvm.x86.avx.cvt.ps2dq.256"),
    16: ("avx512bw", "llvm.x86.avx512.mask.cvttps2dq.512", "llvm.x86.avx512.mask.cvtps2dq.512"),
}


def _converts_by_int32(target: Target, src: DType, dst: DType) -> bool:
    """Whether an x86-64 CPU has instructions for a cast of a vector of float32 to int32 and on to
    `dst`, which saturate."""
    narrows = dst.is_unsigned and dst.bits < 32 if src.lanes == 16 else dst.row.is_byte
    has_lanes = (
        src.element == FLOAT32 and src.lanes in _INT32_CONVERSIONS and target.arch == "x86_64"
    )
    return has_lanes and narrows and target.has(_INT32_CONVERSIONS[src.lanes][0])


def _to_int32(w: KernelWriter, x: str, lanes: int, rounds: bool) -> str:
    """A vector of float32 as int32, cut off or, if `rounds`, rounded."""
    name, f, i = _INT32_CONVERSIONS[lanes][1 + rounds], f"<{lanes} x float>", f"<{lanes} x i32>"
    if lanes < 16:
        w.declares.add(f"declare {i} @{name}({f})")
        return w.line(f"call {i} @{name}({f} {x})")
    w.declares.add(f"declare {i} @{name}({f}, {i}, i16, i32)")
    # With all lanes, and the current rounding.
    return w.line(f"call {i} @{name}({f} {x}, {i} poison, i16 -1, i32 4)")


def _packed(w: KernelWriter, x: str, lanes: int, unsigned: bool) -> str:
    """4 or 8 numbers of 32 bits as bytes, saturating twice: LLVM narrows by shuffles of bytes."""
    quads = [
        w.line(
            f"shufflevector <{lanes} x i32> {x}, <{lanes} x i32> poison, <4 x i32> "
            f"<{', '.join(f'i32 {k + n}' for n in range(4))}>"
        )
        for k in range(0, lanes, 4)
    ]
    name = "llvm.x86.sse2.packssdw.128"
    w.declares.add(f"declare <8 x i16> @{name}(<4 x i32>, <4 x i32>)")
    words = w.line(f"call <8 x i16> @{name}(<4 x i32> {quads[0]}, <4 x i32> {quads[-1]})")
    name = f"llvm.x86.sse2.pack{'us' if unsigned else 'ss'}wb.128"
    w.declares.add(f"declare <16 x i8> @{name}(<8 x i16>, <8 x i16>)")
    data = w.line(f"call <16 x i8> @{name}(<8 x i16> {words}, <8 x i16> {words})")
    mask = ", ".join(f"i32 {n}" for n in range(lanes))
    return w.line(f"shufflevector <16 x i8> {data}, <16 x i8> poison, <{lanes} x i32> <{mask}>")


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
