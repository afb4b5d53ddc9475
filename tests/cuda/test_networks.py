# ruff: noqa: E402  what is not installed must be named before it is imported
"""Whole networks on CUDA, alone and beside processors: one library, all kernels on the device, as
right as on a processor. Through the stand-in for the driver it takes a minute and more for most,
since all threads of all kernels run one after the other: all but the small ones are for
`make conformance`, the whole corpus of tests/models among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import tensorkiln as tk
from tensorkiln.target import Target
from tests.cuda.networks import check_modules, devices, exported, host_kernels, runner
from tests.devices.test_opencl import BERT
from tests.models import test_quantised as quantised
from tests.models.check import Reference, compare
from tests.models.test_models import (
    BIG,
    BIG_SHAPES,
    FAST,
    SHAPES,
    fetch,
    random_inputs,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is the baseline"),
    pytest.mark.slow,
]
A100, H100 = "nvidia/a100", "nvidia/h100"  # sm_80, sm_90
CONFORMANCE = pytest.mark.conformance


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices of the stand-in have memory for any of the models."""
    monkeypatch.setenv("LOOKALIKE_MEMORY", str(1 << 33))
    yield


def check(
    name: str,
    target: Any,
    folder: Path,
    sizes: Sequence[dict[str, int]] = ({},),
    float64: bool = True,
) -> tk.Executable:
    """A model of the zoo by way of an exported library: its kernels are on the device, and results
    are within the tolerance of ONNX Runtime's and, with `float64`, as precise."""
    path = fetch(name)
    exe, lib = exported(tk.frontend.from_onnx(str(path)), target, folder / "net.so")
    check_modules(exe)
    feeds = [random_inputs(name, seed, size) for seed, size in enumerate(sizes)]
    try:
        for figures in compare(runner(lib), Reference(path), feeds, float64=float64):
            print(figures.text())
    finally:
        lib.close()
    return exe


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("mlp", A100),
        ("mlp", H100),
        ("mobilenetv2", A100),
        pytest.param("mobilenetv2", H100, marks=CONFORMANCE),
        *(
            pytest.param(name, tag, marks=CONFORMANCE)
            for name in ("resnet18", "bert", "gpt2")
            for tag in (A100, H100)
        ),
    ],
)
def test_networks(name: str, tag: str, tmp_path: Path) -> None:
    exe = check(name, tag, tmp_path, float64=name in FAST and tag == H100)
    assert host_kernels(exe) == [] and devices(exe) == {"cuda"}
    arch = Target(tag)["arch"]
    assert [a.file_name for a in exe.artifacts if a.file_name.endswith(".ptx")] == [
        f"kernels.{arch}.ptx"
    ]
    expected = len(exe.functions[0].info.inputs) + len(exe.functions[0].info.outputs)
    assert len(exe.copies()) == expected  # there and back, and nothing in between


REQUIRED = {"mlp", "mobilenetv2", "resnet18", "bert", "gpt2"}


@pytest.mark.conformance
@pytest.mark.parametrize("name", [n for n in (*FAST, *BIG) if n not in REQUIRED])
def test_the_corpus(name: str, tmp_path: Path) -> None:
    """Every other case of tests/models. The float64 reference of large models takes longer than
    they do, and is asked of processors."""
    exe = check(name, H100, tmp_path, float64=name in FAST)
    assert host_kernels(exe) == []


@pytest.mark.conformance
@pytest.mark.parametrize("name", [*SHAPES, *BIG_SHAPES])
def test_symbolic_sizes(name: str, tmp_path: Path) -> None:
    """One library at the three smallest of the sizes that processors are tested with."""
    shapes = {**SHAPES, **BIG_SHAPES}[name]
    few = sorted(shapes, key=lambda sizes: math.prod(sizes.values()))[:3]
    exe = check(name, H100, tmp_path, few, float64=False)
    assert host_kernels(exe) == []


@pytest.mark.conformance
@pytest.mark.parametrize("row", [*quantised.FAST, *quantised.BIG], ids=str)
def test_quantised_models(row: quantised.Quantised, tmp_path: Path) -> None:
    path = quantised.quantised(row, tmp_path)
    exe, lib = exported(tk.frontend.from_onnx(str(path)), A100, tmp_path / "net.so")
    assert host_kernels(exe) == []
    quantised.compare(row, path, runner(lib), seeds=(1,))
    lib.close()


def cuda(target: Any) -> Any:
    """A target of OpenCL's tests with CUDA in its place."""
    if isinstance(target, str):
        return target.replace("opencl", "cuda")
    if isinstance(target, Sequence):
        return [cuda(t) for t in target]
    return {k: cuda(v) for k, v in target.items()} if isinstance(target, dict) else target


@pytest.mark.conformance
@pytest.mark.parametrize("key", [key for key in BERT if "opencl" in key])
def test_beside_processors(key: str, tmp_path: Path) -> None:
    target = cuda(BERT[key])
    exe = check("bert_2", target, tmp_path)
    assert len(devices(exe)) == len(target["devices"])
