"""Writes a small ONNX model for the other examples: `python examples/make_mlp.py mlp.onnx`.

A multi-layer perceptron 784-256-128-10 with random weights. Its input is `image`, float32
[batch, 784], with a symbolic size `batch`; its output is `logits`, float32 [batch, 10].
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

SIZES = (784, 256, 128, 10)


def make_mlp(seed: int = 0) -> ModelProto:
    """The model: three Gemm with Relu between them."""
    rng = np.random.default_rng(seed)
    nodes, weights, value = [], [], "image"
    for layer, (rows, columns) in enumerate(itertools.pairwise(SIZES), start=1):
        last = layer == len(SIZES) - 1
        weight = rng.standard_normal((columns, rows)).astype(np.float32) * (2 / rows) ** 0.5
        bias = rng.standard_normal(columns).astype(np.float32) * np.float32(0.1)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"layer{layer}.weight"))
        weights.append(numpy_helper.from_array(bias, f"layer{layer}.bias"))
        inputs = [value, f"layer{layer}.weight", f"layer{layer}.bias"]
        value = "logits" if last else f"layer{layer}"
        nodes.append(helper.make_node("Gemm", inputs, [value], f"layer{layer}", transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [value], [f"relu{layer}"], f"relu{layer}"))
            value = f"relu{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", SIZES[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", SIZES[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(make_mlp().SerializeToString())
