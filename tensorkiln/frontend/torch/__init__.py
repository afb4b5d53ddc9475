"""Convert PyTorch modules to IRModule through torch's own ONNX exporter."""

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
    """Import a `torch.nn.Module` as a module with one function, `main`, in evaluation mode.

    `example_inputs` are the positional arguments of one call. Tensors among them become parameters
    of the same shape, except for dimensions that `dynamic_shapes` (in the form `torch.export`
    takes) leaves open; a later call with a size outside the range of its `torch.export.Dim` is
    refused. Arguments that are not tensors become constants. `freeze` gives open dimensions a size;
    `input_names` and `output_names` rename inputs and outputs. The training flags of the module and
    its submodules are set to evaluation during the export and restored after it.

    Raises UserError for wrong arguments, if torch is not installed, or if it cannot export the
    module (code `export-failed`); UnsupportedError if torch cannot export an operator, or where
    `from_onnx` raises it. The `__cause__` of a failed export is torch's own exception.
    """
    try:
        import torch  # noqa: F401 - only to know whether it is installed
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
    # Protobuf messages hold at most 2 GB; of a file, the weights are mapped and not copied.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "model.onnx")
        program.save(path, external_data=True)
        return with_ranges(from_onnx(path, freeze=freeze), program)


def _bytes(module: Any) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def _export(module: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """Run torch's exporter without its output, logs and warnings; `export_error` turns what it
    raises into a UserError or UnsupportedError."""
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
