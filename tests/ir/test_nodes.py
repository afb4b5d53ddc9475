"""Every class of node is known everywhere, and its fields say what it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from tensorkiln.ir import buffer, expr, stmt, verify_expr, verify_tir
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Expr, IntImm, Reduce, Var
from tensorkiln.ir.fields import RUNS_FIRST, Inner, bound_in
from tensorkiln.ir.relax import Binding, Body, Call, GlobalRef, If, RVar, Tuple, tensor
from tensorkiln.ir.stmt import CallKernel, Seq, Stmt, Sync
from tensorkiln.ir.text import print_expr, print_tir
from tensorkiln.ir.visit import (
    bound_vars,
    children,
    map_children,
    map_stmt,
    stmt_exprs,
    substmts,
    walk,
    walk_stmt,
)
from tensorkiln.ir.visit_graph import bindings_in, substitute, variables
from tests.codegen.random_programs import draw

Node = TypeVar("Node")


def classes(base: type[Node]) -> set[type[Node]]:
    nodes = [c for module in (expr, buffer, stmt) for c in vars(module).values()]
    return {c for c in nodes if isinstance(c, type) and issubclass(c, base) and c is not base}


def test_every_statement_has_a_type_rule_and_a_text() -> None:
    assert set(verify_tir._STMTS) == set(print_tir._STMT) == classes(Stmt)


def test_every_expression_has_a_type_rule_and_a_text() -> None:
    ruled = {t for t in classes(Expr) if "fault" in vars(t)}
    assert ruled | set(verify_expr._SCOPED) == classes(Expr)
    called = {t for t in classes(Expr) if t.form is not None}
    assert called == set(expr.CALLED.values())
    assert called | set(print_expr._EXPR) == classes(Expr)


def test_random_programs_have_every_node() -> None:
    """They are printed, parsed, compiled and run (test_random_programs.py), so that a node without
    parser or emission fails there."""
    found: set[type] = set()
    for seed in range(60):
        program = draw(str(seed), "f", ("int64", "float32", "bool"))
        for f in (program.f, *program.helpers):
            for s in walk_stmt(f.body):
                found |= {type(s), *(type(x) for e in stmt_exprs(s) for x in walk(e))}
    # operators' programs have Reduce, planned functions CallKernel, those of devices Sync
    assert found >= (classes(Expr) | classes(Stmt)) - {Reduce, CallKernel, Sync}


# ---- a node of each kind of field ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row(Inner):
    var: Var = field(metadata=bound_in())
    size: Expr
    note: str


@dataclass(frozen=True, slots=True)
class Sample(Stmt):
    name: str
    rows: tuple[Row, ...] = field(metadata=bound_in("pairs", "body", "start"))
    pairs: tuple[tuple[Expr, Expr], ...]
    one: Expr
    body: Stmt
    start: Stmt | None = field(default=None, metadata=RUNS_FIRST)


def sample(a: int = 1, name: str = "i", note: str = "") -> Sample:
    i = Var(name)
    rows = (Row(i, IntImm(a), note), Row(Var("j"), IntImm(2), ""))
    return Sample("s", rows, ((i, IntImm(4)),), IntImm(5), Seq(()), Seq((Seq(()),)))


def test_parts_follow_from_fields() -> None:
    s = sample()
    i = s.rows[0].var
    assert list(stmt_exprs(s)) == [IntImm(1), IntImm(2), i, IntImm(4), IntImm(5)]
    assert list(substmts(s)) == [s.start, s.body]
    assert [v.name for v in bound_vars(s)] == ["i", "j"]


def test_nothing_is_rebuilt_that_does_not_change() -> None:
    s = sample()
    assert map_stmt(s, lambda e: e, lambda t: t) is s
    new = map_stmt(s, lambda e: IntImm(7) if e == IntImm(2) else e, lambda t: t)
    assert isinstance(new, Sample)
    assert new.rows[0] is s.rows[0] and new.rows[1].size == IntImm(7)
    assert new.pairs is s.pairs and new.body is s.body
    seen: list[Stmt] = []
    map_stmt(s, lambda e: e, lambda t: seen.append(t) or t)  # type: ignore[func-returns-value]
    assert seen == [s.start, s.body]


def test_constants_are_folded_where_children_change() -> None:
    i = Var("i")
    assert map_children(i + 1, lambda e: IntImm(2) if e is i else e) == IntImm(3)
    assert children(i + 1) == (i, IntImm(1)) and children(i) == ()
    with pytest.raises(TypeError, match="str is not a node"):
        children("i")  # type: ignore[arg-type]


def test_equality_follows_from_scopes() -> None:
    assert first_difference(sample(), sample(name="k")) is None
    assert first_difference(sample(), sample(a=3)) == "rows[0].size.value: 1 != 3"
    assert first_difference(sample(), sample(note="x")) == "rows[0].note: '' != 'x'"


def test_values_of_graphs() -> None:
    x, y, z = (RVar(n, tensor((4,), "float32")) for n in "xyz")
    inner = Binding(z, Call(y, (x, Tuple((x, y)))))
    branch = If(x, Body((inner,), z), Body((), x))
    assert sorted(v.name for v in variables(branch)) == [*"xxxxyyz"]
    assert list(bindings_in((Binding(y, branch),)))[1] is inner
    new = substitute(branch, {y: z})
    assert isinstance(new, If) and new.orelse is branch.orelse
    assert new.then.bindings[0].value == Call(z, (x, Tuple((x, z))))
    assert substitute(branch, {RVar("other", x.type): x}) is branch
    assert variables(Call(GlobalRef("f"), (x,))) == [x]
