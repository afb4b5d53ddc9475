"""Convert models to IRModule: `from_onnx`, `check_onnx`, `from_torch`.

The modules of an importer are loaded at its first call, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import Issue
from tensorkiln.ir.module import IRModule

__all__ = ["check_onnx", "from_onnx", "from_torch"]


def from_onnx(
    model: Any,
    *,
    freeze: Mapping[str, int] | None = None,
    external_roots: Sequence[str | Path] = (),
) -> IRModule:
    """Import an ONNX model; see `tensorkiln.frontend.onnx.from_onnx`."""
    from tensorkiln.frontend import onnx

    return onnx.from_onnx(model, freeze=freeze, external_roots=external_roots)


def check_onnx(
    model: Any,
    freeze: Mapping[str, int] | None = None,
    *,
    external_roots: Sequence[str | Path] = (),
) -> tuple[Issue, ...]:
    """List what `from_onnx` would refuse; see `tensorkiln.frontend.onnx.check_onnx`."""
    from tensorkiln.frontend import onnx

    return onnx.check_onnx(model, freeze, external_roots=external_roots)


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> IRModule:
    """Import a `torch.nn.Module` or a `torch.export.ExportedProgram`; see
    `tensorkiln.frontend.torch.from_torch`."""
    from tensorkiln.frontend import torch

    return torch.from_torch(module, example_inputs, kwargs, **options)
