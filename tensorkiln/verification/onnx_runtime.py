"""ONNX Runtime as the reference of `tk.verify`, for every value of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.base.errors import UserError
from tensorkiln.frontend.onnx import imported_values
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function

Array = npt.NDArray[Any]


def onnx_values(
    model: Any,
    imported_with: Mapping[str, Any],
    f: Function,
    inputs: Sequence[Array],
) -> dict[str, Array]:
    """The values that ONNX Runtime computes for the bindings of `f`, the imported function, by the
    binding's name. ONNX Runtime does not optimise the graph before.

    `imported_with` are the options of `from_onnx` that made `f`. Raises UserError:
    `missing-package`, and `unsupported` for a model that is not ONNX's or that ONNX Runtime does
    not run.
    """
    if isinstance(model, IRModule | Function) or type(model).__module__.startswith("torch"):
        raise UserError(
            f"ONNX Runtime runs ONNX models, not {type(model).__name__}",
            code="unsupported",
            hint='model is an ONNX file, or reference="float64"',
        )
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"reference='onnxruntime' needs the package {error.name!r}, which is not installed",
            code="missing-package",
            hint="pip install onnxruntime onnx",
        ) from None
    module, values = imported_values(model, **imported_with)
    main = module[f.name]
    assert isinstance(main, Function) and len(main.bindings) == len(f.bindings)
    number = {
        b.var: counterpart.var.name
        for b, counterpart in zip(main.bindings, f.bindings, strict=True)
    }
    named = {name: number[v] for name, v in values.items() if v in number}
    proto = onnx.ModelProto()
    if isinstance(model, str | Path):
        proto = onnx.load(str(model))
    elif isinstance(model, bytes):
        proto.ParseFromString(model)
    else:
        proto.CopyFrom(model)
    output_names = {o.name for o in proto.graph.output}
    value_names = [o for node in proto.graph.node for o in node.output if o in named]
    for name in value_names:
        if name not in output_names:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are also raised as exceptions
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = main.attrs.get("input_names", ())
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        arrays = session.run(value_names, dict(zip(names, inputs, strict=True)))
    except Exception as error:  # the exceptions of ONNX Runtime have no other common base class
        raise UserError(f"ONNX Runtime cannot run the model: {error}", code="unsupported") from None
    return {
        named[n]: a for n, a in zip(value_names, arrays, strict=True) if isinstance(a, np.ndarray)
    }
