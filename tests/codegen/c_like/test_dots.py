"""Dot products of narrow numbers as C and by LLVM: instructions where a processor has them, and the
same sums where it has none."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import DOTS, IntImm, Ramp, intrin
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc, Store
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tensorkiln.target.dots import SMALL_WEIGHT
from tests import processors
from tests.codegen.c_like.build import compiler
from tests.codegen.kernels import program
from tests.emulated.machine import load

LANES = (1, 2, 4, 8, 16)
TARGETS = {
    "sse2": Target("c"),
    "ssse3": Target({"kind": "c", "mcpu": "x86-64-v2"}),
    "avx2": Target({"kind": "c", "mcpu": "haswell"}),
    "neon": Target({"kind": "c", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}),
    "dotprod": Target({"kind": "c", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}),
    "i8mm": Target(
        {"kind": "c", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a55", "mattr": ["+i8mm"]}
    ),
}
ARM = ("neon", "dotprod", "i8mm")
# Processors that this machine need not be: their C is compiled, not run.
COMPILED = {
    "vnni": Target({"kind": "c", "mcpu": "icelake-server"}),
    "avxvnni": Target({"kind": "c", "mcpu": "alderlake"}),
}
# What stands in the C where the processor has an instruction for 128 bits.
INSTRUCTION = {
    "sse2": "_mm_madd_epi16",
    "ssse3": "_mm_maddubs_epi16",
    "avx2": "_mm256_maddubs_epi16",
    "dotprod": "vdotq_s32",
    "i8mm": "vusdotq_s32",
    "vnni": "_mm512_dpbusd_epi32",
    "avxvnni": "_mm256_dpbusd_avx_epi32",
}


def kernel(name: str, lanes: int) -> PrimFunc:
    (sums, _), (left_dtype, count), (right, _) = DOTS[name]

    def body(c, a, b, out):  # noqa: ANN001, ANN202
        def vector(buf, n):  # noqa: ANN001, ANN202
            return Load(buf, (Ramp(IntImm(0), IntImm(1), n) if n > 1 else IntImm(0),))

        index = Ramp(IntImm(0), IntImm(1), lanes) if lanes > 1 else IntImm(0)
        value = intrin(name, vector(c, lanes), vector(a, count * lanes), vector(b, count * lanes))
        return Store(out, (index,), value)

    shapes = [((lanes,), sums), ((count * lanes,), left_dtype), ((count * lanes,), right)]
    return program(f"{name}_{lanes}", [*shapes, ((lanes,), sums)], body)


KERNELS = tuple(kernel(name, lanes) for name in DOTS for lanes in LANES)


def made(target: Target) -> tk.Executable:
    return tk.compile(IRModule(KERNELS, "kernels"), target, relax_pipeline=None)


@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize(
    "level", [pytest.param(x, marks=[pytest.mark.emulated] * (x in ARM)) for x in TARGETS]
)
def test_sums_are_exact_and_wrap_around(level: str) -> None:
    executable = made(TARGETS[level])
    text = executable.artifacts["kernels.c"].text()
    assert INSTRUCTION.get(level, "vector_size") in text
    local = level not in ARM
    run = Executor(executable.jit(compiler("gcc", "-O1"))) if local else load(executable)
    rng = np.random.default_rng(1)
    for name in ("dot4", "dot4_small", "dot2"):
        (_, _), (left_dtype, count), (right, _) = DOTS[name]
        for lanes in LANES:
            for extreme in (False, True):
                c = rng.integers(-(1 << 31), 1 << 31, lanes, "int32")
                a, b = (drawn(rng, d, count * lanes, extreme) for d in (left_dtype, right))
                if name == "dot4_small":
                    b = b.clip(-SMALL_WEIGHT, SMALL_WEIGHT)
                products = a.astype("int64") * b.astype("int64")
                want = (c + products.reshape(lanes, count).sum(1)).astype("int32")
                output = np.zeros(lanes, "int32")
                run[f"{name}_{lanes}"](c, a, b, output)
                np.testing.assert_array_equal(output, want, err_msg=f"{name} {lanes}")


# Of bfloat16: kind, processor, and what stands in its text where there is an instruction.
BF16 = {
    "sse2": ({}, ""),
    "avx2": ({"mcpu": "haswell"}, ""),
    "avx512": ({"mcpu": "skylake-avx512"}, ""),
    "avx512bf16": ({"mcpu": "cooperlake"}, "dpbf16"),
    "neon": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, ""),
    "bf16": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a55", "mattr": ["+bf16"]}, "bfdot"),
}


@pytest.mark.in_turn("level")
@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("kind", ["llvm", "c"])
@pytest.mark.parametrize(
    "level", [pytest.param(x, marks=[pytest.mark.emulated] * (x in ("neon", "bf16"))) for x in BF16]
)
def test_sums_of_bfloat16(kind: str, level: str) -> None:
    """Products of numbers of few bits, whose sums are exact in any order, and of random ones,
    within the rounding of three additions. Infinities and NaN stay what they are."""
    options, instruction = BF16[level]
    target = Target({"kind": kind, **options})
    executable = made(target)
    artifacts = executable.artifacts
    text = "".join(a.text() for a in artifacts if a.file_name.endswith((".s", "kernels.c")))
    assert ("dpbf16" in text or "bfdot" in text) == bool(instruction)
    assert instruction in text
    runs_here = target.arch != "aarch64"
    if runs_here:
        processors.require(target)
        run = Executor(executable.jit(compiler("gcc", "-O1")) if kind == "c" else executable.jit())
    else:
        run = load(executable)
    rng = np.random.default_rng(1)
    for lanes in LANES:
        few = rng.integers(-8, 8, (3, 2 * lanes)).astype("float32")
        many = rng.standard_normal((3, 2 * lanes)).astype("float32")
        odd = few.copy()
        odd[1, 0], odd[2, 0] = np.inf, np.nan
        for values in (few, many, odd):
            c = values[0, :lanes].copy()
            a, b = (v.astype(ml_dtypes.bfloat16) for v in values[1:])
            products = a.astype("float64") * b.astype("float64")
            want = c + products.reshape(lanes, 2).sum(1)
            output = np.zeros(lanes, "float32")
            run[f"dot2_bf16_{lanes}"](c, a, b, output)
            error_bound = 3 * 2**-23 * (np.abs(c) + np.abs(products).reshape(lanes, 2).sum(1))
            exact = values is few
            np.testing.assert_allclose(
                output,
                want,
                rtol=0,
                atol=0 if exact else np.nan_to_num(error_bound, posinf=0).max(),
            )


def drawn(rng: np.random.Generator, dtype: str, n: int, extreme: bool) -> np.ndarray:
    info = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([info.min, info.max], dtype), n)
    return rng.integers(info.min, info.max, n, dtype, endpoint=True)


@pytest.mark.in_turn("command")
@pytest.mark.parametrize("level", COMPILED)
@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_instructions_of_other_processors_compile(level: str, command: str, tmp_path: Path) -> None:
    """Under the flags of STRICT; the library is not loaded."""
    executable = made(COMPILED[level])
    assert INSTRUCTION[level] in executable.artifacts["kernels.c"].text()
    path = executable.export_library(tmp_path / "dots.so", fcompile=compiler(command, "-O2"))
    assert path.is_file()
