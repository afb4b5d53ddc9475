"""Attention by warpgroups, on the emulator of CUDA, against float64; which attentions it computes;
what NVIDIA's assembler makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.families.attention_wgmma import gpu as attention_wgmma
from tensorkiln.families.attention_wgmma.gpu_row import WarpgroupAttentionTile
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.target import Target
from tensorkiln.target.cuda_tools import assembled, instruction_counts
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.test_attention import Attention, classes_of, exact, made_up, scheduled
from tests.cuda.test_metrics import require_tool
from tests.cuda.test_tensor_cores import ORDERS, device_function, launched
from tests.schedule.battery import Battery, arguments
from tests.schedule.gpu.runner import DeviceRunner, Kernels

CLASS = "gpu_attention_wgmma"
N, S, T = Var("N"), Var("S"), Var("T")
HOPPER = {"kind": "cuda", "arch": "sm_90a"}

CASES: dict[str, Attention] = {
    "whole tiles": Attention(1, 2, 64, 128, 64, 64),
    "odd": Attention(1, 1, 70, 201, 64, 64),
    "odd, causal": Attention(1, 1, 130, 150, 64, 64, causal=True),
    "more keys, causal": Attention(1, 1, 40, 200, 128, 128, causal=True),
    "rows that see no key": Attention(1, 1, 200, 70, 64, 64, causal=True),
    "head 128": Attention(1, 1, 70, 140, 128, 128),
    "wide values": Attention(1, 1, 33, 70, 64, 128),
    "wide keys": Attention(1, 1, 33, 130, 128, 64, causal=True),
    "bool mask": Attention(1, 2, 40, 141, 64, 64, mask="bool", dims=(1, 2, 3)),
    "bool mask of whole tiles": Attention(2, 2, 128, 128, 64, 64, mask="bool", dims=(2, 3)),
    "bool mask of keys": Attention(2, 1, 40, 128, 64, 64, mask="bool", dims=(0, 3)),
    "mask, causal": Attention(1, 1, 70, 90, 128, 128, mask="numbers", causal=True),
    "nothing seen is nan": Attention(1, 1, 40, 70, 64, 64, mask="bool", unseen="nan"),
    "grouped queries": Attention(1, 4, 40, 70, 64, 64, groups=2),
    "heads apart": Attention(1, 2, 70, 70, 64, 64, apart=True),
    "symbolic": Attention(
        *(N, 1, S, T, 64, 64),
        causal=True,
        sizes=[{"N": n, "S": s, "T": t} for n, s, t in ((1, 1, 1), (2, 70, 150), (1, 130, 64))],
    ),
    "symbolic, masked": Attention(
        1, 1, S, T, 64, 64, mask="bool", sizes=[{"S": s, "T": t} for s, t in ((1, 1), (70, 140))]
    ),
}
BFLOATS = ("odd, causal", "head 128", "mask, causal")
# Of several warpgroups: how many, keys of a tile, parts of shared memory.
TILES = ((2, 128, 2), (2, 64, 3), (3, 64, 2))


@pytest.fixture
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Schedules take this tile."""
    tile = WarpgroupAttentionTile(*request.param)
    monkeypatch.setattr(attention_wgmma, "tile_of", lambda call, target: tile)
    yield


@cache
def runner(dtype: str) -> DeviceRunner:
    return _runner(dtype, {n: CASES[n] for n in (BFLOATS if dtype == "bfloat16" else CASES)})


def _runner(dtype: str, attentions: dict[str, Attention]) -> DeviceRunner:
    b = Battery()
    for name, a in attentions.items():
        b.add(_named(name), a.build, *a.params(dtype), sizes=a.sizes, make=made_up)
    return DeviceRunner(b, target=Target(HOPPER))


def _named(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def check(name: str, a: Attention, device_runner: DeviceRunner) -> None:
    """In several orders of threads, with copies by TMA and by threads."""
    case = device_runner.battery.cases[_named(name)]
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        want, allowed = exact(a, list(inputs.values()))
        for aligned in (True, False):
            device_runner.kernels.aligned = aligned
            device_runner.kernels.order = ORDERS[(k + aligned) % 3]
            (output,) = launched(device_runner, case, inputs, sizes)
            np.testing.assert_array_equal(np.isnan(output), np.isnan(want))
            error = np.nan_to_num(np.abs(output.astype(np.float64) - want))
            assert (error <= np.nan_to_num(allowed)).all(), (error - allowed).max()


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    check(name, CASES[name], runner("float16"))


@pytest.mark.parametrize("name", BFLOATS)
def test_attention_of_bfloat16(name: str) -> None:
    check(name, CASES[name], runner("bfloat16"))


@pytest.mark.in_turn("depth")
@pytest.mark.parametrize("tile", TILES, indirect=True)
@pytest.mark.parametrize("depth", [64, 128])
def test_several_warpgroups(tile: None, depth: int) -> None:
    for causal in (False, True):
        a = Attention(1, 1, 210, 270, depth, depth, causal=causal)
        check("one", a, _runner("float16", {"one": a}))


def test_far_scores() -> None:
    """Scores hundreds apart, of both signs of the scale."""
    for scale in (0.5, -0.5, 3.0):
        b = Battery()
        a = Attention(1, 1, 40, 130, 64, 64)
        b.add(
            "one",
            lambda g, q, k, v, scale=scale: g.attention(q, k, v, scale=scale, causal=True),
            *a.params("float16"),
        )
        device_runner = DeviceRunner(b, target=Target(HOPPER))
        rng = np.random.default_rng(3)
        q, k, v = (rng.integers(-9, 10, (n, 64)).astype("float16") for n in (40, 130, 130))
        case = b.cases["one"]
        names = [p.name for p in case.function.params]
        operands = (x[None, None] for x in (q, k, v))
        (output,) = launched(device_runner, case, dict(zip(names, operands, strict=True)), {})
        scores = scale * q.astype(np.float64) @ k.T.astype(np.float64)
        scores = np.where(np.tri(40, 130, 90, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        want = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)
        assert (np.abs(output[0, 0] - want) <= 0.02 + 0.002 * np.abs(want)).all()


# ---- proofs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["odd, causal", "bool mask", "symbolic", "heads apart"])
def test_every_step_is_proved_and_no_thread_races(name: str) -> None:
    prove(CASES[name])


@pytest.mark.parametrize("tile", TILES[:1], indirect=True)
def test_several_warpgroups_are_proved(tile: None) -> None:
    prove(Attention(1, 1, 210, 270, 64, 64, causal=True))


def prove(a: Attention) -> None:
    target = Target(HOPPER)
    f = scheduled(a, "float16", target, check=True)
    assert f.op_class == CLASS
    kernels = Kernels([f], target)
    (launch,) = kernels.launches(f.name)
    races = races_of(kernels.checked(launch.name))
    assert not races.faults, races.faults[0]
    assert not races.doubts, races.doubts


# ---- which attentions it computes ----------------------------------------------------------------


def test_one_kernel_computes_it() -> None:
    for name, a in CASES.items():
        if not a.groups:
            assert classes_of(a, "float16", HOPPER) == {CLASS}, name


def test_other_attentions_are_those_of_warps() -> None:
    by_warps = {"gpu_attention_tensor_cores"}
    for a in (
        Attention(1, 2, 32, 200, 64, 64),  # few queries
        Attention(1, 2, 64, 64, 64, 64),  # a single tile of keys
        Attention(1, 2, 64, 200, 96, 96),
        Attention(1, 2, 64, 200, 64, 72),
        Attention(1, 2, 64, 200, 256, 64),
    ):
        assert classes_of(a, "float16", HOPPER) == by_warps
    a = CASES["whole tiles"]
    for options in (
        {"arch": "sm_90"},
        {"arch": "sm_90a", "also": ["sm_80"]},
        {"arch": "sm_90a", "matmul_kernel": "mma"},
        {"arch": "sm_90a", "max_num_threads": 128},
        {"arch": "sm_100a"},
    ):
        assert classes_of(a, "bfloat16", {"kind": "cuda", **options}) == by_warps


# ---- NVIDIA's assembler --------------------------------------------------------------------------

LARGE = {
    "head 64": Attention(8, 16, 2048, 2048, 64, 64),
    "head 64, odd": Attention(8, 16, 2047, 2047, 64, 64, causal=True),
    "head 64, masked": Attention(8, 16, 2047, 2047, 64, 64, mask="numbers"),
    "head 128": Attention(8, 16, 2048, 2048, 128, 128),
    "head 128, odd": Attention(8, 16, 2047, 2047, 128, 128, causal=True),
    "head 128, masked": Attention(8, 16, 2047, 2047, 128, 128, causal=True, mask="bool"),
    "head 128, one warpgroup": Attention(1, 16, 256, 2048, 128, 128),
    "symbolic": Attention(N, 16, S, T, 128, 128, causal=True, apart=True),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_assembler_takes_them(name: str) -> None:
    """Without spills, and without waits that it has to put in."""
    require_tool("ptxas")
    require_tool("nvdisasm")
    target = Target(HOPPER)
    f = device_function(scheduled(LARGE[name], "bfloat16", target), target)
    text = ptx_of({f.name: emit_ptx_ir(f, target)}, ["sm_90a"])["sm_90a"]
    assert "cp.async.bulk.tensor.4d" in text or name == "symbolic"
    assembly = assembled(text, "sm_90a")
    k = assembly.kernels[f.name]
    assert (k.spill_stores, k.spill_loads, k.stack, assembly.advice) == (0, 0, 0, ())
    assert instruction_counts(assembly.cubin)[f.name]["HGMMA"] >= 6
    assert launch_of(f).block[0] in (160, 384)
