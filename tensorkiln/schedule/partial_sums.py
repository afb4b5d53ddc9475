"""The steps that cut a loop into vectors, and its sum into partial sums: chains of vectors.

One addition after another waits for the last; several chains hide that wait, and round less.
Loops over vectors are called `o...` and those over the lanes of one `l...`, as in register_tile.py.
"""

from __future__ import annotations

from tensorkiln.ir.expr import REDUCE_BINARY, Binary, int_value
from tensorkiln.ir.stmt import Store
from tensorkiln.schedule.intrin.reduce import reduce_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role, made

CHAINS = 4
_REDUCE = {binary: op for op, binary in REDUCE_BINARY.items()}


def sum_in_lanes(s: Schedule, loop: str, lanes: int) -> None:
    """Sum the terms of a loop in vectors, these in chains, and then the lanes of the last.

        for k in range(n):               part[:, :] = 0; sums[:] = 0
            total[0] += x[k]     ->      for k in range(n // 64):
                                             for o in range(4):
                                                 for l in range(16):
                                                     part[o, l] += x[k*64 + o*16 + l]
                                         for o, l: sums[l] += part[o, l]
                                         total[0] += sum of the lanes of sums

    What is left over: whole vectors in `sums`, then element by element in `total`. Loops around
    that are called r are of the sum, too: it goes through them twice, the second time for what
    is left over.
    """
    if lanes == 1 or not s.reaches(loop, lanes):
        return
    steps, lane, *rest = made(s.split(loop, lanes, (f"{loop}_0", "l"), "peel"))
    (block,) = s.children(lane)
    sums = _factored(s, block, lane, 1, _alone(s, steps, bool(rest)))
    _join_lanes(s, block)
    sum_in_chains(s, steps, sums)


def sum_in_chains(s: Schedule, loop: str, block: str) -> None:
    """Sum the terms of a loop in several chains, then these."""
    if not s.reaches(loop, CHAINS):
        return
    extent = int_value(s.loop(loop).extent)
    steps, chain, *rest = made(s.split(loop, CHAINS, (f"{loop}_0", "o"), "peel"))
    sum_apart(s, block, chain, _alone(s, steps, bool(rest)))
    if rest and extent is not None:
        s.unroll(rest[0])


def sum_apart(s: Schedule, block: str, loop: str, steps: str) -> None:
    """Sum the terms of each iteration of a loop in a vector of its own, which begins before the
    loop `steps`."""
    _factored(s, block, loop, 0, steps)
    s.reorder(*reversed(s.loops_of(block)[-2:]))


def store_in_lanes(s: Schedule, loop: str, lanes: int) -> None:
    """Compute neighbours at once: whole vectors, then element by element."""
    if lanes > 1 and s.reaches(loop, lanes):
        s.split(loop, lanes, (f"{loop}_0", "l"), "peel")


def in_vectors(s: Schedule) -> None:
    """Repeat the loops over vectors in the code, and run those over lanes at once."""
    for loop in s.loops():
        if is_role(loop, "o"):
            s.unroll(loop)
        elif is_role(loop, "l"):
            s.vectorize(loop)


def _alone(s: Schedule, loop: str, rest: bool) -> str:
    """The outermost loop of the sum that `loop` is one of, apart from the `rest` of it."""
    while (around := s.parent(loop)) is not None and is_role(around, "r"):
        if rest:
            s.fission(around)
        loop = around
    return loop


def _factored(s: Schedule, block: str, loop: str, axis: int, steps: str) -> str:
    """The block of partial sums, which are set before the loop `steps`."""
    before = set(s.blocks())
    s.rfactor(block, loop, axis, "register")
    part: str = next(n for n in s.blocks() if n not in before and not n.endswith("_init"))
    if s.block(part).init is not None:
        s.decompose_reduction(part, steps)
    return part


def _join_lanes(s: Schedule, block: str) -> None:
    """Let one instruction add up what the innermost loop around a block does."""
    lane, body = s.loops_of(block)[-1], s.block(block).body
    assert isinstance(body, Store) and isinstance(body.value, Binary)
    lanes = int_value(s.loop(lane).extent)
    assert lanes is not None
    name = reduce_name(_REDUCE[body.value.op], lanes, body.buffer.dtype.name)
    s.tensorize(lane, name)
