"""Device instructions: each means what its template says, is put in place by `tensorize`, printed,
and run by a device of OpenCL where it has the instruction."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.codegen.c_like.opencl import emit_opencl
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, THREAD
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ops.verify import verify
from tensorkiln.schedule.intrin import instruction
from tensorkiln.schedule.primitives import Schedule, ScheduleError, tensorize
from tensorkiln.script import T, from_source
from tensorkiln.target import Target
from tensorkiln.transform.tir.check_races import races_of
from tests.codegen.kernels import compiled
from tests.ir.evaluate import run
from tests.schedule.gpu.runner import OPENCL, Kernels

NAMES = [
    "thread_dot4",
    *(
        f"{row.name}_{s[0].lanes}"
        for row in DEVICE_INSTRUCTIONS.values()
        for s in row.signatures
        if row.participants == THREAD and s[0].lanes > 1
    ),
    *(f"copy_{n}_{t}" for n, t in ((2, "int8"), (8, "float16"), (16, "int32"))),
    "copy_4",
    *(f"subgroup_{op}_{n}" for op in ("sum", "max", "min") for n in (2, 32)),
    *(f"subgroup_{op}_8_{t}" for op in ("sum", "max") for t in ("int32", "uint32")),
    *(f"warp_mma_m16n8k16_{t}" for t in ("float16", "bfloat16")),
    *(f"warp_mma_m16n8k32_{t}" for t in ("int8", "uint8", "int8_uint8", "uint8_int8")),
    *(f"warp_mma_m16n8k8_{t}" for t in ("float16", "float32")),
    *(f"warp_mma_m8n8k16_{t}" for t in ("int8", "uint8", "int8_uint8", "uint8_int8")),
    *(
        f"warp_load_matrix_{n}{flip}_{t}"
        for n in (1, 2, 4)
        for flip, types in (("", ("int8", "float16", "float32")), ("_transposed", ("bfloat16",)))
        for t in types
    ),
]
# Whose templates are loops of up to two million steps: they are compiled, as the evaluator would
# take minutes for each.
LARGE = [
    f"warpgroup_mma_m64n{n}k64{flip}_{t}"
    for n, t in ((64, "float16"), (128, "bfloat16"), (192, "bfloat16"), (256, "float16"))
    for flip in ("", "_transposed_a", "_transposed_b", "_transposed_ab")
] + [
    f"warpgroup_mma_{name}_{t}"
    for name, t in (
        ("m64n64k128", "float16"),
        ("m64n128k128", "bfloat16"),
        ("fragment_m64n64k64_transposed_b", "float16"),
        ("fragment_m64n64k128_transposed_b", "bfloat16"),
        ("fragment_m64n128k64_transposed_b", "bfloat16"),
        ("fragment_m64n128k128_transposed_b", "float16"),
    )
]
SUBGROUPS = Target({"kind": "opencl", "supports_subgroups": True, "thread_warp_size": 32})


def numbers(f: PrimFunc, seed: int) -> dict[str, Any]:
    """Small whole numbers, sums of which are exact."""
    rng = np.random.default_rng(seed)
    return {
        b.name: rng.integers(0, 5, [int_value(d) for d in b.shape]).astype(b.dtype.name)
        for b in f.buffers
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_instruction_is_what_its_template_says(name: str) -> None:
    check_template(name, range(3))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", LARGE)
def test_a_large_instruction(name: str) -> None:
    check_template(name, [1], run_compiled)


def run_compiled(f: PrimFunc, tensors: dict[str, Any]) -> None:
    """As `run`, by this processor: no template has an instruction of a device."""
    library = compiled([replace(f, public=True)], Target("llvm"))
    library[f.name](*(tensors[b.name] for b in f.buffers))


def check_template(
    name: str,
    seeds: Iterable[int],
    run_template: Callable[[PrimFunc, dict[str, Any]], object] = run,
) -> None:
    device_instruction = instruction(name)
    assert device_instruction is not None and device_instruction.name == name
    if all(
        "global" in scopes for scopes in device_instruction.memory.values()
    ):  # as parameters are
        verify(IRModule((device_instruction.implementation,)))
    for seed in seeds:
        want, outputs = (numbers(device_instruction.template, seed) for _ in range(2))
        run_template(device_instruction.template, want)
        run(device_instruction.implementation, outputs, seed)
        for b in device_instruction.template.buffers:
            np.testing.assert_array_equal(outputs[b.name], want[b.name])


def test_every_row_has_an_instruction() -> None:
    assert {
        n for n in DEVICE_INSTRUCTIONS if any(name.startswith(n) for name in NAMES + LARGE)
    } == set(DEVICE_INSTRUCTIONS)


# ---- run by a device -----------------------------------------------------------------------------


@T.prim_func
def fma(A: T.Buffer((6, 8)), B: T.Buffer((6, 8)), C: T.Buffer((6, 8))) -> None:
    for i, j in T.grid(6, 8):
        C[i, j] = C[i, j] + A[i, j] * B[i, j]


@T.prim_func
def dot(
    A: T.Buffer((6, 4), "int8"), B: T.Buffer((6, 4), "int8"), C: T.Buffer((6,), "int32")
) -> None:
    for i, k in T.grid(6, 4):
        C[i] = C[i] + T.Cast("int32", A[i, k]) * T.Cast("int32", B[i, k])


@T.prim_func
def halves(A: T.Buffer((6, 4), "float16"), C: T.Buffer((6, 4))) -> None:
    for i, j in T.grid(6, 4):
        C[i, j] = T.Cast("float32", A[i, j])


@T.prim_func
def copies(A: T.Buffer((6, 16), "int8"), C: T.Buffer((6, 16), "int8")) -> None:
    for i, j in T.grid(6, 16):
        C[i, j] = A[i, j]


# name -> (program, loop, instruction, what the text has)
RUN = {
    "fma": (fma, "j", "thread_fma_8", "fma(a, b, c)"),
    "dot": (dot, "k", "thread_dot4", "as_uint(b.x*c.x"),
    "halves": (halves, "j", "thread_load_half_4", "vload_half4(0, (const __global half *)a)"),
    "copies": (copies, "j", "copy_16_int8", "vstore16("),
}


def in_blocks(f: PrimFunc, loop: str, name: str) -> PrimFunc:
    s = Schedule(f)
    s.bind("i", "blockIdx.x")
    s.tensorize(loop, name)
    return s.func


@pytest.mark.parametrize("name", RUN)
def test_a_device_runs_it(name: str) -> None:
    f, loop, instruction_name, text = RUN[name]
    kernels = Kernels([in_blocks(f, loop, instruction_name)])
    (launch,) = kernels.launches(f.name)
    assert text in emit_opencl([kernels.func(launch.name)], OPENCL).text
    assert races_of(kernels.func(launch.name)).proved
    want = numbers(f, 1)
    outputs = {k: x.copy() for k, x in want.items()}
    kernels.run(f.name, {}, *outputs.values())
    run(f, want)
    np.testing.assert_array_equal(outputs["C"], want["C"])


def test_a_half_is_read_from_shared_memory() -> None:
    s = Schedule(halves)
    s.bind("i", "blockIdx.x")
    copy = s.cache_read("C", "A", "shared", at="i")
    s.tensorize(copy.loops[-1], "copy_4_float16_to_shared")
    s.tensorize("j", "thread_load_half_4")
    kernels = Kernels([s.func])
    want = numbers(halves, 2)
    kernels.run("halves", {}, *want.values())
    np.testing.assert_array_equal(want["C"], want["A"].astype(np.float32))
    (launch,) = kernels.launches("halves")
    text = emit_opencl([kernels.func(launch.name)], OPENCL).text
    assert "(const __local half *)a" in text


# ---- sub-groups ----------------------------------------------------------------------------------


@T.prim_func
def row_sums(A: T.Buffer((5, 96)), C: T.Buffer((5,))) -> None:
    for b in T.thread_binding(5, thread="blockIdx.x"):
        part = T.alloc_buffer((32,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="shared")
        for t in T.thread_binding(32, thread="threadIdx.x"):
            part[t] = T.float32(0)
            for k in range(3):
                part[t] = part[t] + A[b, k * 32 + t]
        for o in T.thread_binding(1, thread="threadIdx.x"):
            total[o] = T.float32(0)
        for lane in range(32):
            total[0] = total[0] + part[lane]
        for u in T.thread_binding(1, thread="threadIdx.x"):
            C[b] = total[u]


def by_subgroups() -> PrimFunc:
    return tensorize(row_sums, "lane", "subgroup_sum_32")


def test_lanes_of_a_subgroup_add_up_what_each_has() -> None:
    f = by_subgroups()
    want = numbers(row_sums, 3)
    outputs = {k: x.copy() for k, x in want.items()}
    run(f, outputs)
    np.testing.assert_array_equal(outputs["C"], want["A"].sum(axis=1))
    kernels = Kernels([f], SUBGROUPS)
    (launch,) = kernels.launches("row_sums")
    device = kernels.func(launch.name)
    assert races_of(device).proved
    emitted = emit_opencl([device], SUBGROUPS)
    assert "sub_group_reduce_add(a)" in emitted.text
    assert "__attribute__((intel_reqd_sub_group_size(32)))" in emitted.text
    assert "#pragma OPENCL EXTENSION cl_khr_subgroups : enable" in emitted.text
    (described,) = emitted.functions
    assert described.extensions == ("cl_intel_required_subgroup_size", "cl_khr_subgroups")
    assert "float part[1]" in emitted.text  # each thread has but its own partial sum


OPTIONS = {"supports_subgroups": True, "supports_integer_dot_product": True}


def test_a_compiler_of_opencl_takes_the_text() -> None:
    target = Target({"kind": "opencl", "thread_warp_size": 32, **OPTIONS})
    dots = in_blocks(dot, "k", "thread_dot4")
    kernels = Kernels([by_subgroups(), dots], target)
    parts = [kernels.func(s.name) for n in ("row_sums", "dot") for s in kernels.launches(n)]
    text = emit_opencl(parts, target).text
    assert "dot(b, c)" in text
    # By -Xclang, since the driver of clang 14 does not know -cl-ext.
    flags = ["-x", "cl", "-cl-std=CL3.0"]
    for flag in ("-cl-ext=+all", "-finclude-default-header"):
        flags += ["-Xclang", flag]
    clang = next(filter(None, map(shutil.which, ("clang", "clang-15"))), None)
    if clang is None:
        pytest.skip("clang is not installed")
    command = [clang, *flags, "-target", "spir64", "-fsyntax-only", "-"]
    process = subprocess.run(command, input=text, text=True, capture_output=True)
    assert process.returncode == 0, process.stderr


# ---- refused -------------------------------------------------------------------------------------


def test_an_instruction_that_the_target_lacks() -> None:
    kernels = Kernels([by_subgroups()])
    (launch,) = kernels.launches("row_sums")
    with pytest.raises(UnsupportedError, match="subgroup_sum is an instruction") as e:
        emit_opencl([kernels.func(launch.name)], OPENCL)
    assert "supports_subgroups" in str(e.value)
    narrow = Target({"kind": "opencl", "supports_subgroups": True, "thread_warp_size": 16})
    with pytest.raises(UnsupportedError, match="over 32 threads, and sub-groups .* have 16"):
        emit_opencl([kernels.func(launch.name)], narrow)


# program, loop, instruction -> message, hint
REFUSED = [
    (row_sums, "lane", "subgroup_sum_16", "16 iterations, the program 32", "split and reorder"),
    (row_sums, "lane", "subgroup_sum_33", "no instruction 'subgroup_sum_33'", "subgroup_sum_32"),
    (copies, "j", "copy_16_int8_to_shared", "'C' is global", "into shared memory"),
    (copies, "j", "subgroup_sum_16", "the template has", "split and reorder"),
    (dot, "k", "subgroup_sum_4_int32", "the template has", "split and reorder"),
]


@pytest.mark.parametrize("f,loop,name,message,hint", REFUSED)
def test_refused(f: PrimFunc, loop: str, name: str, message: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as e:
        tensorize(f, loop, name)
    assert message in e.value.message and hint in e.value.hint
    assert e.value.where == f"tensorize({loop!r}, {name!r})" or "no instruction" in message


@T.prim_func
def by_one_thread(A: T.Buffer((32,)), C: T.Buffer((32,))) -> None:
    for b in T.thread_binding(1, thread="blockIdx.x"):
        for y in T.thread_binding(32, thread="threadIdx.y"):
            for lane in range(32):
                C[b + y] = T.max(C[b + y], A[lane])


@T.prim_func
def without_blocks(A: T.Buffer((32,)), C: T.Buffer((1,))) -> None:
    for lane in range(32):
        C[0] = C[0] + A[lane]


def test_threads_that_do_not_come_by_together() -> None:
    with pytest.raises(ScheduleError, match="'y' around it is over threadIdx.y"):
        tensorize(by_one_thread, "lane", "subgroup_max_32")
    with pytest.raises(ScheduleError, match="no loop around it is over blockIdx"):
        tensorize(without_blocks, "lane", "subgroup_sum_32")


# ---- warps ---------------------------------------------------------------------------------------

FRAGMENTS = """
@T.prim_func
def matrices(A: T.Buffer((3, 16, 8), "float16"), C: T.Buffer((3, 32, 4), "float16")):
    for b in range(3):
        for i in range(16):
            for j in range(8):
                C[b, i % 8 * 4 + j // 2, i // 8 * 2 + j % 2] = A[b, i, j]
"""


def test_a_matrix_is_loaded_from_shared_memory() -> None:
    (f,) = from_source(FRAGMENTS).prim_funcs
    s = Schedule(f)
    s.bind("b", "blockIdx.x")
    with pytest.raises(ScheduleError, match="'A' is global"):
        s.tensorize("i", "warp_load_matrix_2_float16")
    copy = s.cache_read("C", "A", "shared", at="b")
    s.bind(copy.loops[-1], "threadIdx.x")
    s.tensorize("i", "warp_load_matrix_2_float16")
    verify(IRModule((s.func,)))
    want, outputs = numbers(f, 4), numbers(f, 4)
    run(f, want)
    run(s.func, outputs)
    np.testing.assert_array_equal(outputs["C"], want["C"])
    kernels = Kernels([s.func], Target({"kind": "cuda", "arch": "sm_80"}))
    (launch,) = kernels.launches("matrices")
    races = races_of(kernels.func(launch.name))
    assert races.proved, races
    kernels.aligned = True
    kernels.run("matrices", {}, *want.values())
    np.testing.assert_array_equal(outputs["C"], want["C"])
    with pytest.raises(UnsupportedError, match="warp_load_matrix_2 is an instruction"):
        emit_opencl([kernels.func(launch.name)], OPENCL)


DEVICE = """
@ir_module
class Module:
    @T.prim_func
    def f(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        T.func_attr({{"device_function": True}})
        for b in T.thread_binding(1, thread="blockIdx.x"):
            for t in T.thread_binding({threads}, thread="threadIdx.x"):
                {line}
"""
MALFORMED = {
    "if t < 8:\n                    C[t] = T.subgroup_sum(A[t], 32)": "stands in a branch",
    "while C[t] < 1.0:\n                    C[t] = T.subgroup_max(A[t], 32)": "in a while loop",
    "for k in range(t):\n                    C[t] = T.subgroup_sum(A[t], 32)": "no constant length",
    "C[t] = T.subgroup_sum(A[t], t)": "over a sub-group of t threads",
    "C[t] = T.subgroup_sum(A[t], 24)": "over a sub-group of",
    "C[t] = T.Cast('float32', T.subgroup_sum(T.Cast('float64', A[t]), 32))": "of float64, int64",
}


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed(line: str) -> None:
    with pytest.raises(InternalError, match=MALFORMED[line]):
        verify(from_source(DEVICE.format(line=line, threads=32)))
    with pytest.raises(InternalError, match="over 32 threads in a nest of 48"):
        verify(from_source(DEVICE.format(line="C[t] = T.subgroup_sum(A[t], 32)", threads=48)))
