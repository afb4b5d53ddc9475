"""Builds one-node and small ONNX models, and compares an import with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tensorkiln.frontend import from_onnx
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ops.evaluate import evaluate

Feeds = Mapping[str, np.ndarray]


def value(name: str, dtype: Any, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    code = dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, code, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    *,
    consts: Feeds | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model whose outputs are untyped and whose constants are initializers."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in (consts or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=8 if opset < 20 else 10, functions=list(functions)
    )


def node_model(
    op: str,
    operands: Sequence[np.ndarray | None],
    *,
    opset: int = 17,
    fixed: Sequence[int] = (),
    outputs: int = 1,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One node; operands at positions in `fixed` are initializers, None ones are left out."""
    names = ["" if v is None else f"x{i}" for i, v in enumerate(operands)]
    outs = [f"y{i}" for i in range(outputs)]
    arrays_by_name = {
        n: np.asarray(v) for n, v in zip(names, operands, strict=True) if v is not None
    }
    consts = {
        n: v
        for i, (n, v) in enumerate((n, arrays_by_name.get(n)) for n in names)
        if i in fixed and v is not None
    }
    feeds = {n: v for n, v in arrays_by_name.items() if n not in consts}
    model_proto = model(
        [helper.make_node(op, names, outs, name="it", **attrs)],
        [value(n, v.dtype, v.shape) for n, v in feeds.items()],
        outs,
        consts=consts,
        opset=opset,
    )
    return model_proto, feeds


def main(module: IRModule) -> Function:
    function = module["main"]
    assert isinstance(function, Function)
    return function


def ours(module: IRModule, feeds: Feeds) -> list[np.ndarray]:
    """The import, evaluated by NumPy; inputs by their names in the model."""
    f = main(module)
    by_name = dict(zip(f.attrs["input_names"], (p.name for p in f.params), strict=True))
    return evaluate(module, {by_name[k]: v for k, v in feeds.items()})


def theirs(model_proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model_proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def agree(
    model_proto: onnx.ModelProto,
    feeds: Feeds,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **options: Any,
) -> IRModule:
    """Imports, and asserts that values, shapes and dtypes are ONNX Runtime's."""
    module = from_onnx(model_proto, **options)
    outputs, want = ours(module, feeds), theirs(model_proto, feeds)
    assert len(outputs) == len(want)
    for a, b in zip(outputs, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return module


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
