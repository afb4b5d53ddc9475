"""What requests of warps take: turns of the banks of shared memory, sectors of global memory. The
emulator's counts are those of an independent model, and golden for every class of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.inspectors.table import table_lines
from tests.cuda.classes import ONE_BLOCK, TARGET, all_launched
from tests.cuda.emulator.launch import ACCESSES, BACKWARD, FORWARD, RANDOM, Count, Emulated

GOLDEN = Path(__file__).parent / "golden" / "counts.txt"
WARP = 32
HEAD = """\
Requests of warps; turns of the banks or sectors of 32 bytes that they take / that would do.
What they rest on is in tests/cuda/emulator/counts.h. `pytest --bless` writes this file.

"""
HEADS = ("loads shared: turns", "stores: turns", "loads global: sectors", "stores: sectors")

# ---- against a model -----------------------------------------------------------------------------

# Each thread accesses what lies at an offset in bytes that is given to it; none for -1. The first
# thread fills the shared memory before.
IR = """
@k$shared = external addrspace(3) global [0 x i8], align 16
define ptx_kernel void @k(ptr align 16 %p0, ptr align 16 %p1, i32 %p2) #0 {{
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %base = addrspacecast ptr addrspace(3) @k$shared to ptr
  %first = icmp eq i32 %tid, 0
  %some = icmp sgt i32 %p2, 0
  %fills = and i1 %first, %some
  br i1 %fills, label %fill, label %filled
fill:
  %i = phi i32 [ 0, %entry ], [ %next, %fill ]
  %byte = getelementptr i8, ptr %base, i32 %i
  store <4 x float> zeroinitializer, ptr %byte, align 16
  %next = add i32 %i, 16
  %more = icmp slt i32 %next, %p2
  br i1 %more, label %fill, label %filled
filled:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %at = getelementptr i32, ptr %p1, i32 %tid
  %offset = load i32, ptr %at, align 4
  %none = icmp slt i32 %offset, 0
  br i1 %none, label %end, label %yes
yes:
  %shared = getelementptr i8, ptr %base, i32 %offset
  %global = getelementptr i8, ptr %p0, i32 %offset
{access}
  br label %end
end:
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
attributes #0 = {{ "nvvm.reqntid"="{threads},1,1" }}
"""
HOW = {
    "loads": "  %v = load {t}, ptr %{space}, align {align}",
    "stores": "  store {t} zeroinitializer, ptr %{space}, align {align}",
}
# Types of an access, its alignment, and the pieces of which it consists.
TYPES = {
    ("i8", 1): [1],
    ("i16", 2): [2],
    ("float", 4): [4],
    ("double", 8): [8],
    ("<4 x float>", 16): [16],
    ("<2 x float>", 4): [4, 4],
    ("<4 x float>", 8): [8, 8],
    ("<8 x float>", 32): [16, 16],
    ("<3 x float>", 4): [4, 4, 4],
}
# The element that a thread accesses; None: the thread does not take part.
PATTERNS: dict[str, Callable[[int], int | None]] = {
    "neighbours": lambda t: t,
    "all the same": lambda t: 0,
    "every second": lambda t: 2 * t,
    "every third": lambda t: 3 * t,
    "every 32nd": lambda t: 32 * t,
    "rows of 33": lambda t: 33 * t,
    "backwards": lambda t: 99 - t,
    "pairs": lambda t: t // 2,
    "halves apart": lambda t: t + 500 * (t // 16 % 2),
    "chunks swizzled": lambda t: (t % 8 ^ t // 8) + 8 * (t // 8),
    "odd threads": lambda t: t if t % 2 else None,
    "one thread": lambda t: 5 if t == 7 else None,
    "a quarter": lambda t: 32 * t if t % 32 < 8 else None,
}


def modelled(offsets: Sequence[int | None], size: int, shared: bool) -> Count:
    """The counts of one request of `size` bytes a thread, written anew from the documents."""
    requests = turns = fewest_turns = 0
    for first in range(0, len(offsets), WARP):
        lanes = {k: o for k, o in enumerate(offsets[first : first + WARP]) if o is not None}
        if not lanes:
            continue
        requests += 1
        if not shared:
            touched = np.unique([o + b for o in lanes.values() for b in range(size)])
            turns += len(np.unique(touched // 32))
            fewest_turns += -(-len(touched) // 32)
            continue
        for part in np.array_split(np.arange(WARP), max(1, size // 4)):
            bank_words = {(o + b) // 4 for k, o in lanes.items() if k in part for b in range(size)}
            if bank_words:
                turns += int(np.bincount([w % 32 for w in bank_words]).max())
                fewest_turns += 1
    return Count(requests, turns, fewest_turns)


def total(*counts: Count) -> Count:
    return Count(*(sum(getattr(c, x) for c in counts) for x in Count.__slots__))


@pytest.mark.parametrize(("t", "align"), TYPES)
@pytest.mark.parametrize("kind", ACCESSES)
def test_counts_are_those_of_a_model(t: str, align: int, kind: str) -> None:
    """For every pattern, in blocks of one and of several warps, the last of which is not full."""
    space, access_kind = kind.split()
    pieces = TYPES[t, align]
    for threads in (32, 72):
        access = HOW[access_kind].format(t=t, space=space, align=align)
        kernels = Emulated([IR.format(access=access, threads=threads)])
        kernels.aligned = True
        indices = modelled([4 * i for i in range(threads)], 4, shared=False)
        for name, pattern in PATTERNS.items():
            pattern_indices = [pattern(i) for i in range(threads)]
            taking_part = [i for i in pattern_indices if i is not None]
            if access_kind == "stores" and len({*taking_part}) < len(taking_part):
                continue  # threads that write one element are a race
            step = -(-sum(pieces) // align) * align
            offsets = [None if i is None else i * step for i in pattern_indices]
            parts = [
                ([None if o is None else o + sum(pieces[:k]) for o in offsets], size)
                for k, size in enumerate(pieces)
            ]
            want = total(*(modelled(o, size, space == "shared") for o, size in parts))
            if kind == "global loads":
                want = total(want, indices)
            offset_array = np.array([-1 if o is None else o for o in offsets], np.int32)
            end = -(-(max(taking_part) + 1) * step // 16) * 16
            shared = end if space == "shared" else 0
            args = [np.zeros(end, np.uint8), offset_array, np.int32(shared)]
            for order in (FORWARD, BACKWARD, RANDOM):
                kernels.order(order, 3)
                with kernels.counted() as counts:
                    kernels.run("k", (1, 1, 1), (threads, 1, 1), args, shared)
                if kind == "shared stores":  # beside those that fill it, by one thread
                    counts[kind] = total(counts[kind], *[Count(-1, -1, -1)] * (end // 16))
                assert counts[kind] == want, (name, threads, order)


def test_a_loop_is_a_request_per_round() -> None:
    """Whatever order threads run in: the k-th time of one lane is with the k-th of the others."""
    access = """
  br label %again
again:
  %k = phi i32 [ 0, %yes ], [ %k1, %again ]
  %k1 = add i32 %k, 1
  %from = getelementptr i8, ptr %global, i32 %k
  %v = load i8, ptr %from, align 1
  %on = icmp slt i32 %k1, %tid
  br i1 %on, label %again, label %out
out:
"""
    kernels = Emulated([IR.format(access=access, threads=32)])
    kernels.aligned = True
    args = [np.zeros(32 * 32, np.uint8), np.arange(0, 32 * 32, 32, np.int32), np.int32(0)]
    rounds = [[32 * t if k < max(1, t) else None for t in range(32)] for k in range(31)]
    want = [modelled(r, 1, False) for r in rounds]
    want.append(modelled([4 * t for t in range(32)], 4, False))
    for order in (FORWARD, BACKWARD, RANDOM):
        kernels.order(order, 9)
        with kernels.counted() as counts:
            kernels.run("k", (1, 1, 1), (32, 1, 1), args)
        assert counts["global loads"] == total(*want)


def test_nothing_is_counted_unasked() -> None:
    kernels = Emulated([IR.format(access="", threads=32)])
    args = [np.zeros(32, np.uint8), np.zeros(32, np.int32), np.int32(0)]
    with kernels.counted() as counts:
        pass
    kernels.run("k", (1, 1, 1), (32, 1, 1), args)
    with kernels.counted() as again:
        pass
    assert counts == again == dict.fromkeys(ACCESSES, Count(0, 0, 0))


# ---- every class of kernels ----------------------------------------------------------------------


def test_golden(request: pytest.FixtureRequest) -> None:
    """What each class of kernels asks of memory at a small shape, tensors at multiples of 64."""
    classes = all_launched()
    kernels = Emulated(emit_ptx_ir(x.func, TARGET) for x in classes.values())
    kernels.aligned = True
    rows = []
    for name, launch in classes.items():
        with kernels.counted() as measured:
            launch.run(kernels)
        counts = [measured[kind] for kind in ACCESSES]
        cells = [f"{c.requests} {c.turns}/{c.fewest_turns}" if c.requests else "-" for c in counts]
        rows.append((name + " (one block)" * (name in ONE_BLOCK), *cells))
    text = HEAD + "".join(table_lines(("kernel", *HEADS), rows, "lrrrr"))
    if request.config.getoption("--bless"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
