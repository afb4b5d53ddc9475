"""ONNX models of a few nodes whose sizes, constants or attributes have large consequences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from tests.frontend.onnx_models import model, value

Steps = list[tuple[str, str, str]]  # operator, operands, result; `{i}` is the number of the step

ENDS = (2**63 - 1, -(2**63), 2**31, 10**9, -1)
IMAGE = [value("x", np.float32, [1, 2, "h", "w"])]
VECTOR = [value("x", np.float32, ["n"])]


def node(op: str, operands: str, results: str = "y", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, operands.split(), results.split(), **attrs)


def chain(steps: Steps, count: int, start: onnx.NodeProto | None) -> list[onnx.NodeProto]:
    """Nodes that repeat `steps` from the value v0 to `v<count>`."""
    nodes = [start] if start is not None else []
    for i in range(count):
        for op, operands, result in steps:
            name, _, axis = op.partition(":")
            attrs = {"axis": int(axis)} if axis else {}
            names = (operands.format(i=i), result.format(i=i, j=i + 1))
            nodes.append(node(name, *names, **attrs))
    return nodes


SIZES: dict[str, Steps] = {
    "square": [("Mul", "v{i} v{i}", "v{j}")],
    "half": [("Div", "v{i} two", "h{i}"), ("Add", "v{i} h{i}", "v{j}")],
    "mod": [
        ("Add", "v{i} one", "h{i}"),
        ("Mod", "v{i} h{i}", "m{i}"),
        ("Add", "m{i} h{i}", "v{j}"),
    ],
    "div": [
        ("Add", "v{i} one", "h{i}"),
        ("Mul", "v{i} v{i}", "q{i}"),
        ("Div", "q{i} h{i}", "v{j}"),
    ],
    "where": [
        ("Greater", "v{i} two", "c{i}"),
        ("Add", "v{i} one", "a{i}"),
        ("Mul", "v{i} two", "b{i}"),
        ("Where", "c{i} a{i} b{i}", "v{j}"),
    ],
    "max": [
        ("Div", "v{i} two", "h{i}"),
        ("Mul", "h{i} h{i}", "q{i}"),
        ("Max", "v{i} q{i}", "v{j}"),
    ],
    "min": [
        ("Div", "v{i} two", "h{i}"),
        ("Mul", "h{i} h{i}", "q{i}"),
        ("Min", "v{i} q{i}", "v{j}"),
    ],
    "sub": [("Div", "v{i} two", "h{i}"), ("Sub", "h{i} v{i}", "v{j}")],
    "largest": [("Mul", "v{i} big", "h{i}"), ("Add", "h{i} big", "v{j}")],
    "least": [("Div", "v{i} low", "h{i}"), ("Sub", "h{i} v{i}", "v{j}")],
    "product": [("Concat:0", "v{i} v{i} v{i}", "h{i}"), ("ReduceProd", "h{i}", "v{j}")],
    "total": [("Tile", "v{i} many", "h{i}"), ("ReduceSum", "h{i}", "v{j}")],
}
NUMBERS = {"one": 1, "two": 2, "many": 100, "big": 2**63 - 1, "low": -(2**63)}

CONSTANTS: dict[str, tuple[Steps, int]] = {
    "tile": ([("Tile", "v{i} two", "v{j}")], 40),
    "tile by 10^9": ([("Tile", "v{i} billion", "v{j}")], 3),
    "tile by 2^63 - 1": ([("Tile", "v{i} big", "v{j}")], 1),
    "concat": ([("Concat:0", "v{i} v{i}", "v{j}")], 40),
    "concat to 2^80": ([("Concat:0", "v{i} v{i}", "v{j}")], 80),
    "concat of copies": ([("Add", "v{i} f", "a{i}"), ("Concat:0", "v{i} a{i}", "v{j}")], 36),
    "expand": ([("Expand", "f trillion", "v{j}")], 1),
    "expand to 2^126": ([("Expand", "f square", "v{j}")], 1),
    "pad": ([("Pad", "v{i} billions", "v{j}")], 3),
    "pad by 2^63 - 1": ([("Pad", "v{i} square", "v{j}")], 1),
    "full": ([("ConstantOfShape", "trillion", "v{j}")], 1),
    "full of 2^126": ([("ConstantOfShape", "square", "v{j}")], 1),
    "outer": (
        [
            ("Reshape", "v{i} column", "c{i}"),
            ("Mul", "v{i} c{i}", "m{i}"),
            ("Reshape", "m{i} flat", "v{j}"),
        ],
        6,
    ),
    "resize": ([("Resize", "v{i} f scales", "v{j}")], 6),
    "resize by 10^30": ([("Resize", "v{i} f huge", "v{j}")], 1),
}
CONSTANT_VALUES: dict[str, np.ndarray] = {
    "v0": np.ones(8, np.float32),
    "f": np.ones(1, np.float32),
    "two": np.array([2]),
    "billion": np.array([10**9]),
    "billions": np.array([10**9, 10**9]),
    "trillion": np.array([10**12]),
    "big": np.array([2**63 - 1]),
    "square": np.array([2**63 - 1, 2**63 - 1]),
    "column": np.array([-1, 1]),
    "flat": np.array([-1]),
    "scales": np.array([2.0], np.float32),
    "huge": np.array([1e30], np.float32),
}


def chains() -> Iterator[tuple[str, onnx.ModelProto]]:
    consts = {k: np.array([v]) for k, v in NUMBERS.items()}
    for name, steps in SIZES.items():
        nodes = chain(steps, 24, node("Shape", "x", "v0"))
        for end in ("ConstantOfShape", "Identity"):
            yield f"{name}, {end}", model([*nodes, node(end, "v24")], VECTOR, ["y"], consts=consts)
    for name, (steps, count) in CONSTANTS.items():
        nodes = chain(steps, count, None)
        ends = [node("ReduceMax", f"v{count}", "t", keepdims=0), node("Add", "x t")]
        input_names = {n for k in nodes for n in k.input}
        values = {k: v for k, v in CONSTANT_VALUES.items() if k in input_names}
        yield name, model([*nodes, *ends], VECTOR, ["y"], consts=values)
    product = node("Einsum", "a a a a a", "t", equation="a,b,c,d,e->abcde")
    nodes = [product, node("ReduceMax", "t", "m", keepdims=0), node("Add", "x m")]
    yield "einsum", model(nodes, VECTOR, ["y"], consts={"a": np.ones(1000, np.float32)})
    nodes = [
        node("Range", "a b c", "t"),
        node("ReduceMax", "t", "m", keepdims=0),
        node("Add", "x m"),
    ]
    limits = [np.array(v, np.float32) for v in (0, 1, 1e-38)]
    yield "range", model(nodes, VECTOR, ["y"], consts=dict(zip("abc", limits, strict=True)))


def numbers() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Attributes and operands at the ends of int64 and beside int32."""
    weights = {"w": np.ones((2, 2, 3, 3), np.float32), "i": np.array([0])}
    for v in ENDS:
        two = [v, v]
        nodes = [
            *(node("Conv", "x w", **{a: two}) for a in ("strides", "dilations", "kernel_shape")),
            node("Conv", "x w", pads=two * 2),
            node("Conv", "x w", group=v),
            node("ConvTranspose", "x w", strides=two),
            node("ConvTranspose", "x w", output_padding=two),
            node("AveragePool", "x", kernel_shape=two),
            node("AveragePool", "x", kernel_shape=[2, 2], strides=two),
            node("MaxPool", "x", kernel_shape=[2, 2], pads=two * 2),
            *(node(op, "x", axis=v) for op in ("Softmax", "Flatten", "ArgMax", "Concat")),
            *(node(op, "x", blocksize=v) for op in ("DepthToSpace", "SpaceToDepth")),
            node("LRN", "x", size=v),
            node("Gather", "x i", axis=v),
            node("Transpose", "x", perm=[0, 1, 2, v]),
            node("Split", "x", "y z", num_outputs=v),
            *(node(op, "x v") for op in ("Unsqueeze", "CumSum", "Reshape")),
            node("TopK", "x v", "y z"),
            node("Gather", "x v", axis=2),
            node("Slice", "x v v i v"),
        ]
        for k, n in enumerate(nodes):
            operands = {name: {**weights, "v": np.array([v])}[name] for name in n.input[1:]}
            yield (
                f"{k} {n.op_type} of {v}",
                model([n], IMAGE, list(n.output), consts=operands, opset=18),
            )
    for version in (2**31, 2**63 - 1, -1, -(2**63), 2**32 + 17):
        model_proto = model([node("Relu", "x")], VECTOR, ["y"])
        model_proto.opset_import[0].version = version
        yield f"opset {version}", model_proto
        model_proto = model(
            [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")],
            VECTOR,
            ["y"],
            domains={"com.microsoft": 1},
        )
        model_proto.opset_import[1].version = version
        yield f"opset {version} of another domain", model_proto


def ranks() -> Iterator[tuple[str, onnx.ModelProto]]:
    for rank in (100, 10**5):
        ones_shape = np.ones(rank, np.int64)
        relu = [node("Relu", "x")]
        yield f"rank {rank}", model(relu, [value("x", np.float32, [1] * rank)], ["y"])
        for op in ("Reshape", "Expand", "Tile", "Unsqueeze"):
            yield (
                f"{op} to {rank}",
                model([node(op, "x s")], VECTOR, ["y"], consts={"s": ones_shape}),
            )
        full = node("ConstantOfShape", "s")
        yield f"full of rank {rank}", model([full], VECTOR, ["y"], consts={"s": ones_shape})
        for text in ("n" + "+n" * rank, "n" + "//2" * rank, "(" * rank + "n+1" + ")" * rank):
            sizes = [value("x", np.float32, ["n", text])]
            yield f"dimension {text[:9]} of {rank}", model(relu, sizes, ["y"])
