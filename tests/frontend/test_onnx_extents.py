"""Symbolic extents from 0 to two more than an operator needs, beside ONNX Runtime: operands end
where a page begins that cannot be read. `python -m tests.frontend.extents` takes all operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.frontend.extents import Variant, outcomes

RNG = np.random.default_rng(7)
Shape = tuple[object, ...]


def row(
    op: str,
    shapes: Sequence[Shape],
    need: int,
    constants: Sequence[Any] = (),
    outputs: int = 1,
    dtypes: Mapping[int, str] | None = None,
    name: str = "",
    **attrs: Any,
) -> Variant:
    """A node of operands of `shapes`, then constants; extents "n" are symbolic, `need` the least
    with which it works."""
    kinds = [(dtypes or {}).get(k, "float32") for k in range(len(shapes))]
    operands = [RNG.random([need if d == "n" else d for d in s]) for s in shapes]  # type: ignore[misc]
    names = [f"x{k}" for k in range(len(shapes))]
    initializers = [
        numpy_helper.from_array(np.asarray(0 if c is None else c), f"c{k}")
        for k, c in enumerate(constants)
    ]
    inputs = [c.name if constants[k] is not None else "" for k, c in enumerate(initializers)]
    domain = attrs.pop("domain", "")
    node = helper.make_node(
        op, [*names, *inputs], [f"y{k}" for k in range(outputs)], domain=domain, **attrs
    )
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(k)) for k in kinds]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, t, list(s))
            for n, t, s in zip(names, types, shapes, strict=True)
        ],
        [onnx.ValueInfoProto(name=f"y{k}") for k in range(outputs)],
        [c for k, c in enumerate(initializers) if constants[k] is not None],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9)
    )
    places = tuple((k, a) for k, s in enumerate(shapes) for a, d in enumerate(s) if d == "n")
    arrays = tuple(x.astype(k) for x, k in zip(operands, kinds, strict=True))
    return Variant(name or op, model, places, need, arrays)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32)


TABLE = [
    row("Split", [("n", 2)], 5, [ints(2, 3)], 2),
    row("Split", [("n", 2)], 4, [], 2, num_outputs=2),
    row("TopK", [(2, "n")], 5, [ints(5)], 2),
    row("Slice", [("n", 2)], 4, [ints(1), ints(4)]),
    *(
        row("Pad", [("n", 2)], n, [ints(3, 0, 2, 0)], mode=mode, name=f"Pad {mode}")
        for mode, n in (("reflect", 4), ("edge", 1), ("wrap", 3), ("constant", 1))
    ),
    row("Gather", [("n", 2)], 6, [ints(5, -2)]),
    row("GatherND", [("n", "n")], 3, [np.array([[0, 2], [1, -1]])]),
    row("GatherElements", [("n", 2)], 4, [np.array([[0, 3], [1, -4]])]),
    row("ReverseSequence", [("n", 2, 3)], 4, [ints(4, 2)]),
    row("Resize", [(1, 1, "n")], 1, [None, None, ints(1, 1, 6)], mode="linear"),
    row("Resize", [(1, 1, "n")], 1, [None, None, ints(1, 1, 6)], mode="nearest"),
    row("GridSample", [(1, 2, "n", 3), (1, 2, 2, 2)], 1),
    row("MaxPool", [(1, 2, "n", 4)], 1, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    row("AveragePool", [(1, 2, "n", 4)], 1, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    row("MaxPool", [(1, 2, "n", 4)], 3, kernel_shape=[3, 3]),
    row("GlobalMaxPool", [(1, 2, "n")], 1),
    row("ArgMax", [(2, "n")], 1, axis=1, keepdims=0),
    row("Conv", [(1, 2, "n", 4)], 1, [floats(3, 2, 3, 3)], pads=[1, 1, 1, 1]),
    row("ArrayFeatureExtractor", [(2, "n")], 4, [ints(3)], domain="ai.onnx.ml"),
    # sizes that must agree
    row("Conv", [(1, "n", 5, 5)], 2, [floats(3, 2, 3, 3)]),
    row("Add", [("n", 4), (3, 4)], 3),
    row("Where", [("n", 4), (3, 4), (3, 4)], 3, dtypes={0: "bool"}),
    row("PRelu", [(2, "n")], 3, [floats(3)]),
    row("Expand", [("n", 1)], 3, [ints(3, 2)]),
    row("Concat", [("n", 2), (3, 2)], 3, axis=1),
    row("MatMul", [(2, "n"), (4, 3)], 4),
    row("Gemm", [(2, "n"), (4, 3), (3,)], 4),
    row("LayerNormalization", [(2, "n")], 5, [floats(5), floats(5)]),
    row("BatchNormalization", [(2, "n", 3)], 2, [floats(2)] * 4),
    row("QuantizeLinear", [(2, "n")], 3, [floats(3) + 1, np.zeros(3, np.uint8)], axis=1),
    row("Squeeze", [("n", 4)], 1, [ints(0)]),
    row("Reshape", [("n", 2)], 3, [ints(-1, 3)]),
    row("DepthToSpace", [(1, "n", 2, 2)], 4, blocksize=2),
]


def meeting() -> list[Variant]:
    """An operand of "n" beside one of a foreign name, of 3 and of 1."""
    variants_of_ends = []
    for size in (3, 1):
        v = row("Mul", [("n", 4), (size, 4)], size, name=f"Mul with m = {size}")
        v.model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "unk__6"
        variants_of_ends.append(v)
    return variants_of_ends


# What ONNX Runtime computes of no elements and we refuse: (name, size) -> why.
REFUSED = {
    ("Slice", 0): "bounds are simplified for extents of 1 or more",
    ("Pad constant", 0): "its kernel reads the first element even where it takes the value",
    ("Concat", 0): "it leaves out operands without elements, whatever their other extents",
    ("Mul with m = 1", 0): "an extent of 0 broadcasts with a known 1 only",
}


def test_what_onnx_runtime_refuses_is_refused_and_the_others_agree() -> None:
    differences = [(v.name, *details) for v, details in outcomes([*TABLE, *meeting()])]
    strange = [f for f in differences if f[1] != "differs" or (f[0], f[2]) not in REFUSED]
    assert strange == []
    assert {(name, n) for name, _, n, _ in differences} == set(REFUSED)
