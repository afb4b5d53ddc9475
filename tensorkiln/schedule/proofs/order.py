"""Sets of pairs of statement instances: that access the same memory, or run in a given order.

An instance of a step is a point in the iteration space of its loops. A set relates up to four
instances: x and y before the transformation, and u and w, the same two after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from tensorkiln.arith.affine_text import FALSE, TRUE, AffineText, at
from tensorkiln.schedule.proofs.steps import BARRIER, Loop, ProgramStep, StepAccess


def dims(step: ProgramStep, letter: str) -> list[str]:
    """The names of an instance's coordinates: `x1`, `x2` for letter x."""
    return [loop.dim.replace("@", letter) for loop in step.loops]


def domain(step: ProgramStep, letter: str) -> list[str]:
    """The conditions on an instance's coordinates under which it runs."""
    return [at(c, letter) for c in step.domain]


def same_cell(
    text: AffineText, a: StepAccess, x: str, b: StepAccess, y: str
) -> tuple[list[str], list[str]]:
    """(conditions, existential variables) for two accesses to be of the same element, in the same
    copy of the buffer."""
    conds = [at(c, x) for c in a.conds] + [at(c, y) for c in b.conds]
    exists = [at(e, x) for e in a.exists] + [at(e, y) for e in b.exists]
    for i, j in zip_longest(a.index, b.index):
        if i is not None and j is not None:
            conds += text.equations(i, x, j, y)
    return conds + same_copy(a, x, b, y), exists


def same_copy(a: StepAccess, x: str, b: StepAccess, y: str) -> list[str]:
    """The conditions for two accesses to be of the same copy of a buffer: they are in the same
    iteration of the loops around its allocation."""
    if BARRIER in (a.buffer, b.buffer):
        return []
    if a.home != b.home:
        return [FALSE]
    return [f"{at(loop.dim, x)} = {at(loop.dim, y)}" for loop in a.own]


def common(a: ProgramStep, b: ProgramStep) -> tuple[list[Loop], int, int]:
    """(the loops around both, the position of each in the sequence where they part); positions are
    0 if `a` is `b`."""
    shared: list[Loop] = []
    for p, q in zip(a.time, b.time, strict=False):
        if p != q:
            assert isinstance(p, int) and isinstance(q, int)
            return shared, p, q
        if isinstance(p, Loop):
            shared.append(p)
    return shared, 0, 0


Cases = list[str]  # a disjunction of conjunctions
_ORDER = re.compile(r"(\w+) (?:<|>|!=) (\w+)")


def earlier(a: ProgramStep, x: str, b: ProgramStep, y: str) -> Cases:
    """The cases in which instance x of `a` certainly runs before instance y of `b`."""
    loops, p, q = common(a, b)
    cases: list[str] = []
    equal: list[str] = []
    for loop in loops:
        i, j = at(loop.dim, x), at(loop.dim, y)
        if loop.ordered:
            cases.append(" and ".join([*equal, f"{i} < {j}"]))
        equal.append(f"{i} = {j}")
    if p < q:
        cases.append(" and ".join(equal) or TRUE)
    return cases


def not_earlier(
    a: ProgramStep, x: str, b: ProgramStep, y: str, only_at_once: bool = False
) -> Cases:
    """The cases in which instance x of `a` may run after instance y of `b` or concurrently. With
    `only_at_once`, those in which they may run concurrently."""
    loops, p, q = common(a, b)
    cases: list[str] = []
    equal: list[str] = []
    for loop in loops:
        i, j = at(loop.dim, x), at(loop.dim, y)
        if not loop.ordered or not only_at_once:
            cases.append(" and ".join([*equal, f"{i} > {j}" if loop.ordered else f"{i} != {j}"]))
        equal.append(f"{i} = {j}")
    if not only_at_once and (p > q or (p == q and a is not b)):
        cases.append(" and ".join(equal) or TRUE)
    return cases


def reordered(
    old: tuple[ProgramStep, ProgramStep], new: tuple[ProgramStep, ProgramStep], only_at_once: bool
) -> Cases:
    """The cases in which x runs before y in `old`, but may not in `new`.

    If the steps of both have the same loops in common, the outermost loop in which x and y differ
    decides their order. Let that be l in `old`. The order changes where a loop m that was inside l
    is outside it in `new`, and x and y differ in m the other way (or m is unordered).
    """
    loops, p, q = common(*old)
    after, p2, q2 = common(*new)
    if {v.dim for v in loops} != {v.dim for v in after}:
        late = not_earlier(new[0], "x", new[1], "y", only_at_once)
        return both(earlier(old[0], "x", old[1], "y"), late)
    cases = []
    for k, first in enumerate(loops):
        if not first.ordered:
            continue
        equal = {v.dim for v in loops[:k]}
        for n, m in enumerate(after):
            if m.dim not in equal:
                equal_dims = sorted(equal | {v.dim for v in after[:n]})
                i, j = at(m.dim, "x"), at(m.dim, "y")
                ends = [f"{at(d, 'x')} = {at(d, 'y')}" for d in equal_dims]
                ends.append(f"{at(first.dim, 'x')} < {at(first.dim, 'y')}")
                if not m.ordered:
                    cases.append(" and ".join([*ends, f"{i} != {j}"]))
                elif m.dim != first.dim and not only_at_once:
                    cases.append(" and ".join([*ends, f"{i} > {j}"]))
            if m.dim == first.dim:
                break
    if p < q and p2 > q2 and not only_at_once:
        cases.append(" and ".join(f"{at(v.dim, 'x')} = {at(v.dim, 'y')}" for v in loops) or TRUE)
    return cases


def both(p: Cases, q: Cases) -> Cases:
    """The conjunction of two disjunctions."""
    return [f"{a} and {b}" for a in p for b in q]


def possible(case: str) -> bool:
    """Whether no coordinate would be both equal to another and not, as in most of the cases of
    memory that each iteration has for itself: of these isl need not be asked."""
    if " or " in case or "not (" in case:
        return True
    terms = set(case.split(" and "))
    orders = (_ORDER.fullmatch(t) for t in terms)
    return not any(m is not None and f"{m[1]} = {m[2]}" in terms for m in orders)


def any_of(cases: Sequence[str]) -> str:
    """The text of a disjunction; false for an empty one."""
    return " or ".join(f"({c})" for c in cases) or FALSE
