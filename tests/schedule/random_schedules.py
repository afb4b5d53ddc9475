"""Random sequences of primitives. A new primitive takes part by a row in ACTIONS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, int_value
from tensorkiln.ir.stmt import Alloc, Block, PrimFunc, Store
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    ScheduleError,
    TraceStep,
    block,
    blocks,
    children,
    loop,
    loops,
    loops_of,
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Choose = Callable[[Random, PrimFunc], Arguments | None]


@dataclass
class Tally:
    """How often primitives were taken, and refused."""

    legal: dict[str, int] = field(default_factory=dict)
    illegal: dict[str, int] = field(default_factory=dict)
    given_up: int = 0  # proofs that were too hard
    lengths: Counter[int] = field(default_factory=Counter)  # legal steps of a sequence -> how often

    def count(self, name: str, legal: bool) -> None:
        into = self.legal if legal else self.illegal
        into[name] = into.get(name, 0) + 1

    def text(self) -> str:
        """The figures, as `make fuzz` prints them."""
        legal, illegal = sum(self.legal.values()), sum(self.illegal.values())
        depths = ", ".join(f"{k}: {n}" for k, n in sorted(self.lengths.items()))
        return (
            f"{self.lengths.total()} sequences, {legal} legal steps, {illegal} refused; "
            f"sequences by their number of legal steps: {depths}"
        )

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
    return (rng.choice(names), rng.choice(("my.hint", "my.depth")), rng.choice((1, "x", None))), {}


def _prefetch(rng: Random, f: PrimFunc) -> Arguments | None:
    chosen = on_loop(lambda rng: rng.choice(f.buffers).name, one_of(1, 3))
    return chosen(rng, f)


def _prefetch_next(rng: Random, f: PrimFunc) -> Arguments | None:
    return on_loop(lambda rng: rng.choice(f.buffers).name)(rng, f)


def a_block(rng: Random, f: PrimFunc) -> str | None:
    names = blocks(f)
    return rng.choice(names) if names else None


def accessed(f: PrimFunc, name: str, writes: bool) -> list[str]:
    """Names of buffers a block reads or writes."""
    b = block(f, name)
    return sorted({r.buffer.name for r in (b.writes if writes else b.reads)})


def on_block(*more: Callable[[Random], Any]) -> Choose:
    """A primitive that takes a block and then what `more` gives."""

    def choose(rng: Random, f: PrimFunc) -> Arguments | None:
        name = a_block(rng, f)
        return None if name is None else ((name, *(m(rng) for m in more)), {})

    return choose


def on_block_and_loop(own: bool) -> Choose:
    """A primitive that takes a block and a loop, around the block (`own`) or around another."""

    def choose(rng: Random, f: PrimFunc) -> Arguments | None:
        name = a_block(rng, f)
        if name is None:
            return None
        near = name if own else rng.choice(blocks(f))
        around = loops_of(f, near) or loops(f)
        return ((name, rng.choice(around)), {}) if around else None

    return choose


def plain(b: Block) -> bool:
    """One store, and no sum."""
    return isinstance(b.body, Store) and all(i.kind == "spatial" for i in b.iters)


def _inline(rng: Random, f: PrimFunc) -> Arguments | None:
    """A block that writes an allocated buffer."""
    made = {b.name for b in allocated(f)}
    found = [n for n in blocks(f) if made & set(accessed(f, n, True)) and plain(block(f, n))]
    name = rng.choice(found) if found and rng.random() < 0.9 else a_block(rng, f)
    return None if name is None else ((name,), {})


def _near_reader(rng: Random, f: PrimFunc) -> Arguments | None:
    """A block that makes an allocated buffer, and a loop of one that reads it."""
    made = {b.name for b in allocated(f)}
    pairs = [
        (p, q)
        for p in blocks(f)
        for q in blocks(f)
        if p != q and made & {*accessed(f, p, True)} & {*accessed(f, q, False)}
    ]
    if not pairs:
        return None
    maker, reader = rng.choice(pairs)
    around = loops_of(f, reader)
    return ((maker, rng.choice(around)), {}) if around else None


def _started(rng: Random, f: PrimFunc) -> Arguments | None:
    """A block with an init, mostly, and a loop around it."""
    found = [n for n in blocks(f) if block(f, n).init is not None]
    if not found:
        return on_block_and_loop(True)(rng, f) if rng.random() < 0.1 else None
    name = rng.choice(found)
    around = loops_of(f, name)
    return ((name, rng.choice(around)), {}) if around else None


def _cached(rng: Random, f: PrimFunc) -> Arguments | None:
    """A buffer that a block reads."""
    name = a_block(rng, f)
    if name is None:
        return None
    names = accessed(f, name, False) or ["nothing"]
    at = rng.choice((*loops_of(f, name), None))
    return (name, rng.choice(names), "local"), {"at": at}


def allocated(f: PrimFunc) -> list[Buffer]:
    return [t.buffer for t in walk_stmt(f.body) if isinstance(t, Alloc)]


def on_buffer(*more: Callable[[Random, Buffer], Any]) -> Choose:
    """A primitive that takes an allocated buffer and then what `more` gives."""

    def choose(rng: Random, f: PrimFunc) -> Arguments | None:
        found = [*allocated(f), *(f.buffers[:1] if rng.random() < 0.1 else ())]
        if not found:
            return None
        buf = rng.choice(found)
        return (buf.name, *(m(rng, buf) for m in more)), {}

    return choose


def _layout(rng: Random, buf: Buffer) -> str:
    names = [f"i{d}" for d in range(len(buf.shape))]
    d = rng.randrange(len(names))
    n = rng.choice((2, 3, 4))
    new = [*names[:d], f"{names[d]} // {n}", *names[d + 1 :], f"{names[d]} % {n}"]
    rng.shuffle(new)
    return f"{', '.join(names)} -> {', '.join(new)}"


def _transform(rng: Random, f: PrimFunc) -> Arguments | None:
    chosen = on_buffer(_layout)(rng, f)
    return None if chosen is None else (chosen[0], {"pad": rng.choice((None, 0, 1))})


def _rfactor(rng: Random, f: PrimFunc) -> Arguments | None:
    sums = [n for n in blocks(f) if any(i.kind == "reduce" for i in block(f, n).iters)]
    name = rng.choice(sums) if sums and rng.random() < 0.9 else a_block(rng, f)
    around = () if name is None else loops_of(f, name)
    if not around:
        return None
    return (name, rng.choice(around[-2:])), {"axis": rng.choice((0, 0, 1))}


def _tensorize(rng: Random, f: PrimFunc) -> Arguments | None:
    """An innermost loop, mostly, and the instruction of its length."""
    inner = [n for n in loops(f) if not set(children(f, n)) & set(loops(f))]
    if not inner or rng.random() < 0.3:
        return on_loop(one_of("fma_4", "fma_8", "fma_16", "dot4_i8"))(rng, f)
    name = rng.choice(inner)
    size = int_value(loop(f, name).extent)
    blocks = [s for s in walk_stmt(loop(f, name)) if isinstance(s, Block)]
    if size not in (4, 8) or not blocks:  # a loop may hold a prefetch alone
        return None
    match blocks[0].body:
        case Store(value=Binary("add", Load(), Load())):
            wanted = f"sum_{size}"
        case Store(value=Binary("min" | "max" as op)):
            wanted = f"{op}_{size}"
        case _:
            wanted = rng.choice((f"fma_{size}", "dot4_i8"))
    return (name, wanted), {}


def _compose(rng: Random, f: PrimFunc) -> Arguments | None:
    names = blocks(f)
    if len(names) < 2:
        return None
    k = rng.randrange(len(names) - 1)
    return (names[k], names[k + 1]), {}


def one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda rng: rng.choice(values)


# name of a primitive -> how its arguments are chosen. Names listed twice are taken more often.
ACTIONS: list[tuple[str, Choose]] = [
    ("split", on_loop(one_of(2, 3, 4), tail=one_of("exact", "guard", "peel", "overlap"))),
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
    ("prefetch", _prefetch),
    ("prefetch_next", _prefetch_next),
    ("fission", on_loop()),
    ("compute_at", _near_reader),
    ("compute_at", _near_reader),
    ("compute_inline", _inline),
    ("cache_read", _cached),
    ("set_scope", on_buffer(lambda rng, b: rng.choice(("local", "global")))),
    ("storage_align", on_buffer(lambda rng, b: 0, lambda rng, b: 8, lambda rng, b: 1)),
    ("transform_layout", _transform),
    ("pad", on_buffer(lambda rng, b: tuple(rng.choice((1, 2, 4)) for _ in b.shape))),
    ("pad_loop", on_loop(one_of(2, 4))),
    ("decompose_reduction", _started),
    ("compose_reduction", _compose),
    ("rfactor", _rfactor),
    ("tensorize", _tensorize),
    ("tensorize", _tensorize),
]


def random_schedule(
    f: PrimFunc, rng: Random, depth: int, tally: Tally, leave_out: tuple[str, ...] = ()
) -> tuple[PrimFunc, list[TraceStep]]:
    """A sequence of `depth` legal primitives, or what four tries for each of them gave; refused
    ones must leave the function as it was."""
    actions = [a for a in ACTIONS if a[0] not in leave_out]
    steps: list[TraceStep] = []
    for _ in range(4 * depth):
        if len(steps) == depth:
            break
        name, choose = rng.choice(actions)
        chosen = choose(rng, f)
        if chosen is None:
            continue
        step = TraceStep(name, chosen[0], tuple(chosen[1].items()))
        text = f.script()
        try:
            after = PRIMITIVES[name](f, *chosen[0], **chosen[1])
        except ScheduleError as e:
            assert e.where.startswith(name) or name in ("tile", "split_even"), (e.where, name)
            assert f.script() == text
            tally.count(name, False)
            tally.given_up += "takes too long" in e.message
            continue
        assert f.script() == text, f"{step} changed its input"
        tally.count(name, True)
        steps.append(step)
        f = after
    tally.lengths[len(steps)] += 1
    return f, steps
