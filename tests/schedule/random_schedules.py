"""Random sequences of primitives. A new primitive takes part by a row in ACTIONS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    ScheduleError,
    Step,
    blocks,
    children,
    loops,
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Choose = Callable[[Random, PrimFunc], Arguments | None]


@dataclass
class Tally:
    """How often primitives were taken, and refused."""

    legal: dict[str, int] = field(default_factory=dict)
    illegal: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, legal: bool) -> None:
        into = self.legal if legal else self.illegal
        into[name] = into.get(name, 0) + 1

    @property
    def share(self) -> float:
        """The part of all tries that was legal."""
        legal = sum(self.legal.values())
        return legal / max(1, legal + sum(self.illegal.values()))


def a_loop(rng: Random, f: PrimFunc) -> str | None:
    """Any loop; now and then a name that is not there."""
    names = loops(f)
    if rng.random() < 0.02:
        return "nothing"
    return rng.choice(names) if names else None


def nested(rng: Random, f: PrimFunc) -> list[str] | None:
    """Two to four loops of one nest, outermost first."""
    start = a_loop(rng, f)
    if start is None or start == "nothing":
        return None
    chain = [start]
    while len(chain) < 4:
        inside = [n for n in children(f, chain[-1]) if n in loops(f)]
        if not inside or (len(chain) > 1 and rng.random() < 0.3):
            break
        chain.append(rng.choice(inside))
    return chain if len(chain) > 1 else None


def on_loop(*more: Callable[[Random], Any], **options: Callable[[Random], Any]) -> Choose:
    """A primitive that takes a loop and then what `more` gives."""

    def choose(rng: Random, f: PrimFunc) -> Arguments | None:
        loop = a_loop(rng, f)
        if loop is None:
            return None
        return (loop, *(m(rng) for m in more)), {k: o(rng) for k, o in options.items()}

    return choose


def _fuse(rng: Random, f: PrimFunc) -> Arguments | None:
    chain = nested(rng, f)
    return None if chain is None else (tuple(chain[: rng.choice((2, 2, 3))]), {})


def _reorder(rng: Random, f: PrimFunc) -> Arguments | None:
    chain = nested(rng, f)
    if chain is None:
        return None
    rng.shuffle(chain)
    return tuple(chain), {}


def _tile(rng: Random, f: PrimFunc) -> Arguments | None:
    chain = nested(rng, f)
    if chain is None:
        return None
    tail = rng.choice(("exact", "guard"))
    return (*chain[:2], rng.choice((2, 3, 4)), rng.choice((2, 3, 4))), {"tail": tail}


def _annotate(rng: Random, f: PrimFunc) -> Arguments | None:
    names = (*loops(f), *blocks(f))
    return (rng.choice(names), rng.choice(("hint", "depth")), rng.choice((1, "x", None))), {}


def one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda rng: rng.choice(values)


# name of a primitive -> how its arguments are chosen. Names listed twice are taken more often.
ACTIONS: list[tuple[str, Choose]] = [
    ("split", on_loop(one_of(2, 3, 4), tail=one_of("exact", "guard", "peel", "peel"))),
    ("split", on_loop(one_of((None, 2), (2, None), (None, 2, 2)), tail=one_of("exact", "guard"))),
    ("split_even", on_loop(one_of(2, 3, 5))),
    ("partition", on_loop(one_of(1, 2, 4))),
    ("fuse", _fuse),
    ("reorder", _reorder),
    ("reorder", _reorder),
    ("tile", _tile),
    ("vectorize", on_loop()),
    ("unroll", on_loop()),
    ("parallel", on_loop()),
    ("bind", on_loop(one_of("blockIdx.x", "threadIdx.x", "threadIdx.y"))),
    ("annotate", _annotate),
    ("fission", on_loop()),
]


def random_schedule(
    f: PrimFunc, rng: Random, depth: int, tally: Tally, leave_out: tuple[str, ...] = ()
) -> tuple[PrimFunc, list[Step]]:
    """Apply `depth` random primitives; refused ones must leave the function as it was."""
    actions = [a for a in ACTIONS if a[0] not in leave_out]
    steps: list[Step] = []
    for _ in range(depth):
        name, choose = rng.choice(actions)
        chosen = choose(rng, f)
        if chosen is None:
            continue
        step = Step(name, chosen[0], tuple(chosen[1].items()))
        text = f.script()
        try:
            after = PRIMITIVES[name](f, *chosen[0], **chosen[1])
        except ScheduleError as e:
            assert e.where.startswith(name) or name in ("tile", "split_even"), (e.where, name)
            assert f.script() == text
            tally.count(name, False)
            continue
        assert f.script() == text, f"{step} changed its input"
        tally.count(name, True)
        steps.append(step)
        f = after
    return f, steps
