"""Ends of number ranges in ONNX operators, beside ONNX Runtime or the standard's evaluator.

Integers that float64 does not hold, bounds and steps at the ends of int64, sequences of no steps,
ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.expr import int_value
from tests.frontend.onnx_models import main, model, value
from tests.transform.graphs import graph

ODD = 2**53 + 1  # no float64 is this number
LONG, SHORT = 2**63 - 1, -(2**63)
# What a row's node reads: a constant, or with a name of one letter an input of the model.
Row = tuple[str, list[np.ndarray | str], dict[str, Any]]


def model_of(rows: Sequence[Row], inputs: Mapping[str, Any], opset: int = 21) -> onnx.ModelProto:
    """A model with a node for each row, whose first result is a result of the model; `inputs` are
    arrays, or value infos."""
    nodes, consts = [], {}
    for k, (op, operands, attrs) in enumerate(rows):
        names = []
        for i, v in enumerate(operands):
            if not isinstance(v, str):
                consts[f"c{k}_{i}"] = v
            names.append(v if isinstance(v, str) else f"c{k}_{i}")
        nodes.append(helper.make_node(op, names, [f"y{k}"], **attrs))
    declared_inputs = [
        value(k, v.dtype, v.shape) if isinstance(v, np.ndarray) else v for k, v in inputs.items()
    ]
    results = [f"y{k}" for k in range(len(rows))]
    return model(nodes, declared_inputs, results, consts=consts, opset=opset)


def runtime(model_proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(
        model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def evaluator(model_proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [
        np.asarray(y) for y in onnx.reference.ReferenceEvaluator(model_proto).run(None, dict(feeds))
    ]


def agrees(output: Any, references: Sequence[np.ndarray]) -> bool:
    """Whether a slice is that of a reference. They differ where it goes backward: ONNX Runtime
    takes the largest integers for the beginning, and the evaluator, as NumPy, a start before the
    beginning for no element, which the standard clamps to the first."""
    return any(np.array_equal(output, want) for want in references)


def check(rows: Sequence[Row], feeds: Mapping[str, np.ndarray], reference: Any = runtime) -> None:
    model_proto = model_of(rows, feeds)
    results = tk.compile(model_proto)(**feeds)
    expected_outputs = reference(model_proto, feeds)
    for row, output, want in zip(
        rows, [results] if len(rows) == 1 else results, expected_outputs, strict=True
    ):
        np.testing.assert_array_equal(output, want, err_msg=str(row))
        assert np.asarray(output).dtype == want.dtype, row


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def test_integers_beyond_float64() -> None:
    x = ints(ODD, -ODD, ODD + 3, 2**62 + 1)
    near = ints(ODD - 1, -ODD - 1, ODD + 4, 2**62)
    odd = np.asarray(ODD)
    check(
        [
            ("Pad", ["x", ints(1, 2), odd], {}),
            ("Clip", ["x", np.asarray(-ODD + 1), np.asarray(ODD + 2)], {}),
            ("ConstantOfShape", [ints(2)], {"value": numpy_helper.from_array(ints(ODD))}),
            ("Range", [odd, np.asarray(ODD + 5), np.asarray(2)], {}),
            *[(op, ["x", "z"], {}) for op in ("Max", "Min", "Add", "Sub", "Mod", "Div")],
            *[(op, ["x", "z"], {}) for op in ("Equal", "Less", "GreaterOrEqual")],
            ("Mod", ["x", "z"], {"fmod": 1}),
            *[(op, ["x"], {}) for op in ("Abs", "Neg", "Sign")],
            *[(op, ["x", ints(0)], {}) for op in ("ReduceMax", "ReduceMin", "ReduceSum")],
            *[(op, ["x"], {"axis": 0}) for op in ("ArgMax", "ArgMin")],
            ("CumSum", ["x", np.asarray(0)], {}),
            ("Where", [np.asarray([True, False, True, False]), "x", "z"], {}),
            ("OneHot", [ints(1, -1), np.asarray(3), ints(ODD, -ODD)], {}),
            ("GatherElements", ["x", ints(3, 2, 1, 0)], {}),
            ("ScatterElements", ["x", ints(1, 3), ints(ODD + 7, ODD)], {}),
        ],
        {"x": x, "z": near},
        evaluator,  # ONNX Runtime adds int64 in float64
    )
    check([("Pad", ["x", ints(-1, 2), odd], {})], {"x": x})


def test_quantization_of_integers_beyond_float32() -> None:
    """A quotient that is a tie in float32 is none; ONNX Runtime has no such kernel."""
    x = np.asarray([20480513, 20480511, -20480513, 2**31 - 1, -(2**31), 16777217], np.int32)
    scale = np.float32(1024)
    kinds = [np.asarray(z, d) for z, d in ((0, "int16"), (3, "uint16"), (1, "int8"), (7, "uint8"))]
    check([("QuantizeLinear", ["x", scale, z], {}) for z in kinds], {"x": x}, evaluator)


def test_one_hot_of_floats() -> None:
    """Indices that are no integers are converted to some, by the standard."""
    x = np.asarray([1.0, -1.0, 2.9, 7.0, -4.0], np.float32)
    values = ints(ODD, -ODD)
    check([("OneHot", ["x", np.asarray(4), values], {"axis": a}) for a in (0, -1)], {"x": x})


BOUNDS = (SHORT, SHORT + 1, -(2**31) - 1, -(2**31), -3, 0, 1, 2**31 - 2, 2**31 - 1, LONG - 1, LONG)
STEPS = (SHORT, -(2**31), -2, 2, 2**31 - 1, LONG)


def slices() -> list[tuple[int, int, int]]:
    pairs = [(a, b) for a in BOUNDS for b in BOUNDS]
    return [(a, b, s) for k, (a, b) in enumerate(pairs) for s in (STEPS[k % 6], STEPS[(k + 3) % 6])]


def test_slices_at_the_ends_of_int64() -> None:
    rows: list[Row] = [
        ("Slice", ["x", ints(a), ints(b), ints(0), ints(s)], {}) for a, b, s in slices()
    ]
    for count in (1, 5):
        feeds = {"x": np.arange(float(count))}
        model_proto = model_of(rows, feeds)
        references = zip(runtime(model_proto, feeds), evaluator(model_proto, feeds), strict=True)
        for row, output, expected_outputs in zip(
            rows, tk.compile(model_proto)(**feeds), references, strict=True
        ):
            assert agrees(output, expected_outputs), (row, output, expected_outputs)


def test_slices_of_a_dimension_of_any_size() -> None:
    rows: list[Row] = [
        ("Slice", ["x", ints(a), ints(b), ints(0), ints(s)], {})
        for a, b, s in [(1, -1, LONG), (1, SHORT, SHORT), (1, 2**31 - 1, 1), (SHORT, LONG, 2)]
    ]
    model_proto = model_of(rows, {"x": value("x", np.float64, ["n"])})
    run = tk.compile(model_proto)
    for count in (1, 2, 5):
        feeds = {"x": np.arange(float(count))}
        for row, output, want in zip(rows, run(**feeds), runtime(model_proto, feeds), strict=True):
            np.testing.assert_array_equal(output, want, err_msg=str(row))


def test_slices_by_data() -> None:
    names = ("a", "b", "s")
    model_proto = model(
        [helper.make_node("Slice", ["x", "a", "b", "axes", "s"], ["y"])],
        [value("x", np.float64, ["n"]), *(value(n, np.int64, [1]) for n in names)],
        ["y"],
        consts={"axes": ints(0)},
    )
    run = tk.compile(model_proto)
    for bounds in slices():
        feeds = {"x": np.arange(5.0), **{n: ints(v) for n, v in zip(names, bounds, strict=True)}}
        references = [*runtime(model_proto, feeds), *evaluator(model_proto, feeds)]
        assert agrees(run(**feeds), references), (bounds, run(**feeds), references)


@pytest.mark.parametrize("extent", [2**31 + 5, "n"])
def test_the_largest_int32_is_no_end_of_a_longer_dimension(extent: int | str) -> None:
    model_proto = model(
        [helper.make_node("Slice", ["x", "a", "b"], ["y"])],
        [value("x", np.int8, [extent])],
        ["y"],
        consts={"a": ints(1), "b": ints(2**31 - 1)},
    )
    f = main(from_onnx(model_proto.SerializeToString()))
    if extent == "n":
        assert "2147483647" in str(f.attrs["assumes"])  # a longer one is refused by the call
    else:
        assert int_value(f.result.type.shape[0]) == 2**31 - 2


@pytest.mark.parametrize("attrs", [{"strides": (2**62,)}, {"begin": (2**50,)}])
def test_steps_of_a_script_that_no_memory_has(attrs: dict[str, Any]) -> None:
    full = {"begin": (0,), "strides": (1,), "shape": (1,), **attrs}
    with pytest.raises(UserError) as caught:
        graph(lambda g, x: g.slice(x, **full), x=(4,))
    assert caught.value.code == "bad-attribute"


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_sequence_of_no_steps_and_an_initial_state(op: str, gates: int) -> None:
    g = np.random.default_rng(gates)

    def some(*shape: int) -> np.ndarray:
        return g.standard_normal(shape).astype(np.float32)

    states = [some(2, 3, 2) for _ in range(2 if op == "LSTM" else 1)]
    consts = {
        "w": some(2, gates * 2, 4),
        "r": some(2, gates * 2, 2),
        "n": np.asarray([0, 2, 1], "i4"),
    }
    consts |= {f"s{k}": s for k, s in enumerate(states)}
    results = ["y", *(f"h{k}" for k in range(len(states)))]
    operands = ["x", "w", "r", "", "n", *(f"s{k}" for k in range(len(states)))]
    node = helper.make_node(op, operands, results, hidden_size=2, direction="bidirectional")
    x = some(2, 3, 4)
    model_proto = model([node], [value("x", np.float32, x.shape)], results, consts=consts)
    for output, want in zip(
        tk.compile(model_proto)(x), runtime(model_proto, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(output, want, rtol=1e-5, atol=1e-6)


def test_a_quantized_resize_differs_only_where_a_quotient_is_a_tie() -> None:
    """Where references that sum in other orders agree or not is rounding: the exact quotient is
    within some units of float32 of the middle of two steps."""
    x = np.random.default_rng(0).integers(-128, 127, (1, 2, 9, 8), endpoint=True).astype(np.int8)
    scale, zero = np.float32(0.1), np.asarray(3, np.int8)
    for mode in ("linear", "cubic"):
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
            helper.make_node("Resize", ["d", "", "k"], ["r"], mode=mode),
            helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
        ]
        consts = {"s": scale, "z": zero, "k": np.asarray([1, 1, 2, 2], np.float32)}
        model_proto = model(nodes, [value("x", np.int8, x.shape)], ["y"], consts=consts, opset=19)
        resize = model(
            [nodes[1]], [value("d", np.float64, x.shape)], ["r"], consts=consts, opset=19
        )
        (exact,) = evaluator(resize, {"d": x.astype(np.float64) - 3})
        output = np.asarray(tk.compile(model_proto)(x)).astype(np.float64) - 3
        tie = np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 1e-4
        nearest = np.clip(np.rint(exact), -131, 124)
        np.testing.assert_array_equal(output[~tie], nearest[~tie])
        assert (np.abs(output - nearest) <= 1).all()
        assert tie.any() or mode == "cubic"
