"""Convert models to IRModule: `from_onnx`, `check_onnx`, `from_torch`, and `import_model`, which
finds out what a model is.

The modules of an importer are loaded at its first call, not with this package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import Issue, UserError
from tensorkiln.base.files import plain_path
from tensorkiln.base.origin import ModelSource, sha256_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc

__all__ = ["check_onnx", "from_onnx", "from_torch", "hashes_of", "import_model"]


def from_onnx(
    model: Any,
    *,
    freeze: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> IRModule:
    """Import an ONNX model; see `tensorkiln.frontend.onnx.from_onnx`."""
    from tensorkiln.frontend import onnx

    return onnx.from_onnx(model, freeze=freeze, shapes=shapes, external_roots=external_roots)


def check_onnx(
    model: Any,
    freeze: Mapping[str, int] | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> tuple[Issue, ...]:
    """List what `from_onnx` would refuse; see `tensorkiln.frontend.onnx.check_onnx`."""
    from tensorkiln.frontend import onnx

    return onnx.check_onnx(model, freeze, shapes=shapes, external_roots=external_roots)


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> IRModule:
    """Import a `torch.nn.Module` or a `torch.export.ExportedProgram`; see
    `tensorkiln.frontend.torch.from_torch`."""
    from tensorkiln.frontend import torch

    ir_module = torch.from_torch(module, example_inputs, kwargs, from_onnx=from_onnx, **options)
    return replace(ir_module, source=ModelSource("torch", sha256_of(ir_module.script().encode())))


def hashes_of(path: str | Path) -> ModelSource:
    """The hashes by which the files of a model are known: those of `source` of the module that
    `import_model` makes of the path, and of files of weights that it may not read.

    Raises UserError for a file that cannot be read, is not a model, or names weights that are
    missing.
    """
    file = plain_path(path)
    if file.suffix.lower() == ".py":
        return ModelSource("script", sha256_of(_script_text(file).encode()))
    from tensorkiln.frontend.onnx.summary import hashes_of as of_onnx

    _refuse_others(file)
    return of_onnx(file)


def import_model(
    model: Any,
    *,
    example_inputs: Any = None,
    freeze: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> IRModule:
    """The module of a model in any form: the path of an ONNX file, its bytes, an `onnx.ModelProto`;
    a `torch.nn.Module` with `example_inputs`, or a `torch.export.ExportedProgram`; a script of this
    compiler as a path (`.py`, which is read and never run); an IRModule, Function or PrimFunc.

    `example_inputs` are the arguments of one call of the torch module: a tensor, a list or tuple of
    positional ones, or a dictionary by name. `freeze` gives symbolic dimensions of a model that is
    imported a size, `shapes` inputs of an ONNX model that declare no shape one.

    Raises UserError (code `wrong-type`) for anything else, and for options that the form of the
    model does not take; else the errors of `from_onnx`, `from_torch` and the parser of scripts.
    """
    if isinstance(model, IRModule | Function | PrimFunc):
        _refuse_options("an IRModule", example_inputs=example_inputs, freeze=freeze, shapes=shapes)
        return _module(model)
    path = plain_path(model) if isinstance(model, str | os.PathLike) else None
    suffix = path.suffix.lower() if path is not None else ""
    if path is not None and suffix == ".py":
        _refuse_options("a script", example_inputs=example_inputs, freeze=freeze, shapes=shapes)
        return _script(path)
    if is_of(model, "torch"):
        _refuse_options("a torch model", shapes=shapes)
        positional, named = _examples(example_inputs)
        return from_torch(model, positional, named, freeze=freeze)
    data = isinstance(model, bytes | bytearray | memoryview)
    if data or path is not None or is_of(model, "onnx"):
        _refuse_options("an ONNX model", example_inputs=example_inputs)
        if path is not None:
            _refuse_others(path)
        return from_onnx(model, freeze=freeze, shapes=shapes)
    raise UserError(
        f"expected a model, received {type(model).__name__}",
        code="wrong-type",
        hint="the path of an ONNX file, a torch module with example_inputs=, or an IRModule",
    )


# What people pass for a model, by suffix: what it is, and what to do.
_NOT_MODELS = {
    ".so": ("a library", "tk.load loads it"),
    ".pt2": (
        "a program of torch, and reading it runs what it holds",
        "if you trust it: torch.export.load reads it; pass what that returns",
    ),
    ".pt": ("a checkpoint of torch", "load it with torch, and pass the module"),
    ".pth": ("a checkpoint of torch", "load it with torch, and pass the module"),
    ".safetensors": ("a file of weights", "load it into a torch module, and pass that"),
    ".tflite": ("a model of TensorFlow Lite", "convert it with tf2onnx"),
    ".pb": ("a graph of TensorFlow", "convert it with tf2onnx"),
    ".h5": ("a model of Keras", "convert it with tf2onnx"),
    ".keras": ("a model of Keras", "convert it with tf2onnx"),
}


def _refuse_others(path: Path) -> None:
    """Raise UserError for what has the name of something else than a model."""
    kind, hint = _NOT_MODELS.get(path.suffix.lower(), ("", ""))
    if kind:
        message = f"{str(path)!r} is {kind}, not a model"
        raise UserError(message, code="bad-model", hint=hint)


def _module(model: IRModule | Function | PrimFunc) -> IRModule:
    """A function alone is a module of its own, named as modules are by default."""
    if isinstance(model, IRModule):
        return model
    function = replace(model, public=True) if isinstance(model, PrimFunc) else model
    return IRModule((function,), model.name)


def _refuse_options(subject: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(
                f"{name}= is of no use for {subject}",
                code="contradiction",
                where=name,
                hint="omit it",
            )


def is_of(model: object, package: str) -> bool:
    """Whether a class of the model is one of the package's, which may not be installed."""
    return any(c.__module__.partition(".")[0] == package for c in type(model).__mro__)


def _script(path: Path) -> IRModule:
    from tensorkiln.script import from_source

    text = _script_text(path)
    hashed = ModelSource("script", sha256_of(text.encode()))
    return replace(from_source(text, file=str(path)), source=hashed)


def _script_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError("no such file", code="missing-file", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", code="missing-file", where=str(path)) from error


def _examples(example: Any) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
    """Arguments by position and by name."""
    if example is None:
        return (), None
    if isinstance(example, Mapping):
        return (), example
    return (example, None) if isinstance(example, list | tuple) else ((example,), None)
