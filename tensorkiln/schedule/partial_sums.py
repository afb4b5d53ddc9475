"""The steps that cut a loop into vectors, and its sum into partial sums: chains of vectors.

An addition has to wait for the previous one of its chain; several independent chains hide that
latency, and round less. Loops over vectors have role "vector" and loops over the lanes of a vector
"lane", as in register_tile.py; "term" and "reduction" are explained in reductions.py.
"""

from __future__ import annotations

from tensorkiln.ir.expr import REDUCE_BINARY, Binary, int_value
from tensorkiln.ir.stmt import Store
from tensorkiln.kernels.knobs import CHAINS
from tensorkiln.schedule.intrin.reduce import reduce_name
from tensorkiln.schedule.primitives import Schedule, Split

_REDUCE = {binary: op for op, binary in REDUCE_BINARY.items()}


def sum_in_lanes(s: Schedule, loop: str, lanes: int, chains: int = CHAINS) -> None:
    """Sum the terms of a loop in vectors, the vectors in chains, and last the lanes.

        for k in range(n):               part[:, :] = 0; sums[:] = 0
            total[0] += x[k]     ->      for k in range(n // 64):
                                             for o in range(4):
                                                 for l in range(16):
                                                     part[o, l] += x[k*64 + o*16 + l]
                                         for o, l: sums[l] += part[o, l]
                                         total[0] += sum of the lanes of sums

    Leftover whole vectors are added to `sums`, leftover elements to `total` one by one. Loops
    around with role "reduction" belong to the same sum; they are split by fission, so that they run
    a second time for what is left over.
    """
    if lanes == 1 or not s.reaches(loop, lanes):
        return
    pieces = s.split(loop, lanes, (f"{loop}_0", "l"), "peel", ("term", "lane"))
    (block,) = s.children(pieces.inner)
    sums = _factored(s, block, pieces.inner, 1, _alone(s, pieces))
    _join_lanes(s, block)
    sum_in_chains(s, pieces.outer, sums, chains)


def sum_in_chains(s: Schedule, loop: str, block: str, chains: int = CHAINS) -> None:
    """Sum the terms of a loop in several independent chains, then sum the chains."""
    if chains == 1 or not s.reaches(loop, chains):
        return
    extent = int_value(s.loop(loop).extent)
    pieces = s.split(loop, chains, (f"{loop}_0", "o"), "peel", ("term", "vector"))
    sum_apart(s, block, pieces.inner, _alone(s, pieces))
    if pieces.tail is not None and extent is not None:
        s.unroll(pieces.tail)


def sum_apart(s: Schedule, block: str, loop: str, steps: str) -> None:
    """Give each iteration of a loop its own partial sum, a vector that is initialised before the
    loop `steps`."""
    _factored(s, block, loop, 0, steps)
    s.reorder(*reversed(s.loops_of(block)[-2:]))


def store_in_lanes(s: Schedule, loop: str, lanes: int) -> None:
    """Split a loop over elements into whole vectors and a loop over the remaining elements."""
    if lanes > 1 and s.reaches(loop, lanes):
        s.split(loop, lanes, (f"{loop}_0", "l"), "peel", ("element", "lane"))


def in_vectors(s: Schedule) -> None:
    """Unroll the loops over vectors, and vectorize those over lanes."""
    for loop in s.loops(role="vector"):
        s.unroll(loop)
    for loop in s.loops(role="lane"):
        s.vectorize(loop)


def _alone(s: Schedule, terms: Split) -> str:
    """The outermost loop of the sum whose terms were split. If there is a tail, the loops around
    are split by fission first, so that this one holds `terms.outer` alone."""
    loop = terms.outer
    while (around := s.parent(loop)) is not None and s.role(around) == "reduction":
        if terms.tail is not None:
            s.fission(around)
        loop = around
    return loop


def _factored(s: Schedule, block: str, loop: str, axis: int, steps: str) -> str:
    """Apply rfactor to `loop`, and return the block of the partial sums. These are initialised
    before the loop `steps`."""
    part: str = s.rfactor(block, loop, axis, "register").partial
    if s.block(part).init is not None:
        s.decompose_reduction(part, steps)
    return part


def _join_lanes(s: Schedule, block: str) -> None:
    """Replace the innermost loop around a block, which sums lanes, by one instruction."""
    lane, body = s.loops_of(block)[-1], s.block(block).body
    assert isinstance(body, Store) and isinstance(body.value, Binary)
    lanes = int_value(s.loop(lane).extent)
    assert lanes is not None
    name = reduce_name(_REDUCE[body.value.op], lanes, body.buffer.dtype.name)
    s.tensorize(lane, name)
