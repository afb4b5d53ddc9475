# ruff: noqa: E402  what is not installed must be named before it is imported
"""Every model of the zoo as C gives the results of LLVM: compiled by gcc, by clang and by the
packaged compiler, at every shape of symbolic models, and under sanitizers; quantised models bit for
bit."""

from __future__ import annotations

from pathlib import Path

import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.schedule import choose
from tests.codegen.c_like.in_32_bits import require_32_bits, run_in_32_bits
from tests.models import test_quantised as quantised
from tests.models.library import load
from tests.models.plain_c import OF_SCALE, SANITIZERS, compare, distance, library
from tests.models.test_models import BIG, BIG_SHAPES, FAST, SHAPES, fetch, random_inputs
from tests.schedule.groups import groups_of
from tests.verification.families import cases
from tests.zoo.registry import NETWORKS, inputs

QUICK = ("mlp", "mobilenetv2", "bert_2")
OTHERS = tuple(name for name in (*FAST, *BIG) if name not in QUICK)
# With QUICK, they use every family of schedules but those of NOWHERE, of which there are graphs.
FAMILIES = ("resnet18", "light_bvlc_alexnet", "light_inception_v1", "convnext_small", "gpt2_2")
NOWHERE = (
    *("conv2d_dilated", "conv2d_few_outputs", "conv2d_transposed", "coupled", "images", "indices"),
    *("linear_strassen", "matmul_packed", "pixels", "pool_rows", "scatter", "strassen_parts"),
    *("top_k", "tree_leaves"),
)
NO_C = ("conv2d_tiles",)  # on tiles of the processor
EVERY_SHAPE = {**SHAPES, **BIG_SHAPES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "gcc") for name in QUICK),
        ("mlp", "clang"),
        ("mlp", None),
        *(pytest.param(n, "gcc", marks=pytest.mark.conformance) for n in OTHERS),
        *(pytest.param(n, "clang", marks=pytest.mark.conformance) for n in (*QUICK[1:], *FAMILIES)),
    ],
)
def test_results_are_those_of_llvm(name: str, command: str | None, tmp_path: Path) -> None:
    compare(fetch(name), [list(random_inputs(name, 0, {}).values())], command, tmp_path)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("name", [*QUICK, *FAMILIES])
def test_in_32_bits(name: str, tmp_path: Path) -> None:
    require_32_bits(tmp_path)
    module, feeds = tk.frontend.from_onnx(str(fetch(name))), random_inputs(name, 0, {}).values()
    want = load(library(module, tk.Target("native"), tmp_path / "llvm.so", None))(*feeds)
    have = run_in_32_bits(tk.compile(module, "c"), list(feeds), want, tmp_path)
    print(f"{name} in 32 bits: off LLVM {distance(have, want, OF_SCALE):.3g} of scale")


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("name", EVERY_SHAPE)
def test_results_at_ten_shapes(name: str, tmp_path: Path) -> None:
    shapes = enumerate(EVERY_SHAPE[name])
    feeds = [list(random_inputs(name, seed, sizes).values()) for seed, sizes in shapes]
    compare(fetch(name), feeds, "gcc", tmp_path)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("row", (*quantised.FAST, *quantised.BIG), ids=str)
def test_quantised_models_have_the_same_bits(row: quantised.Quantised, tmp_path: Path) -> None:
    feeds = [list(inputs(NETWORKS[row.network], seed).values()) for seed in (1, 2)]
    compare(quantised.quantised(row, tmp_path), feeds, "gcc", tmp_path, of_scale=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(n, marks=pytest.mark.conformance) for n in (*QUICK[1:], *FAMILIES))],
)
def test_under_sanitizers(name: str, tmp_path: Path) -> None:
    """No access outside of memory, nothing that C leaves undefined."""
    feeds = [list(random_inputs(name, 0, {}).values())]
    compare(fetch(name), feeds, "gcc", tmp_path, *SANITIZERS)


def classes(module: IRModule, target: tk.Target) -> set[str]:
    """The classes of a module's kernels."""
    groups = groups_of(module, target)
    return {choose._scheduled(group, target, False)[0].op_class for group in groups}


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("kind", NOWHERE)
def test_graphs_under_sanitizers(kind: str, tmp_path: Path) -> None:
    case = cases()["cpu", kind]
    module = case.module()
    assert kind in classes(module, tk.Target("native").replace(kind="c"))
    compare(module, [[case.operand()]], "gcc", tmp_path, *SANITIZERS)


@pytest.mark.slow
@pytest.mark.conformance
def test_every_family_of_schedules_is_under_sanitizers() -> None:
    target, used = tk.Target("native").replace(kind="c"), set[str]()
    for name in (*QUICK, *FAMILIES):
        used |= classes(tk.frontend.from_onnx(str(fetch(name))), target)
    assert {f.op_class for f in built_in_families() if "cpu" in f.devices} - used == {
        *NOWHERE,
        *NO_C,
    }
