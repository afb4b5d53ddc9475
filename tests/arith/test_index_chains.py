"""Index chains that reshapes, transposes and blocked layouts leave behind, to the exact text."""

from __future__ import annotations

import pytest

from tensorkiln.arith import Bounds, affine, bound, prove, prove_equal, simplify
from tensorkiln.arith.scalar import Simplifier
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.dtype import FLOAT32, INT32
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Expr,
    Ramp,
    Reduce,
    Var,
    as_expr,
    cast,
    logical_and,
    maximum,
    minimum,
    select,
    unary,
)
from tests.arith.evaluate import text

B, S, N, b, s, h, d = (Var(n) for n in ("B", "S", "N", "b", "s", "h", "d"))
cb, ci, oh, kh, f, i, j, x, y, t = (
    Var(n) for n in ("cb", "ci", "oh", "kh", "f", "i", "j", "x", "y", "t")
)
KNOWN = Bounds(
    {
        B: (1, None),
        S: (1, None),
        N: (0, None),
        b: (0, B - 1),
        s: (0, S - 1),
        h: (0, 11),
        d: (0, 63),
        cb: (0, 3),
        ci: (0, 15),
        oh: (0, 55),
        kh: (0, 2),
        f: (0, B * S * 768 - 1),
        j: (0, y - 1),
    }
)
FLAT = ((b * S + s) * 12 + h) * 64 + d
BACK = ((f // 768 // S) * S + f // 768 % S) * 768 + f % 768

CHAINS: list[tuple[Expr, str]] = [
    # (B, S, 768) -> (B, S, 12, 64), flattened and taken apart again
    (FLAT, "((((b * S) + s) * 768) + (h * 64)) + d"),
    (FLAT // 768 // S, "b"),
    (FLAT // 768 % S, "s"),
    (FLAT % 768, "(h * 64) + d"),
    (FLAT // 64 % 12, "h"),
    (FLAT % 64, "d"),
    (FLAT // (S * 768), "b"),
    (FLAT % (S * 768) // 768, "s"),
    (FLAT // 768, "(b * S) + s"),
    # and the other way round: one flat loop split and joined
    (BACK, "f"),
    (f // 768 // S, "f // (S * 768)"),
    # the same with every dimension known
    ((((b * 128 + h) * 12 + oh % 12) * 64 + d) // 768 % 128, "h"),
    # blocked layouts
    ((16 * cb + ci) // 16, "cb"),
    ((16 * cb + ci) % 16, "ci"),
    ((cb * 32 + ci) // 16 % 2, "0"),
    ((x * 32 + cb * 16 + ci) // 16 % 2, "cb % 2"),
    ((x // 16) * 16 + x % 16, "x"),
    ((x // 16 % 2) * 16 + x % 16, "x % 32"),
    (x // 4 // 8, "x // 32"),
    (x % 32 // 16, "(x // 16) % 2"),
    (x % 32 % 16, "x % 16"),
    (x - x // 16 * 16, "x % 16"),
    # division by symbols
    ((i * y + j) // y, "i"),
    ((i * y + j) % y, "j"),
    ((b * (S + 1) + s) // (S + 1), "b"),
    ((b * (S + 1) + s) % (S + 1), "s"),
    ((x * N + N) // N, "x + 1"),
    # few operations
    (x * S + y * S + 3, "((x + y) * S) + 3"),
    (x * 3 - y * 3, "(x - y) * 3"),
    ((x + y) * (i + j), "(x + y) * (i + j)"),
    ((x - 1) // 16, "(x - 1) // 16"),
    (3 - x, "3 - x"),
    (x - x, "0"),
    (unary("neg", -x), "x"),
    (minimum(x, x + 3), "x"),
    (maximum(oh, 60), "60"),
    (minimum(maximum(x, y), maximum(y, x)), "max(x, y)"),
    (select((ci < 16), x, y), "x"),
    (select((ci > 3), x, x), "x"),
]


@pytest.mark.parametrize("e, expected", CHAINS, ids=lambda v: v if isinstance(v, str) else "")
def test_chain(e: Expr, expected: str) -> None:
    assert text(simplify(e, KNOWN)) == expected


CONDITIONS: list[tuple[Expr, str]] = [
    (FLAT < B * S * 768, "1"),
    (FLAT >= 0, "1"),
    (FLAT >= B * S * 768, "0"),
    (cb * 16 + ci < 64, "1"),
    (cb * 16 + ci < 60, "((cb * 16) + ci) < 60"),
    (x * 16 < 100, "x < 7"),
    (x * 2 >= 7, "x >= 4"),
    (x * 2 >= y * 4, "(y * 2) <= x"),
    (Binary("eq", x * 2, as_expr(7)), "0"),
    (Binary("ne", x * 2, as_expr(-6)), "x != -3"),
    (Binary("eq", x * 4, x * 4 + y - y), "1"),
    ((x + 15) // 16 * 16 >= x, "1"),
    ((x + 15) // 16 * 16 < x + 16, "1"),
    (minimum(N - t * 16, 16) + t * 16 <= N, "1"),
    (f // 768 % S < S, "1"),
    (f // (S * 768) < B, "1"),
    (logical_and(oh + kh >= 0, x < 3), "x < 3"),
    (logical_and(x < 3, x < 3), "x < 3"),
    (Binary("or", oh < 0, x < 3), "x < 3"),
]


@pytest.mark.parametrize("cond, expected", CONDITIONS, ids=lambda v: str(v)[:30])
def test_condition(cond: Expr, expected: str) -> None:
    assert text(simplify(cond, KNOWN)) == expected
    assert prove(cond, KNOWN) == (expected == "1")


def test_equal_though_written_otherwise() -> None:
    assert prove_equal((x - 1) // 16 + 1, (x + 15) // 16)
    assert prove_equal((x + y) * (i + j), x * i + y * i + j * x + j * y)
    assert prove_equal(BACK, f, KNOWN)
    assert not prove_equal(BACK, f + 1, KNOWN)


def test_linear_form_with_symbolic_coefficients() -> None:
    affine_form = affine(FLAT + x * x, [b, s, h, d, t], KNOWN)
    assert affine_form is not None
    coefficients, constant = affine_form
    factors = {v.name: k if isinstance(k, int) else text(k) for v, k in coefficients.items()}
    assert factors == {"b": "S * 768", "s": 768, "h": 64, "d": 1, "t": 0}
    assert text(constant) == "x * x"
    assert affine(x * x, [x]) is None
    assert affine(x // 4, [x]) is None
    assert affine((x * 4 + ci) // 4, [x]) is not None


def test_symbolic_bounds_cancel() -> None:
    assert bound(S - s, KNOWN) == (1, None)
    assert bound((N + 15) // 16 * 16 - N, KNOWN) == (0, 15)
    assert bound(B * S - b * S - s, KNOWN) == (1, None)
    assert bound(x, KNOWN) == (None, None)
    assert bound(cast(buffer("p", (4,), "uint8")[x], "int64") + 1) == (1, 256)


def test_a_dimension_that_may_be_empty_is_kept() -> None:
    """`n >= 1` needs `Bounds.dims(lower=1)`; the default of 0 must not prove it."""
    assert not prove(N >= 1, Bounds.dims([N]))
    assert prove(N >= 1, Bounds.dims([N], lower=1))


def test_facts_decide_what_ranges_do_not() -> None:
    facts = KNOWN.given(x * 16 + ci < N)
    assert prove(x * 16 < N, facts)
    assert not prove(x * 16 < N, KNOWN)
    assert prove(x * 48 < N * 3, facts)
    assert bound(x * 5, Bounds().given(logical_and(x < 7, x >= 2))) == (10, 30)
    assert bound(s, KNOWN.given(s < 4)) == (0, 3)


def test_floats_keep_every_operation() -> None:
    u, v = Var("u", FLOAT32), buffer("w", (64,))
    e = (u + v[x - x + 3]) - u + 0.0
    assert text(simplify(e)) == "((u + w[3]) - u) + 0.0"
    chosen = select(ci < 16, u * 1.0, u)
    assert text(simplify(chosen, KNOWN)) == "u * 1.0"


def test_vectors_are_simplified_inside() -> None:
    e = Binary("add", Ramp(x + y - y, as_expr(1), 8), Broadcast(x - x, 8))
    assert simplify(e) == Binary("add", Ramp(x, as_expr(1), 8), Broadcast(as_expr(0), 8))


def test_reduction_axes_have_ranges() -> None:
    k = Var("k")
    data = buffer("w", (64,))
    e = Reduce("sum", ((k, as_expr(16)),), data[(x * 16 + k) // 16])
    assert simplify(e) == Reduce("sum", ((k, as_expr(16)),), data[x])


def test_int32_stays_int32() -> None:
    z = Var("z", INT32)
    assert simplify((z * 4 + 3) // 4) is z
    mixed = cast(z, "int64") + cast(z, "int64")
    assert simplify(mixed).dtype == mixed.dtype


def test_narrow_integers_may_wrap_and_are_left_alone() -> None:
    z = Var("z", buffer("q", (1,), "uint8").dtype)
    e = Binary("sub", Binary("add", z, as_expr(1, z.dtype)), as_expr(1, z.dtype))
    assert simplify(e) is e


def test_unchanged_is_the_same_object() -> None:
    e = x * 16 + ci
    assert simplify(e, KNOWN) is e
    load = buffer("w", (64,))[e]
    assert simplify(load, KNOWN) is load


def test_two_variables_of_one_name_stay_apart() -> None:
    v, two = Var("v"), Var("v")
    first, second = simplify(v - two + 0 * x), simplify(two - v)
    assert isinstance(first, Binary) and isinstance(second, Binary)
    assert (first.a, first.b) == (v, two)
    assert (second.a, second.b) == (two, v)
    total = simplify(two + v)
    assert isinstance(total, Binary) and (total.a, total.b) == (two, v)


def test_result_does_not_depend_on_what_was_asked_before() -> None:
    bounds = Bounds({x: (0, None)})
    e = (y + x) // 4 + (x + y) % 4 + x // 2
    alone = simplify(e, Bounds(bounds))
    simplify(x + y * 3 - x // 2, bounds)
    simplify((x + y) % 4, bounds)
    assert simplify(e, bounds) == alone


def test_a_range_that_mentions_itself_says_nothing() -> None:
    assert bound(x, Bounds({x: (x, x + 1)})) == (None, None)


def test_shared_subexpressions_are_visited_once() -> None:
    """Forty doublings are 2**40 paths through 40 nodes."""
    e: Expr = x
    for _ in range(40):
        e = Binary("add", e, e)
    bounds = Bounds()
    assert text(Simplifier(bounds).simplify(e)) == f"x * {2**40}"
