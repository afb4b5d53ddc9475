"""One small network in every form that can be inspected, and ResNet-18 as a person meets it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.cli.demo_model import resnet18 as demo_model


@dataclass(frozen=True)
class Forms:
    """The files of one compile."""

    model: Path
    executable: tk.Executable
    library: Path
    folder: Path
    container: Path
    model_folder: Path
    model_tar: Path


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    root = tmp_path_factory.mktemp("forms")
    model = root / "mlp.onnx"
    model.write_bytes(make_mlp().SerializeToString())
    executable = tk.compile(tk.frontend.from_onnx(model), "native")
    executable.export_library(root / "mlp.so")
    executable.artifacts.save(root / "folder")
    (root / "mlp.set").write_bytes(executable.artifacts.to_bytes())
    for name in ("archive", "archive.tar"):
        executable.export_model_library_format(root / name, name="mlp")
    return Forms(
        model,
        executable,
        root / "mlp.so",
        root / "folder",
        root / "mlp.set",
        root / "archive",
        root / "archive.tar",
    )


@dataclass(frozen=True)
class ResNet:
    """What `kiln demo` leaves in its folder, for a processor that is the same everywhere."""

    root: Path
    model: Path
    library: Path
    folder: Path
    container: Path
    executable: tk.Executable


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> ResNet:
    """Ten seconds where the cache knows nothing of it."""
    root = tmp_path_factory.mktemp("kiln-demo")
    network = ResNet(
        root,
        root / "resnet18.onnx",
        root / "resnet18.so",
        root / "artifacts",
        root / "resnet18.set",
        tk.compile(
            tk.frontend.from_onnx(_written(root / "resnet18.onnx")),
            {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"},
        ),
    )
    network.executable.export_library(network.library)
    network.executable.artifacts.save(network.folder)
    network.container.write_bytes(network.executable.artifacts.to_bytes())
    return network


def _written(path: Path) -> Path:
    path.write_bytes(demo_model().SerializeToString())
    return path
