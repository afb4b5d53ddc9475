"""Random schedules for devices: random primitives, then loops bound to blocks and threads, and
copies in shared memory, which are pipelined and divided among threads."""

from __future__ import annotations

from random import Random

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Alloc, For, PrimFunc
from tensorkiln.schedule.primitives import Schedule, ScheduleError
from tests.schedule.random_schedules import Tally, random_schedule

# Primitives that only devices have, taken here and not among ACTIONS.
DEVICE_ONLY = ("cooperative", "pipeline")
# Steps for CPUs, or with an order of their own among lanes and threads.
_LEFT_OUT = ("parallel", "bind", "prefetch", "prefetch_next", "tensorize", "annotate")
_MOST = 64  # threads along one index


def device_schedule(f: PrimFunc, rng: Random, tally: Tally) -> Schedule | None:
    """A schedule whose outermost loops are all bound to blocks; None where the first few could not
    be."""
    f, _ = random_schedule(f, rng, rng.randint(0, 6), tally, _LEFT_OUT)
    s = Schedule(f)
    for name in s.loops():
        if s.parent(name) is None and not _bound_to_blocks(s, name, rng):
            return None
    _shared(s, rng)
    _staged(s, rng, tally)
    _divided(s, rng, tally)
    _threads(s, rng)
    return s


def _tried(s: Schedule, primitive: str, *args: object, **options: object) -> bool:
    try:
        getattr(s, primitive)(*args, **options)
    except ScheduleError:
        return False
    return True


def _staged(s: Schedule, rng: Random, tally: Tally) -> None:
    """Pipeline loops that allocate shared buffers."""
    for name in s.loops():
        if s.loop(name).kind == "serial" and isinstance(s.loop(name).body, Alloc):
            stages = rng.choice((2, 2, 3))
            tally.count("pipeline", _tried(s, "pipeline", name, stages))


def _divided(s: Schedule, rng: Random, tally: Tally) -> None:
    """Divide nests among threads, mostly those that fill shared buffers."""
    for block in s.blocks():
        around = s.loops_of(block)
        serial = [x for x in around if s.loop(x).kind == "serial"]
        fills = any(r.buffer.scope == "shared" for r in s.block(block).writes)
        is_divided = any("threadIdx" in str(s.loop(x).attrs.get("thread")) for x in around)
        if not serial or is_divided or rng.random() < (0.2 if fills else 0.8):
            continue
        threads, vector = rng.choice((4, 16, (4, 2))), rng.choice((1, 1, 2))
        loop = rng.choice(serial[-2:])
        tally.count("cooperative", _tried(s, "cooperative", loop, threads, vector))


def _bound_to_blocks(s: Schedule, name: str, rng: Random) -> bool:
    """Bind an outermost loop, and now and then the loop in it."""
    inside = s.children(name)
    if not _tried(s, "bind", name, "blockIdx.x"):
        return False
    if len(inside) == 1 and inside[0] in s.loops() and rng.random() < 0.4:
        _tried(s, "bind", inside[0], "blockIdx.y")
    return True


def _shared(s: Schedule, rng: Random) -> None:
    """Copy operands of some blocks to shared memory."""
    for block in s.blocks():
        around = s.loops_of(block)
        thread_loops = [x for x in around if s.loop(x).kind == "thread"]
        reads = sorted({r.buffer.name for r in s.block(block).reads})
        if not thread_loops or not reads or rng.random() < 0.4:
            continue
        place = thread_loops[-1]
        inner = around[around.index(place) + 1 :]
        if inner and rng.random() < 0.3:
            place = rng.choice(inner)
        _tried(s, "cache_read", block, rng.choice(reads), "shared", at=place)


def _threads(s: Schedule, rng: Random) -> None:
    """Bind a loop around most blocks to the threads of a block, and sometimes the one in it."""
    for block in s.blocks():
        loops = [x for x in s.loops_of(block) if _may_be_threads(s.loop(x))]
        if any("threadIdx" in str(s.loop(x).attrs.get("thread")) for x in s.loops_of(block)):
            continue
        rng.shuffle(loops)
        for name in loops:
            if rng.random() < 0.15 or not _tried(s, "bind", name, "threadIdx.x"):
                continue
            inside = s.children(name)
            nested = len(inside) == 1 and inside[0] in s.loops() and rng.random() < 0.3
            if nested and _may_be_threads(s.loop(inside[0])):
                _tried(s, "bind", inside[0], "threadIdx.y")
            break


def _may_be_threads(loop: For) -> bool:
    n = int_value(loop.extent)
    return loop.kind == "serial" and n is not None and 1 <= n <= _MOST
