"""A right call of every command, in every form of its answer, for tests that go through all."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.make_mlp import make_mlp
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.external.cblas import CBLAS
from tensorkiln.external.host_library import find_library

# Command -> the words that follow it, in a folder with the files of `make_files`.
CALLS: dict[str, tuple[str, ...]] = {
    "demo": ("--folder demo --seconds 0.001",),
    "compile": (
        "mlp.onnx -o new.so",
        "mlp.onnx -o new.so --keep new --headers new-headers --weights beside",
        "mlp.onnx -o new.so --records mlp.jsonl",
        "mlp.onnx -o new.tar --format mlf --freeze batch=1 --quiet",
    ),
    "run": (
        "mlp.so --random --dim batch=1",
        "mlp.so --input image.npy --output-dir out",
    ),
    "inspect": (
        "mlp.so",
        "mlp.so --list",
        "mlp.so --all",
        "mlp.so --verify",
        "mlp.so --weight layer1.bias",
        "mlp.so --artifact host/weights.json",
        "mlp.so --extract inside",
        "mlp.onnx",
        "mlp.tar",
        "kept",
    ),
    "new-project": ("mlp.tar -o project",),
    "check": (
        "mlp.onnx",
        "mlp.onnx --dims --external cblas",
        "unsupported.onnx",
        "mlp.onnx --table",
    ),
    "farm": (
        "farm.toml -o libraries --cache shared --executor local:1 --fail-fast",
        "farm.toml --dry-run --only *.so --policy any",
        "unsupported.toml -o libraries --executor local:1",
    ),
    "verify": ("mlp.onnx --dim batch=1", "mlp.so --model mlp.onnx --dim batch=1 --output fault"),
    "bench": (
        "mlp.so --dim batch=1 --seconds 0.001",
        "mlp.onnx --dim batch=1 --seconds 0.001 --compare --streams 2 --profile trace.json",
    ),
    "tune": (
        "mlp.onnx --records new.records --dim batch=4 --kernels 1 --trials 1 --search random",
        "mlp.onnx --records again.records --dim batch=4 --kernels 1 --trials 1 "
        "--journal journal --executor local:1 --search random",
    ),
    "explain": ("mlp.onnx -o page", "mlp.onnx -o page --no-times"),
    "targets": ("", "--all", "native", "mali", "nvidia/t4"),
    "cache": ("", "--prune 500G"),
    "completion": ("bash", "zsh", "fish"),
}
LINES = [[command, *words.split()] for command, row in CALLS.items() for words in row]


def make_files(folder: Path) -> None:
    """Write a model, what can be made of it, and a model that cannot be compiled."""
    import numpy as np
    import onnx
    from onnx import helper

    model = folder / "mlp.onnx"
    model.write_bytes(make_mlp().SerializeToString())
    (folder / "mlp.jsonl").write_text('{"kiln_records":1}\n')
    np.save(folder / "image.npy", np.ones((2, 784), np.float32))
    ends = [helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    nodes = [
        helper.make_node("Mystery", ["x"], ["y"], "a-node-of-a-rather-long-name", domain="our")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("our", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets), folder / "unsupported.onnx")
    for name in ("mlp", "unsupported"):
        text = f'models.{name} = "{name}.onnx"\ntargets.baseline = "llvm"\n'
        (folder / f"{name.replace('mlp', 'farm')}.toml").write_text(text)
    for words in (
        ["-o", str(folder / "mlp.so"), "--keep", str(folder / "kept")],
        ["-o", str(folder / "mlp.tar"), "--format", "mlf", "--freeze", "batch=1", "--target", "c"],
    ):
        assert main(["compile", str(model), "-q", *words]) == 0


def skip_without_its_packages(line: list[str]) -> None:
    """Skip a call of what is not installed here."""
    if line[0] == "demo" or "--compare" in line:
        pytest.importorskip("onnxruntime")
    if "cblas" in line:
        try:
            find_library(CBLAS.file, CBLAS.install)
        except UserError:
            pytest.skip("OpenBLAS is not installed")
