"""Primitives that set how a loop runs, and attributes of loops and blocks."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import NO_ATTRS, AttrValue
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import BLOCK_INDICES, THREAD_INDICES, THREADS, Block, For, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.lanes import check_lanes
from tensorkiln.schedule.tree.program import Place, open_at, open_loop
from tensorkiln.schedule.tree.threads import require_shared_by_block


def vectorize(f: PrimFunc, loop: str, check: bool = True) -> PrimFunc:
    """Run the iterations of a loop as the lanes of a vector.

        for i in range(16):                 for i in T.vectorized(16):
            C[i] = A[i]            ->           C[i] = A[i]

    Needs a constant extent, and a body without conditions on the loop variable. Each access may
    depend on it in one dimension at most.
    """
    place, s = open_loop(f, loop, "vectorize")
    _constant(place, s)
    for t in place.path[:-1]:
        if isinstance(t, For) and t.kind == "vectorized":
            raise place.fail(f"{t.var.name!r} around it is vectorized", "fuse both, or unroll one")
    check_lanes(place, s)
    return _marked(place, s, "vectorized", check)


def unroll(f: PrimFunc, loop: str) -> PrimFunc:
    """Repeat the body of a loop in the code.

        for i in range(4):                  for i in T.unrolled(4):
            C[i] = A[i]            ->           C[i] = A[i]

    Needs a constant extent.
    """
    place, s = open_loop(f, loop, "unroll")
    _constant(place, s)
    return _marked(place, s, "unrolled", False)


def parallel(f: PrimFunc, loop: str, check: bool = True) -> PrimFunc:
    """Divide the iterations of a loop among threads.

        for i in range(64):                 for i in T.parallel(64):
            C[i] = A[i]            ->           C[i] = A[i]

    No iteration may depend on another, and no other loop around or inside may be parallel.
    """
    place, s = open_loop(f, loop, "parallel")
    other_loops = [t for t in (*place.path[:-1], *walk_stmt(s.body)) if isinstance(t, For)]
    for t in other_loops:
        if t.kind == "parallel":
            hint = "fuse both into one parallel loop"
            raise place.fail(f"{t.var.name!r} is parallel already", hint)
    if any(isinstance(t, For) and t.kind == "vectorized" for t in place.path[:-1]):
        raise place.fail("it is inside a vectorized loop", "make an outer loop parallel")
    return _marked(place, s, "parallel", check)


def bind(f: PrimFunc, loop: str, thread: str, check: bool = True) -> PrimFunc:
    """Bind a loop to an index of a device's grid: "blockIdx.x", "threadIdx.y", ...

    for i in range(64):                 for i in T.thread_binding(64, "blockIdx.x"):
        C[i] = A[i]            ->           C[i] = A[i]

    Loops over threadIdx have constant extents, and are inside of those over blockIdx.
    """
    place, s = open_loop(f, loop, "bind")
    if thread not in THREADS:
        near = nearest(str(thread), THREADS)
        raise place.fail(f"no thread index {thread!r}", near or f"one of {', '.join(THREADS)}")
    for t in (*place.path[:-1], *walk_stmt(s.body)):
        if isinstance(t, For) and t.attrs.get("thread") == thread:
            raise place.fail(f"{t.var.name!r} is bound to {thread} already", "fuse the two loops")
    if thread in THREAD_INDICES:
        _constant(place, s)
    for outer, inner in (*((t, s) for t in place.path[:-1]), *((s, t) for t in walk_stmt(s.body))):
        if isinstance(outer, For) and isinstance(inner, For):
            _nested(place, outer, inner, thread)
    attrs = type(s.attrs).of(**{**s.attrs, "thread": thread})
    return require_shared_by_block(
        _marked(place, replace(s, attrs=attrs), "thread", check), place.what
    )


def _nested(place: Place, outer: For, inner: For, thread: str) -> None:
    """ScheduleError if `inner` cannot be inside of `outer`, one of which is bound to `thread`."""
    name = thread if place.stmt is inner else str(inner.attrs.get("thread", ""))
    around = thread if place.stmt is outer else str(outer.attrs.get("thread", ""))
    if name in BLOCK_INDICES and around in THREAD_INDICES:
        message = f"{inner.var.name!r} over {name} would be inside of {outer.var.name!r}"
        raise place.fail(
            f"{message} over {around}", "reorder: loops over blockIdx are the outer ones"
        )
    if name and outer.kind in ("parallel", "vectorized"):
        message = f"{inner.var.name!r} is inside of {outer.var.name!r}, which is {outer.kind}"
        raise place.fail(message, "bind both, or leave the outer one serial")


def annotate(f: PrimFunc, name: str, key: str, value: AttrValue = None) -> PrimFunc:
    """Set an attribute of a loop or block, for a pass or code generator of your own. Its key must
    contain a dot; the value None removes it.

    for i in range(64):        ->       for i in T.serial(64, annotations={"mine.depth": 4}):
    """
    place = open_at(f, name, "annotate")
    s = place.stmt
    assert isinstance(s, For | Block)
    as_in = 'as annotate(f, "i", "mine.depth", 4)'
    if not isinstance(key, str) or not all(map(str.isidentifier, key.split("."))):
        raise place.fail(f"the key {key!r} is not a name", as_in)
    if "." not in key:
        raise place.fail(f"{key!r} means nothing to the compiler; your own has a dot", as_in)
    attrs = {k: v for k, v in s.attrs.items() if k != key}
    if value is not None:
        attrs[key] = value
    return place.close(replace(s, attrs=type(s.attrs).of(**attrs) if attrs else NO_ATTRS))


def _marked(place: Place, s: For, kind: str, check: bool) -> PrimFunc:
    if s.kind not in ("serial", kind):
        raise place.fail(
            f"the loop is {s.kind} already", "mark a loop once; split it for two kinds"
        )
    threads = [t.var.name for t in walk_stmt(s.body) if isinstance(t, For) and t.kind == "thread"]
    if threads and kind in ("parallel", "vectorized"):
        raise place.fail(f"{threads[0]!r} inside it is bound to a thread index", "bind it too")
    after = place.close(replace(s, kind=kind))
    if check:
        require_order(place.func, after, place.what)
    return after


def _constant(place: Place, s: For) -> None:
    if int_value(s.extent) is None:
        raise place.fail("the extent is not a number", "split the loop by a constant first")
