"""Match the instances of steps before a transformation with those after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorkiln.arith.affine_text import FALSE, AffineText, at
from tensorkiln.arith.integer_sets import Sets
from tensorkiln.schedule.proofs.order import dims, domain, same_cell
from tensorkiln.schedule.proofs.steps import ProgramStep
from tensorkiln.schedule.tree.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class InstanceFamily:
    """The steps of one name, before and after. `same`: they kept their loops, so that equal loop
    coordinates mean the same instance; else equal iteration variables do. `repeats`: an instance
    may run several times afterwards; its step is idempotent."""

    old: tuple[ProgramStep, ...]
    new: tuple[ProgramStep, ...]
    same: bool
    repeats: bool = False
    becomes: tuple[
        tuple[ProgramStep, ...], ...
    ] = ()  # by old step: new steps that run its instances

    def after(self, a: ProgramStep) -> tuple[ProgramStep, ...]:
        """The steps that instances of `a` may belong to afterwards."""
        if self.same:
            return tuple(s for s in self.new if s.title == a.title)
        return next(after for s, after in zip(self.old, self.becomes, strict=True) if s is a)

    def equal(self, a: ProgramStep, x: str, b: ProgramStep, y: str) -> list[str]:
        """The conditions for instance x of `a` and instance y of `b` to be the same."""
        if self.same:
            return [f"{i} = {j}" for i, j in zip(dims(a, x), dims(a, y), strict=True)]
        return _equal(a, x, b, y)


def families(
    call: str, texts: AffineText, sets: Sets, old: list[ProgramStep], new: list[ProgramStep]
) -> dict[str, InstanceFamily]:
    """Match steps by name. Raises ScheduleError if a step does not run the same instances before
    and after, or this cannot be proved."""
    by_name: dict[str, InstanceFamily] = {}
    for name in dict.fromkeys(s.name for s in (*old, *new)):
        before = tuple(s for s in old if s.name == name)
        after = tuple(s for s in new if s.name == name)
        if not before or not after:
            title = (before or after)[0].title
            text = f"{title!r} would {'not run any more' if before else 'be new'}"
            raise ScheduleError(text, where=call)
        if _same_loops(before, after):
            by_name[name] = InstanceFamily(before, after, True)
            continue
        by_name[name] = _by_value(call, texts, sets, before, after)
    return by_name


def _same_loops(before: tuple[ProgramStep, ...], after: tuple[ProgramStep, ...]) -> bool:
    if len(before) != len(after):
        return False
    titled = {s.title: s for s in after}
    if len(titled) != len(after):
        return False
    for s in before:
        t = titled.get(s.title)
        if t is None or {v.dim for v in s.loops} != {v.dim for v in t.loops}:
            return False
        if set(s.domain) != set(t.domain) or set(s.opaque) != set(t.opaque):
            return False
    return True


def _by_value(
    call: str,
    texts: AffineText,
    sets: Sets,
    before: tuple[ProgramStep, ...],
    after: tuple[ProgramStep, ...],
) -> InstanceFamily:
    """Match instances by the values of their iteration variables."""
    title = before[0].title
    for s in (*before, *after):
        if s.identity is None or any(v is None for v in s.identity):
            text = f"cannot prove that {title!r} runs for the same iterations"
            hint = "its iteration variables are to be sums, quotients and remainders of loops"
            raise ScheduleError(text, where=call, hint=hint)
    opaque = {tuple(map(str, s.opaque)) for s in (*before, *after)}
    if len(opaque) > 1:
        text = f"cannot prove that {title!r} runs under the same conditions"
        raise ScheduleError(text, where=call, hint="a condition on it depends on memory")
    if not _one_set(sets, before, after):
        raise ScheduleError(f"{title!r} would not run for the same iterations", where=call)
    repeats = _run_twice(sets, after)
    if repeats and not _repeatable(texts, sets, before):
        text = f"{title!r} would run more than once for the same iteration"
        raise ScheduleError(text, where=call, hint="it updates what it writes")
    becomes = tuple(tuple(b for b in after if _share(sets, a, b)) for a in before)
    return InstanceFamily(before, after, False, repeats, becomes)


def _share(sets: Sets, a: ProgramStep, b: ProgramStep) -> bool:
    """Whether the steps have an instance in common."""
    conds = domain(a, "x") + domain(b, "u") + _equal(a, "x", b, "u")
    return not sets.empty(sets.make(dims(a, "x") + dims(b, "u"), conds))


def _equal(a: ProgramStep, x: str, b: ProgramStep, y: str) -> list[str]:
    assert a.identity is not None and b.identity is not None
    pairs = zip(a.identity, b.identity, strict=True)
    return [f"{at(i, x)} = {at(j, y)}" for i, j in pairs if i is not None and j is not None]


def _one_set(sets: Sets, before: tuple[ProgramStep, ...], after: tuple[ProgramStep, ...]) -> bool:
    p, q = _values(sets, before), _values(sets, after)
    return sets.within(p, q) and sets.within(q, p)


def _values(sets: Sets, steps: tuple[ProgramStep, ...]) -> Any:
    """The set of the values that the iteration variables have in all instances."""
    union = None
    for s in steps:
        assert s.identity is not None
        z = [f"z{k}" for k in range(len(s.identity))]
        fixed = [f"{n} = {at(v, 'x')}" for n, v in zip(z, s.identity, strict=True) if v]
        step_values = sets.make(z, domain(s, "x") + fixed, dims(s, "x"))
        union = step_values if union is None else sets.limited(union.union, step_values)
    return union


def _run_twice(sets: Sets, steps: tuple[ProgramStep, ...]) -> bool:
    """Whether an instance runs at two points of the loops."""
    for k, a in enumerate(steps):
        for b in steps[k:]:
            conds = domain(a, "x") + domain(b, "y") + _equal(a, "x", b, "y")
            if a is b:
                pairs = zip(dims(a, "x"), dims(b, "y"), strict=True)
                conds.append(" or ".join(f"{i} != {j}" for i, j in pairs) or FALSE)
            if not sets.empty(sets.make(dims(a, "x") + dims(b, "y"), conds)):
                return True
    return False


def _repeatable(texts: AffineText, sets: Sets, steps: tuple[ProgramStep, ...]) -> bool:
    """Whether running again changes nothing: the step reads nothing that it writes, and each
    element is written by one instance."""
    written = {m.buffer for s in steps for m in s.accesses if m.write}
    for s in steps:
        for m in s.accesses:
            if isinstance(m.buffer, str) or m.update or (not m.write and m.buffer in written):
                return False
    for a in steps:
        for b in steps:
            different = " or ".join(f"not ({c})" for c in _equal(a, "x", b, "y")) or FALSE
            for m in a.accesses:
                for n in b.accesses:
                    if m.write and n.write and m.buffer == n.buffer:
                        conds, exists = same_cell(texts, m, "x", n, "y")
                        conds += [*domain(a, "x"), *domain(b, "y"), different]
                        points = dims(a, "x") + dims(b, "y")
                        if not sets.empty(sets.make(points, conds, exists)):
                            return False
    return True
