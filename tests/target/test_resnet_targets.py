"""ResNet-18 for this machine, the baseline, tags and processors: same answers as ONNX Runtime."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.cli.demo_model import resnet18
from tensorkiln.cli.inspect import report_text
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.target import Target
from tests import processors

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="targets of x86-64"),
    pytest.mark.filterwarnings("ignore:.*is the baseline of"),
]

TARGETS = {
    "native": "native",
    "baseline": "llvm",
    "v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "processor": {"kind": "llvm", "mcpu": "haswell"},
}
TAGS = ("amd/epyc-9654", "amd/epyc-7742", "amd/epyc-7601", "intel/xeon-e5-2699-v3")


@functools.cache
def answer(image: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The model, an image, and what ONNX Runtime makes of it."""
    model = resnet18(image=image).SerializeToString()
    x = np.random.default_rng(image).standard_normal((1, 3, image, image)).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return model, x, session.run(None, {"image": x})[0]


def build(folder: Path, target: Target, image: int = 64) -> Path:
    source = folder / "model.onnx"
    source.write_bytes(answer(image)[0])
    return tk.compile(tk.frontend.from_onnx(source), target).export_library(folder / "net.so")


def check(folder: Path, spec: object, image: int) -> None:
    target = Target(spec)  # type: ignore[arg-type]
    processors.require(target)
    library = tk.runtime.load_module(build(folder, target, image))
    _, x, want = answer(image)
    result = tk.runtime.Executor(library, tk.cpu())["main"](x).numpy()
    np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    report = inspect_library(folder / "net.so")
    assert report.metadata.target == target.to_json()
    needed = set(report.metadata.cpu_features)
    assert needed == set(target.required(target.features_for(["float32"])))


@pytest.mark.in_turn()
@pytest.mark.parametrize("name", TARGETS)
def test_small_images(name: str, tmp_path: Path) -> None:
    check(tmp_path, TARGETS[name], 64)


@pytest.mark.in_turn()
@pytest.mark.slow
@pytest.mark.parametrize("name", ["native", "baseline", "v3"])
def test_whole_images(name: str, tmp_path: Path) -> None:
    check(tmp_path, TARGETS[name], 224)


def test_targets_differ_in_what_they_need() -> None:
    need = {name: set(Target(spec).required_features) for name, spec in TARGETS.items()}
    assert need["baseline"] == set()
    assert {"avx2", "fma"} <= need["v3"] and "avx512f" not in need["v3"]


def test_a_tag_is_compiled_for_and_shown(tmp_path: Path) -> None:
    """The newest processor of these that this machine can stand in for."""
    tag = next((t for t in TAGS if not processors.lacking(Target(t))), None)
    if tag is None:
        pytest.skip("this machine is older than every tag")
    check(tmp_path, tag, 64)
    assert Target(tag).tag in report_text(inspect_library(tmp_path / "net.so"))


def test_a_library_for_another_processor_is_refused(tmp_path: Path) -> None:
    """Some feature that this machine lacks, whichever that is; the message names it."""
    features = Target("native").features
    choices = (f for f in ("avx512f", "avx2", "egpr", "xop") if f not in features)
    feature = next(choices, "")
    if not feature:
        pytest.skip("this machine has every feature the test knows")
    target = Target("native").replace(mattr=[*Target("native").mattr, f"+{feature}"])
    assert feature in target.required_features
    library = build(tmp_path, target)
    assert inspect_library(library).metadata.target == target.to_json()
    with pytest.raises(RuntimeError, match="this processor lacks '") as caught:
        tk.runtime.load_module(library)
    named = str(caught.value).partition("lacks '")[2].partition("'")[0]
    assert feature in processors.lacking(target) and named in processors.lacking(target)
