"""PyTorch modules to IRModule, by way of torch's own ONNX exporter."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.frontend.onnx import from_onnx
from tensorkiln.frontend.torch.ranges import with_ranges
from tensorkiln.ir.module import IRModule

_LARGE = 1 << 29


def from_torch(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    freeze: Mapping[str, int] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> IRModule:
    """A module with the function `main` of a `torch.nn.Module` in evaluation mode.

    `example_inputs` are the positional arguments of one call; their shapes become the parameters'
    unless `dynamic_shapes` (as `torch.export` takes it) leaves dimensions open; calls with sizes
    out of the range of their Dim are refused. The module's training flag is put back. Raises
    UserError when torch is not installed or cannot export the module, UnsupportedError as
    `from_onnx` does.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            "from_torch needs PyTorch, which is not installed",
            code="missing-package",
            hint="pip install 'tensorkiln[torch]', or export to ONNX and use from_onnx",
        ) from None
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"expected a torch.nn.Module, got {type(module).__name__}", code="bad-model"
        )
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        program = _export(
            module, tuple(example_inputs), dynamic_shapes=dynamic_shapes,
            input_names=input_names, output_names=output_names,
        )  # fmt: skip
    finally:
        for m, training in modes:
            m.training = training
    if _bytes(module) < _LARGE:
        return with_ranges(from_onnx(program.model_proto, freeze=freeze), program)
    # Protobuf holds no more than 2 GB; in a file the weights are mapped, not copied.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "model.onnx")
        program.save(path, external_data=True)
        return with_ranges(from_onnx(path, freeze=freeze), program)


def _bytes(module: Any) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def _export(module: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """torch's exporter, without what it prints; its many error classes become one."""
    import torch

    given = {k: v for k, v in options.items() if v is not None}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), torch.no_grad():
            program = torch.onnx.export(module, args, dynamo=True, verbose=False, **given)
    except ImportError as error:
        raise UserError(
            f"torch's ONNX exporter needs a package that is not installed: {error.name}",
            code="missing-package",
            hint="pip install 'tensorkiln[torch]'",
        ) from error
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"torch cannot export {type(module).__name__}: {type(error).__name__}: {first}",
            code="export-failed",
        ) from error
    return program
