"""The road a user takes from an ONNX file to a callable, as one function for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Run = Callable[..., list[Array]]


def export_library(
    model: Path, library: Path, freeze: Mapping[str, int] | None = None, **options: Any
) -> None:
    """Compiles an ONNX file, for this machine unless `options` of `compile` say otherwise, and
    writes one shared library."""
    import tensorkiln as tk

    module = tk.frontend.from_onnx(str(model), freeze=dict(freeze or {}))
    tk.compile(module, **options).export_library(str(library))


def load(library: Path) -> Run:
    """Loads a library; the result takes and returns NumPy arrays."""
    import tensorkiln as tk

    main = tk.runtime.Executor(tk.runtime.load_module(str(library)), tk.cpu())["main"]

    def run(*arrays: Array) -> list[Array]:
        result = main(*arrays)
        outputs = result if isinstance(result, tuple | list) else (result,)
        return [output.numpy() for output in outputs]

    return run


def compiled(model: Path, folder: Path, **options: Any) -> Run:
    """Both of the above."""
    library = folder / f"{model.stem}.so"
    export_library(model, library, **options)
    return load(library)
