"""Expressions over dimensions: what is proved equal is equal, and an expression is proved equal to
itself in every form that simplification gives it."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.arith import Bounds, prove_equal, simplify
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, int_value, maximum, minimum
from tensorkiln.ir.visit import substitute
from tensorkiln.ops.rules import same_extent

S, H = Var("s"), Var("h")
SIZES = [
    {S: s, H: h} for s, h in product((0, 1, 2, 3, 5, 10, 19, 20, 21, 40, 97), (0, 1, 2, 4, 7, 30))
]
NOTHING, OF_SIZES = Bounds(), Bounds.dims((S, H))


@st.composite
def extents(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Sums, products, quotients, rests and limits, as windows, slices and resizing make them."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([S, H, S, H, as_expr(1)]))
    a = draw(extents(depth - 1))
    k = draw(st.integers(1, 20))
    match draw(st.integers(0, 8)):
        case 0:
            return a + k
        case 1:
            return a - k
        case 2:
            return a * draw(st.integers(1, 4))
        case 3:
            return a // k
        case 4:
            return a % k
        case 5:
            return maximum(draw(st.integers(0, 2)), a)
        case 6:
            return minimum(a, k)
        case 7:
            return a + draw(extents(depth - 1))
    return maximum(a, draw(extents(depth - 1)))


def values(e: Expr) -> list[int | None]:
    """What it is for all sizes."""
    return [
        int_value(simplify(substitute(e, {v: IntImm(n) for v, n in sizes.items()})))
        for sizes in SIZES
    ]


@settings(max_examples=300)
@given(extents())
def test_an_extent_is_itself_in_every_form(e: Expr) -> None:
    forms = [e, simplify(e), simplify(e, OF_SIZES), simplify(simplify(e), OF_SIZES)]
    want = values(e)
    for form in forms:
        assert values(form) == want
        assert same_extent(e, form) and same_extent(form, e), (e, form)
        assert same_extent(form, simplify(form, OF_SIZES))


@settings(max_examples=300)
@given(extents(2), extents(2))
def test_what_is_proved_equal_is_equal(a: Expr, b: Expr) -> None:
    for bounds in (NOTHING, OF_SIZES):
        if prove_equal(a, b, bounds):
            assert values(a) == values(b)


@settings(max_examples=200)
@given(extents(2), st.integers(0, 3), st.integers(1, 9), st.sampled_from([maximum, minimum]))
def test_constants_move_through_limits(a: Expr, low: int, k: int, limit: object) -> None:
    """max(low, a) + k = max(low + k, a + k), however it is written."""
    assert callable(limit)
    assert same_extent(limit(as_expr(low), a) + k, limit(as_expr(low + k), a + k))
    assert same_extent(limit(as_expr(low), a - k), limit(as_expr(low + k), a) - k)
