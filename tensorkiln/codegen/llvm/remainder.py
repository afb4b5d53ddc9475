"""`fmod`, exact for any quotient.

A float is an integer m times a power of 2; the remainder of a quotient of floats is that of m,
shifted piece by piece to the exponent of the divisor, r = (r << s) % n. Lanes are computed one by
one, by a function that stands in the text once.
"""

from __future__ import annotations

from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.types import float_literal, llvm_type
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.dtype import DType


def remainder(w: KernelWriter, x: str, y: str, dtype: DType) -> str:
    """x - trunc(x / y) y with the sign of x; NaN of an infinite x and of y = 0."""
    if dtype.bits == 16:
        wide = DType("float32", dtype.lanes)
        rem = remainder(w, convert(w, x, dtype, wide), convert(w, y, dtype, wide), wide)
        return convert(w, rem, wide, dtype)
    name, t = f"@{w.func.name}.fmod_{dtype.element}", llvm_type(dtype.element)
    text = _function(name, dtype.element, w.helper_attributes)
    if text not in w.functions:
        w.functions.append(text)
    if dtype.lanes == 1:
        return w.line(f"call {t} {name}({t} {x}, {t} {y})")
    vector, result = llvm_type(dtype), "poison"
    for k in range(dtype.lanes):
        a, b = (w.line(f"extractelement {vector} {v}, i32 {k}") for v in (x, y))
        lane = w.line(f"call {t} {name}({t} {a}, {t} {b})")
        result = w.line(f"insertelement {vector} {result}, {t} {lane}, i32 {k}")
    return result


def _function(name: str, dtype: DType, attributes: str) -> str:
    """The text of the function of scalars of `dtype`, float32 or float64."""
    form, t, i = dtype.row, llvm_type(dtype), f"i{dtype.bits}"
    fields = {
        "name": name,
        "attributes": attributes,
        "t": t,
        "i": i,
        "nan": float_literal(float("nan"), dtype),
        "width": form.mantissa,
        "size": (1 << dtype.bits - 1) - 1,
        "sign": -(1 << dtype.bits - 1),
        "infinity": form.infinity,
        "fraction": (1 << form.mantissa) - 1,
        "unit": 1 << form.mantissa,
        "piece": dtype.bits - form.digits,
        "base": form.mantissa + form.bias,
    }
    return _TEXT.format_map(fields)


_TEXT = """define internal {t} {name}({t} %x, {t} %y) {attributes} {{
entry:
  %xb = bitcast {t} %x to {i}
  %yb = bitcast {t} %y to {i}
  %xs = and {i} %xb, {size}
  %ys = and {i} %yb, {size}
  %by0 = icmp eq {i} %ys, 0
  %bynan = icmp ugt {i} %ys, {infinity}
  %ofinf = icmp uge {i} %xs, {infinity}
  %odd = or i1 %by0, %bynan
  %none = or i1 %odd, %ofinf
  br i1 %none, label %nan, label %number
nan:
  ret {t} {nan}
number:
  %less = icmp ult {i} %xs, %ys
  br i1 %less, label %itself, label %divide
itself:
  ret {t} %x
divide:
  %xf = and {i} %xs, {fraction}
  %yf = and {i} %ys, {fraction}
  %xm = or {i} %xf, {unit}
  %ym = or {i} %yf, {unit}
  %xe0 = lshr {i} %xs, {width}
  %ye0 = lshr {i} %ys, {width}
  %xtiny = icmp eq {i} %xe0, 0
  %ytiny = icmp eq {i} %ye0, 0
  %m = select i1 %xtiny, {i} %xf, {i} %xm
  %n = select i1 %ytiny, {i} %yf, {i} %ym
  %xe = select i1 %xtiny, {i} 1, {i} %xe0
  %ye = select i1 %ytiny, {i} 1, {i} %ye0
  %steps = sub {i} %xe, %ye
  %first = urem {i} %m, %n
  br label %loop
loop:
  %k = phi {i} [ %steps, %divide ], [ %knext, %shift ]
  %r = phi {i} [ %first, %divide ], [ %rnext, %shift ]
  %more = icmp ne {i} %k, 0
  %some = icmp ne {i} %r, 0
  %goes = and i1 %more, %some
  br i1 %goes, label %shift, label %last
shift:
  %short = icmp ult {i} %k, {piece}
  %s = select i1 %short, {i} %k, {i} {piece}
  %moved = shl {i} %r, %s
  %rnext = urem {i} %moved, %n
  %knext = sub {i} %k, %s
  br label %loop
last:
  %rf = sitofp {i} %r to {t}
  %rb = bitcast {t} %rf to {i}
  %top = lshr {i} %rb, {width}
  %up = sub {i} %ye, {base}
  %e = add {i} %top, %up
  %high = shl {i} %up, {width}
  %normal = add {i} %rb, %high
  %down = sub {i} %ye, 1
  %low = shl {i} %r, %down
  %isnormal = icmp sgt {i} %e, 0
  %value = select i1 %isnormal, {i} %normal, {i} %low
  %size = select i1 %some, {i} %value, {i} 0
  %sign = and {i} %xb, {sign}
  %bits = or {i} %size, %sign
  %result = bitcast {i} %bits to {t}
  ret {t} %result
}}"""
