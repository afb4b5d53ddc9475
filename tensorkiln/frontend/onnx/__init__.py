"""ONNX models to IRModule. Files are read by our own bounds-checked reader; nothing executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import Issue, UnsupportedError
from tensorkiln.frontend.onnx.importer import Importer
from tensorkiln.frontend.onnx.load import load
from tensorkiln.ir.module import IRModule


def from_onnx(
    model: Any,
    *,
    freeze: Mapping[str, int] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> IRModule:
    """A module with the function `main` of an ONNX model, named after its file, or else its graph.

    `model` is a path, the bytes of a file, or an `onnx.ModelProto`. Parameters are the graph's
    inputs without initializer, renamed to identifiers; the names in the model are in
    `attrs["input_names"]` and `attrs["output_names"]`; several outputs make a Tuple. `freeze`
    gives symbolic dimensions a size. External data must lie beside the model or in one of
    `external_roots`. Weights are views of the file.

    Raises UserError for a file that is no model, and one UnsupportedError with every node that
    is malformed or not supported.
    """
    importer = Importer(load(model, [Path(r) for r in external_roots]), freeze)
    module = importer.run()
    if module is None:
        raise UnsupportedError(importer.issues)
    return module


def check_onnx(
    model: Any,
    freeze: Mapping[str, int] | None = None,
    *,
    external_roots: Sequence[str | Path] = (),
) -> tuple[Issue, ...]:
    """Everything in the model that `from_onnx` would refuse, all at once; empty when it imports.

    Nodes whose operands come from a refused node are not reported. Raises UserError for a file
    that is no model.
    """
    importer = Importer(load(model, [Path(r) for r in external_roots]), freeze)
    importer.run()
    return tuple(importer.issues)
