"""Convert ONNX models to IRModule.

Files are parsed by our own bounds-checked reader (`wire.py`); no code from a model is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import Issue, UnsupportedError
from tensorkiln.base.threads import beside
from tensorkiln.frontend.onnx.importer import Importer
from tensorkiln.frontend.onnx.load import load
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar


def from_onnx(
    model: Any,
    *,
    freeze: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> IRModule:
    """Import an ONNX model as a module with one function, `main`.

    `model` is a path, the bytes of a file, or an `onnx.ModelProto`. The module is named after the
    file, or after the graph if there is no file. The parameters of `main` are the graph inputs that
    have no initializer, renamed to valid identifiers (`input.1` becomes `input_1`); the names in
    the model are kept in `attrs["input_names"]` and `attrs["output_names"]`. Several outputs make
    a Tuple. `freeze` gives symbolic dimensions a size: `freeze={"batch": 1}`. `shapes` are those of
    inputs that declare none and whose number of dimensions no node tells: sizes, names of symbolic
    dimensions, or None for one without a name: `shapes={"x": ("batch", 3, None)}`. External data
    must lie in the model's folder or in one of `external_roots`. Weights that the file stores as
    raw bytes are views of the mapped file, not copies.

    Raises UserError if the file is not an ONNX model, if external data is missing, or `freeze` or
    `shapes` are wrong; raises one UnsupportedError that lists every node that is malformed or not
    supported.
    """
    source = load(model, [Path(r) for r in external_roots])
    digest = beside(source.digest)
    importer = Importer(source, freeze, shapes)
    module = importer.run()
    if module is None:
        raise UnsupportedError(importer.issues)
    return replace(module, source=source.source(freeze, digest()))


def imported_values(
    model: Any,
    freeze: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> tuple[IRModule, dict[str, RVar]]:
    """A model as `from_onnx` imports it, and the variables of its values by their names in the
    model: those of the outermost graph that are tensors and that `main` binds."""
    importer = Importer(load(model, []), freeze, shapes)
    module = importer.run()
    if module is None:
        raise UnsupportedError(importer.issues)
    return module, importer.named


def check_onnx(
    model: Any,
    freeze: Mapping[str, int] | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> tuple[Issue, ...]:
    """Return every issue for which `from_onnx` would refuse the model; empty if it imports.

    Behind a refused node, types that the model declares or that its schema tells take the place of
    what it computes; where there are none, only operators and attributes are checked. Files of
    external data need not be there (`absent_files`): other values take the place of weights, and
    a few integers, which may decide shapes, are an issue of kind `weights`. Otherwise raises
    UserError where `from_onnx` does.
    """
    source = load(model, [Path(r) for r in external_roots])
    source.files.stand_ins = True
    importer = Importer(source, freeze, shapes)
    importer.run()
    return tuple(importer.issues)


def absent_files(model: Any, *, external_roots: Sequence[str | Path] = ()) -> tuple[str, ...]:
    """The files of a model's weights that are not there, as it names them; `check_onnx` does
    without. Raises UserError where `from_onnx` does."""
    source = load(model, [Path(r) for r in external_roots])
    assert source.model.graph is not None
    source.files.stand_ins = True
    for t in source.model.graph.initializer:
        for entry in t.external_data if t.location == 1 else ():
            if entry.key == "location":
                source.files.lacks(entry.value)
    return tuple(source.files.absent)
