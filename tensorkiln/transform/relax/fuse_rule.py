"""Rules by which a caller controls which operators `FuseOps` puts into one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorkiln.base.errors import UserError
from tensorkiln.ir.relax import Bound, Call, Function, RVar
from tensorkiln.transform.rewriting import pattern as P


@dataclass(frozen=True, slots=True)
class FuseRule:
    """Fuse, or with `fuse=False` keep apart, the operators of a pattern (`pattern.py`).

    An edge of the pattern, from an operator to its reader, is fused if its value is read once, at
    most one operator of the group is an anchor, and each operator has an element program; otherwise
    the rule has no effect on it. The first rule that matches an edge decides.
    """

    pattern: str
    fuse: bool = True


def parse_rule(text: str) -> P.Pattern:
    """The pattern of a rule, with each inner operator named `%1`, `%2`, ...

    Raises UserError if `text` is not a pattern of known operators, or has no inner operator.
    """
    p = P.checked(text, "FuseRule")
    edges = [0]
    named = _named(p, edges, top=True)
    P.require_call(p, text, "FuseRule")
    if not edges[0]:
        raise UserError(
            f"{text!r} has no operator inside an operator, so there is nothing to fuse",
            code="bad-rule",
            where="FuseRule",
            hint="write the reader around what it reads, such as relu(max_pool2d(x))",
        )
    return named


def decide_edges(f: Function, rules: Sequence[tuple[P.Pattern, bool]]) -> dict[RVar, bool]:
    """For each value on a matched edge: whether to fuse it with its reader, or keep it apart."""
    definitions: dict[RVar, Bound] = {b.var: b.value for b in f.bindings}
    decided: dict[RVar, bool] = {}
    for rule, fuse in rules:
        for b in f.bindings:
            if not isinstance(b.value, Call) or not b.value.op:
                continue
            for captures in P.match_call(rule, b.value, definitions.get):
                for name, value in captures.items():
                    if name.startswith("%") and isinstance(value, RVar):
                        decided.setdefault(value, fuse)
    return decided


def _named(p: P.Pattern, count: list[int], top: bool = False) -> P.Pattern:
    """`p` with every operator below the top named `%1`, `%2`, ...: the values of inner edges.

    `count[0]` is the number of operators named so far.
    """
    match p:
        case P.Op(args=args):
            inner = replace(p, args=tuple(_named(a, count) for a in args))
            if top:
                return inner
            count[0] += 1
            return P.Named(f"%{count[0]}", inner)
        case P.Named(name=name, pattern=under):
            return P.Named(name, _named(under, count))
        case P.Either(options=options):
            return P.Either(tuple(_named(o, count, top) for o in options))
    return p
