"""PyTorch modules to IRModule, by way of torch's own ONNX exporter."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.frontend.onnx import from_onnx
from tensorkiln.frontend.torch.arguments import (
    check_count,
    check_dynamic_shapes,
    check_inputs,
    check_module,
    check_names,
    check_open,
)
from tensorkiln.frontend.torch.failures import export_error
from tensorkiln.frontend.torch.quiet import quiet
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
    out of the range of their Dim are refused. What is no tensor among them becomes a constant. The
    module's training flags are put back.

    Raises UserError for wrong arguments, when torch is not installed and when it cannot export the
    module (code `export-failed`), UnsupportedError for operators that torch cannot export and as
    `from_onnx` does. The cause of either (`__cause__`) is torch's own exception.
    """
    try:
        import torch  # noqa: F401 - whether it is there
    except ImportError:
        raise UserError(
            "from_torch needs PyTorch, which is not installed",
            code="missing-package",
            hint="pip install 'tensorkiln[torch]', or export to ONNX and use from_onnx",
        ) from None
    check_module(module)
    args = check_inputs(module, example_inputs)
    check_dynamic_shapes(module, args, dynamic_shapes)
    names = {
        "input_names": check_names("input_names", input_names),
        "output_names": check_names("output_names", output_names),
    }
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        program = _export(module, args, dynamic_shapes=dynamic_shapes, **names)
    finally:
        for m, training in modes:
            m.training = training
    graph = program.model.graph
    check_count("input_names", names["input_names"], graph.inputs)
    check_count("output_names", names["output_names"], graph.outputs)
    check_open(args, dynamic_shapes, graph.inputs)
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
    """torch's exporter, without what it prints, logs and warns of; its many error classes become
    one. What it says of a failure is in the error."""
    import torch

    given = {k: v for k, v in options.items() if v is not None}
    try:
        with quiet(), torch.no_grad():
            return torch.onnx.export(module, args, dynamo=True, verbose=False, **given)
    except ImportError as error:
        raise UserError(
            f"torch's ONNX exporter needs a package that is not installed: {error.name}",
            code="missing-package",
            hint="pip install 'tensorkiln[torch]'",
        ) from error
    except Exception as error:
        told, cause = export_error(module, error)
        raise told from cause
