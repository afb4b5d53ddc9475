"""Random expressions: simplification, bounds, proofs and linear forms against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import given, settings

from tensorkiln.arith import Bounds, affine, bound, prove, prove_equal, simplify
from tensorkiln.arith.scalar import cost
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Cast, Expr, IntImm, Unary, Var, as_expr, binary, select
from tests.arith.evaluate import evaluate, points, text

A, B, C, N = Var("a"), Var("b"), Var("c"), Var("n")
# n is a dimension; c runs up to it
NUMERIC = {A: (0, 9), B: (-3, 4)}
KNOWN = Bounds({**NUMERIC, N: (1, None), C: (0, N - 1)})


def environments() -> Iterator[dict[Var, int]]:
    for env in points({**NUMERIC, N: (1, 4)}):
        for c in range(env[N]):
            yield {**env, C: c}


ENVIRONMENTS = list(environments())[::5]

_divisors = st.one_of(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]).map(as_expr),
    st.sampled_from([N, N * 2, N * 3, N + 1]),
)
_leaves = st.one_of(st.sampled_from([A, B, C, N]), st.integers(-20, 20).map(as_expr))


def _branches(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    conds = st.builds(binary, st.sampled_from(["lt", "le", "eq", "ne"]), inner, inner)
    return st.one_of(
        st.builds(binary, st.sampled_from(["add", "sub", "min", "max"]), inner, inner),
        st.builds(binary, st.just("mul"), inner, st.integers(-8, 16).map(as_expr)),
        st.builds(binary, st.just("mul"), inner, st.sampled_from([N, A])),
        st.builds(binary, st.sampled_from(["floordiv", "floormod"]), inner, _divisors),
        st.builds(binary, st.sampled_from(["floordiv", "floormod"]), inner, _divisors),
        st.builds(binary, st.sampled_from(["shl", "shr"]), inner, st.just(IntImm(2))),
        st.builds(Unary, st.sampled_from(["neg", "abs"]), inner),
        st.builds(select, conds, inner, inner),
    )


exprs = st.recursive(_leaves, _branches, max_leaves=10)
_compare = st.builds(binary, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), exprs, exprs)
conditions = st.recursive(
    _compare,
    lambda inner: st.one_of(
        st.builds(binary, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(Unary, st.just("not"), inner),
    ),
    max_leaves=4,
)


@settings(max_examples=250)
@given(exprs)
def test_simplify_keeps_the_value(e: Expr) -> None:
    new = simplify(e, KNOWN)
    for env in ENVIRONMENTS:
        assert evaluate(e, env) == evaluate(new, env), (text(e), text(new), env)


@settings(max_examples=150)
@given(exprs)
def test_simplify_without_bounds_keeps_the_value(e: Expr) -> None:
    new = simplify(e)
    for env in ENVIRONMENTS[::3]:
        assert evaluate(e, env) == evaluate(new, env), (text(e), text(new), env)


@settings(max_examples=150)
@given(conditions)
def test_conditions_keep_their_truth(cond: Expr) -> None:
    new = simplify(cond, KNOWN)
    assert new.dtype.is_bool
    for env in ENVIRONMENTS:
        assert evaluate(cond, env) == evaluate(new, env), (text(cond), text(new), env)


@settings(max_examples=150)
@given(conditions, conditions)
def test_facts_are_used_soundly(fact: Expr, cond: Expr) -> None:
    new = simplify(cond, KNOWN.given(fact))
    for env in ENVIRONMENTS:
        if evaluate(fact, env):
            assert evaluate(cond, env) == evaluate(new, env), (text(fact), text(cond), env)


@settings(max_examples=150)
@given(exprs)
def test_bounds_are_sound(e: Expr) -> None:
    lo, hi = bound(e, KNOWN)
    for env in ENVIRONMENTS:
        value = evaluate(e, env)
        assert lo is None or lo <= value, (text(e), lo, env)
        assert hi is None or value <= hi, (text(e), hi, env)


@settings(max_examples=100)
@given(exprs, exprs)
def test_prove_equal_is_never_wrong(a: Expr, b: Expr) -> None:
    if prove_equal(a, b, KNOWN):
        assert evaluate_equal(a, b), (text(a), text(b))


def evaluate_equal(a: Expr, b: Expr) -> bool:
    return all(evaluate(a, env) == evaluate(b, env) for env in ENVIRONMENTS)


@settings(max_examples=100)
@given(exprs)
def test_prove_is_never_wrong(e: Expr) -> None:
    values = [evaluate(e, env) for env in ENVIRONMENTS]
    for limit in {min(values), min(values) + 1, max(values)}:
        if prove(e >= limit, KNOWN):
            assert min(values) >= limit, text(e)


@settings(max_examples=150)
@given(exprs)
def test_affine_adds_up(e: Expr) -> None:
    affine_form = affine(e, [A, C], KNOWN)
    if affine_form is None:
        return
    coefficients, constant = affine_form
    total = constant
    for var, k in coefficients.items():
        total = total + var * k
    for env in ENVIRONMENTS:
        assert evaluate(e, env) == evaluate(total, env), text(e)


@settings(max_examples=100)
@given(exprs)
def test_simplify_is_a_function_of_its_arguments(e: Expr) -> None:
    once = simplify(e, KNOWN)
    assert once.dtype == e.dtype
    assert simplify(e, Bounds(KNOWN)) == once


@settings(max_examples=150)
@given(exprs)
def test_simplify_never_costs_more(e: Expr) -> None:
    assert cost(simplify(e, KNOWN)) <= cost(e), text(simplify(e, KNOWN))


def test_an_operation_of_one_value_is_that_value() -> None:
    """A cast of a constant that no index can be: products of it would not fit their type."""
    large = Cast(IntImm(2836373177531981513), DType("int64"))
    assert simplify(large % 4 * 64 + A) == simplify(as_expr(64) + A)
