"""Products on tensor cores, on the emulator of CUDA, against float64; which targets have them; and
what NVIDIA's assembler makes of them."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernels.case import Build, rand
from tensorkiln.link import ptxas
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.schedule.intrin.fragments import mma_parts, shape_for
from tensorkiln.target import Target
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.emulator.launch import BACKWARD, FORWARD, RANDOM, Emulated, EmulatorFault
from tests.cuda.test_ptx import assembled
from tests.schedule.battery import Battery, Case, arguments, typed
from tests.schedule.gpu.runner import DeviceRunner, Kernels, groups_for
from tests.transform.device_programs import barriers, without_barrier
from tests.transform.graphs import graph

TENSOR_CORES = "gpu_tensor_cores"
N, S = Var("N"), Var("S")
TF32 = {"kind": "cuda", "arch": "sm_80", "matmul_precision": "tf32"}
HALVES = Target({"kind": "cuda", "arch": "sm_80"})
# The first GPUs with tensor cores have smaller shapes; the same library runs on later ones.
OLD = {"float16, sm_75": Target("cuda"), "integers, sm_75": Target("cuda")}
TARGETS = {"float32": Target(TF32), **OLD}
# Bits of the results' type, and of the factors that are multiplied.
BITS = {"float16": (11, 11), "bfloat16": (8, 8), "float32": (24, 11)}


def target_of(dtype: str) -> Target:
    return TARGETS.get(dtype, HALVES)


# ---- the table of products -----------------------------------------------------------------------

Shape = Sequence[Any]


@dataclass(frozen=True)
class Product:
    """A graph of products, of parameters of these shapes (of `types`: given ones), and what it has
    to add up: `terms` for each element. `sizes`: values of symbols."""

    build: Build
    shapes: Sequence[Shape]
    terms: int
    sizes: Sequence[Mapping[str, int]] = ({},)


def conv(**attrs: Any) -> Build:
    """A convolution of these attributes."""
    return lambda g, x, w, *bias: g.conv2d(x, w, *bias, **attrs)


def linear(g: Any, x: Any, w: Any) -> Any:
    """A product."""
    return g.linear(x, w)


EACH_SIZE = [{"N": 1}, {"N": 17}, {"N": 130}]
FLOATS: dict[str, Product] = {
    "aligned": Product(linear, [(64, 64), (64, 64)], 64),
    "whole tiles": Product(linear, [(128, 96), (96, 64)], 96),
    "odd": Product(linear, [(37, 51), (51, 29)], 51),
    "even": Product(linear, [(37, 50), (50, 30)], 50),
    "tiny": Product(linear, [(8, 3), (3, 9)], 3),
    "one term": Product(linear, [(9, 1), (1, 8)], 1),
    "wide": Product(linear, [(9, 40), (40, 200)], 40),
    "tall": Product(linear, [(200, 40), (40, 9)], 40),
    "symbolic rows": Product(linear, [(N, 40), (40, 24)], 40, EACH_SIZE),
    "symbolic batch": Product(
        lambda g, x, y: g.matmul(x, y, transpose_b=True),
        [(2, S, 24), (2, S, 24)],
        24,
        [{"S": 1}, {"S": 20}],
    ),
    "symbolic terms": Product(
        lambda g, x, y: g.matmul(x, y), [(17, N), (N, 24)], 130, [{"N": 3}, {"N": 130}]
    ),
    "batch": Product(lambda g, x, y: g.matmul(x, y), [(3, 20, 16), (3, 16, 24)], 16),
    "broadcast batch": Product(lambda g, x, y: g.matmul(x, y), [(3, 20, 16), (16, 24)], 16),
    "transposed a": Product(
        lambda g, x, y: g.matmul(x, y, transpose_a=True), [(48, 32), (48, 40)], 48
    ),
    "transposed b": Product(
        lambda g, x, y: g.matmul(x, y, transpose_b=True), [(32, 48), (40, 48)], 48
    ),
    "both transposed": Product(
        lambda g, x, y: g.matmul(x, y, transpose_a=True, transpose_b=True),
        [(33, 18), (27, 33)],
        33,
    ),
    "bias and relu": Product(
        lambda g, x, w, bias: g.relu(g.linear(x, w, bias)), [(33, 40), (40, 25), (25,)], 40
    ),
    "residual": Product(
        lambda g, x, w, r: g.relu(g.add(g.linear(x, w), r)), [(33, 40), (40, 24), (33, 24)], 40
    ),
    "prologue": Product(lambda g, x, w: g.linear(g.relu(x), w), [(20, 64), (64, 24)], 64),
    "convolution": Product(conv(padding=(1, 1, 1, 1)), [(2, 8, 7, 9), (20, 8, 3, 3), (20,)], 72),
    "strides": Product(conv(strides=(2, 2)), [(1, 5, 11, 13), (16, 5, 3, 3)], 45),
    "one by one": Product(conv(), [(2, 32, 6, 8), (24, 32, 1, 1)], 32),
    "groups": Product(
        conv(padding=(1, 1, 1, 1), groups=2), [(N, 8, 5, 7), (32, 4, 3, 3)], 36, [{"N": 2}]
    ),
}
INTEGERS: dict[str, Product] = {
    "linear": Product(linear, [(40, 64), (64, 48)], 64),
    "odd": Product(linear, [(37, 51), (51, 29)], 51),
    "tiny": Product(linear, [(8, 3), (3, 9)], 3),
    "symbolic": Product(linear, [(N, 132), (132, 16)], 132, EACH_SIZE),
    "bias": Product(lambda g, x, w, b: g.linear(x, w, b), [(20, 32), (32, 24), (24,)], 32),
    "convolution": Product(conv(padding=(1, 1, 1, 1)), [(2, 6, 7, 9), (20, 6, 3, 3)], 54),
    "one by one": Product(conv(), [(1, 32, 4, 8), (16, 32, 1, 1)], 32),
}
# Types of parameters; the last is that of all further ones.
BYTES = ("uint8", "int8", "int32")
TYPES = {t: (t,) for t in BITS} | {"integers": BYTES}
TYPES |= {"float16, sm_75": ("float16",), "integers, sm_75": BYTES}


def table(types: str) -> Mapping[str, Product]:
    return INTEGERS if types.startswith("integers") else FLOATS


CASES = [(t, n) for t in TYPES for n in table(t)]
# Those of every run.
OFTEN = [
    (types, name)
    for types, names in {
        "float16": (
            *("aligned", "odd", "tiny", "batch", "transposed a", "transposed b", "residual"),
            *("symbolic rows", "symbolic batch", "symbolic terms", "bias and relu", "prologue"),
            *("convolution", "groups"),
        ),
        "bfloat16": ("odd", "transposed a"),
        "float32": ("aligned", "odd", "symbolic rows"),
        "integers": ("linear", "odd", "symbolic", "bias", "convolution"),
        "float16, sm_75": ("odd", "transposed a", "residual", "convolution"),
        "integers, sm_75": ("odd", "symbolic", "convolution"),
    }.items()
    for name in names
]
ORDERS = [(FORWARD, 0), (BACKWARD, 0), (RANDOM, 1)]


def whole_range(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """All values of integers of 8 bits; normal floats."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


@cache
def runner(types: str, whole: bool) -> DeviceRunner:
    """The products of a type, all of them or those of every run, scheduled and built."""
    b, dtypes = Battery(), TYPES[types]
    for t, name in CASES if whole else OFTEN:
        if t == types:
            p = table(types)[name]
            params = [typed(dtypes[min(k, len(dtypes) - 1)], *s) for k, s in enumerate(p.shapes)]
            b.add(name.replace(" ", "_"), p.build, *params, sizes=p.sizes, make=whole_range)
    return DeviceRunner(b, target=target_of(types))


def largest_error(case: Case, terms: int, inputs: Mapping[str, Any], sizes: Any) -> np.ndarray:
    """By how much a result may differ from the exact one, element by element.

    With m, the sum of the magnitudes of all that is added: each of `terms` sums in float32 may be
    rounded towards zero (2^-23 of m), a factor that is rounded to b bits adds 2^-b of m, and the
    product, the bias and what comes after them are rounded to the result's type once each."""
    magnitudes = {k: np.abs(x) for k, x in inputs.items()}
    (m,) = evaluate(case.function, magnitudes, sizes, dtype="float64")
    out = case.function.result.type
    assert isinstance(out, TensorType)
    bits, factors = BITS[out.dtype.name]
    rounded = 2 * 2.0**-factors if bits != factors else 0.0
    return np.asarray((terms + 1) * 2.0**-23 + rounded + 3 * 2.0**-bits) * m


@pytest.mark.in_turn("types")
@pytest.mark.parametrize(("types", "name"), OFTEN)
def test_products(types: str, name: str) -> None:
    """In several orders of threads, of arrays that are aligned to 16 bytes or to an element."""
    check(types, name, runner(types, False))


@pytest.mark.fuzz
@pytest.mark.parametrize(("types", "name"), CASES)
def test_all_products(types: str, name: str) -> None:
    check(types, name, runner(types, True))


def check(types: str, name: str, device_runner: DeviceRunner) -> None:
    """A product against float64; integers exactly."""
    case = device_runner.battery.cases[name.replace(" ", "_")]
    assert {f.op_class for f in device_runner.mod.prim_funcs} == {TENSOR_CORES}
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
        for aligned in (True, False):
            device_runner.kernels.aligned, device_runner.kernels.order = (
                aligned,
                ORDERS[(k + aligned) % 3],
            )
            (output,) = launched(device_runner, case, inputs, sizes)
            if types.startswith("integers"):
                np.testing.assert_array_equal(output, want)
                continue
            error = np.abs(output.astype(np.float64) - want)
            allowed = largest_error(case, table(types)[name].terms, inputs, sizes)
            assert (error <= allowed).all(), f"{(error - allowed).max()} too much"


def launched(
    device_runner: DeviceRunner, case: Case, inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[np.ndarray]:
    kernels = device_runner.kernels
    packed = {n: lambda *a, n=n: kernels.run(n, sizes, *a) for n in kernels.names}
    return list(evaluate(device_runner.mod, inputs, sizes, function=case.name, packed=packed))


# ---- proofs --------------------------------------------------------------------------------------


def scheduled(types: str, p: Product, target: Target, check: bool = False) -> PrimFunc:
    """The kernel of a product."""
    dtypes, b = TYPES[types], Battery()
    params = [typed(dtypes[min(k, len(dtypes) - 1)], *s) for k, s in enumerate(p.shapes)]
    b.add("one", p.build, *params)
    *_, group = groups_for(IRModule((b.cases["one"].function,)), target)
    return schedule_group(group, target, check=check)


def device_function(f: PrimFunc, target: Target) -> PrimFunc:
    kernels = Kernels([f], target)
    (launch,) = kernels.launches(f.name)
    return kernels.func(launch.name)


PROVED = [
    *(("float16", n) for n in ("odd", "symbolic batch", "transposed a", "residual", "convolution")),
    *(("float32", n) for n in ("aligned", "groups")),
    *(("integers", n) for n in ("linear", "one by one")),
    *((t, "odd") for t in OLD),
]
# Where vectors are whole, shared memory is accessed without conflicts.
WITHOUT_CONFLICTS = ("aligned", "whole tiles", "symbolic batch", "one by one")


def prove(types: str, name: str) -> None:
    """Every step of a schedule is proved, and that no thread disturbs another."""
    target = target_of(types)
    f = scheduled(types, table(types)[name], target, check=True)
    assert f.op_class == TENSOR_CORES
    kernels = Kernels([f], target)
    (launch,) = kernels.launches(f.name)
    races = races_of(kernels.checked(launch.name))
    assert not races.faults, races.faults[0]
    assert not races.doubts, races.doubts
    if name in WITHOUT_CONFLICTS:
        assert not [n for n in races.notes if n.kind == "bank conflict"], races.notes


@pytest.mark.in_turn("types")
@pytest.mark.parametrize(("types", "name"), PROVED)
def test_every_step_is_proved_and_no_thread_races(types: str, name: str) -> None:
    prove(types, name)


@pytest.mark.fuzz
@pytest.mark.parametrize(("types", "name"), CASES)
def test_all_are_proved(types: str, name: str) -> None:
    prove(types, name)


# ---- which targets have them ---------------------------------------------------------------------

WITH = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
WITHOUT: tuple[dict[str, object], ...] = (
    {"kind": "cuda", "arch": "sm_72"},
    {"kind": "cuda", "arch": "sm_90", "also": ["sm_70"]},
    {"kind": "cuda", "arch": "sm_80", "max_num_threads": 16},
    {"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 4096},
    {"kind": "opencl"},
)
ALIGNED = {t: table(t)["odd"] for t in TYPES}


@pytest.mark.parametrize("types", TYPES)
def test_targets_with_tensor_cores(types: str) -> None:
    for arch in ("sm_75", *WITH) if types in OLD else WITH:
        target = Target({**target_of(types).to_json(), "arch": arch})
        assert scheduled(types, ALIGNED[types], target).op_class == TENSOR_CORES


def test_types_that_the_first_tensor_cores_lack() -> None:
    """They are multiplied without; with `also`, all architectures are what the oldest is."""
    for options in ({"arch": "sm_75"}, {"arch": "sm_90", "also": ["sm_75"]}):
        target = Target({"kind": "cuda", **options})
        for types, has in (("float16", True), ("integers", True), ("bfloat16", False)):
            op_class = scheduled(types, ALIGNED[types], target).op_class
            assert (op_class == TENSOR_CORES) == has, (options, types)


@pytest.mark.parametrize("types", [t for t in TYPES if t != "float32"])
def test_targets_without(types: str) -> None:
    """They compute it in another way."""
    for options in WITHOUT:
        if types != "bfloat16" or options["kind"] == "cuda":
            op_class = scheduled(types, ALIGNED[types], Target(options)).op_class
            assert op_class in ("gpu_contraction", "gpu_loops"), options


def test_float32_is_strict_unless_it_is_asked_for() -> None:
    for options in ({"arch": "sm_90"}, {"arch": "sm_80", "matmul_precision": "float32"}):
        target = Target({"kind": "cuda", **options})
        assert target["matmul_precision"] == "float32"
        assert scheduled("float32", ALIGNED["float32"], target).op_class == "gpu_contraction"
    for old in ({"arch": "sm_75"}, {"arch": "sm_80", "also": ["sm_70"]}):
        with pytest.raises(UserError, match="sm_7[05] has no tensor cores for tf32") as caught:
            Target({"kind": "cuda", "matmul_precision": "tf32", **old})
        assert caught.value.code == "contradiction" and "sm_80 or newer" in str(caught.value)
    with pytest.raises(UserError, match="unknown value 'tf3'"):
        Target({**TF32, "matmul_precision": "tf3"})


def test_few_rows_are_no_tiles() -> None:
    for shapes in ([(7, 64), (64, 64)], [(64, 64), (64, 7)]):
        kernel = scheduled("float16", Product(linear, shapes, 64), HALVES)
        assert kernel.op_class != TENSOR_CORES


@pytest.mark.parametrize("dtype", ["float64", "int32", "int16"])
def test_other_types(dtype: str) -> None:
    b = Battery()
    wide = {"wide": True} if dtype == "int16" else {}
    b.add("one", lambda g, x, y: g.matmul(x, y, **wide), typed(dtype, 16, 16), typed(dtype, 16, 16))
    *_, group = groups_for(IRModule((b.cases["one"].function,)), Target(TF32))
    assert schedule_group(group, Target(TF32)).op_class != TENSOR_CORES


def test_instructions_that_an_architecture_lacks() -> None:
    """The instruction, and for which type it came later."""
    for types, old, instruction_text in (
        ("float16", "sm_72", "warp_load_matrix_4, which needs compute capability 7.5"),
        ("float16", "sm_75", "warp_mma_m16n8k16, which needs compute capability 8.0"),
        ("float32", "sm_75", "thread_round_tf32, which needs compute capability 8.0"),
    ):
        target = target_of(types)
        f = device_function(scheduled(types, ALIGNED[types], target), target)
        for options in ({"arch": old}, {"arch": "sm_90", "also": [old]}):
            with pytest.raises(
                UnsupportedError, match=rf"{old} does not have {instruction_text}"
            ) as caught:
                emit_ptx_ir(f, Target({"kind": "cuda", **options}))
            assert re.search("sm_(75|80) or newer", str(caught.value))


# ---- NVIDIA's assembler --------------------------------------------------------------------------


def _whole(g: Any, x: Any, w: Any, bias: Any, r: Any) -> Any:
    return g.relu(g.add(g.linear(x, w, bias), r))


# Tiles of the largest size, with all that a group may add.
LARGE = {
    "whole": Product(_whole, [(4096, 1024), (1024, 4096), (4096,), (4096, 4096)], 1024),
    "odd": Product(_whole, [(4091, 1023), (1023, 4091), (4091,), (4091, 4091)], 1023),
    "convolution": Product(
        conv(padding=(1, 1, 1, 1)), [(8, 128, 56, 56), (128, 128, 3, 3), (128,)], 1152
    ),
}
ASSEMBLED = [
    ("float16", "whole", "sm_80"),
    ("float16", "odd", "sm_80"),
    ("bfloat16", "whole", "sm_89"),
    ("float32", "whole", "sm_90a"),
    ("integers", "convolution", "sm_120a"),
    ("float16, sm_75", "odd", "sm_75"),
    ("integers, sm_75", "convolution", "sm_75"),
]


@pytest.mark.in_turn()
@pytest.mark.parametrize(("types", "name", "arch"), ASSEMBLED)
def test_the_assembler_takes_them(types: str, name: str, arch: str, tmp_path: Path) -> None:
    assemble(types, name, arch, tmp_path)


@pytest.mark.fuzz
@pytest.mark.parametrize("arch", WITH)
@pytest.mark.parametrize(("types", "name"), [(t, n) for t in (*BITS, *OLD) for n in LARGE])
def test_the_assembler_takes_all(types: str, name: str, arch: str, tmp_path: Path) -> None:
    assemble(types, name, arch, tmp_path)


def assemble(types: str, name: str, arch: str, folder: Path) -> None:
    """Without spills; the products are those of tensor cores."""
    if ptxas.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    target = target_of(types)
    f = device_function(scheduled(types, LARGE[name], target), target)
    text = ptx_of({f.name: emit_ptx_ir(f, target)}, [arch])[arch]
    (message,) = assembled(text, arch, folder).values()
    assert "0 bytes spill stores, 0 bytes spill loads" in message, message
    opcode_counts = opcodes(folder / "k.cubin")
    # A warp has 4 x 8 products for each half of 64 bytes of terms, of one instruction or more; a
    # function may have two bodies, one for tensors that are aligned.
    integers, dtype = types.startswith("integers"), DType(TYPES[types][0])
    product_count = 64 * len(mma_parts(dtype, shape_for(dtype, 75 if types in OLD else 80)))
    assert opcode_counts["IMMA" if integers else "HMMA"] in (product_count, 2 * product_count), (
        opcode_counts
    )
    assert opcode_counts["LDSM"] > 0


def opcodes(cubin: Path) -> Counter[str]:
    """How often each instruction occurs in code for a chip."""
    path = ptxas.ptxas_path()
    tool = path and path.parent / "nvdisasm"
    if tool is None or not tool.exists():
        pytest.skip("nvdisasm is not installed")
    command = [str(tool), "-c", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9]+)", text, re.M)
    return Counter(names)


# ---- barriers ------------------------------------------------------------------------------------


def test_every_barrier_is_missed() -> None:
    f = device_function(scheduled("float16", FLOATS["whole tiles"], HALVES), HALVES)
    shared, grid = launch_of(f).shared_bytes, [int_value(n) for n in launch_of(f).grid]
    count = barriers(f)
    without_barriers = [replace(without_barrier(f, k), name=f"less_{k}") for k in range(count)]
    kernels = Emulated([emit_ptx_ir(g, HALVES) for g in (f, *without_barriers)])
    kernels.aligned = True
    shapes = ((128, 96), (96, 64), (128, 64))
    arrays = [np.ones(shape, np.float16) for shape in shapes]
    kernels.run(f.name, grid, launch_of(f).block, arrays, shared)
    assert count > 2
    for k in range(count):
        with pytest.raises(
            EmulatorFault, match=r"thread .* (with no barrier between them|has waited for its copy)"
        ):
            kernels.run(f"less_{k}", grid, launch_of(f).block, arrays, shared)


# ---- models --------------------------------------------------------------------------------------


def test_a_model() -> None:
    """Products are on tensor cores in a whole compile, and so in its PTX."""
    mod = graph(lambda g, x: g.relu(g.linear(x, rand(64, 48))), x=(N, 64))
    for target, expected in ((TF32, True), ({"kind": "cuda", "arch": "sm_80"}, False)):
        exe = tk.compile(mod, target)
        text = exe.artifacts["cuda/cuda/kernels.sm_80.ptx"].text()
        assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text) == expected
        assert {p.kernel_class for p in exe.placement()} == (
            {TENSOR_CORES} if expected else {"gpu_contraction"}
        )
