"""The emulator finds what is wrong with a kernel, and names the threads."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.launch import launch_of
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tests.cuda.emulator.launch import BACKWARD, FORWARD, RANDOM, Emulated, EmulatorFault
from tests.cuda.test_kernels import CUDA
from tests.schedule.battery import extent_of
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.gpu.runner import Kernels, groups_for
from tests.transform.device_programs import barriers, without_barrier

AMPERE = Target({"kind": "cuda", "arch": "sm_80"})
HEAD = """
@T.prim_func
def f(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32"), n: T.int64):
    T.func_attr({"device_function": True})
    for b in T.thread_binding(4, thread="blockIdx.x"):
"""
COPY = """\
        tile = T.alloc_buffer((16,), "float32", scope="shared")
        for t in T.thread_binding(16, thread="threadIdx.x"):
            tile[t] = X[b * 16 + t]
{between}
        for t in T.thread_binding(16, thread="threadIdx.x"):
            Y[b * 16 + t] = {value}
"""
NEST = '        for t in T.thread_binding(16, thread="threadIdx.x"):\n            '
SYNC = '        T.sync("block")'
GOOD = COPY.format(between=SYNC, value="tile[15 - t]")
# Faults of a program: its body, their kind, and what is said of them.
PLANTED = {
    "no barrier": (
        COPY.format(between="", value="tile[15 - t]"),
        "race",
        r"block \(0, 0, 0\): thread \(8, 0, 0\) writes byte 32 of shared memory, "
        r"which thread \(7, 0, 0\) read, with no barrier between them",
    ),
    "one word written by all": (
        NEST + "Y[b] = X[t]\n",
        "race",
        r"thread \(\d+, 0, 0\) writes byte 0 of a buffer, which thread \(0, 0, 0\) wrote",
    ),
    "two blocks": (
        NEST + "Y[t] = X[b * 16 + t]\n",
        "race",
        r"block \(1, 0, 0\): thread \(0, 0, 0\) writes byte 0 of a buffer, "
        r"which thread \(0, 0, 0\) of block \(0, 0, 0\) wrote",
    ),
    "read by another block": (
        NEST + "Y[b * 16 + t] = Y[(b * 16 + t + 16) % 64] + X[t]\n",
        "race",
        r"thread \(0, 0, 0\) writes byte 64 of a buffer, which .* of block \(0, 0, 0\) read",
    ),
    "shared memory too short": (
        COPY.format(between=SYNC, value="tile[t + 1]"),
        "shared memory out of bounds",
        r"thread \(15, 0, 0\) reads bytes 64 to 67 of 64 bytes of shared memory",
    ),
    "before the shared memory": (
        COPY.format(between=SYNC, value="tile[t - 1]"),
        "shared memory out of bounds",
        r"thread \(0, 0, 0\) reads bytes -4 to -1 of 64",
    ),
    "behind a buffer": (
        NEST + "Y[b * 16 + t] = X[b * 16 + t + n]\n",
        "buffer out of bounds",
        r"block \(3, 0, 0\): thread \(15, 0, 0\) reads 4 bytes at .* outside of all buffers",
    ),
    "nobody wrote it": (
        COPY.replace("tile[t] =", "tile[t // 2 * 2] =").format(between=SYNC, value="tile[t]"),
        "race",
        r"thread \(1, 0, 0\) writes byte 0 of shared memory, which thread \(0, 0, 0\) wrote",
    ),
    "undefined": (
        COPY.replace("binding(16", "binding(8", 1).format(between=SYNC, value="tile[t]"),
        "undefined shared memory",
        r"thread \(8, 0, 0\) reads byte 32 of shared memory, which nobody wrote",
    ),
}


AHEAD = COPY.replace(
    'thread="threadIdx.x"', 'thread="threadIdx.x", annotations={{"asynchronous": True}}', 1
)
COPIED = '        T.sync("copies")'
# Copies that are used before a thread has waited for them, or before another knows that it has.
TOO_EARLY = {
    "no wait": (
        AHEAD.format(between=SYNC, value="tile[15 - t]"),
        "copy",
        r"thread \(0, 0, 0\) reads byte 60 of shared memory before thread \(15, 0, 0\) has waited",
    ),
    "its own": (
        AHEAD.format(between="", value="tile[t]"),
        "copy",
        r"thread \(0, 0, 0\) reads byte 0 of shared memory before thread \(0, 0, 0\) has waited",
    ),
    "written twice": (
        AHEAD.format(between=NEST + "tile[t] = 1.0", value="X[t]"),
        "copy",
        r"thread \(0, 0, 0\) writes byte 0 of shared memory before thread \(0, 0, 0\)",
    ),
}


def emulated(body: str) -> Emulated:
    mod = from_source(HEAD + body)
    (f,) = mod.prim_funcs
    return Emulated([emit_ptx_ir(f, AMPERE)])


def run(kernels: Emulated, block: int = 16, shared: int = 64) -> np.ndarray:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernels.run("f", (4, 1, 1), (block, 1, 1), [x, y, np.int64(1)], shared)
    return y


@pytest.mark.parametrize("order", [(FORWARD, 0), (BACKWARD, 0), (RANDOM, 5)])
def test_a_good_kernel(order: tuple[int, int]) -> None:
    kernels = emulated(GOOD)
    kernels.order(*order)
    assert (run(kernels) == np.arange(64).reshape(4, 16)[:, ::-1].ravel()).all()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(name: str) -> None:
    body, kind, pattern = PLANTED[name]
    kernels = emulated(body)
    with pytest.raises(EmulatorFault) as caught:
        run(kernels)
    assert caught.value.kind == kind
    assert re.search(pattern, str(caught.value)), str(caught.value)
    for order in ((BACKWARD, 0), (RANDOM, 7)):  # in any order; of another thread, or byte
        kernels.order(*order)
        with pytest.raises(EmulatorFault) as caught:
            run(kernels)
        assert caught.value.kind == kind


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", TOO_EARLY)
def test_copies_that_are_used_too_early(name: str, late: bool) -> None:
    body, kind, pattern = TOO_EARLY[name]
    kernels = emulated(body)
    kernels.copies(late)
    with pytest.raises(EmulatorFault) as caught:
        run(kernels)
    assert caught.value.kind == kind and re.search(pattern, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("late", [False, True])
def test_a_wait_without_a_barrier(late: bool) -> None:
    """What a thread copied is there for others after a barrier behind its wait."""
    good = AHEAD.format(between=COPIED, value="tile[15 - t]")
    kernels = emulated(good)
    kernels.copies(late)
    assert (run(kernels) == np.arange(64).reshape(4, 16)[:, ::-1].ravel()).all()
    (f,) = from_source(HEAD + good).prim_funcs
    without_barrier_ir = emit_ptx_ir(f, AMPERE).replace(f"{BARRIER}\n", "")
    kernels = Emulated([without_barrier_ir])
    kernels.copies(late)
    with pytest.raises(EmulatorFault) as caught:
        run(kernels)
    assert caught.value.kind in ("race", "copy", "undefined shared memory")


def test_copies_happen_early_or_late() -> None:
    """Of a source that changes in between, which no kernel may rely on."""
    outputs = []
    for late in (False, True):
        kernels = emulated(
            AHEAD.replace("X[b", "Y[b").format(
                between=NEST + "Y[b * 16 + t] = 7.0\n" + COPIED, value="tile[t]"
            )
        )
        kernels.copies(late)
        outputs.append(run(kernels))
    assert (outputs[0] == 0).all() and (outputs[1] == 7).all()


BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
BRANCH = """
  %odd = trunc i32 %tid to i1
  br i1 %odd, label %yes, label %no
yes:
{yes}
  br label %no
no:
{no}
"""
DIVERGING = {
    "some threads only": (
        BRANCH.format(yes=BARRIER, no=""),
        r"thread \(1, 0, 0\) waits at a barrier, and thread \(0, 0, 0\) has ended without it",
    ),
    "one more for some": (BRANCH.format(yes=BARRIER, no=BARRIER), "wait at different barriers"),
}
IR = """
define ptx_kernel void @f(ptr align 4 %p0, ptr align 4 %p1, i64 %p2) #0 {{
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
{body}
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
attributes #0 = {{ "nvvm.reqntid"="16,1,1" }}
"""


@pytest.mark.parametrize("name", DIVERGING)
def test_barriers_that_not_all_threads_reach(name: str) -> None:
    body, pattern = DIVERGING[name]
    with pytest.raises(EmulatorFault, match=pattern) as caught:
        run(Emulated([IR.format(body=body)]))
    assert caught.value.kind == "barrier"


def test_misaligned() -> None:
    body = """
  %a = getelementptr i8, ptr %p0, i64 4
  %v = load <2 x float>, ptr %a, align 8
"""
    pattern = r"reads 8 bytes at 0x\w+, which is not a multiple of 8"
    with pytest.raises(EmulatorFault, match=pattern):
        for _ in range(2):  # arrays begin at multiples of 4, of 64 plus 4
            run(Emulated([IR.format(body=body)]))
            body = body.replace("i64 4", "i64 8")


def test_a_launch_that_the_kernel_is_not_made_for() -> None:
    kernels = emulated(GOOD)
    with pytest.raises(EmulatorFault, match=r"launched with 8 x 1 x 1 threads, and made for 16"):
        run(kernels, block=8)
    with pytest.raises(EmulatorFault, match="of 60 bytes of shared memory"):
        run(kernels, shared=60)
    with pytest.raises(EmulatorFault, match="a grid of 4 x 70000 x 1 blocks"):
        x = np.zeros(64, np.float32)
        kernels.run("f", (4, 70000, 1), (16, 1, 1), [x, x.copy(), np.int64(0)], 64)


# Kernels of each family that has barriers.
WITH_BARRIERS = ("max_symbolic", "softmax_symbolic", "layer_norm_warps", "linear", "conv2d")


@pytest.mark.parametrize(
    ("target", "name"),
    [*((CUDA, name) for name in WITH_BARRIERS), (AMPERE, "linear"), (AMPERE, "conv2d")],
)
def test_every_barrier_is_missed(target: Target, name: str) -> None:
    *_, group = groups_for(KERNELS[name].module(), target)
    device_kernels = Kernels([schedule_group(group, target)], target)
    (call,) = device_kernels.launches(device_kernels.names[0])
    f = device_kernels.func(call.name)
    count = barriers(f)
    without_barriers = [replace(without_barrier(f, k), name=f"less_{k}") for k in range(count)]
    kernels = Emulated([emit_ptx_ir(g, target) for g in (f, *without_barriers)])
    sizes = {v.name: 3 for v in f.scalars}
    args: list[object] = [
        np.ones([extent_of(n, sizes) for n in p.shape], p.dtype.name)
        if isinstance(p, Buffer)
        else np.int64(sizes[p.name])
        for p in f.params
    ]
    grid = [extent_of(n, sizes) for n in call.grid]

    def launch(kernel: str) -> None:
        kernels.run(kernel, grid, call.block, args, launch_of(f).shared_bytes)

    launch(f.name)
    assert count > 0
    for k in range(count):
        missed = r"thread .* (with no barrier between them|before thread .* has waited)"
        with pytest.raises(EmulatorFault, match=missed):
            launch(f"less_{k}")
