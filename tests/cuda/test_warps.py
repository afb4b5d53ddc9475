"""Instructions of warps on the emulator of CUDA: what they compute, and what is wrong with a kernel
that uses them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, WARP
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import IntImm, Var, int_value
from tensorkiln.ir.stmt import For, PrimFunc
from tensorkiln.schedule.intrin import instruction
from tensorkiln.schedule.intrin.fragments import (
    SUMS,
    WHOLE,
    Shape,
    left_fragment,
    mma_name,
    mma_parts,
    right_fragment,
    shape_for,
    sums_fragment,
)
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.target.gpus import TENSOR_CORES
from tests.cuda.emulator.launch import BACKWARD, FORWARD, RANDOM, Emulated, EmulatorFault
from tests.ir.evaluate import run
from tests.ir.numbers import exp2_approximate, round_tf32
from tests.schedule.gpu.runner import Kernels

CUDA = Target({"kind": "cuda", "arch": "sm_80"})
ORDERS = [(FORWARD, 0), (BACKWARD, 0), (RANDOM, 1)]


def test_kernels_on_tensor_cores_need_no_more_than_their_family_asks_for() -> None:
    """Those of the shape that is chosen for each type, and loads of matrices."""
    for name, least_capability in TENSOR_CORES.items():
        dtype = DType(name)
        for capability in {least_capability, 80}:
            row = DEVICE_INSTRUCTIONS[mma_name(dtype, shape_for(dtype, capability))]
            assert any(s[1].element == dtype for s in row.signatures)
            assert row.text["ptx"][0].capability_for(dtype) <= capability
    loads = [r for r in DEVICE_INSTRUCTIONS.values() if r.participants == WARP and r.memory]
    assert {r.text["ptx"][0].capability for r in loads} == {min(TENSOR_CORES.values())}


@pytest.mark.parametrize("name", TENSOR_CORES)
def test_products_of_smaller_shapes_make_up_a_whole_one(name: str) -> None:
    """Each element meets each sum of its row once. The place of an element in the small fragment
    is that in the whole one, moved by the same rows and columns for all threads."""
    dtype = DType(name)
    for shape in (WHOLE, Shape(2, 1), Shape(1, 2), Shape(1, 1)):
        pairs_so_far = set()
        for part in mma_parts(dtype, shape):
            for whole, small, elements in (
                (left_fragment(dtype), left_fragment(dtype, shape), part.left),
                (right_fragment(dtype), right_fragment(dtype, shape), part.right),
                (SUMS, sums_fragment(shape), part.sums),
            ):
                assert len(elements) == small.count
                moves = {
                    tuple(np.subtract(whole.place(t, e), small.place(t, k)))
                    for t in range(32)
                    for k, e in enumerate(elements)
                }
                assert len(moves) == 1
            pairs = {(a, c) for a in part.left for c in part.sums}
            assert not pairs & pairs_so_far
            pairs_so_far |= pairs
        halves = {(a, c) for a in range(left_fragment(dtype).count) for c in range(SUMS.count)}
        per = 4 // dtype.bytes
        own_pairs = {(a, c) for a, c in halves if a // per % 2 == c // 2}
        assert pairs_so_far == (halves if shape.blocks == 2 else own_pairs)


def _device_function(f: PrimFunc) -> PrimFunc:
    kernels = Kernels([f], CUDA)
    (launch,) = kernels.launches(f.name)
    return kernels.func(launch.name)


# ---- the instructions on the emulator ------------------------------------------------------------

SIGNATURES = [
    *(f"m16n8k16_{t}" for t in ("float16", "bfloat16")),
    *("m16n8k8_float32", "m16n8k8_float16"),
    *(f"m8n8k16_{t}" for t in ("int8", "uint8", "int8_uint8", "uint8_int8")),
    *(f"m16n8k32_{t}" for t in ("int8", "uint8", "int8_uint8", "uint8_int8")),
]


def alone(name: str) -> Emulated:
    """A kernel `f` of one block that is an instruction's implementation."""
    warp_instruction = instruction(name)
    assert warp_instruction is not None
    block = For(
        Var("b"), IntImm(0), IntImm(1), "thread", warp_instruction.implementation.body, _BLOCK
    )
    f = _device_function(replace(warp_instruction.implementation, name="f", body=block))
    return Emulated([emit_ptx_ir(replace(f, name="f"), CUDA)])


_BLOCK = Attrs.of(thread="blockIdx.x")
OPS = {"sum": np.sum, "max": np.max, "min": np.min}
REDUCED = """
@T.prim_func
def f(A: T.Buffer((64,), "{dtype}"), C: T.Buffer((64,), "{dtype}")):
    for b in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            C[t] = T.subgroup_{op}(A[t], {size})
"""


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_product_means_what_its_template_says(name: str) -> None:
    warp_instruction = instruction(f"warp_mma_{name}")
    assert warp_instruction is not None
    rng = np.random.default_rng(1)
    arrays = {}
    for b in warp_instruction.template.buffers:
        dtype = np.dtype(b.dtype.name)
        shape = [int_value(n) for n in b.shape]
        low = -3 if not b.dtype.is_unsigned else 0
        arrays[b.name] = rng.integers(low, 120 if b.dtype.is_int else 4, shape).astype(dtype)
    want = {k: x.copy() for k, x in arrays.items()}
    run(warp_instruction.template, want)
    kernels = alone(f"warp_mma_{name}")
    kernels.aligned = True
    for order in ORDERS:
        outputs = {k: x.copy() for k, x in arrays.items()}
        kernels.order(*order)
        kernels.run("f", (1, 1, 1), (32, 1, 1), list(outputs.values()))
        np.testing.assert_array_equal(outputs["c"], want["c"])


def test_sums_wrap_or_are_rounded() -> None:
    """int32 wraps; of float32 the last bit is rounded, towards zero on the emulator."""
    kernels = alone("warp_mma_m16n8k32_int8")
    kernels.aligned = True
    a, b = (np.full((32, n), 127, np.int8) for n in (16, 8))
    c = np.full((32, 4), 2**31 - 1, np.int32)
    kernels.run("f", (1, 1, 1), (32, 1, 1), [a, b, c])
    assert (c == np.int64(32 * 127 * 127 + 2**31 - 1 - 2**32)).all()
    kernels = alone("warp_mma_m16n8k16_float16")
    kernels.aligned = True
    a, b = (np.full((32, n), 0.25, np.float16) for n in (8, 4))
    c = np.full((32, 4), 2.0**24, np.float32)
    kernels.run("f", (1, 1, 1), (32, 1, 1), [a, b, c])
    assert (c == 2.0**24).all()


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("op", "dtype"), [(o, t) for o in OPS for t in ("float32", "int32")])
def test_neighbouring_threads_reduce_what_they_have(op: str, dtype: str, size: int) -> None:
    """Groups of each size within whole warps, in each thread of a group; two warps."""
    (f,) = from_source(REDUCED.format(op=op, dtype=dtype, size=size)).prim_funcs
    kernels = Emulated([emit_ptx_ir(_device_function(f), CUDA)])
    operand = np.random.default_rng(size).integers(-99, 99, 64).astype(dtype)
    want = np.repeat(OPS[op](operand.reshape(-1, size), axis=1), size)
    for order in ORDERS:
        output = np.zeros(64, dtype)
        kernels.order(*order)
        kernels.run(_device_function(f).name, (1, 1, 1), (64, 1, 1), [operand, output])
        np.testing.assert_array_equal(output, want)


@pytest.mark.parametrize(("threads", "size"), [(16, 16), (48, 8), (64, 64)])
def test_sub_groups_are_parts_of_whole_warps(threads: int, size: int) -> None:
    text = REDUCED.format(op="sum", dtype="float32", size=size).replace("64", str(threads))
    (f,) = from_source(text).prim_funcs
    with pytest.raises(UnsupportedError, match=f"subgroup_sum over {size} of {threads}") as e:
        emit_ptx_ir(_device_function(f), CUDA)
    assert "a multiple of 32" in str(e.value)


@pytest.mark.parametrize("x", [0.0, 1.0, -1.5, 0.3, 127.9, 128.0, -125.9, -127.0, np.inf, -np.inf])
def test_powers_of_two(x: float) -> None:
    kernels = alone("thread_exp2_2")
    kernels.aligned = True
    operand, output = np.array([x, -x], np.float32), np.zeros(2, np.float32)
    kernels.run("f", (1, 1, 1), (1, 1, 1), [operand, output])
    np.testing.assert_array_equal(output, [exp2_approximate(float(v)) for v in operand])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(output, np.exp2(operand), rtol=2.0**-22, atol=2.0**-126)


@pytest.mark.parametrize("x", [1.0, -1.0, 3.14159, -(2.0**-130), 0.0, np.inf, 3.4e38, 1e-45])
def test_rounding_to_tf32(x: float) -> None:
    """As the evaluator, which computes with fractions; ties away from zero."""
    kernels = alone("thread_round_tf32_4")
    kernels.aligned = True
    near = np.float32(x) * np.float32(1 + 2**-11)  # between two numbers for powers of two
    operand = np.array([x, -x, near, np.nextafter(near, np.float32(0))], np.float32)
    output = np.zeros(4, np.float32)
    kernels.run("f", (1, 1, 1), (1, 1, 1), [operand, output])
    with np.errstate(over="ignore"):
        want = np.array([round_tf32(float(v)) for v in operand]).astype(np.float32)
    np.testing.assert_array_equal(output, want)
    assert not (output.view(np.uint32) & 0x1FFF).any()


# ---- planted faults ------------------------------------------------------------------------------

IR = """
define ptx_kernel void @f(ptr align 4 %p0) #0 {{
entry:
  %base = addrspacecast ptr addrspace(3) @f$shared to ptr
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
{body}
  ret void
}}
@f$shared = external addrspace(3) global [0 x i8], align 64
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare {{i32, i32}} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p3(ptr addrspace(3))
declare {{float, float, float, float}} @llvm.nvvm.mma.m16n8k8.row.col.tf32({types})
attributes #0 = {{ "nvvm.reqntid"="{threads},1,1" }}
"""
LOADED = """
  %n = mul i32 %tid, {step}
  %at = getelementptr i8, ptr %base, i32 %n
  %row = addrspacecast ptr %at to ptr addrspace(3)
  %x = call {{i32, i32}} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p3(ptr addrspace(3) %row)
"""
STORED = """
  %other = xor i32 %tid, 1
  %m = mul i32 %other, 16
  %own = getelementptr i8, ptr %base, i32 %m
  store <4 x i32> zeroinitializer, ptr %own, align 16
"""
SYNC = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
LOAD = LOADED.format(step=16)
ODD = """
  %odd = trunc i32 %tid to i1
  br i1 %odd, label %yes, label %no
yes:
{yes}
  br label %no
no:
{no}
"""
MULTIPLIED = """
  %c = call {{float, float, float, float}} @llvm.nvvm.mma.m16n8k8.row.col.tf32({args})
"""
TYPES_OF_MMA = ["i32"] * 6 + ["float"] * 4


def multiplied(x: int) -> str:
    """A product whose first factor has these bits, and all else is 0."""
    values = [x, 0, 0, 0, 0, 0, *(["0.0"] * 4)]
    args = ", ".join(f"{t} {v}" for t, v in zip(TYPES_OF_MMA, values, strict=True))
    return MULTIPLIED.format(args=args)


# body, threads -> kind of fault and what is said of it; None: there is none
PLANTED = {
    "good": (STORED + SYNC + LOAD, 32, None),
    "rounded": (multiplied(0x3F802000), 32, None),
    "no barrier": (
        STORED + LOAD,
        32,
        ("race", r"byte \d+ of shared memory, which thread .* with no barrier between them"),
    ),
    "some threads of the warp": (
        STORED + SYNC + ODD.format(yes=LOAD, no=""),
        32,
        ("warp", r"executes ldmatrix with the threads of its warp, of which thread .* has ended"),
    ),
    "some at a barrier": (
        STORED + SYNC + ODD.format(yes=LOAD, no=SYNC),
        32,
        ("warp", r"of which thread \(\d+, 0, 0\) is at a barrier"),
    ),
    "half a warp": (
        STORED + SYNC + LOAD,
        48,
        ("warp", r"executes ldmatrix in a warp of 16 threads"),
    ),
    "rows that are not aligned": (
        STORED + SYNC + LOADED.format(step=8),
        32,
        ("alignment", r"reads 16 bytes at 0x\w+, which is not a multiple of 16"),
    ),
    "behind shared memory": (
        STORED + SYNC + LOADED.format(step=64),
        32,
        ("shared memory out of bounds", r"reads bytes \d+ to \d+ of 512 bytes"),
    ),
    "nobody wrote it": (SYNC + LOAD, 32, ("undefined shared memory", "which nobody wrote")),
    "not rounded": (
        multiplied(0x3F800001),
        32,
        ("operand", r"thread \(0, 0, 0\) multiplies a number that is not rounded to tf32"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(name: str) -> None:
    body, threads, fault = PLANTED[name]
    text = IR.format(body=body, threads=threads, types=", ".join(TYPES_OF_MMA))
    kernels = Emulated([text])
    for order in ORDERS:
        kernels.order(*order)
        arguments = "f", (1, 1, 1), (threads, 1, 1), [np.zeros(4, np.float32)], 16 * threads
        if fault is None:
            kernels.run(*arguments)
            continue
        with pytest.raises(EmulatorFault) as caught:
            kernels.run(*arguments)
        kind, pattern = fault
        assert caught.value.kind == kind
        assert re.search(pattern, str(caught.value)), str(caught.value)
