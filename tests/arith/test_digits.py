"""Equations of sums, digit by digit."""

from __future__ import annotations

import itertools
import random
from types import CodeType

import pytest

from tensorkiln.arith.affine_text import AffineText
from tensorkiln.ir.expr import Expr, IntImm, Var

SIZES = {"a": 2, "b": 3, "c": 4}
POINTS = list(itertools.product(range(2), range(3), range(4)))


def python(text: str) -> CodeType:
    for isl, operator in (("floor", ""), (" / ", " // "), (" mod ", " % "), (" = ", " == ")):
        text = text.replace(isl, operator)
    return compile(text, "text", "eval")


def random_sum(rng: random.Random, variables: list[Var]) -> Expr:
    """A sum some of whose terms are digits."""
    e: Expr = IntImm(rng.choice((0, 0, 1, 3, -2)))
    for v in rng.sample(variables, rng.randint(1, 3)):
        part = v if rng.random() < 0.5 else (v + rng.choice(variables)) % rng.choice((2, 3, 4))
        part = part if rng.random() < 0.7 else part ^ rng.choice(variables) % 4
        part = part if rng.random() < 0.7 else (part + rng.choice(variables) * 2) // 2
        e = e + part * rng.choice((1, 2, 4, 8, 12, -1))
    return e


@pytest.mark.parametrize("seed", range(40))
def test_both_sides_are_equal_where_all_digits_are(seed: int) -> None:
    rng = random.Random(seed)
    text, variables = AffineText(()), [Var(n) for n in SIZES]
    for v in variables:
        text.env[v] = dim = text.fresh()
        text.set_range(dim, IntImm(0), IntImm(SIZES[v.name]))
    first, second = (text.text(random_sum(rng, variables)) for _ in range(2))
    for i, j in ((first, second), (first, first)):
        sums = [python(s) for s in (i.replace("@", "x"), j.replace("@", "y"))]
        equations = python(" and ".join(f"({c})" for c in text.equations(i, "x", j, "y")))
        for x, y in itertools.product(POINTS, POINTS):
            values = dict(zip(("x1", "x2", "x3", "y1", "y2", "y3"), (*x, *y), strict=True))
            a, b = (eval(s, values) for s in sums)
            assert (a == b) == eval(equations, values), (i, j)


def test_a_swizzled_index_has_a_digit_for_each_bit() -> None:
    text, thread = AffineText(()), Var("thread")
    text.env[thread] = "@1"
    text.set_range("@1", IntImm(0), IntImm(32))
    index = text.text((thread % 8 ^ thread // 8) * 8)
    bits = text.equations(index, "x", index, "y")
    assert len(bits) == 3 and all(b.endswith("mod 2 = 0") for b in bits)
