"""Every row of the rule table is true: checked by brute force over small numbers."""

from __future__ import annotations

import ast
from itertools import product

import pytest

from tensorkiln.arith.engine import DivisionRule, SumRule
from tensorkiln.arith.rules import DIV, LOGIC, MOD, SUM, Logic

_INTEGER_LAWS = [*DIV, *MOD, *SUM]
# divisors of the left side are positive: the rule of the language
_DIVISORS = {"d": range(1, 4), "a": range(1, 4), "b": range(1, 4), "m": range(1, 5)}
_OTHERS = range(-4, 5)


def _names(*sources: str) -> list[str]:
    names = {n.id for s in sources for n in ast.walk(ast.parse(s)) if isinstance(n, ast.Name)}
    return sorted(names - {"select"})


@pytest.mark.parametrize("rule", _INTEGER_LAWS, ids=lambda r: r.law)
def test_integer_law(rule: DivisionRule | SumRule) -> None:
    names = _names(rule.law, rule.condition)
    law = compile(rule.law, "law", "eval")
    condition = compile(rule.condition, "where", "eval")
    case_count = 0
    for values in product(*(_DIVISORS.get(n, _OTHERS) for n in names)):
        env = dict(zip(names, values, strict=True))
        if eval(condition, {}, env):
            case_count += 1
            assert eval(law, {}, env), env
    assert case_count > 10


@pytest.mark.parametrize("row", LOGIC, ids=lambda r: r.before)
def test_logic_law(row: Logic) -> None:
    names = _names(row.before, row.after)
    for values in product((False, True), repeat=len(names)):
        env = dict(zip(names, values, strict=True))
        env["select"] = lambda c, a, b: a if c else b
        assert eval(row.before, env) == eval(row.after, env), env
