"""Scan, unrolled, against ONNX Runtime; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tensorkiln as tk
from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import agree, main, model, ours, value

R = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def untyped(*names: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names]


def body(nodes: list[onnx.NodeProto], inputs: str, outputs: str) -> onnx.GraphProto:
    half = numpy_helper.from_array(np.float32(0.5), "half")
    return helper.make_graph(
        nodes, "body", untyped(*inputs.split()), untyped(*outputs.split()), [half]
    )


def scanned(
    body_graph: onnx.GraphProto,
    feeds: dict[str, np.ndarray],
    outputs: int,
    opset: int = 17,
    shapes: dict[str, list[Any]] | None = None,
    **attrs: Any,
) -> onnx.ModelProto:
    names = [n for n in feeds if n != "outer"]
    outs = [f"y{i}" for i in range(outputs)]
    node = helper.make_node("Scan", names, outs, name="scan", body=body_graph, **attrs)
    declared_shapes = shapes or {}
    inputs = [value(n, np.float32, declared_shapes.get(n, list(a.shape))) for n, a in feeds.items()]
    return model([node], inputs, outs, opset=opset)


TWO = body(
    [
        helper.make_node("Mul", ["s", "half"], ["less"]),
        helper.make_node("Add", ["less", "a"], ["s2"]),
        helper.make_node("Max", ["m", "b"], ["m2"]),
        helper.make_node("Sub", ["s2", "m2"], ["d"]),
        helper.make_node("Add", ["d", "outer"], ["e"]),
    ],
    "s m a b",
    "s2 m2 d e",
)


@pytest.mark.parametrize("opset", [9, 11, 17, 21])
@pytest.mark.parametrize(
    ("axes", "attrs"),
    [
        ((0, 0), {}),
        ((1, 0), {"scan_input_axes": [1, 0], "scan_input_directions": [0, 1]}),
        ((0, 1), {"scan_input_axes": [0, 1], "scan_output_directions": [1, 0]}),
        ((0, 0), {"scan_output_axes": [1, 0], "scan_input_directions": [1, 1]}),
    ],
)
def test_states_axes_and_directions(
    axes: tuple[int, int], attrs: dict[str, Any], opset: int
) -> None:
    """States, outputs of each step, a name of the graph around the body and one of its own."""
    feeds = {"s": f(3), "m": f(3), "outer": f(3)}
    feeds |= {n: np.moveaxis(f(5, 3), 0, a) for n, a in zip("ab", axes, strict=True)}
    module = agree(scanned(TWO, feeds, 4, opset, num_scan_inputs=2, **attrs), feeds)
    spans = [b.value.span for b in main(module).bindings]  # type: ignore[union-attr]
    assert {s for s in spans if s.endswith("Max:m2")} == {f"scan/{t}/Max:m2" for t in range(5)}


def test_one_step_and_no_states() -> None:
    scan_body = body([helper.make_node("Exp", ["a"], ["y"])], "a", "y")
    for steps in (1, 4):
        feeds = {"a": f(steps, 2, 3)}
        agree(scanned(scan_body, feeds, 1, num_scan_inputs=1), feeds)


def test_axes_counted_from_the_end() -> None:
    scan_body = body([helper.make_node("Exp", ["a"], ["y"])], "a", "y")
    feeds = {"a": f(2, 3, 4)}
    attrs = {"scan_input_axes": [-1], "scan_output_axes": [-2]}
    agree(scanned(scan_body, feeds, 1, 17, num_scan_inputs=1, **attrs), feeds)


def test_a_symbolic_dimension_that_is_not_scanned() -> None:
    scan_body = body([helper.make_node("Add", ["s", "a"], ["t"])], "s a", "t")
    feeds = {"s": f(3, 2), "a": f(4, 3, 2)}
    shapes = {"s": ["n", 2], "a": [4, "n", 2]}
    agree(scanned(scan_body, feeds, 1, shapes=shapes, num_scan_inputs=1), feeds)


@pytest.mark.parametrize("count", [0, 1, 65, 513])
@pytest.mark.parametrize("symbolic", [False, True])
def test_long_and_symbolic_scans(count: int, symbolic: bool) -> None:
    """They become loops of host code."""
    scan_body = body([helper.make_node("Add", ["s", "a"], ["t"])], "s a", "t")
    feeds = {"s": f(3), "a": f(count, 3)}
    shapes = {"a": ["n", 3]} if symbolic else None
    proto = scanned(scan_body, feeds, 1, shapes=shapes, num_scan_inputs=1)
    output = np.asarray(tk.compile(from_onnx(proto))(*feeds.values()))
    want = feeds["s"].astype(np.float64) + feeds["a"].astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counts", [(65,), (66,), (67,), (72,), (0, 1, 7, 8, 9, 17, 66)])
def test_rows_of_long_and_symbolic_scans(counts: tuple[int, ...]) -> None:
    """An iteration of host code is several steps, of which some are left over."""
    scan_body = body(
        [
            helper.make_node("Add", ["s", "a"], ["t"]),
            helper.make_node("Sub", ["t", "b"], ["u"]),
            helper.make_node("Mul", ["t", "half"], ["v"]),
        ],
        "s a b",
        "t u v",
    )
    attrs = {
        "num_scan_inputs": 2,
        "scan_input_axes": [0, 1],
        "scan_input_directions": [0, 1],
        "scan_output_axes": [0, 1],
        "scan_output_directions": [1, 0],
    }
    n = counts[0] if len(counts) == 1 else "n"
    feeds = {"s": f(3), "a": f(counts[0], 3), "b": f(3, counts[0])}
    proto = scanned(scan_body, feeds, 3, shapes={"a": [n, 3], "b": [3, n]}, **attrs)
    run = tk.compile(from_onnx(proto))
    for count in counts:
        a, b = f(count, 3), f(3, count)
        states = [feeds["s"]]
        for row in a:
            states.append(states[-1] + row)
        wide = np.array(states[1:], np.float32).reshape(count, 3)
        last, u, v = (np.asarray(y) for y in run(feeds["s"], a, b))
        np.testing.assert_array_equal(last, states[-1])
        np.testing.assert_array_equal(u, (wide - b.T[::-1])[::-1])
        np.testing.assert_array_equal(v, (wide * np.float32(0.5)).T)


def test_rows_whose_shape_the_data_decides() -> None:
    scan_body = body(
        [helper.make_node("NonZero", ["a"], ["i"]), helper.make_node("Add", ["s", "a"], ["t"])],
        "s a",
        "t i",
    )
    feeds = {"s": f(3), "a": f(65, 3)}
    (issue,) = check_onnx(scanned(scan_body, feeds, 2, num_scan_inputs=1))
    assert "has no fixed shape" in issue.message


SUM = body([helper.make_node("Add", ["s", "a"], ["t"], name="sum")], "s a", "t")
ODD = body([helper.make_node("Frob", ["s"], ["t"], name="odd")], "s a", "t")


@pytest.mark.parametrize(
    ("scan_body", "shape", "opset", "outputs", "attrs", "says"),
    [
        (SUM, [4, 3], 17, 2, {}, "2 outputs, expected 1"),
        (SUM, [4, 3], 17, 1, {"num_scan_inputs": 3}, "num_scan_inputs=3"),
        (SUM, [4, 3], 17, 1, {"scan_input_axes": [2]}, "scan_input_axes=2"),
        (SUM, [4, 3], 17, 1, {"scan_input_directions": [2]}, "scan_input_directions=[2]"),
        (SUM, [4, 3], 17, 1, {"scan_input_axes": [0, 1]}, "scan_input_axes=[0, 1]"),
        (SUM, [4, 3], 8, 1, {}, "sequence_lens"),
        (SUM, [4, 3], 17, 1, {"directions": [0]}, "'directions' is not supported"),
    ],
)
def test_refusals(
    scan_body: onnx.GraphProto,
    shape: list[Any],
    opset: int,
    outputs: int,
    attrs: dict[str, Any],
    says: str,
) -> None:
    feeds = {"s": f(3), "a": f(1, 3)}
    proto = scanned(
        scan_body, feeds, outputs, opset, shapes={"a": shape}, **{"num_scan_inputs": 1, **attrs}
    )
    (issue,) = check_onnx(proto)
    assert (issue.node, issue.op) == ("scan", "Scan")
    assert says in issue.message


def test_a_state_without_dimensions_compiles() -> None:
    """Its results are reshaped from scalars, of which no pass may ask for the last dimension."""
    scan_body = body(
        [helper.make_node("Add", ["s", "a"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        "s a",
        "t u",
    )
    feeds = {"s": np.float32(0.5).reshape(()), "a": f(4)}
    proto = scanned(scan_body, feeds, 2, num_scan_inputs=1)
    module = from_onnx(proto)
    for mine, want in zip(tk.compile(module)(*feeds.values()), ours(module, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(mine), want, rtol=1e-6)


def test_a_body_that_cannot_be_imported_is_one_issue() -> None:
    feeds = {"s": f(3), "a": f(4, 3)}
    (issue,) = check_onnx(scanned(ODD, feeds, 1, num_scan_inputs=1))
    assert (issue.kind, issue.node, issue.op) == ("operator", "scan/0/odd", "Frob")


def test_an_operand_that_is_left_out() -> None:
    model_proto = scanned(SUM, {"s": f(3), "a": f(4, 3)}, 1, num_scan_inputs=1)
    model_proto.graph.node[0].input[0] = ""
    (issue,) = check_onnx(model_proto)
    assert (issue.node, "all are required" in issue.message) == ("scan", True)


def test_scanned_extents_that_differ() -> None:
    scan_body = body([helper.make_node("Add", ["a", "b"], ["t"])], "a b", "t")
    feeds = {"a": f(4, 3), "b": f(5, 3)}
    (issue,) = check_onnx(scanned(scan_body, feeds, 1, num_scan_inputs=2))
    assert "different extents: [4, 5]" in issue.message


def test_the_body_of_linear_attention() -> None:
    """A function body of the standard that holds a Scan, against sums in float64."""
    heads, steps, width = 2, 4, 3
    feeds = {n: f(1, steps, heads * width) for n in ("q", "k", "v")}
    attrs = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": "linear", "scale": 1.0}
    node = helper.make_node("LinearAttention", list(feeds), ["y", "state"], name="it", **attrs)
    inputs = [value(n, np.float32, a.shape) for n, a in feeds.items()]
    module = from_onnx(model([node], inputs, ["y"], opset=27))
    q, k, v = (
        a.astype(np.float64).reshape(steps, heads, width).swapaxes(0, 1) for a in feeds.values()
    )
    scores = np.tril(q @ k.swapaxes(1, 2))
    want = (scores @ v).swapaxes(0, 1).reshape(1, steps, heads * width)
    np.testing.assert_allclose(ours(module, feeds)[0], want, rtol=1e-5, atol=1e-6)
