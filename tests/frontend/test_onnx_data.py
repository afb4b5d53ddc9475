"""The models that the package `onnx` has as files, converted from PyTorch or written by hand, each
compiled and run. Those of opset 6 are brought to 7 by the package's own converter.

Its real networks are not in the package; `tests/frontend/test_onnx_zoo.py` has their light ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, version_converter

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.rotation import rows_in_turn

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
KINDS = ("pytorch-converted", "pytorch-operator", "simple")
FOLDERS = {f"{kind}/{p.name}": p for kind in KINDS for p in sorted((DATA / kind).iterdir())}
# By the beginning of a name, a part of the error that says why.
REFUSED = {
    "simple/test_gradient": "ai.onnx.preview.training",
    "simple/test_strnorm": "has element type string",
    "simple/test_sequence_model8": "a symbolic dimension is split",
    # Slopes of opset 6 are those of channels; the converter leaves them as they are.
    "pytorch-converted/test_PReLU_1d_multiparam": "operand 'b': expected an extent of 4",
    "pytorch-converted/test_PReLU_2d_multiparam": "operand 'b': expected an extent of 5",
    "pytorch-converted/test_PReLU_3d_multiparam": "operand 'b': expected an extent of 6",
}


def model_of(folder: Path) -> onnx.ModelProto:
    model = onnx.load(folder / "model.onnx")
    if model.opset_import[0].version < 7:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = version_converter.convert_version(model, 7)
    return model


def arrays(folder: Path, name: str) -> list[np.ndarray]:
    """The tensors of the files `name`_0.pb, `name`_1.pb and so on."""
    tensors = []
    while (path := folder / f"{name}_{len(tensors)}.pb").exists():
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.read_bytes())
        tensors.append(numpy_helper.to_array(tensor))
    return tensors


def runs(folder: Path, model: onnx.ModelProto) -> Iterator[tuple[dict[str, np.ndarray], list]]:
    weights = {i.name for i in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = arrays(data, "input")
        yield dict(zip(names, inputs, strict=True)), arrays(data, "output")


def test_all_are_there() -> None:
    assert len(FOLDERS) >= 140
    assert all(any(name.startswith(r) for name in FOLDERS) for r in REFUSED)


@pytest.mark.parametrize("name", rows_in_turn(FOLDERS))
def test_model(name: str) -> None:
    model = model_of(FOLDERS[name])
    refusal = next((text for start, text in REFUSED.items() if name.startswith(start)), None)
    if refusal is not None:
        with pytest.raises(UnsupportedError, match=refusal):
            from_onnx(model)
        return
    module = from_onnx(model)
    order = module["main"].attrs["input_names"]
    call = tk.runtime.Executor(tk.compile(module))["main"]
    run_count = 0
    for feeds, want in runs(FOLDERS[name], model):
        out = call(*(feeds[n] for n in order))
        outputs = [np.asarray(v) for v in (out if isinstance(out, tuple | list) else [out])]
        for a, b in zip(outputs, want, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        run_count += 1
    assert run_count
