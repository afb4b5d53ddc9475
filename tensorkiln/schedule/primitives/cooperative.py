"""Divide a loop nest among the threads of a device's block."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import THREAD_INDICES, For, PrimFunc
from tensorkiln.schedule.primitives.loops import split
from tensorkiln.schedule.primitives.marks import bind, vectorize
from tensorkiln.schedule.primitives.nests import fuse, reorder
from tensorkiln.schedule.primitives.results import Cooperative, Primitive
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.program import Place, open_loop, show


@Primitive
def cooperative(
    f: PrimFunc,
    loop: str,
    threads: int | Sequence[int],
    vector: int = 1,
    check: bool = True,
) -> tuple[PrimFunc, Cooperative]:
    """Divide the iterations of a nest of loops, as a copy is, among the threads of a block:
    neighbouring threads get neighbouring iterations, or vectors of `vector` of them.

        for i in range(8):                    for t in T.thread_binding(64, "threadIdx.x"):
            for j in range(64):                   for i_j_0 in range(2):
                S[i, j] = A[i, j]     ->              for j_1 in T.vectorized(4):
                                                          S[i_j_0 * 4 + t // 16,
                                                            t % 16 * 4 + j_1] = A[...]

    That is `cooperative(f, "i", 64, 4)`. The nest is `loop` and the loops directly inside one
    another from there on; `threads` is a number along threadIdx.x, or several along x, y and z.
    If these do not divide the iterations, a condition leaves out the rest. `vector` must divide the
    innermost loop. No iteration may depend on another.
    """
    place, s = open_loop(f, loop, "cooperative")
    counts = _counts(place, threads)
    try:
        after, division = _divided(place, s, counts, vector)
    except ScheduleError as e:
        raise place.fail(e.message, e.hint) from None
    if check:
        require_order(place.func, after, place.what)
    return after, division


def _counts(place: Place, threads: int | Sequence[int]) -> list[int]:
    counts = [threads] if isinstance(threads, int) else list(threads)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts)
    if not whole or not 1 <= len(counts) <= len(THREAD_INDICES):
        raise place.fail(f"threads={threads!r}", "a positive number, or up to three: (x, y, z)")
    return counts


def _divided(place: Place, s: For, counts: list[int], vector: int) -> tuple[PrimFunc, Cooperative]:
    """The program with the nest divided; dependences are not checked."""
    f, nest = place.func, _nest(place, s)
    lanes = None
    if not isinstance(vector, int) or isinstance(vector, bool) or vector < 1:
        raise place.fail(f"vector={vector!r}", "a positive number")
    if vector > 1:
        inner = nest[-1]
        if int_value(simplify(inner.extent % vector, place.bounds)) != 0:
            text = (
                f"vectors of {vector} do not divide loop {inner.var.name!r} of {show(inner.extent)}"
            )
            raise place.fail(text, "a width that divides the innermost loop, or fuse it before")
        f, pieces = split.run(f, inner.var.name, vector)
        f, lanes = vectorize(f, pieces.inner, check=False), pieces.inner
        names = [*(x.var.name for x in nest[:-1]), pieces.outer]
    else:
        names = [x.var.name for x in nest]
    whole = names[0]
    if len(names) > 1:
        f, whole = fuse.run(f, *names)
    f, parts = split.run(f, whole, (None, *reversed(counts)), tail="guard")
    rounds, thread_loops = parts.loops[0], parts.loops[1:]
    f = reorder(f, *thread_loops, rounds, check=False)
    for name, index in zip(reversed(thread_loops), THREAD_INDICES, strict=False):
        f = bind(f, name, index, check=False)
    return f, Cooperative(tuple(reversed(thread_loops)), rounds, lanes)


def _nest(place: Place, s: For) -> list[For]:
    """The loops from `s` on that stand directly inside one another, which must all be serial."""
    nest = [s]
    while isinstance(nest[-1].body, For):
        nest.append(nest[-1].body)
    for x in nest:
        if x.kind != "serial":
            raise place.fail(
                f"loop {x.var.name!r} is {x.kind} already",
                "cooperative binds and vectorizes: give it serial loops",
            )
    return nest
