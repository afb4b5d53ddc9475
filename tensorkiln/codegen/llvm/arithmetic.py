"""Operations on values that are already emitted: one or a few LLVM instructions each."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.expansions import Expander, splat
from tensorkiln.codegen.llvm.lines import COMPARE, Lines, Scope
from tensorkiln.codegen.llvm.types import float_literal, llvm_type, suffix
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, int_value

_INT_OPS = {
    "add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor",
    "and": "and", "or": "or",
}  # fmt: skip
_FLOAT_OPS = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv"}
_FLOAT_UNARY = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven",
    "trunc": "trunc",
}  # fmt: skip


def _number(e: Expr) -> int | None:
    """The constant that `e` is in every lane; None if it is not one."""
    return int_value(e.a if isinstance(e, Broadcast) else e)


class Arithmetic(Lines):
    """Binary and unary operations, casts, reductions of a vector."""

    def _binary(self, op: str, x: str, y: str, dtype: DType, b: Expr) -> str:
        t = llvm_type(dtype)
        if dtype.is_float and dtype.bits == 16:
            wide = DType("float32", dtype.lanes)
            x, y = self._cast(x, dtype, wide), self._cast(y, dtype, wide)
            result = self._binary(op, x, y, wide, b)
            return result if op in COMPARE else self._cast(result, wide, dtype)
        if dtype.is_float:
            if op in _FLOAT_OPS:
                return self._line(f"{_FLOAT_OPS[op]} {t} {x}, {y}")
            if op in COMPARE:
                code = "une" if op == "ne" else "o" + COMPARE[op]
                return self._line(f"fcmp {code} {t} {x}, {y}")
            if op in ("min", "max"):
                # x < y ? x : y maps to one instruction; a NaN in y is kept, one in x is dropped
                # unless y is NaN too: operand order is chosen by the operator definitions.
                cmp = self._line(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {x}, {y}")
                lanes = f"<{dtype.lanes} x i1>" if dtype.lanes > 1 else "i1"
                return self._line(f"select {lanes} {cmp}, {t} {x}, {t} {y}")
            if op in ("floordiv", "floormod"):
                q = self._round("floor", self._line(f"fdiv {t} {x}, {y}"), dtype)
                if op == "floordiv":
                    return q
                return self._line(f"fsub {t} {x}, {self._line(f'fmul {t} {q}, {y}')}")
        return self._int_binary(op, x, y, dtype, None, b)

    def _int_binary(
        self, op: str, x: str, y: str, dtype: DType, scope: Scope | None, b: Expr
    ) -> str:
        t = llvm_type(dtype)
        sign = "u" if dtype.is_unsigned else "s"
        if op in _INT_OPS:
            return self._line(f"{_INT_OPS[op]} {t} {x}, {y}", scope)
        if op in ("shl", "shr"):
            return self._shift(op, x, y, dtype, scope, b)
        if op in COMPARE:
            code = op if op in ("eq", "ne") else sign + COMPARE[op]
            return self._line(f"icmp {code} {t} {x}, {y}", scope)
        if op in ("min", "max"):
            return self._call(sign + op, dtype, [x, y], scope)
        if op in ("div", "floordiv", "floormod"):
            return self._division(op, x, y, dtype, scope, b)
        raise InternalError(f"{self.func.name}: no integer operation {op}")

    def _shift(self, op: str, x: str, y: str, dtype: DType, scope: Scope | None, b: Expr) -> str:
        """A count of at least the number of bits shifts all of them out, and so does a negative
        count: LLVM gives poison for both."""
        t, n = llvm_type(dtype), _number(b)
        word = "shl" if op == "shl" else "lshr" if dtype.is_unsigned else "ashr"
        if n is not None and 0 <= n < dtype.bits:
            return self._line(f"{word} {t} {x}, {y}", scope)
        last = splat(str(dtype.bits - 1), dtype)
        within = self._call("umin", dtype, [y, last], scope)
        shifted = self._line(f"{word} {t} {x}, {within}", scope)
        if word == "ashr":
            return shifted
        flag = llvm_type(BOOL.with_lanes(dtype.lanes))
        all_out = self._line(f"icmp ugt {t} {y}, {last}", scope)
        return self._line(f"select {flag} {all_out}, {t} {splat('0', dtype)}, {t} {shifted}", scope)

    def _division(self, op: str, x: str, y: str, dtype: DType, scope: Scope | None, b: Expr) -> str:
        """`div` rounds to zero, `floordiv` and `floormod` to minus infinity. Division by 0 gives 0,
        and the least integer divided by -1 wraps around. A constant power of two becomes a shift or
        a mask."""
        t, n = llvm_type(dtype), _number(b)
        if n is not None and n > 0 and n & (n - 1) == 0 and not dtype.is_unsigned and op != "div":
            if op == "floordiv":
                return self._line(f"ashr {t} {x}, {splat(str(n.bit_length() - 1), dtype)}", scope)
            return self._line(f"and {t} {x}, {splat(str(n - 1), dtype)}", scope)
        special = None
        if n in (None, 0, -1):
            special, y = self._divisor(y, dtype, scope if scope is None else self._scope_of(b))
        if op == "floormod":
            return self._remainder(x, y, dtype, scope)[0]
        q = self._line(f"{'u' if dtype.is_unsigned else 's'}div {t} {x}, {y}", scope)
        flag = llvm_type(BOOL.with_lanes(dtype.lanes))
        if op == "floordiv" and not dtype.is_unsigned:
            adjust = self._remainder(x, y, dtype, scope)[1]
            q = self._line(
                f"add {t} {q}, {self._line(f'sext {flag} {adjust} to {t}', scope)}", scope
            )
        if special is None:
            return q
        wrapped = self._line(f"mul {t} {x}, {special[1]}", scope)
        return self._line(f"select {flag} {special[0]}, {t} {wrapped}, {t} {q}", scope)

    def _divisor(self, y: str, dtype: DType, scope: Scope | None) -> tuple[tuple[str, str], str]:
        """((flag, `y`), safe divisor). The flag says that `y` is 0 or -1, with which processors may
        trap; the safe divisor is then 1, else `y`. For both values x / y is equal to x * y."""
        t, flag = llvm_type(dtype), llvm_type(BOOL.with_lanes(dtype.lanes))
        if dtype.is_unsigned:
            traps = self._line(f"icmp eq {t} {y}, {splat('0', dtype)}", scope)
        else:
            above = self._line(f"add {t} {y}, {splat('1', dtype)}", scope)
            traps = self._line(f"icmp ult {t} {above}, {splat('2', dtype)}", scope)
        safe = self._line(f"select {flag} {traps}, {t} {splat('1', dtype)}, {t} {y}", scope)
        return (traps, y), safe

    def _remainder(self, x: str, y: str, dtype: DType, scope: Scope | None) -> tuple[str, str]:
        """The remainder of division towards minus infinity, and a flag: the quotient is one less
        than that of division towards zero (no flag for unsigned types, where they are equal)."""
        t, flag = llvm_type(dtype), llvm_type(BOOL.with_lanes(dtype.lanes))
        if dtype.is_unsigned:
            return self._line(f"urem {t} {x}, {y}", scope), ""
        zero = splat("0", dtype)
        r = self._line(f"srem {t} {x}, {y}", scope)
        mixed = self._line(f"xor {t} {r}, {y}", scope)
        differs = self._line(f"icmp slt {t} {mixed}, {zero}", scope)
        nonzero = self._line(f"icmp ne {t} {r}, {zero}", scope)
        adjust = self._line(f"and {flag} {differs}, {nonzero}", scope)
        fixed = self._line(f"add {t} {r}, {y}", scope)
        return self._line(f"select {flag} {adjust}, {t} {fixed}, {t} {r}", scope), adjust

    def _unary(self, op: str, x: str, dtype: DType) -> str:
        t = llvm_type(dtype)
        if dtype.is_float:
            if dtype.bits == 16:
                wide = DType("float32", dtype.lanes)
                return self._cast(self._unary(op, self._cast(x, dtype, wide), wide), wide, dtype)
            if op == "neg":
                return self._line(f"fneg {t} {x}")
            return self._round(_FLOAT_UNARY[op], x, dtype)
        if op == "not":
            ones = splat("true" if dtype.is_bool else "-1", dtype)
            return self._line(f"xor {t} {x}, {ones}")
        if op not in ("neg", "abs") or (op == "abs" and dtype.is_unsigned):
            return x  # to round an integer, or take the absolute value of an unsigned one
        zero = "zeroinitializer" if dtype.lanes > 1 else "0"
        minus = self._line(f"sub {t} {zero}, {x}")
        return minus if op == "neg" else self._call("smax", dtype, [x, minus])

    def _round(self, name: str, x: str, dtype: DType) -> str:
        """Call a float intrinsic; roundings that the processor lacks are expanded."""
        if name in ("fabs", "sqrt") or self.rounds:
            return self._call(name, dtype, [x])
        return self._expander(dtype.lanes).round(name, x, dtype)

    def _expander(self, lanes: int) -> Expander:
        return Expander(self._line, self._call, lanes)

    def _cast(self, x: str, src: DType, dst: DType) -> str:
        ts, td = llvm_type(src), llvm_type(dst)
        if src == dst:
            return x
        if (src.is_float and src.bits == 16) or (dst.is_float and dst.bits == 16):
            return self._cast_narrow(x, src, dst)
        if dst.is_bool:
            zero = splat(float_literal(0.0, src) if src.is_float else "0", src)
            return self._line(f"{'fcmp une' if src.is_float else 'icmp ne'} {ts} {x}, {zero}")
        if src.is_float and dst.is_float:
            return self._line(f"{'fpext' if dst.bits > src.bits else 'fptrunc'} {ts} {x} to {td}")
        if src.is_float:
            if dst.bits < 32 and src.lanes > 1 and src.name == "float32":
                return self._cast_to_bytes(x, src, dst)
            kind = "u" if dst.is_unsigned else "s"
            name = f"@llvm.fpto{kind}i.sat.{suffix(dst)}.{suffix(src)}"
            self.declares.add(f"declare {td} {name}({ts})")
            return self._line(f"call {td} {name}({ts} {x})")
        if dst.is_float:
            return self._line(f"{'ui' if src.is_unsigned else 'si'}tofp {ts} {x} to {td}")
        src_bits = 1 if src.is_bool else src.bits
        if src_bits == dst.bits:
            return x
        if src_bits > dst.bits:
            return self._line(f"trunc {ts} {x} to {td}")
        return self._line(f"{'zext' if src.is_unsigned else 'sext'} {ts} {x} to {td}")

    def _cast_to_bytes(self, x: str, src: DType, dst: DType) -> str:
        """Cast a vector of float32 to integers of 8 or 16 bits, saturating, NaN to 0. LLVM's own
        conversion would be done lane by lane."""
        low = 0 if dst.is_unsigned else -(1 << dst.bits - 1)
        high = low + (1 << dst.bits) - 1
        t, wide = llvm_type(src), DType("int32", src.lanes)
        if low:
            zero, real = splat(float_literal(0.0, src), src), f"fcmp ord {t} {x}, {x}"
            x = self._line(f"select <{src.lanes} x i1> {self._line(real)}, {t} {x}, {t} {zero}")
        # For unsigned types: a NaN is not greater than 0, so it becomes 0.
        for compare, bound in (("ogt", low), ("olt", high)):
            limit = splat(float_literal(float(bound), src), src)
            inside = self._line(f"fcmp {compare} {t} {x}, {limit}")
            x = self._line(f"select <{src.lanes} x i1> {inside}, {t} {x}, {t} {limit}")
        whole = self._line(f"fptosi {t} {x} to {llvm_type(wide)}")
        return self._line(f"trunc {llvm_type(wide)} {whole} to {llvm_type(dst)}")

    def _cast_narrow(self, x: str, src: DType, dst: DType) -> str:
        """Casts from or to float16 and bfloat16, by way of float32."""
        single, e = DType("float32", src.lanes), self._expander(src.lanes)
        if src.is_float and src.bits == 16:
            if src.name == "bfloat16":
                wide = e.from_bfloat(x)
            elif self.converts_half:
                wide = e.cast("fpext", x, src, single)
            else:
                wide = e.from_half(x)
            return self._cast(wide, single, dst)
        if src.name == "float64" or (src.is_int and src.bits > 16):
            # Rounding to nearest twice may differ from doing it once, so the first goes to odd.
            double = DType("float64", src.lanes)
            x = e.to_odd(self._cast(x, src, double))
        else:
            x = self._cast(x, src, single)
        if dst.name == "bfloat16":
            return e.to_bfloat(x)
        return e.cast("fptrunc", x, single, dst) if self.converts_half else e.to_half(x)

    def _vector_reduce(self, op: str, x: str, dtype: DType) -> str:
        """Combine the halves of the vector until one lane is left: one order for all targets."""
        lanes = dtype.lanes
        name = {"sum": "add", "prod": "mul"}.get(op, op)
        while lanes > 2:
            t, half = llvm_type(dtype.with_lanes(lanes)), dtype.with_lanes(lanes // 2)
            low = ", ".join(f"i32 {i}" for i in range(lanes // 2))
            high = ", ".join(f"i32 {i}" for i in range(lanes // 2, lanes))
            mask = f"<{lanes // 2} x i32>"
            a = self._line(f"shufflevector {t} {x}, {t} poison, {mask} <{low}>")
            b = self._line(f"shufflevector {t} {x}, {t} poison, {mask} <{high}>")
            x = self._binary(name, a, b, half, IntImm(0))
            lanes //= 2
        pair = llvm_type(dtype.with_lanes(2))
        a = self._line(f"extractelement {pair} {x}, i32 0")
        b = self._line(f"extractelement {pair} {x}, i32 1")
        return self._binary(name, a, b, dtype.element, IntImm(0))
