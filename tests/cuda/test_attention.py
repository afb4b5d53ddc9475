"""Attention on tensor cores, on the emulator of CUDA, against float64; which targets have it; what
NVIDIA's assembler makes of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.families.attention_tensor_cores.gpu_row import tile_of
from tensorkiln.ir.expr import ExprLike, Var, int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.case import Graph
from tensorkiln.link import ptxas
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.emulator.launch import Emulated, EmulatorFault
from tests.cuda.test_ptx import assembled
from tests.cuda.test_tensor_cores import ORDERS, device_function, launched, opcodes
from tests.schedule.battery import Battery, arguments, extent_of, typed
from tests.schedule.gpu.runner import DeviceRunner, Kernels, groups_for
from tests.transform.device_programs import barriers, without_barrier
from tests.transform.graphs import graph, main

CLASS = "gpu_attention_tensor_cores"
N, S, T = Var("N"), Var("S"), Var("T")
# Bits of the type of operands, of weights and of results.
BITS = {"float16": 11, "bfloat16": 8}
TARGETS = {
    "float16": Target({"kind": "cuda", "arch": "sm_80"}),
    "bfloat16": Target({"kind": "cuda", "arch": "sm_80"}),
    "float16, sm_75": Target("cuda"),
}


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """q of [batch, heads, rows, depth], keys, values of `width`; a `mask` of bool or of the type
    of the others, with these dimensions of [batch, heads, rows, keys] (1 for others). `groups`:
    keys and values have so many heads, each for several of the queries. `apart`: operands are
    slices of one tensor, [batch, rows, heads * size], and the result is such a tensor."""

    batch: ExprLike
    heads: int
    rows: ExprLike
    keys: ExprLike
    depth: int
    width: int
    causal: bool = False
    mask: str = ""
    dims: tuple[int, ...] = (2, 3)
    unseen: str = "zero"
    groups: int = 0
    apart: bool = False
    sizes: Sequence[Mapping[str, int]] = ({},)

    def params(self, dtype: str) -> list[TensorType]:
        """Of q, k, v and the mask."""
        b, h = self.batch, self.groups or self.heads
        shapes = [(b, n, self.keys, size) for n, size in ((h, self.depth), (h, self.width))]
        shapes.insert(0, (b, self.heads, self.rows, self.depth))
        if self.apart:
            shapes = [(x, rows, n * size) for x, n, rows, size in shapes]
        types = [typed(dtype, *s) for s in shapes]
        if self.mask:
            whole = (b, self.heads, self.rows, self.keys)
            shape = [e if d in self.dims else 1 for d, e in enumerate(whole)]
            types.append(typed("bool" if self.mask == "bool" else dtype, *shape))
        return types

    def build(self, g: Graph, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        """The graph."""
        if self.apart:
            q, k, v = (
                self._heads(g, x, size)
                for x, size in ((q, self.depth), (k, self.depth), (v, self.width))
            )
        if self.groups:
            k, v = (self._repeated(g, x) for x in (k, v))
        output = g.attention(q, k, v, *mask, scale=0.3, causal=self.causal, unseen=self.unseen)
        if self.apart:
            shape = (self.batch, self.rows, self.heads * self.width)
            output = g.reshape(g.transpose(output, axes=(0, 2, 1, 3)), shape=shape)
        return output

    def _heads(self, g: Graph, x: Any, size: int) -> Any:
        b, rows, _ = x.tensor.shape
        y = g.reshape(x, shape=(b, rows, self.heads, size))
        return g.transpose(y, axes=(0, 2, 1, 3))

    def _repeated(self, g: Graph, x: Any) -> Any:
        b, groups, rows, size = x.tensor.shape
        times = self.heads // self.groups
        y = g.broadcast_to(
            g.reshape(x, shape=(b, groups, 1, rows, size)), shape=(b, groups, times, rows, size)
        )
        return g.reshape(y, shape=(b, self.heads, rows, size))


CASES: dict[str, Attention] = {
    "one key": Attention(1, 2, 3, 1, 16, 16),
    "one query": Attention(1, 2, 1, 70, 64, 64),
    "one query, causal": Attention(1, 2, 1, 70, 64, 64, causal=True),
    "whole tiles": Attention(1, 2, 64, 128, 64, 64),
    "odd": Attention(2, 1, 37, 53, 20, 5),
    "odd, causal": Attention(1, 1, 70, 53, 33, 65, causal=True),
    "more keys, causal": Attention(1, 2, 20, 70, 32, 32, causal=True),
    "rows that see no key": Attention(1, 1, 40, 17, 16, 16, causal=True, unseen="zero"),
    "head 128": Attention(1, 1, 70, 40, 128, 128, causal=True),
    "head 256": Attention(1, 1, 33, 35, 256, 256),
    "wide values": Attention(1, 1, 20, 20, 16, 256),
    "a large head of keys": Attention(1, 1, 20, 20, 240, 16),
    "full device": Attention(16, 8, 20, 40, 16, 16),
    "bool mask": Attention(2, 2, 30, 41, 32, 32, mask="bool", dims=(0, 2, 3)),
    "bool mask of whole tiles": Attention(1, 2, 128, 128, 32, 32, mask="bool", dims=(2, 3)),
    "mask of whole tiles": Attention(1, 2, 128, 128, 32, 32, mask="numbers", dims=(2, 3)),
    "bool mask of keys": Attention(2, 2, 30, 64, 32, 32, mask="bool", dims=(0, 3)),
    "mask": Attention(2, 2, 30, 64, 32, 32, mask="numbers"),
    "mask, causal": Attention(1, 2, 64, 32, 32, 32, mask="numbers", dims=(1, 2, 3), causal=True),
    "nothing seen is nan": Attention(1, 1, 20, 20, 16, 16, mask="bool", unseen="nan"),
    "grouped queries": Attention(1, 6, 20, 40, 16, 16, groups=2),
    "grouped queries, causal": Attention(2, 4, 24, 40, 16, 24, groups=1, causal=True),
    "heads apart": Attention(2, 3, 20, 40, 16, 16, apart=True),
    "heads apart, odd": Attention(2, 3, 21, 18, 10, 6, apart=True, causal=True),
    "symbolic": Attention(
        N,
        *(2, S, T, 24, 20),
        causal=True,
        sizes=[{"N": n, "S": s, "T": t} for n, s, t in ((1, 1, 9), (2, 40, 33), (1, 19, 100))],
    ),
    "symbolic, masked": Attention(
        1, 2, S, T, 16, 16, mask="bool", sizes=[{"S": s, "T": t} for s, t in ((1, 1), (35, 70))]
    ),
    "symbolic, apart": Attention(
        *(N, 2, S, S, 16, 16), apart=True, sizes=[{"N": 1, "S": 17}, {"N": 2, "S": 64}]
    ),
}
ALL = [(t, name) for t in TARGETS for name in CASES]
# Those of every run.
OFTEN = [
    *(("float16", name) for name in CASES if name not in ("head 256", "full device")),
    *(("bfloat16", n) for n in ("odd, causal", "head 256", "mask", "symbolic, apart")),
    *(("float16, sm_75", n) for n in ("odd", "head 128", "bool mask")),
]


def made_up(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers; a fifth of a mask of bool is false, and some of its rows as a whole."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        values = rng.random(shape) < 0.8
        values[..., ::7, :] = False
        return values
    return rng.standard_normal(shape).astype(dtype)


@cache
def runner(types: str, whole: bool) -> DeviceRunner:
    """The attentions of a type, all of them or those of every run, scheduled and built."""
    b = Battery()
    for t, name in ALL if whole else OFTEN:
        if t == types:
            a = CASES[name]
            params = a.params(types.split(",")[0])
            b.add(named(name), a.build, *params, sizes=a.sizes, make=made_up)
    return DeviceRunner(b, target=TARGETS[types])


def named(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


# ---- against float64 -----------------------------------------------------------------------------


def exact(a: Attention, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What an attention gives, in float64, and by how much each element may differ from it.

    A score is a sum of `depth` products, each of which may be rounded towards zero in float32
    (2^-23), as may the scale, the mask and the exponent. A weight is as wrong as its score and the
    greatest one together, is rounded to the type of the values, and is zero below its least
    number, where the greatest weight is 1. Weights are added up in float32, and the result is
    rounded to its type once."""
    dtype = inputs[0].dtype
    q, k, v = (x.astype(np.float64) for x in inputs[:3])
    if a.apart:
        q, k, v = (x.reshape(*x.shape[:2], a.heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    if a.groups:
        k, v = (np.repeat(x, a.heads // a.groups, axis=1) for x in (k, v))
    scores, sizes = 0.3 * q @ k.swapaxes(2, 3), 0.3 * np.abs(q) @ np.abs(k).swapaxes(2, 3)
    if a.mask:
        mask = inputs[3]
        if mask.dtype == bool:
            scores = np.where(mask, scores, -np.inf)
        else:
            hidden = np.isneginf(mask)
            scores = scores + mask
            sizes = sizes + np.where(hidden, 0, np.abs(mask.astype(np.float64)))
    if a.causal:
        n, m = scores.shape[2:]
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, -np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        weights /= weights.sum(axis=3, keepdims=True)
        output = weights @ v
        if a.unseen == "zero":
            output = np.nan_to_num(output, nan=0.0)
            weights = np.nan_to_num(weights, nan=0.0)
        wrong = (q.shape[3] + 8) * 2.0**-23 * 2 * sizes.max(axis=3, keepdims=True) + 2.0**-20
        wrong = wrong + k.shape[2] * 2.0**-23 + 2.0 ** -BITS[dtype.name]
        error = 2 * wrong * (weights @ np.abs(v)) + 2.0 ** -BITS[dtype.name] * np.abs(output)
        smallest = float(ml_dtypes.finfo(dtype.name).smallest_subnormal)
        error = error + smallest * np.abs(v).sum(axis=2, keepdims=True) + smallest
    if a.apart:
        output, error = (
            x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) for x in (output, error)
        )
    return output, error


def check(types: str, name: str, device_runner: DeviceRunner) -> None:
    """In several orders of threads, of arrays that are aligned to 16 bytes or to an element."""
    a, case = CASES[name], device_runner.battery.cases[named(name)]
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        want, allowed = exact(a, list(inputs.values()))
        for aligned in (True, False):
            device_runner.kernels.aligned, device_runner.kernels.order = (
                aligned,
                ORDERS[(k + aligned) % 3],
            )
            (output,) = launched(device_runner, case, inputs, sizes)
            assert output.shape == want.shape
            np.testing.assert_array_equal(np.isnan(output), np.isnan(want))
            error = np.nan_to_num(np.abs(output.astype(np.float64) - want))
            assert (error <= np.nan_to_num(allowed)).all(), (error - allowed).max()


@pytest.mark.in_turn("types")
@pytest.mark.parametrize(("types", "name"), OFTEN)
def test_attention(types: str, name: str) -> None:
    check(types, name, runner(types, False))


@pytest.mark.fuzz
@pytest.mark.parametrize(("types", "name"), ALL)
def test_all_attentions(types: str, name: str) -> None:
    check(types, name, runner(types, True))


def classes_of(a: Attention, dtype: str, target_options: Mapping[str, object]) -> set[str]:
    """The classes of the kernels of an attention."""
    b, target = Battery(), Target(target_options)
    b.add("one", a.build, *a.params(dtype))
    mod = IRModule((b.cases["one"].function,))
    return {schedule_group(g, target).op_class for g in groups_for(mod, target)}


@pytest.mark.parametrize("name", [n for n, a in CASES.items() if not a.groups])
def test_one_kernel_computes_it(name: str) -> None:
    """With the moves before and after it, but for heads that are repeated, of which it reads the
    copies."""
    assert classes_of(CASES[name], "float16", {"kind": "cuda", "arch": "sm_80"}) == {CLASS}


def test_far_scores_and_low_masks() -> None:
    """Scores hundreds apart; the lowest number there is, for a whole row, hides nothing of it."""
    for dtype in BITS:
        a = Attention(1, 1, 24, 40, 16, 16, mask="numbers")
        b = Battery()
        b.add("one", a.build, *a.params(dtype))
        device_runner = DeviceRunner(b, target=TARGETS[dtype])
        rng = np.random.default_rng(3)
        q, k, v = (rng.integers(-9, 10, s).astype(dtype) for s in ((24, 16), (40, 16), (40, 16)))
        low = float(ml_dtypes.finfo(dtype).min)
        mask = np.zeros((24, 40), dtype)
        mask[1], mask[2, ::2], mask[3, 1:], mask[4] = low, low, low, -np.inf
        operands = [x[None, None] for x in (q, k, v, mask)]
        case = b.cases["one"]
        names = [p.name for p in case.function.params]
        device_runner.kernels.aligned = True
        (output,) = launched(device_runner, case, dict(zip(names, operands, strict=True)), {})
        if dtype == "bfloat16":  # scores vanish beside its lowest number
            mask[1] = 0
            operands[3] = mask[None, None]
            want, allowed = exact(a, operands)
            output, want, allowed = (np.delete(x, 1, axis=2) for x in (output, want, allowed))
        else:
            want, allowed = exact(a, operands)
        assert (np.abs(output.astype(np.float64) - want) <= allowed).all()
        assert (output[0, 0, 3 if dtype == "bfloat16" else 4] == 0).all()  # nothing is seen


# ---- proofs --------------------------------------------------------------------------------------


def scheduled(a: Attention, dtype: str, target: Target, check: bool = False) -> Any:
    """The last kernel of an attention."""
    b = Battery()
    b.add("one", a.build, *a.params(dtype))
    *_, group = groups_for(IRModule((b.cases["one"].function,)), target)
    return schedule_group(group, target, check=check)


def prove(types: str, name: str) -> None:
    """Every step of a schedule is proved, and that no thread disturbs another."""
    target = TARGETS[types]
    f = scheduled(CASES[name], types.split(",")[0], target, check=True)
    assert f.op_class == CLASS
    kernels = Kernels([f], target)
    (launch,) = kernels.launches(f.name)
    races = races_of(kernels.checked(launch.name))
    assert not races.faults, races.faults[0]
    assert not races.doubts, races.doubts


PROVED = ("odd", "head 128", "bool mask", "symbolic", "heads apart")


@pytest.mark.parametrize("name", PROVED)
def test_every_step_is_proved_and_no_thread_races(name: str) -> None:
    prove("float16", name)


@pytest.mark.fuzz
@pytest.mark.parametrize(("types", "name"), ALL)
def test_all_are_proved(types: str, name: str) -> None:
    prove(types, name)


def test_every_barrier_is_missed() -> None:
    a, target = Attention(1, 1, 64, 128, 64, 64), TARGETS["float16"]
    f = device_function(scheduled(a, "float16", target), target)
    shared, grid = launch_of(f).shared_bytes, [int_value(n) for n in launch_of(f).grid]
    count = barriers(f)
    without_barriers = [replace(without_barrier(f, k), name=f"less_{k}") for k in range(count)]
    kernels = Emulated([emit_ptx_ir(g, target) for g in (f, *without_barriers)])
    kernels.aligned = True
    arrays = [np.ones((1, 1, n, 64), np.float16) for n in (64, 128, 128, 64)]
    kernels.run(f.name, grid, launch_of(f).block, arrays, shared)
    assert (arrays[3] == 1).all() and count >= 3
    for k in range(count):
        with pytest.raises(EmulatorFault, match=r"thread .* with no barrier between them"):
            kernels.run(f"less_{k}", grid, launch_of(f).block, arrays, shared)


# ---- which targets have it -----------------------------------------------------------------------


def test_targets() -> None:
    a = CASES["whole tiles"]
    for arch in ("sm_80", "sm_86", "sm_90", "sm_100a", "sm_120a"):
        for dtype in BITS:
            assert classes_of(a, dtype, {"kind": "cuda", "arch": arch}) == {CLASS}
    for also in ({"arch": "sm_75"}, {"arch": "sm_90", "also": ["sm_75"]}):
        assert classes_of(a, "float16", {"kind": "cuda", **also}) == {CLASS}
        assert CLASS not in classes_of(a, "bfloat16", {"kind": "cuda", **also})
    for options in (
        {"kind": "cuda", "arch": "sm_70"},
        {"kind": "cuda", "arch": "sm_90", "also": ["sm_72"]},
        {"kind": "cuda", "arch": "sm_80", "max_num_threads": 16},
        {"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 4096},
        {"kind": "opencl", "supports_float16": True},
    ):
        assert CLASS not in classes_of(a, "float16", options), options


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_float32_is_computed_as_such(precision: str) -> None:
    options = {"kind": "cuda", "arch": "sm_90", "matmul_precision": precision}
    assert classes_of(CASES["odd"], "float32", options) == {"gpu_attention"}


def test_it_is_taken_apart_where_no_tile_fits() -> None:
    target = TARGETS["float16"]
    for a in (
        Attention(1, 1, 20, 20, 16, 257),
        Attention(1, 1, 20, 20, 16, 129, mask="bool"),
        Attention(1, 1, 20, 20, 2048, 16),
    ):
        assert CLASS not in classes_of(a, "float16", target.to_json())


@pytest.mark.in_turn("rows", "depth")
@pytest.mark.parametrize("shared", [4 << 10, 16 << 10, 32 << 10, 48 << 10])
@pytest.mark.parametrize("threads", [16, 32, 64, 1024])
@pytest.mark.parametrize(("rows", "depth"), [(1, 64), (13, 16), (512, 64), (512, 128), (40, 256)])
def test_tiles_are_within_the_limits(shared: int, threads: int, rows: int, depth: int) -> None:
    options = {"max_shared_memory_per_block": shared, "max_num_threads": threads}
    shape = typed("float16", 1, 12, rows, depth)
    mod = graph(lambda g, x: g.attention(x, x, x, scale=0.1), x=shape)
    (call,) = (b.value for b in main(mod).bindings if isinstance(b.value, Call))
    target = Target({"kind": "cuda", "arch": "sm_80", **options})
    tile = tile_of(call, target)
    assert tile is not None or threads < 32 or shared < 40 * depth * 2 + 2048
    if tile is None:
        return
    assert tile.threads <= threads and tile.shared(depth, depth) <= shared
    f = scheduled(Attention(1, 12, rows, rows, depth, depth), "float16", target)
    device = device_function(f, target)
    assert launch_of(device).shared_bytes <= tile.shared(depth, depth)
    assert launch_of(device).block == (tile.threads, 1, 1)
    blocks = math.prod(extent_of(n, {}) for n in launch_of(device).grid)
    assert blocks == 12 * -(-rows // tile.rows)


# ---- NVIDIA's assembler --------------------------------------------------------------------------

LARGE = {
    "head 64": Attention(8, 16, 2048, 2048, 64, 64),
    "head 64, masked": Attention(8, 16, 2047, 2047, 64, 64, mask="numbers"),
    "head 128": Attention(8, 16, 2048, 2048, 128, 128, causal=True),
    "head 128, odd": Attention(8, 16, 2047, 2047, 128, 128, causal=True, mask="bool"),
    "head 256": Attention(8, 16, 2048, 2048, 256, 256),
    "head 96, masked": Attention(8, 16, 2047, 2047, 96, 96, mask="numbers"),
    "symbolic": Attention(N, 16, S, T, 80, 80, causal=True, apart=True),
}
# The most bytes that ptxas puts away all the same, to keep 168 registers so that three blocks fit.
SPILLED = {("head 128, odd", "sm_100a"): 12, ("head 256", "sm_89"): 4}
ASSEMBLED = [
    ("float16", "head 64", "sm_80"),
    ("bfloat16", "head 128", "sm_90"),
    ("float16", "head 256", "sm_89"),
    ("float16, sm_75", "head 128, odd", "sm_75"),
    ("bfloat16", "head 64, masked", "sm_120a"),
]
EVERY = [
    (types, name, arch)
    for types in TARGETS
    for name in LARGE
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120a")
] + [("float16, sm_75", name, "sm_75") for name in LARGE]


def assemble(types: str, name: str, arch: str, folder: Path) -> None:
    """Without spills, but for those that are known."""
    if ptxas.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    target = TARGETS[types]
    f = device_function(scheduled(LARGE[name], types.split(",")[0], target), target)
    text = ptx_of({f.name: emit_ptx_ir(f, target)}, [arch])[arch]
    (message,) = assembled(text, arch, folder).values()
    spilled = re.findall(r"(\d+) bytes spill", message)
    assert len(spilled) == 2 and max(map(int, spilled)) <= SPILLED.get((name, arch), 0), message
    opcode_counts = opcodes(folder / "k.cubin")
    assert opcode_counts["HMMA"] >= 32 and opcode_counts["LDSM"] > 0, opcode_counts


@pytest.mark.in_turn()
@pytest.mark.parametrize(("types", "name", "arch"), ASSEMBLED)
def test_the_assembler_takes_them(types: str, name: str, arch: str, tmp_path: Path) -> None:
    assemble(types, name, arch, tmp_path)


@pytest.mark.fuzz
@pytest.mark.parametrize(("types", "name", "arch"), EVERY)
def test_the_assembler_takes_all(types: str, name: str, arch: str, tmp_path: Path) -> None:
    assemble(types, name, arch, tmp_path)
