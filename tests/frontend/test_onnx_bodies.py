"""Operators imported as the nodes of the function bodies by which the standard defines them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tensorkiln as tk
from tensorkiln.frontend import check_onnx, from_onnx
from tensorkiln.frontend.onnx import bodies, importer
from tensorkiln.frontend.onnx.proto import NODE
from tensorkiln.frontend.onnx.table import IMPORTERS
from tensorkiln.frontend.onnx.wire import decode, encode
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call
from tests.frontend.onnx_models import FLOAT, main, model, node_model, ours, value

R = np.random.default_rng(11)
X = value("x", np.float32, [2, 6])


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def labels(*shape: int, count: int) -> np.ndarray:
    return R.integers(0, count, shape)


LOSSES = ("none", "mean", "sum")
# operator, operands, opset, positions of initializers, outputs, attributes
Case = tuple[str, list[Any], int, tuple[int, ...], int, dict[str, Any]]
WITHOUT_IMPORTER: list[Case] = [
    *(
        (
            "NegativeLogLikelihoodLoss",
            [f(3, 5, *further_sizes), labels(3, *further_sizes, count=5), *weights],
            opset,
            (),
            1,
            {"reduction": reduction, **ignored},
        )
        for opset in (12, 13, 22)
        for reduction in LOSSES
        for further_sizes in ((), (2, 4))
        for weights, ignored in (([], {}), ([abs(f(5))], {"ignore_index": 2}))
    ),
    *(
        (
            "SoftmaxCrossEntropyLoss",
            [f(3, 5, 2), labels(3, 2, count=5)],
            opset,
            (),
            outputs,
            {"reduction": reduction},
        )
        for opset in (12, 13)
        for outputs in (1, 2)
        for reduction in LOSSES
    ),
    *(
        (window, [np.array(size)], 17, (0,), 1, {"periodic": periodic})
        for window in ("HannWindow", "HammingWindow", "BlackmanWindow")
        for size in (7, 10)
        for periodic in (0, 1)
    ),
    ("CenterCropPad", [f(5, 8), i(7, 3)], 18, (1,), 1, {}),
    ("CenterCropPad", [f(5, 8, 3), i(7)], 18, (1,), 1, {"axes": [1]}),
    ("AffineGrid", [f(2, 2, 3), i(2, 3, 4, 5)], 20, (1,), 1, {}),
    ("AffineGrid", [f(1, 3, 4), i(1, 1, 2, 3, 4)], 20, (1,), 1, {"align_corners": 1}),
]
# Our importers and the bodies of the same operators say the same.
WITH_IMPORTER: list[Case] = [
    *(
        (op, [f(3, 4) * 3], opset, (), 1, attrs)
        for op, opset, attrs in (
            ("Relu", 14, {}),
            ("Elu", 18, {"alpha": 0.7}),
            ("HardSigmoid", 18, {}),
            ("HardSwish", 14, {}),
            ("HardSwish", 22, {}),
            ("LeakyRelu", 16, {"alpha": 0.3}),
            ("Mish", 18, {}),
            ("Mish", 22, {}),
            ("Selu", 18, {}),
            ("Shrink", 9, {"lambd": 0.4}),
            ("Shrink", 18, {}),
            ("Softplus", 18, {}),
            ("Softsign", 18, {}),
            ("Celu", 12, {}),
            ("ThresholdedRelu", 18, {}),
            ("Gelu", 20, {}),
            ("Gelu", 20, {"approximate": "tanh"}),
            ("Swish", 24, {"alpha": 0.5}),
            ("Softmax", 13, {}),
            ("LogSoftmax", 18, {"axis": 0}),
            ("ReduceL1", 18, {}),
            ("ReduceLogSumExp", 18, {"keepdims": 0}),
            ("ReduceSumSquare", 18, {}),
        )
    ),
    ("PRelu", [f(3, 4), f(4)], 16, (), 1, {}),
    ("Clip", [f(3, 4), np.float32(-0.5), None], 13, (), 1, {}),
    ("Clip", [f(3, 4), None, np.float32(0.5)], 13, (), 1, {}),
    ("Clip", [f(3, 4)], 13, (), 1, {}),
    ("LayerNormalization", [f(3, 4), f(4), f(4)], 17, (), 1, {"epsilon": 1e-3}),
    ("LayerNormalization", [f(3, 4), f(4)], 17, (), 1, {"axis": -1}),
    ("GroupNormalization", [f(2, 4, 3), f(4), f(4)], 21, (), 1, {"num_groups": 2}),
    ("GreaterOrEqual", [f(3, 4), f(4)], 16, (), 1, {}),
    ("MeanVarianceNormalization", [f(2, 3, 2, 2)], 13, (), 1, {}),
]


def made(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op, operands, opset, fixed, outputs, attrs = case
    return node_model(op, operands, opset=opset, fixed=fixed, outputs=outputs, **attrs)


def expect(outputs: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    assert len(outputs) == len(want)
    for a, b in zip(outputs, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", WITHOUT_IMPORTER, ids=lambda c: f"{c[0]}-{c[2]}")
def test_operators_without_an_importer_are_the_reference_evaluators(case: Case) -> None:
    assert case[0] not in IMPORTERS
    proto, feeds = made(case)
    want = ReferenceEvaluator(proto).run(None, feeds)
    expect(ours(from_onnx(proto), feeds), [np.asarray(w) for w in want])


@pytest.mark.parametrize("case", WITH_IMPORTER, ids=lambda c: f"{c[0]}-{c[2]}")
def test_importers_and_bodies_say_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, feeds = made(case)
    module = from_onnx(proto)
    other_importers = {k: v for k, v in IMPORTERS.items() if k != case[0]}
    monkeypatch.setattr(importer, "DOMAINS", {"": other_importers})
    by_body = from_onnx(proto)
    calls = [b.value for b in main(by_body).bindings if isinstance(b.value, Call)]
    assert all("it/" in c.span for c in calls if c.op != "identity")
    expect(ours(by_body, feeds), ours(module, feeds))


def test_an_importer_wins_over_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, _ = node_model("Mish", [f(3, 4)], opset=18)
    monkeypatch.setattr(bodies, "schema_of", lambda *_: pytest.fail("a body was asked for"))
    assert len(main(from_onnx(proto)).bindings) == 3


def test_a_body_takes_the_attribute_that_an_importer_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ONNX 28 gave SpaceToDepth a `mode`; a broken one is still what the importer says of it."""
    x = f(1, 2, 4, 4)
    proto, feeds = node_model("SpaceToDepth", [x], opset=28, blocksize=2, mode="CRD")
    want = x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 2, 2)
    np.testing.assert_array_equal(ours(from_onnx(proto), feeds)[0], want)
    wrong, _ = node_model("SpaceToDepth", [x], opset=28, blocksize=2, mood="CRD")
    (issue,) = check_onnx(wrong)
    assert (issue.kind, "'mood'" in issue.message) == ("attribute", True)
    old, _ = node_model("SpaceToDepth", [x], opset=13, blocksize=2, mode="CRD")
    (issue,) = check_onnx(old)
    assert "'mode' is not supported" in issue.message


# -- names ----------------------------------------------------------------------------------------


def spans_of(module: IRModule) -> list[str]:
    return [b.value.span for b in main(module).bindings if isinstance(b.value, Call)]


def swiglu(name: str, source: str, out: str) -> onnx.NodeProto:
    return helper.make_node("SwiGLU", [source, source], [out], name=name)


def test_values_of_two_bodies_do_not_meet() -> None:
    """The second call, and a node of the model, have names that bodies have inside."""
    inner = onnx.defs.get_schema("SwiGLU", 28).function_body.node
    inner_name = next(n.output[0] for n in inner)
    nodes = [
        swiglu("one", "x", inner_name),
        swiglu("two", inner_name, "y"),
        helper.make_node("Add", ["y", inner_name], ["z"], name="sum"),
    ]
    module = from_onnx(model(nodes, [X], ["z"], opset=28))
    spans = spans_of(module)
    assert len(spans) == len(set(spans))
    assert {s.split("/")[0] for s in spans} == {"one", "two", "sum"}
    x = f(2, 6)
    first = x * (x / (1 + np.exp(-x)))
    second = first * (first / (1 + np.exp(-first)))
    np.testing.assert_allclose(ours(module, {"x": x})[0], first + second, rtol=1e-5, atol=1e-6)


def test_inside_a_function_its_attributes_reach_the_body() -> None:
    loss = helper.make_node("NegativeLogLikelihoodLoss", ["a", "b"], ["c"], name="loss")
    loss.attribute.append(
        onnx.AttributeProto(name="reduction", ref_attr_name="how", type=onnx.AttributeProto.STRING)
    )
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("me", "L", ["a", "b"], ["c"], [loss], imports, ["how"])
    x, y = f(3, 5), labels(3, count=5)
    for reduction_name, want in (("sum", np.sum), ("mean", np.mean)):
        proto = model(
            [
                helper.make_node(
                    "L", ["x", "t"], ["y"], domain="me", name="call", how=reduction_name
                )
            ],
            [value("x", np.float32, [3, 5]), value("t", np.int64, [3])],
            ["y"],
            functions=[function],
            domains={"me": 1},
        )
        output = ours(from_onnx(proto), {"x": x, "t": y})[0]
        np.testing.assert_allclose(output, want(-x[np.arange(3), y]), rtol=1e-6)


def test_preview_domain() -> None:
    query, key, val = f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)
    node = helper.make_node(
        "FlexAttention", ["q", "k", "v"], ["y"], name="flex", domain="ai.onnx.preview"
    )
    feeds = {"q": query, "k": key, "v": val}
    inputs = [value(n, np.float32, a.shape) for n, a in feeds.items()]
    module = from_onnx(model([node], inputs, ["y"], opset=24, domains={"ai.onnx.preview": 1}))
    scores = np.exp(query.astype(np.float64) @ key.swapaxes(2, 3) / 2)
    want = scores / scores.sum(-1, keepdims=True) @ val
    np.testing.assert_allclose(ours(module, feeds)[0], want, rtol=1e-5)


def test_outputs_that_nothing_reads_are_not_computed() -> None:
    proto, _ = node_model("SoftmaxCrossEntropyLoss", [f(3, 5), labels(3, count=5)], outputs=2)
    first_only, both_outputs = (
        onnx.ModelProto.FromString(proto.SerializeToString()) for _ in range(2)
    )
    del first_only.graph.output[1]
    assert len(main(from_onnx(first_only)).attrs["output_names"]) == 1
    assert len(main(from_onnx(both_outputs)).attrs["output_names"]) == 2


# -- opsets that are newer than our importers ------------------------------------------------------


def test_newer_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were 27 the last opset known: old definitions by importers, new ones by their bodies."""
    monkeypatch.setattr(importer, "NEWEST_OPSET", 27)
    nodes = [
        swiglu("new", "x", "a"),
        helper.make_node("Celu", ["a"], ["b"], name="anew", alpha=0.5),
        helper.make_node("Sigmoid", ["b"], ["y"], name="old"),
    ]
    module = from_onnx(model(nodes, [X], ["y"], opset=28))
    spans = spans_of(module)
    assert [s for s in spans if "/" not in s] == ["old"]
    x = f(2, 6)
    gated = x * (x / (1 + np.exp(-x)))
    want = 1 / (1 + np.exp(-np.where(gated > 0, gated, 0.5 * np.expm1(gated / 0.5))))
    np.testing.assert_allclose(ours(module, {"x": x})[0], want, rtol=1e-5, atol=1e-6)


def test_newer_opset_without_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    new = next(
        s
        for s in onnx.defs.get_all_schemas()
        if s.name in IMPORTERS
        and s.since_version == 25
        and not s.has_function
        and not s.has_context_dependent_function
        and s.min_input == s.max_input == 1
    )
    monkeypatch.setattr(importer, "NEWEST_OPSET", 24)
    node = helper.make_node(new.name, ["x"], ["y"], name="anew")
    (issue,) = check_onnx(model([node], [X], ["y"], opset=25))
    assert (issue.kind, issue.node, issue.op) == ("opset", "anew", new.name)
    assert "opset 25 defines the operator anew" in issue.message


def test_newer_opset_than_the_package_has() -> None:
    newest = onnx.defs.onnx_opset_version()
    (issue,) = check_onnx(model([helper.make_node("Relu", ["x"], ["y"])], [X], ["y"], opset=99))
    assert issue.kind == "opset"
    assert f"7 to {max(newest, importer.NEWEST_OPSET)}" in issue.hint


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "operands", "opset", "attrs", "kind", "says"),
    [
        ("SwiGLU", [f(2, 4)], 28, {}, "malformed", "expected 2 to 2 operands, got 1"),
        ("SwiGLU", [f(2, 4)] * 3, 28, {}, "malformed", "expected 2 to 2 operands, got 3"),
        ("SwiGLU", [None, f(2, 4)], 28, {}, "malformed", "is required"),
        ("SwiGLU", [f(2, 4), i(1, 2)], 28, {}, "malformed", "is a tensor of int64"),
        (
            "SwiGLU",
            [f(2, 4), f(2, 4).astype(np.float64)],
            28,
            {},
            "malformed",
            "expected float32 as of other operands",
        ),
        (
            "SwiGLU",
            [f(2, 4)] * 2,
            28,
            {"axis": 1},
            "attribute",
            "attribute 'axis' is not supported",
        ),
        ("SwiGLU", [f(2, 4), f(2, 3)], 28, {}, "malformed", "must have shape [2, 4]"),
        ("SwiGLU", [f(2, 4), f(1, 4)], 28, {}, "malformed", "must have shape [2, 4]"),
        (
            "HannWindow",
            [np.array(4)],
            17,
            {"periodic": 1.0},
            "malformed",
            "has type FLOAT, expected INT",
        ),
        ("SwiGLU", [f(2, 4)] * 2, 27, {}, "operator", "the operator is not supported"),
    ],
)
def test_refusals_name_the_node_and_what_is_inside(
    op: str, operands: list[Any], opset: int, attrs: dict[str, Any], kind: str, says: str
) -> None:
    proto, _ = node_model(op, operands, opset=opset, **attrs)
    (issue,) = check_onnx(proto)
    assert (issue.node, issue.op) == ("it", op)
    assert says in issue.message
    assert issue.kind == kind


def test_two_outputs_too_many() -> None:
    proto, _ = node_model("SwiGLU", [f(2, 4)] * 2, opset=28, outputs=3)
    (issue,) = check_onnx(proto)
    assert "it has 3 outputs, expected 1" in issue.message


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert bodies._defs.__wrapped__() is None
    monkeypatch.setattr(bodies, "_defs", lambda: None)
    proto, _ = node_model("SwiGLU", [f(2, 4)] * 2, opset=28)
    (issue,) = check_onnx(proto)
    assert (issue.kind, "pip install 'tensorkiln[onnx]'" in issue.hint) == ("operator", True)
    unheard, _ = node_model("Frobnicate", [f(2, 4)], opset=28)
    (issue,) = check_onnx(unheard)
    assert "pip" not in issue.hint


def test_nodes_are_written_as_protobuf_reads_them() -> None:
    """With every kind of attribute, at the ends of their ranges."""
    inside = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "inside",
        [helper.make_tensor_value_info("a", FLOAT, [2, None, "n"])],
        [onnx.ValueInfoProto(name="c")],
        [onnx.numpy_helper.from_array(f(2, 3), "b")],
    )
    tensor = onnx.TensorProto(
        name="t", data_type=7, dims=[3], int64_data=[-(1 << 63), (1 << 63) - 1, 0]
    )
    wide = onnx.TensorProto(name="d", data_type=11, dims=[2], double_data=[1e300, -0.0])
    node = helper.make_node("Op", ["x", "", "y"], ["", "z"], "name", domain="d", overload="o")
    node.attribute.extend(
        helper.make_attribute(name, v)
        for name, v in {
            "float": 0.1,
            "zero": 0.0,
            "int": -1,
            "none": 0,
            "text": "é",
            "empty": "",
            "floats": [0.5, -1.5],
            "ints": [-(1 << 63), 0, (1 << 63) - 1],
            "texts": ["a", ""],
            "tensor": tensor,
            "wide": wide,
            "graph": inside,
        }.items()
    )
    ref = onnx.AttributeProto(name="r", ref_attr_name="outer", type=onnx.AttributeProto.INT)
    node.attribute.append(ref)
    data = encode(NODE, decode(NODE, memoryview(node.SerializeToString())))
    assert onnx.NodeProto.FromString(data) == node


@pytest.mark.parametrize("window", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_a_computed_size(window: str) -> None:
    """The range in their bodies has as many elements as the data says."""
    model_proto, feeds = node_model(window, [np.array(4)])
    run, (name,) = tk.compile(from_onnx(model_proto)), feeds
    for size in (1, 4, 9):
        (want,) = ReferenceEvaluator(model_proto).run(None, {name: np.array(size)})
        output = np.asarray(run(np.array(size)))
        np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-6)
