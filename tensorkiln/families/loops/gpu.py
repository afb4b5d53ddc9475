"""The schedule of a device for any group: a thread for each element of the output.

Where all tensors are contiguous and their size is a multiple of a vector, a thread computes one
vector. A reduction is computed by one thread. The program is that of CPUs
(`families/loops/program.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.arith import simplify
from tensorkiln.families.loops.program import ChannelsLast, Flat, OutputRegion, regions_of
from tensorkiln.families.loops.schedule import innermost
from tensorkiln.ir.expr import IntImm, Var, int_value
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.layouts import has_few_channels
from tensorkiln.schedule.build import around
from tensorkiln.schedule.gpu.grid import on_grid
from tensorkiln.schedule.group import Group, inplace_params
from tensorkiln.schedule.primitives import Schedule, Split
from tensorkiln.target import Target

_VECTOR = 16  # bytes that a thread reads or writes at once


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """The schedule of any group whose operators all have tensor programs."""
    if any(int_value(d) is None for d in group.out_type.shape[1:]):
        group = group.unviewed
    regions = regions_of(group, target)
    body = seq(*map(_in_loops, regions))
    s = Schedule(PrimFunc(group.name, group.params, body, inplace=inplace_params(group)), check)
    _vectors_of_channels(s, regions, group)
    nests = [_nest(s, loop) for loop in s.loops() if s.parent(loop) is None]
    for nest in nests:
        if len(regions) == 1 and isinstance(regions[0], Flat):
            nest = [_vectors(s, nest[0], _lanes(group))]
        on_grid(s, nest, target)
    buffer_names = [t.buffer.name for t in walk_stmt(s.func.body) if isinstance(t, Alloc)]
    for name in dict.fromkeys(buffer_names):
        s.set_scope(name, "register")
    return s


def _vectors_of_channels(s: Schedule, regions: Sequence[OutputRegion], group: Group) -> None:
    """Vectorize the loops over channels, where those of a pixel are neighbours in memory."""
    for r in regions:
        lanes = _lanes(group)
        if isinstance(r, ChannelsLast) and has_few_channels(group.out_type):
            # All channels of a pixel in one thread, which stores them at once.
            innermost(s, *s.loops(role=r.named("channel")))
            continue
        while isinstance(r, ChannelsLast) and lanes > 1:
            if r.has_vectors(lanes):
                (loop,) = s.loops(role=r.named("channel"))
                vectors: Split = s.split(loop, lanes)
                innermost(s, vectors.inner)
                break
            lanes //= 2


def _in_loops(r: OutputRegion) -> Stmt:
    """The loops of a region of the output. A region without loops over elements (one reduction that
    computes all of it) gets a loop of one iteration, which can be bound to a thread."""
    body = r.stmt()
    if isinstance(body, For) and (r.around or not r.reduces):
        return body
    return around([(Var("one"), IntImm(1), "outer")], body)


def _nest(s: Schedule, loop: str) -> list[str]:
    """The perfectly nested loops over elements from `loop` inwards. Loops of a reduction are not
    among them, because its initialization stands beside them."""
    nest = [loop]
    while len(inside := s.children(nest[-1])) == 1 and inside[0] in s.loops():
        if s.loop(inside[0]).kind != "serial":  # the lanes of a vector
            break
        nest.append(inside[0])
    return nest


def _lanes(group: Group) -> int:
    """How many elements of the widest type of a group fit into a vector."""
    types = [group.out_type.dtype, *(v.tensor.dtype for v in group.calls)]
    types += [p.tensor.dtype for p in group.function.params]
    return max(1, _VECTOR // max(t.bytes for t in types))


def _vectors(s: Schedule, loop: str, lanes: int) -> str:
    """Vectorize a loop in steps of `lanes`, if they divide its extent. Return the loop over
    vectors, or the loop."""
    if lanes == 1 or int_value(simplify(s.loop(loop).extent % lanes)) != 0:
        return loop
    vectors: Split = s.split(loop, lanes)
    s.vectorize(vectors.inner)
    return vectors.outer
