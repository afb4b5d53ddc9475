"""RNN, GRU and LSTM, unrolled and as loops, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tensorkiln as tk
from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import agree, node_model, ours, theirs

STEPS, BATCH, IN, HIDDEN = 4, 3, 5, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
R = np.random.default_rng(3)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def operands(op: str, directions: int, letters_given: str) -> list[np.ndarray | None]:
    """Those of `letters_given`: bias, lengths, hidden state, cell, peepholes."""
    rows = GATES[op] * HIDDEN
    state = f(directions, BATCH, HIDDEN)
    optional_operands = {
        "b": f(directions, 2 * rows),
        "l": np.array([4, 2, 1], np.int32),
        "h": state,
        "c": state * 2,
        "p": f(directions, 3 * HIDDEN),
    }
    letters = "blhcp" if op == "LSTM" else "blh"
    return [
        f(STEPS, BATCH, IN),
        f(directions, rows, IN),
        f(directions, rows, HIDDEN),
        *(optional_operands[k] if k in letters_given else None for k in letters),
    ]


def outputs(op: str) -> int:
    return 3 if op == "LSTM" else 2


@pytest.mark.in_turn("op")
@pytest.mark.parametrize("optional_letters", ["", "b", "bh", "blhc", "l", "blhcp"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_operands_and_directions(op: str, direction: str, optional_letters: str) -> None:
    given_here = operands(op, 2 if direction == "bidirectional" else 1, optional_letters)
    for linear in (0, 1) if op == "GRU" else (None,):
        attrs = {} if linear is None else {"linear_before_reset": linear}
        model_proto, feeds = node_model(
            op,
            given_here,
            opset=14,
            fixed=(1, 2, 3),
            outputs=outputs(op),
            hidden_size=HIDDEN,
            direction=direction,
            **attrs,
        )
        agree(model_proto, feeds)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("RNN", {"activations": ["Relu"], "clip": 0.7}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
        ("GRU", {"activations": ["HardSigmoid", "Softsign"], "clip": 0.5}),
        (
            "GRU",
            {
                "activations": ["HardSigmoid", "Elu"],
                "activation_alpha": [0.3, 0.8],
                "activation_beta": [0.4],
            },
        ),
        ("LSTM", {"activations": ["sigmoid", "Relu", "Softplus"]}),
        ("LSTM", {"clip": 0.4}),
        ("LSTM", {"input_forget": 1}),
    ],
)
def test_attributes(op: str, attrs: dict[str, Any]) -> None:
    model_proto, feeds = node_model(
        op, operands(op, 1, "bh"), opset=14, outputs=outputs(op), hidden_size=HIDDEN, **attrs
    )
    agree(model_proto, feeds)


@pytest.mark.parametrize("op", GATES)
def test_layout_of_samples_first(op: str) -> None:
    """The same numbers as with steps first, which ONNX Runtime has."""
    arrays = operands(op, 2, "blhc")
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    model_proto, feeds = node_model(op, arrays, opset=14, outputs=outputs(op), **attrs)
    y, *states = theirs(model_proto, feeds)
    turned = [
        None if v is None else v.swapaxes(0, 1) if k in (0, 5, 6) else v
        for k, v in enumerate(arrays)
    ]
    model_proto, feeds = node_model(op, turned, opset=14, outputs=outputs(op), layout=1, **attrs)
    outputs_of_import = ours(from_onnx(model_proto), feeds)
    np.testing.assert_allclose(outputs_of_import[0], y.transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for a, b in zip(outputs_of_import[1:], states, strict=True):
        np.testing.assert_allclose(a, b.swapaxes(0, 1), rtol=1e-5, atol=1e-6)


def test_compiled() -> None:
    model_proto, feeds = node_model(
        "LSTM",
        operands("LSTM", 2, "blhc"),
        opset=14,
        fixed=(1, 2, 3),
        outputs=3,
        hidden_size=HIDDEN,
        direction="bidirectional",
    )
    run = tk.runtime.Executor(tk.compile(from_onnx(model_proto), "native"), tk.cpu())["main"]
    for a, b in zip(run(*feeds.values()), theirs(model_proto, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)


@pytest.mark.in_turn("op")
@pytest.mark.parametrize("optional_letters", ["", "blhcp"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_loops_over_long_and_symbolic_sequences(
    op: str, direction: str, optional_letters: str
) -> None:
    """A loop of host code, of 70 steps that are known and of any number that is not, none among
    them (ONNX Runtime refuses that); one symbolic sequence of any number of samples."""
    first = operands(op, 2 if direction == "bidirectional" else 1, optional_letters)
    long = [f(70, BATCH, IN), *first[1:]]
    attrs = {"direction": direction, "hidden_size": HIDDEN}
    model_proto, feeds = node_model(
        op, long, opset=14, fixed=(1, 2, 3), outputs=outputs(op), **attrs
    )
    symbolic = onnx.ModelProto()
    symbolic.CopyFrom(model_proto)
    shape = symbolic.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param = "steps"
    if "h" not in optional_letters:
        shape.dim[1].dim_param = "samples"
    fixed = tk.runtime.Executor(tk.compile(from_onnx(model_proto), "native"), tk.cpu())["main"]
    free = tk.runtime.Executor(tk.compile(from_onnx(symbolic), "native"), tk.cpu())["main"]
    calls = [(fixed, 70, BATCH), *((free, t, BATCH) for t in (1, 5, 70))]
    if "h" not in optional_letters:
        calls += [(free, 3, 1), (free, 4, 8)]
    for run, steps, batch in calls:
        x = f(steps, batch, IN)
        changed_feeds = {**feeds, "x0": x}
        if "l" in optional_letters:
            changed_feeds["x4"] = np.minimum(feeds["x4"] * 17, steps).astype(np.int32)
        for a, b in zip(run(*changed_feeds.values()), theirs(symbolic, changed_feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-5, atol=2e-6)
    empty = {**feeds, "x0": f(0, BATCH, IN)}
    if "l" in optional_letters:
        with pytest.raises(tk.UserError, match="index 4 at"):
            free(*empty.values())
        empty["x4"] = np.zeros(BATCH, np.int32)
    nothing = [np.asarray(a) for a in free(*empty.values())]
    assert nothing[0].shape == (0, len(first[1]), BATCH, HIDDEN)
    state = (
        first[5]
        if "h" in optional_letters and "l" not in optional_letters
        else np.zeros((len(first[1]), BATCH, HIDDEN), np.float32)
    )
    np.testing.assert_array_equal(nothing[1], state)


@pytest.mark.parametrize(
    ("attrs", "says"),
    [
        ({"direction": "up"}, "direction='up'"),
        ({"layout": 2}, "layout=2"),
        ({"hidden_size": 7}, "operand 1 must have shape [1, 28, 5]"),
        ({"activations": ["Sigmoid", "Tanh"]}, "2 activations, expected 3"),
        ({"activations": ["Sigmoid", "Tanh", "Frob"]}, "activation 'Frob'"),
        ({"activation_alpha": [0.1]}, "activation_alpha has 1 values more"),
    ],
)
def test_refusals(attrs: dict[str, Any], says: str) -> None:
    model_proto, _ = node_model("LSTM", operands("LSTM", 1, "b"), opset=14, **attrs)
    (issue,) = check_onnx(model_proto)
    assert says in issue.message


def test_weights_and_sequences_that_do_not_fit() -> None:
    arrays = operands("GRU", 1, "")
    for k, bad, says in (
        (0, f(STEPS, IN), "3 dimensions"),
        (1, f(1, 5, IN), "operand 1 must have shape [1, 6, 5]"),
        (2, f(2, 6, HIDDEN), "operand 2 must have shape [1, 6, 2]"),
    ):
        model_proto, _ = node_model("GRU", [*arrays[:k], bad, *arrays[k + 1 :]], opset=14)
        (issue,) = check_onnx(model_proto)
        assert says in issue.message
