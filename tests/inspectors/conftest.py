"""One small network in every form that can be inspected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp


@dataclass(frozen=True)
class Forms:
    """The files of one compile."""

    model: Path
    executable: tk.Executable
    library: Path
    folder: Path
    container: Path
    stripped: Path


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    root = tmp_path_factory.mktemp("forms")
    model = root / "mlp.onnx"
    model.write_bytes(make_mlp().SerializeToString())
    executable = tk.compile(tk.frontend.from_onnx(model), "native")
    executable.export_library(root / "mlp.so")
    executable.artifacts.save(root / "folder")
    (root / "mlp.set").write_bytes(executable.artifacts.to_bytes())
    executable.export_stripped(root / "stripped")
    return Forms(model, executable, root / "mlp.so", root / "folder", root / "mlp.set",
                 root / "stripped")  # fmt: skip
