"""Prove that a transformation preserves every dependence.

Both versions of the program are modelled as sets of statement instances: a step (collect.py) in one
iteration of its loops, with an execution time and the elements that it accesses. Two instances that
access the same element, at least one of them writing, are dependent and must keep their order. A
violation is a dependent pair that does not keep it; the transformation is legal if the set of all
violations is empty, which the integer set library (isl) decides. Two updates of one block (`C[i] +=
e`) may be exchanged, but must not run concurrently. Only the smallest statement that differs is
compared.

Instances of the two versions are matched by loop variables. If the loops changed, they are matched
by the iteration variables of their block and its attribute `origin`, and then it is also proved
that both versions run the same instances.

What isl cannot express is over-approximated (`x ^ y` is exact if one of them has few bits), and a
proof that exceeds a limit of operations is abandoned. Both may refuse a legal change, but never
accept an illegal one.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith.affine_text import TRUE, AffineText, at
from tensorkiln.arith.integer_sets import GaveUp, Sets
from tensorkiln.ir.expr import Var
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.proofs.collect import Collector
from tensorkiln.schedule.proofs.instances import InstanceFamily, families
from tensorkiln.schedule.proofs.order import (
    Cases,
    any_of,
    both,
    dims,
    domain,
    earlier,
    not_earlier,
    possible,
    reordered,
    same_cell,
    same_copy,
)
from tensorkiln.schedule.proofs.steps import BARRIER, Pair, ProgramStep, StepAccess, copies_of
from tensorkiln.schedule.proofs.witness import describe
from tensorkiln.schedule.tree.change import change
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.program import dims_of


def require_order(before: PrimFunc, after: PrimFunc, call: str) -> None:
    """Raise ScheduleError unless `after` runs the instances of `before` and preserves their
    dependences, or if the proof takes too long. `call`: the primitive, for the message."""
    paths = change(before.body, after.body)
    if paths is None:
        return
    inputs = before.buffers[: len(before.buffers) - before.outputs]
    alias = {before.params[k]: before.buffers[-1] for k in before.inplace}
    text = AffineText(tuple(b for b in inputs if b not in alias))
    for v in dims_of(before):
        text.param(v, size=True)
    old = Collector(text, alias)  # type: ignore[arg-type]
    old.enter(paths[0])
    new = Collector(text, alias)  # type: ignore[arg-type]
    new.memory.views, new.whiles = dict(old.memory.views), old.whiles
    old.walk(paths[0][-1])
    new.walk(paths[1][-1])
    check = _Check(call, text, old.steps, new.steps)
    try:
        check.run()
    except GaveUp:
        raise ScheduleError(
            "cannot prove that every dependence keeps its order: the proof takes too long",
            where=call,
            hint="apply it before the loops are cut further",
        ) from None


class _Check:
    def __init__(self, call: str, text: AffineText, old: list[ProgramStep], new: list[ProgramStep]):
        self.what, self.text, self.old, self.new = call, text, old, new
        self.sets = Sets(list(text.params.values()), text.param_facts)

    def run(self) -> None:
        self.families = families(self.what, self.text, self.sets, self.old, self.new)
        for a in self.old:
            for b in self.old:
                if _meet(a, b):
                    self.steps(a, b)

    def steps(self, a: ProgramStep, b: ProgramStep) -> None:
        fa, fb = self.families[a.name], self.families[b.name]
        for a2 in fa.after(a):
            for b2 in fb.after(b):
                if fa.same and fb.same and not self.may_reorder(a, b, a2, b2):
                    continue
                pairs = _pairs(a, b, a2, b2)
                if pairs:
                    self.pairs(pairs, fa, fb)

    def may_reorder(self, a: ProgramStep, b: ProgramStep, a2: ProgramStep, b2: ProgramStep) -> bool:
        """Whether the order of any two instances may change, or which instances share a copy of a
        buffer."""
        moved = any(
            copies_of(m) != copies_of(n)
            for s, t in ((a, a2), (b, b2))
            for m, n in zip(s.accesses, t.accesses, strict=False)
        )
        return moved or bool(reordered((a, b), (a2, b2), False))

    def pairs(self, pairs: list[Pair], fa: InstanceFamily, fb: InstanceFamily) -> None:
        """Check all pairs of accesses of two steps with one emptiness test. Only if it fails, the
        violating pair is searched for, to be named in the ScheduleError."""
        p = pairs[0]
        coordinates, conds, x2, y2 = self.instances(p, fa, fb)
        cases: list[str] = []
        exists: list[str] = []
        for pair in pairs:
            case, case_vars = self.case(pair, fa, fb, x2, y2)
            cases += case
            exists += [e for e in case_vars if e not in exists]
        if not cases:
            return
        if not self.sets.empty(self.sets.make(coordinates, [*conds, any_of(cases)], exists)):
            self.refuse(pairs, fa, fb)
        for pair in pairs:
            if fa.repeats and pair.flow:
                self.available(pair, fa, fb)
            if pair.moved:
                self.apart(pair, fa, fb)

    def instances(
        self, p: Pair, fa: InstanceFamily, fb: InstanceFamily
    ) -> tuple[list[str], list[str], str, str]:
        """The pairs of instances x, y of the two steps before, and u, w after, if these are
        identified by values: (coordinates, conditions, letter of x after, letter of y after)."""
        coordinates = dims(p.a, "x") + dims(p.b, "y")
        conds = domain(p.a, "x") + domain(p.b, "y")
        x2, y2 = "x", "y"
        if not fa.same:
            x2 = "u"
            coordinates += dims(p.a2, "u")
            conds += domain(p.a2, "u") + fa.equal(p.a, "x", p.a2, "u")
        if not fb.same:
            y2 = "w"
            coordinates += dims(p.b2, "w")
            conds += domain(p.b2, "w") + fb.equal(p.b, "y", p.b2, "w")
        return coordinates, conds, x2, y2

    def case(
        self, p: Pair, fa: InstanceFamily, fb: InstanceFamily, x2: str, y2: str
    ) -> tuple[Cases, list[str]]:
        """(the cases in which the two accesses are a violation, their existential variables)."""
        cell, exists = same_cell(self.text, p.m, "x", p.n, "y")
        order = earlier(p.a, "x", p.b, "y")
        if fa.same and fb.same:
            wrong = reordered((p.a, p.b), (p.a2, p.b2), p.updates)
        else:
            wrong = both(order, not_earlier(p.a2, x2, p.b2, y2, p.updates))
        if fa.repeats and p.flow:
            wrong = []  # `available` checks this instead
        together = same_copy(p.m2, x2, p.n2, y2)
        if together and p.moved:
            if not p.flow:
                wrong = both(wrong, [" and ".join(together)])
            elif not fa.repeats:
                wrong += both(order, [f"not ({c})" for c in together])
        at_cell = " and ".join(cell) or TRUE
        cases = [c for c in wrong if possible(f"{at_cell} and {c}")]
        return [f"{at_cell} and ({any_of(cases)})"] if cases else [], exists

    def available(self, p: Pair, fa: InstanceFamily, fb: InstanceFamily) -> None:
        """Raise ScheduleError unless some run of the writer precedes each run of the reader. For
        steps that run an instance several times, as after `split` with tail="overlap"."""
        coordinates = dims(p.a, "x") + dims(p.b2, "w")
        conds, exists = same_cell(self.text, p.m, "x", p.n, "y")
        conds += domain(p.a, "x") + domain(p.b, "y") + domain(p.b2, "w")
        conds += [*fb.equal(p.b, "y", p.b2, "w"), any_of(earlier(p.a, "x", p.b, "y"))]
        need = self.sets.make(coordinates, conds, [*exists, *dims(p.b, "y")])
        have = None
        for a2 in fa.after(p.a):
            m2 = a2.accesses[p.a.accesses.index(p.m)]
            writer_conds = [*domain(a2, "u"), *fa.equal(p.a, "x", a2, "u")]
            writer_conds += [any_of(earlier(a2, "u", p.b2, "w")), *same_copy(m2, "u", p.n2, "w")]
            writer_set = self.sets.make(coordinates, writer_conds, dims(a2, "u"))
            have = writer_set if have is None else self.sets.limited(have.union, writer_set)
        if have is None or not self.sets.within(need, have):
            raise ScheduleError(
                f"{p.b.title!r} would read {_name(p.n)} before {p.a.title!r} has written all of it",
                where=self.what,
                hint="place it further out",
            )

    def apart(self, p: Pair, fa: InstanceFamily, fb: InstanceFamily) -> None:
        """Raise ScheduleError if two instances that had a copy of a buffer each would share one."""
        coordinates, conds, x2, y2 = self.instances(p, fa, fb)
        copy_conds = same_copy(p.m, "x", p.n, "y")
        if not copy_conds:
            return
        cell, exists = same_cell(self.text, replace(p.m, own=()), "x", replace(p.n, own=()), "y")
        conds += [*cell, *same_copy(p.m2, x2, p.n2, y2), f"not ({' and '.join(copy_conds)})"]
        if not self.sets.empty(self.sets.make(coordinates, conds, exists)):
            raise ScheduleError(
                f"iterations that have a {_name(p.m)} each would share one",
                where=self.what,
                hint="keep the allocation inside the same loops",
            )

    def refuse(self, pairs: list[Pair], fa: InstanceFamily, fb: InstanceFamily) -> None:
        for p in pairs:
            coordinates, conds, x2, y2 = self.instances(p, fa, fb)
            case, exists = self.case(p, fa, fb, x2, y2)
            if not case:
                continue
            cells = [f"c{k}" for k, i in enumerate(p.m.index) if i is not None]
            fixed = [f"c{k} = {at(i, 'x')}" for k, i in enumerate(p.m.index) if i is not None]
            names = [*coordinates, *cells]
            violations = self.sets.make(names, [*conds, any_of(case), *fixed], exists)
            if not self.sets.empty(violations):
                values = self.sets.sample(violations, names)
                raise describe(self.what, p, values, x2, y2, self.parameters(values))
        raise AssertionError("a union of empty sets is empty")

    def parameters(self, values: dict[str, int]) -> dict[str, int]:
        """The values of the parameters that are variables: symbolic dimensions and outer loops."""
        named = self.text.params.items()
        return {e.name: values[p] for e, p in named if isinstance(e, Var)}


def _meet(a: ProgramStep, b: ProgramStep) -> bool:
    """Whether two steps access a common buffer, at least one of them writing."""
    for m in a.accesses:
        for n in b.accesses:
            if _conflict(m, n):
                return True
    return False


def _conflict(m: StepAccess, n: StepAccess) -> bool:
    """Whether two accesses may be dependent. Every access depends on a barrier."""
    if BARRIER in (m.buffer, n.buffer):
        return True
    return m.buffer == n.buffer and (m.write or n.write)


def _pairs(a: ProgramStep, b: ProgramStep, a2: ProgramStep, b2: ProgramStep) -> list[Pair]:
    keys: set[tuple[object, ...]] = set()
    out = []
    for k, m in enumerate(a.accesses):
        for j, n in enumerate(b.accesses):
            if not _conflict(m, n):
                continue
            m2 = a2.accesses[k] if k < len(a2.accesses) else m
            n2 = b2.accesses[j] if j < len(b2.accesses) else n
            key = (m.buffer, m.index, m.conds, n.index, n.conds, m.write and not n.write, m.update)
            if key not in keys:
                keys.add(key)
                out.append(Pair(a, m, b, n, a2, m2, b2, n2))
    return out


def _name(m: StepAccess) -> str:
    return m.buffer if isinstance(m.buffer, str) else m.buffer.name
