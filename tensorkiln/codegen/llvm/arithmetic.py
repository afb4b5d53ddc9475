"""Binary and unary operations on values that are already emitted."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.expansions import Expander, splat
from tensorkiln.codegen.llvm.remainder import remainder
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import COMPARE, CodeScope, KernelWriter
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Broadcast, Expr, int_value

_INT_OPS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
    "and": "and",
    "or": "or",
}
_FLOAT_OPS = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv"}
_FLOAT_UNARY = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "trunc": "trunc",
}


def _number(e: Expr) -> int | None:
    """The constant that every lane of `e` is; None if it is not such a constant."""
    return int_value(e.a if isinstance(e, Broadcast) else e)


def binary(w: KernelWriter, op: str, x: str, y: str, dtype: DType, b: Expr) -> str:
    """x op y of operands of type `dtype`; `b` is the expression that y was emitted from."""
    t = llvm_type(dtype)
    if dtype.is_half:
        wide = DType("float32", dtype.lanes)
        x, y = convert(w, x, dtype, wide), convert(w, y, dtype, wide)
        result = binary(w, op, x, y, wide, b)
        return result if op in COMPARE else convert(w, result, wide, dtype)
    if dtype.is_float:
        if op in _FLOAT_OPS:
            return w.line(f"{_FLOAT_OPS[op]} {t} {x}, {y}")
        if op in COMPARE:
            code = "une" if op == "ne" else "o" + COMPARE[op]
            return w.line(f"fcmp {code} {t} {x}, {y}")
        if op in ("min", "max"):
            # x < y ? x : y maps to one instruction; a NaN in y is kept, one in x is dropped
            # unless y is NaN too: operand order is chosen by the operator definitions.
            cmp = w.line(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {x}, {y}")
            lanes = f"<{dtype.lanes} x i1>" if dtype.lanes > 1 else "i1"
            return w.line(f"select {lanes} {cmp}, {t} {x}, {t} {y}")
        if op == "floordiv":
            return _round(w, "floor", w.line(f"fdiv {t} {x}, {y}"), dtype)
        if op == "floormod":
            return _float_remainder(w, x, y, dtype)
    return int_binary(w, op, x, y, dtype, None, b)


def _float_remainder(w: KernelWriter, x: str, y: str, dtype: DType) -> str:
    """The remainder with the sign of y, exact but for one addition."""
    t, flag, zero = llvm_type(dtype), llvm_type(BOOL.with_lanes(dtype.lanes)), splat("0.0", dtype)
    rem = remainder(w, x, y, dtype)
    signs = [w.line(f"fcmp olt {t} {v}, {zero}") for v in (rem, y)]
    apart = w.line(f"xor {flag} {signs[0]}, {signs[1]}")
    some = w.line(f"fcmp one {t} {rem}, {zero}")
    moved = w.line(f"and {flag} {apart}, {some}")
    return w.line(f"select {flag} {moved}, {t} {w.line(f'fadd {t} {rem}, {y}')}, {t} {rem}")


def int_binary(
    w: KernelWriter, op: str, x: str, y: str, dtype: DType, scope: CodeScope | None, b: Expr
) -> str:
    """As `binary` for integers, emitted in `scope` (None: the innermost)."""
    t = llvm_type(dtype)
    sign = "u" if dtype.is_unsigned else "s"
    if op in _INT_OPS:
        return w.line(f"{_INT_OPS[op]} {t} {x}, {y}", scope)
    if op in ("shl", "shr"):
        return _shift(w, op, x, y, dtype, scope, b)
    if op in COMPARE:
        code = op if op in ("eq", "ne") else sign + COMPARE[op]
        return w.line(f"icmp {code} {t} {x}, {y}", scope)
    if op in ("min", "max"):
        return w.call(sign + op, dtype, [x, y], scope)
    if op in ("div", "floordiv", "floormod"):
        return _division(w, op, x, y, dtype, scope, b)
    raise InternalError(f"{w.func.name}: no integer operation {op}")


def _shift(
    w: KernelWriter, op: str, x: str, y: str, dtype: DType, scope: CodeScope | None, b: Expr
) -> str:
    """A count of at least the number of bits shifts all of them out, and so does a negative
    count: LLVM gives poison for both."""
    t, n = llvm_type(dtype), _number(b)
    word = "shl" if op == "shl" else "lshr" if dtype.is_unsigned else "ashr"
    if n is not None and 0 <= n < dtype.bits:
        return w.line(f"{word} {t} {x}, {y}", scope)
    last = splat(str(dtype.bits - 1), dtype)
    within = w.call("umin", dtype, [y, last], scope)
    shifted = w.line(f"{word} {t} {x}, {within}", scope)
    if word == "ashr":
        return shifted
    flag = llvm_type(BOOL.with_lanes(dtype.lanes))
    all_out = w.line(f"icmp ugt {t} {y}, {last}", scope)
    return w.line(f"select {flag} {all_out}, {t} {splat('0', dtype)}, {t} {shifted}", scope)


def _division(
    w: KernelWriter, op: str, x: str, y: str, dtype: DType, scope: CodeScope | None, b: Expr
) -> str:
    """`div` rounds to zero, `floordiv` and `floormod` to minus infinity. Division by 0 gives 0,
    and the least integer divided by -1 wraps around. A constant power of two becomes a shift or
    a mask."""
    t, n = llvm_type(dtype), _number(b)
    if n is not None and n > 0 and n & (n - 1) == 0 and not dtype.is_unsigned and op != "div":
        if op == "floordiv":
            return w.line(f"ashr {t} {x}, {splat(str(n.bit_length() - 1), dtype)}", scope)
        return w.line(f"and {t} {x}, {splat(str(n - 1), dtype)}", scope)
    special = None
    if n in (None, 0, -1):
        special, y = _divisor(w, y, dtype, scope if scope is None else w.scope_of(b))
    if op == "floormod":
        return _remainder(w, x, y, dtype, scope)[0]
    q = w.line(f"{'u' if dtype.is_unsigned else 's'}div {t} {x}, {y}", scope)
    flag = llvm_type(BOOL.with_lanes(dtype.lanes))
    if op == "floordiv" and not dtype.is_unsigned:
        adjust = _remainder(w, x, y, dtype, scope)[1]
        q = w.line(f"add {t} {q}, {w.line(f'sext {flag} {adjust} to {t}', scope)}", scope)
    if special is None:
        return q
    wrapped = w.line(f"mul {t} {x}, {special[1]}", scope)
    return w.line(f"select {flag} {special[0]}, {t} {wrapped}, {t} {q}", scope)


def _divisor(
    w: KernelWriter, y: str, dtype: DType, scope: CodeScope | None
) -> tuple[tuple[str, str], str]:
    """((flag, `y`), safe divisor). The flag says that `y` is 0 or -1, with which processors may
    trap; the safe divisor is then 1, else `y`. For both values x / y is equal to x * y."""
    t, flag = llvm_type(dtype), llvm_type(BOOL.with_lanes(dtype.lanes))
    if dtype.is_unsigned:
        traps = w.line(f"icmp eq {t} {y}, {splat('0', dtype)}", scope)
    else:
        above = w.line(f"add {t} {y}, {splat('1', dtype)}", scope)
        traps = w.line(f"icmp ult {t} {above}, {splat('2', dtype)}", scope)
    safe = w.line(f"select {flag} {traps}, {t} {splat('1', dtype)}, {t} {y}", scope)
    return (traps, y), safe


def _remainder(
    w: KernelWriter, x: str, y: str, dtype: DType, scope: CodeScope | None
) -> tuple[str, str]:
    """The remainder of division towards minus infinity, and a flag: the quotient is one less
    than that of division towards zero (no flag for unsigned types, where they are equal)."""
    t, flag = llvm_type(dtype), llvm_type(BOOL.with_lanes(dtype.lanes))
    if dtype.is_unsigned:
        return w.line(f"urem {t} {x}, {y}", scope), ""
    zero = splat("0", dtype)
    r = w.line(f"srem {t} {x}, {y}", scope)
    mixed = w.line(f"xor {t} {r}, {y}", scope)
    differs = w.line(f"icmp slt {t} {mixed}, {zero}", scope)
    nonzero = w.line(f"icmp ne {t} {r}, {zero}", scope)
    adjust = w.line(f"and {flag} {differs}, {nonzero}", scope)
    fixed = w.line(f"add {t} {r}, {y}", scope)
    return w.line(f"select {flag} {adjust}, {t} {fixed}, {t} {r}", scope), adjust


def unary(w: KernelWriter, op: str, x: str, dtype: DType) -> str:
    """op x of an operand of type `dtype`."""
    t = llvm_type(dtype)
    if dtype.is_float:
        if dtype.bits == 16:
            wide = DType("float32", dtype.lanes)
            return convert(w, unary(w, op, convert(w, x, dtype, wide), wide), wide, dtype)
        if op == "neg":
            return w.line(f"fneg {t} {x}")
        return _round(w, _FLOAT_UNARY[op], x, dtype)
    if op == "not":
        all_ones = splat("true" if dtype.is_bool else "-1", dtype)
        return w.line(f"xor {t} {x}, {all_ones}")
    if op not in ("neg", "abs") or (op == "abs" and dtype.is_unsigned):
        return x  # to round an integer, or take the absolute value of an unsigned one
    zero = "zeroinitializer" if dtype.lanes > 1 else "0"
    minus = w.line(f"sub {t} {zero}, {x}")
    return minus if op == "neg" else w.call("smax", dtype, [x, minus])


def _round(w: KernelWriter, name: str, x: str, dtype: DType) -> str:
    """Call a float intrinsic; roundings that the processor lacks are expanded."""
    if name in ("fabs", "sqrt") or w.rounds:
        return w.call(name, dtype, [x])
    return Expander(w.line, w.call, dtype.lanes).round(name, x, dtype)
