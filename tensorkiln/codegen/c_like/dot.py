"""Sums of products of narrow numbers.

dot4:      c[l] + sum of a[4*l + k] * b[4*l + k] for k < 4        a in uint8, b in int8
dot4_small: the same                                              b at most 64 in magnitude
dot2:      c[l] + sum of a[2*l + k] * b[2*l + k] for k < 2        both in int16
dot2_bf16: the same                                               both in bfloat16, c in float32
"""

from __future__ import annotations

from tensorkiln.codegen.c_like.code import call
from tensorkiln.codegen.c_like.conversions import function_of
from tensorkiln.codegen.c_like.types import define, type_name, vector_bits
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.expr import Expr, Shuffle, Var, cast, intrin
from tensorkiln.ir.operators import DOTS


def dot(w: TextWriter, name: str, args: list[str], lanes: int) -> str:
    """A call of the function for `lanes` sums: an instruction where the dialect knows one."""
    function_name = f"{name}_{type_name(DType(DOTS[name][0][0], lanes))}"

    def make() -> str:
        text: str | None = w.dialect.dot(w, function_name, name, lanes)
        if text is not None:
            return text
        return (_of_singles if name == "dot2_bf16" else _plain)(w, function_name, name, lanes)

    return call(w.helper(function_name, make), *args)


def _of_singles(w: TextWriter, function_name: str, name: str, lanes: int) -> str:
    """Both numbers of a lane as float32, each multiplied and added."""
    c, pair = Var("c", FLOAT32.with_lanes(lanes)), DType("bfloat16", 2 * lanes)
    a, b = Var("a", pair), Var("b", pair)
    total: Expr = c
    for k in range(2):
        x, y = (cast(Shuffle(v, v, tuple(range(k, 2 * lanes, 2))), c.dtype) for v in (a, b))
        total = intrin("fma", x, y, total)
    return function_of(w, function_name, [c, a, b], [], total)


def _plain(w: TextWriter, function_name: str, name: str, lanes: int) -> str:
    """By shifts that widen each number of a lane to 32 bits; of one lane, by its elements."""
    (_, _), (left_type, count), (right_type, _) = DOTS[name]
    word, a = DType("int32", lanes), DType(left_type, count * lanes)
    b = DType(right_type, count * lanes)
    params = [(w.type(word), "c"), (w.type(a), "a"), (w.type(b), "b")]
    t, u = w.type(word), w.type(DType("uint32", lanes))
    if lanes == 1:
        lane = w.dialect.lane
        terms = "".join(
            f" + ({u})({lane.format(x='a', i=k)} * {lane.format(x='b', i=k)})" for k in range(count)
        )
        return define(w, t, function_name, params, [], f"({t})(({u})c{terms})")
    bits = 32 // count
    a_bits, b_bits, c_bits = (vector_bits(w, u, v) for v in "abc")
    lines = [f"const {u} x = {a_bits}, y = {b_bits};", f"{u} sum = {c_bits};"]
    unsigned_left = left_type.startswith("u")

    def signed_part(x: str) -> str:
        return vector_bits(w, u, f"({vector_bits(w, t, x)} >> {32 - bits})")

    for k in range(count):
        up = 32 - bits * (k + 1)
        x, y = (f"({v} << {up})" if up else v for v in "xy")
        wide = f"({u})({x} >> {32 - bits})" if unsigned_left else signed_part(x)
        lines.append(f"sum += {wide} * {signed_part(y)};")
    return define(w, t, function_name, params, lines, vector_bits(w, t, "sum"))
