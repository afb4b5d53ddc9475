"""`tk.compile` takes a model in any form; what a form does not take is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.base.errors import UserError
from tensorkiln.frontend import import_model
from tensorkiln.script import from_source

SCRIPT = """
@R.function
def main(x: R.Tensor((1, 3), "float32")) -> R.Tensor((1, 3), "float32"):
    y: R.Tensor((1, 3), "float32") = R.relu(x)
    return y
"""
X = np.array([[-1, 2, -3]], np.float32)


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Place:
    """A path of another library."""

    def __init__(self, path: Path):
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def onnx_model() -> Any:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def saved(path: Path) -> Path:
    path.write_bytes(onnx_model().SerializeToString())
    return path


def written(path: Path) -> Path:
    path.write_text(SCRIPT)
    return path


# form -> the model and options of `compile`, in a folder
FORMS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "path": lambda d: (saved(d / "a.onnx"), {}),
    "like a path": lambda d: (Place(saved(d / "a.onnx")), {}),
    "text": lambda d: (str(saved(d / "a.onnx")), {}),
    "other suffix": lambda d: (saved(d / "a.model"), {}),
    "frozen": lambda d: (saved(d / "a.onnx"), {"freeze": {"batch": 1}}),
    "bytes": lambda d: (onnx_model().SerializeToString(), {}),
    "bytearray": lambda d: (bytearray(onnx_model().SerializeToString()), {}),
    "memoryview": lambda d: (memoryview(onnx_model().SerializeToString()), {}),
    "proto": lambda d: (onnx_model(), {"freeze": {"batch": 1}}),
    "torch": lambda d: (Net(), {"example_inputs": (torch.ones(1, 3),)}),
    "torch, a list": lambda d: (Net(), {"example_inputs": [torch.ones(1, 3)]}),
    "torch, a tensor": lambda d: (Net(), {"example_inputs": torch.ones(1, 3)}),
    "torch, by name": lambda d: (Net(), {"example_inputs": {"x": torch.ones(1, 3)}}),
    "exported": lambda d: (torch.export.export(Net().eval(), (torch.ones(1, 3),)), {}),
    "script": lambda d: (written(d / "a.py"), {}),
    "module": lambda d: (from_source(SCRIPT), {}),
    "function": lambda d: (from_source(SCRIPT)["main"], {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, tmp_path: Path) -> None:
    model, options = FORMS[form](tmp_path)
    assert tk.compile(model, "native", **options)(X).tolist() == [[0, 2, 0]]
    assert import_model(model, **options).name


ONE = {"example_inputs": (torch.ones(1, 3),)}
FROZEN = {"freeze": {"batch": 1}}
REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "example of ONNX": (lambda d: saved(d / "a.onnx"), ONE, "example_inputs= is of no use for"),
    "example of bytes": (lambda d: onnx_model().SerializeToString(), ONE, "example_inputs= is"),
    "example of a module": (lambda d: from_source(SCRIPT), ONE, "example_inputs= is of no use"),
    "freeze of a module": (lambda d: from_source(SCRIPT), FROZEN, "freeze= is of no use for an IR"),
    "freeze of a script": (lambda d: written(d / "a.py"), FROZEN, "freeze= is of no use for a s"),
    "torch without example": (lambda d: Net(), {}, "example_inputs|input"),
    "freeze, a text": (
        lambda d: saved(d / "a.onnx"),
        {"freeze": "batch=1"},
        "freeze is a str, expected a Mapping",
    ),
    "nothing": (lambda d: None, {}, "expected a model, received NoneType"),
    "number": (lambda d: 5, {}, "expected a model, received int"),
    "array": (lambda d: X, {}, "expected a model, received ndarray"),
    "class": (lambda d: Net, {}, "expected a model, received type"),
    "empty path": (lambda d: "", {}, "empty"),
    "no file": (lambda d: d / "b.onnx", {}, "no such file"),
    "no script": (lambda d: d / "b.py", {}, "no such file"),
    "folder": (lambda d: d, {}, "it is a folder"),
    **{
        suffix: (lambda d, s=suffix: d / f"net{s}", {}, words)  # type: ignore[misc]
        for suffix, words in {
            ".so": "is a library, not a model",
            ".pt": "is a checkpoint of torch",
            ".pth": "is a checkpoint of torch",
            ".pt2": "is a program of torch",
            ".safetensors": "is a file of weights",
            ".tflite": "is a model of TensorFlow Lite",
            ".pb": "is a graph of TensorFlow",
            ".h5": "is a model of Keras",
            ".KERAS": "is a model of Keras",
        }.items()
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[case]
    with pytest.raises(UserError, match=words):
        tk.compile(make(tmp_path), **options)


def test_a_script_is_read_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"open({str(tmp_path / 'made')!r}, 'w')\n{SCRIPT}")
    with pytest.raises(UserError):
        tk.compile(path)
    assert not (tmp_path / "made").exists()


def test_the_two_calls_of_the_readme(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(make_mlp().SerializeToString())
    f = tk.compile(path)
    x = np.random.default_rng(0).standard_normal((5, 784)).astype(np.float32)
    y = f(x)
    assert type(y) is np.ndarray and y.shape == (5, 10)
    g = tk.load(f.export_library(tmp_path / "mlp.so"))
    np.testing.assert_array_equal(g(image=x), y)
