"""The way through torch's own ONNX exporter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import install_line
from tensorkiln.frontend.torch.failures import export_error
from tensorkiln.frontend.torch.quiet import quiet
from tensorkiln.frontend.torch.ranges import with_ranges
from tensorkiln.ir.module import IRModule

_LARGE = 1 << 29
# The importer of ONNX models: takes a model and `freeze`.
FromOnnx = Callable[..., IRModule]


def imported(
    module: Any, program: Any, freeze: Mapping[str, int] | None, from_onnx: FromOnnx
) -> IRModule:
    """The exporter's `program` of `module`, with the ranges of its dimensions."""
    if _bytes(module) < _LARGE:
        return with_ranges(from_onnx(program.model_proto, freeze=freeze), program)
    # Protobuf messages hold at most 2 GB; of a file, the weights are mapped and not copied.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "model.onnx")
        program.save(path, external_data=True)
        return with_ranges(from_onnx(path, freeze=freeze), program)


def _bytes(module: Any) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def exported(module: Any, args: tuple[Any, ...], named: dict[str, Any], **options: Any) -> Any:
    """Run torch's exporter without its output, logs and warnings; `export_error` turns what it
    raises into a UserError or UnsupportedError."""
    import torch

    settings = {k: v for k, v in options.items() if v is not None}
    if named:
        settings["kwargs"] = named
    try:
        with quiet(), torch.no_grad():
            return torch.onnx.export(module, args, dynamo=True, verbose=False, **settings)
    except ImportError as error:
        raise UserError(
            f"torch's ONNX exporter needs a package that is not installed: {error.name}",
            code="missing-package",
            hint=install_line("torch"),
        ) from error
    except Exception as error:
        failure, cause = export_error(module, error)
        raise failure from cause
