"""Sequences, optionals and loops that are known at import, against the standard's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tensorkiln as tk
from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import main, model, ours, value

N = helper.make_node
R = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def s(number: int) -> np.ndarray:
    return np.array(number, np.int64)


def flat(values: list[Any]) -> list[np.ndarray]:
    return [np.asarray(t) for v in values for t in (v if isinstance(v, list) else [v])]


def build(nodes: list[Any], feeds: Any, outputs: list[str], consts: Any = None) -> onnx.ModelProto:
    inputs = [value(n, a.dtype, a.shape) for n, a in feeds.items()]
    return model(nodes, inputs, outputs, consts=consts, opset=18)


def check(nodes: list[Any], feeds: Any, outputs: list[str], consts: Any = None) -> Any:
    model_proto = build(nodes, feeds, outputs, consts)
    module = from_onnx(model_proto)
    results, want = ours(module, feeds), flat(ReferenceEvaluator(model_proto).run(None, feeds))
    assert [(a.shape, a.dtype) for a in results] == [(a.shape, a.dtype) for a in want]
    for a, b in zip(results, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return module


ABC = {"a": f(2, 3), "b": f(2, 3), "c": f(2, 3)}
MAKE = N("SequenceConstruct", ["a", "b", "c"], ["l"])
CONSTS = {"zero": s(0), "one": s(1), "last": s(-1)}


@pytest.mark.parametrize("index_name", ["zero", "one", "last"])
def test_lists_of_tensors(index_name: str) -> None:
    nodes = [
        MAKE,
        N("SequenceAt", ["l", index_name], ["x"]),
        N("SequenceInsert", ["l", "a", index_name], ["m"]),
        N("SequenceErase", ["m", index_name], ["n"]),
        N("SequenceInsert", ["n", "b"], ["o"]),
        N("SequenceErase", ["o"], ["q"]),
        N("ConcatFromSequence", ["o"], ["y"], axis=1),
        N("ConcatFromSequence", ["q"], ["z"], axis=-1, new_axis=1),
        N("SequenceLength", ["o"], ["count"]),
    ]
    check(nodes, ABC, ["x", "y", "z", "count"], CONSTS)


def test_a_list_is_as_many_outputs() -> None:
    module = check([MAKE, N("Relu", ["a"], ["r"])], ABC, ["l", "r"])
    assert main(module).attrs["output_names"] == ("l/0", "l/1", "l/2", "r")


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("split", [None, s(2), s(3), "parts"])
def test_splitting(split: Any, axis: int, keepdims: int) -> None:
    x = f(5, 5)
    consts = {} if split is None else {"p": i(1, 0, 4) if isinstance(split, str) else split}
    names = ["x", "p"] if consts else ["x"]
    nodes = [N("SplitToSequence", names, ["l"], axis=axis, keepdims=keepdims)]
    check(nodes, {"x": x}, ["l"], consts)


def test_a_list_that_starts_empty() -> None:
    nodes = [
        N("SequenceEmpty", [], ["e"], dtype=TensorProto.FLOAT),
        N("SequenceLength", ["e"], ["none"]),
        N("SequenceInsert", ["e", "a"], ["l"]),
        N("SequenceAt", ["l", "zero"], ["x"]),
    ]
    check(nodes, {"a": f(2)}, ["none", "x"], CONSTS)


def test_optionals() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    nodes = [
        N("Optional", ["a"], ["o"]),
        N("OptionalHasElement", ["o"], ["yes"]),
        N("OptionalGetElement", ["o"], ["x"]),
        N("Optional", [], ["empty"], type=kind),
        N("OptionalHasElement", ["empty"], ["no"]),
    ]
    module = from_onnx(build(nodes, {"a": f(2)}, ["yes", "x", "no"]))
    a = f(2)
    yes, x, no = ours(module, {"a": a})
    assert (bool(yes), bool(no)) == (True, False)
    np.testing.assert_array_equal(x, a)


def graph(nodes: list[Any], inputs: list[Any], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])


# The reference takes a condition that is left out for a false one.
TRUE = {"true": np.array(True)}
TRIP = [value("k", np.int64, []), value("go", np.bool_, [])]


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_loops_of_known_trips(trips: int) -> None:
    """States, what is stacked, the trip's number, and a value of the outer graph."""
    body = graph(
        [
            N("Identity", ["go"], ["on"]),
            N("Cast", ["k"], ["kf"], to=TensorProto.FLOAT),
            N("Mul", ["state", "w"], ["m"]),
            N("Add", ["m", "kf"], ["next"]),
            N("Relu", ["next"], ["row"]),
        ],
        [*TRIP, value("state", np.float32, [3])],
        ["on", "next", "row"],
    )
    nodes = [N("Loop", ["n", "true", "x"], ["last", "rows"], body=body)]
    check(nodes, {"x": f(3), "w": f(3)}, ["last", "rows"], {"n": s(trips), **TRUE})


def test_a_loop_that_its_condition_ends() -> None:
    """Known conditions: the state doubles until it is 100 or more; the tensor grows."""
    body = graph(
        [
            N("Mul", ["c", "two"], ["d"]),
            N("Less", ["d", "limit"], ["on"]),
            N("Concat", ["t", "t"], ["u"], axis=0),
        ],
        [*TRIP, value("c", np.int64, []), value("t", np.float32, ["n"])],
        ["on", "d", "u"],
    )
    nodes = [N("Loop", ["", "true", "start", "x"], ["count", "y"], body=body)]
    consts = {"two": s(2), "limit": s(10), "start": s(1), "true": np.array(True)}
    check(nodes, {"x": f(2)}, ["count", "y"], consts)


def test_a_loop_fills_a_list() -> None:
    body = graph(
        [
            N("Identity", ["go"], ["on"]),
            N("Mul", ["x", "x"], ["sq"]),
            N("SequenceInsert", ["l", "sq"], ["m"]),
        ],
        [*TRIP, helper.make_tensor_sequence_value_info("l", TensorProto.FLOAT, None)],
        ["on", "m"],
    )
    nodes = [
        N("SequenceEmpty", [], ["e"]),
        N("Loop", ["n", "true", "e"], ["l"], body=body),
        N("ConcatFromSequence", ["l"], ["y"], axis=0),
    ]
    check(nodes, {"x": f(2)}, ["y"], {"n": s(3), **TRUE})


def test_a_map_over_lists() -> None:
    body = graph(
        [N("Add", ["u", "v"], ["t"]), N("Shape", ["t"], ["z"])],
        [value("u", np.float32, ["n", 3]), value("v", np.float32, ["n", 3])],
        ["t", "z"],
    )
    nodes = [MAKE, N("SequenceMap", ["l", "a"], ["m", "shapes"], body=body)]
    check(nodes, ABC, ["m", "shapes"])


def test_nothing_to_do() -> None:
    body = graph(
        [N("Identity", ["go"], ["on"]), N("Neg", ["st"], ["next"])],
        [*TRIP, value("st", np.float32, [2])],
        ["on", "next"],
    )
    nodes = [N("Loop", ["n", "", "x"], ["y"], body=body), N("Relu", ["y"], ["z"])]
    check(nodes, {"x": f(2)}, ["z"], {"n": s(0)})


STEP = graph(
    [N("Identity", ["go"], ["on"]), N("Neg", ["st"], ["next"])],
    [*TRIP, value("st", np.float32, [3])],
    ["on", "next"],
)
CONDITION = N("Constant", [], ["on"], value=numpy_helper.from_array(np.array(True)))
FOREVER = graph(
    [CONDITION, N("Neg", ["st"], ["next"])],
    [*TRIP, value("st", np.float32, [3])],
    ["on", "next"],
)
ENDLESS = N("Loop", ["", "", "x"], ["y"], body=FOREVER)
POSITION = N("Cast", ["x"], ["p"], to=TensorProto.INT64)
REFUSED = [
    ([ENDLESS], "it has no end"),
    ([N("Loop", ["one", "", "x", "x"], ["y"], body=STEP)], "results for 2 states"),
    ([N("Loop", ["one", "", "x"], ["y"])], "needs the attribute body"),
    ([N("SequenceConstruct", ["x"], ["l"]), N("Relu", ["l"], ["y"])], "operand 0 is a sequence"),
    ([N("SequenceConstruct", ["x", "k"], ["y"])], "different element types: float32, int64"),
    ([N("SequenceConstruct", ["x"], ["l"]), N("SequenceAt", ["l", "k"], ["y"])], "be a constant"),
    ([N("SequenceConstruct", ["x"], ["l"]), N("SequenceAt", ["l", "one"], ["y"])], "position 1"),
    ([N("SequenceEmpty", [], ["l"]), N("SequenceErase", ["l"], ["y"])], "is empty"),
    ([N("SequenceEmpty", [], ["y"])], "output 'y' is an empty sequence"),
    ([N("SequenceLength", ["x"], ["y"])], "no sequence"),
    ([N("SplitToSequence", ["x", "zero"], ["y"])], "split=0"),
]


@pytest.mark.slow
def test_loops_in_loops_are_unrolled_to_a_limit_in_all() -> None:
    """64 * 64 * 64 trips would be imported for minutes: the inner loops become loops of host
    code."""
    double = graph(
        [N("Identity", ["go"], ["on"]), N("Add", ["st", "one"], ["next"])],
        [*TRIP, value("st", np.float32, [3])],
        ["on", "next"],
    )
    body = double
    for _ in range(2):
        body = graph(
            [N("Identity", ["go"], ["on"]), N("Loop", ["n", "true", "st"], ["next"], body=body)],
            [*TRIP, value("st", np.float32, [3])],
            ["on", "next"],
        )
    nodes = [N("Loop", ["n", "true", "x"], ["y"], body=body, name="outer")]
    feeds = {"x": np.zeros(3, np.float32)}
    model_proto = build(nodes, feeds, ["y"], {"n": s(26), "one": np.float32(1), **TRUE})
    output = np.asarray(tk.compile(from_onnx(model_proto))(*feeds.values()))
    np.testing.assert_array_equal(output, np.full(3, 26.0**3))


def test_a_branch_takes_no_operands() -> None:
    branch = graph([N("Relu", ["k"], ["z"])], [value("k", np.float32, [3])], ["z"])
    nodes = [N("If", ["true"], ["y"], then_branch=branch, else_branch=branch)]
    (issue,) = check_onnx(build(nodes, {"x": f(3)}, ["y"], TRUE))
    assert "a body of 1 operands for 0" in issue.message


@pytest.mark.parametrize(("nodes", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refusals(nodes: list[Any], says: str) -> None:
    feeds = {"x": f(3), "k": s(2)}
    (issue,) = check_onnx(build(nodes, feeds, ["y"], CONSTS))
    assert says in issue.message
