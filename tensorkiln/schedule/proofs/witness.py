"""The message that names a dependence that a transformation violates, with actual values."""

from __future__ import annotations

from tensorkiln.arith.affine_text import at
from tensorkiln.schedule.proofs.order import common
from tensorkiln.schedule.proofs.steps import BARRIER, Loop, Pair, ProgramStep, StepAccess
from tensorkiln.schedule.tree.errors import ScheduleError

Values = dict[str, int]


def describe(
    call: str, p: Pair, values: Values, x2: str, y2: str, parameters: Values
) -> ScheduleError:
    """The error for two dependent instances that lose their order. `values`: their coordinates;
    x2, y2: their letters after the transformation; `parameters`: values to be shown."""
    first, second = _instance(p.a, "x", values), _instance(p.b, "y", values)
    if BARRIER in (p.m.buffer, p.n.buffer):
        text = f"block {p.a.title!r} runs{first} before block {p.b.title!r} does{second}"
        reason = ", and nothing may pass a C call or an assertion"
    elif isinstance(p.m.buffer, str):
        text = f"block {p.a.title!r} runs{first} before block {p.b.title!r} does{second}"
        reason = f", and they keep the {p.m.buffer}"
    else:
        cell = _cell(p.m, values)
        text = (
            f"{cell} is {_verb(p.m)} by block {p.a.title!r}{first} before "
            f"block {p.b.title!r} {_verb(p.n, active=True)} it{second}"
        )
        reason = ""
    at_once = _at_once(p.a2, x2, p.b2, y2, values)
    after = "both may run at once" if at_once else "the order would be the other way"
    sizes = ", ".join(f"{k} = {v}" for k, v in parameters.items())
    sizes_text = f" (for {sizes})" if sizes else ""
    return ScheduleError(f"{text}{sizes_text}{reason}; {after}", where=call, hint=_hint(p, values))


def _verb(m: StepAccess, active: bool = False) -> str:
    if not m.write:
        return "reads" if active else "read"
    if m.update:
        return "updates" if active else "updated"
    return "writes" if active else "written"


def _cell(m: StepAccess, values: Values) -> str:
    assert not isinstance(m.buffer, str)
    index = ["?" if i is None else str(values[f"c{k}"]) for k, i in enumerate(m.index)]
    return f"{m.buffer.name}[{', '.join(index)}]"


def _instance(s: ProgramStep, letter: str, values: Values) -> str:
    """` at i=0, k=1`"""
    parts: dict[str, list[int]] = {}
    for loop in s.loops:
        parts.setdefault(loop.name, []).append(values[at(loop.dim, letter)])
    text = ", ".join(f"{n}={'/'.join(map(str, v))}" for n, v in parts.items())
    return f" at {text}" if text else ""


def _at_once(a: ProgramStep, x: str, b: ProgramStep, y: str, values: Values) -> bool:
    loop = _carrier(common(a, b)[0], x, y, values)
    return loop is not None and not loop.ordered


def _carrier(loops: list[Loop], x: str, y: str, values: Values) -> Loop | None:
    """The outermost loop in which two instances differ; None if they differ in no loop."""
    for loop in loops:
        if values[at(loop.dim, x)] != values[at(loop.dim, y)]:
            return loop
    return None


def _hint(p: Pair, values: Values) -> str:
    loop = _carrier(common(p.a, p.b)[0], "x", "y", values)
    if loop is None:
        return f"keep {p.a.title!r} before {p.b.title!r}"
    if p.updates:
        return f"loop {loop.name!r} sums into one element: rfactor gives each part its own"
    return f"loop {loop.name!r} carries the dependence: keep it serial and its order"
