"""Sizes of which each step holds the one before it twice: values beside Python's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

import tensorkiln as tk
from tests.frontend.onnx_models import model, value

STEPS = 20


def node(op: str, operands: str, result: str, **attrs: int) -> onnx.NodeProto:
    return helper.make_node(op, operands.split(), [result], **attrs)


def half_sum(i: int) -> list[onnx.NodeProto]:
    """s + s // 2"""
    return [node("Div", f"s{i} two", f"h{i}"), node("Add", f"s{i} h{i}", f"s{i + 1}")]


def square(i: int) -> list[onnx.NodeProto]:
    return [node("Mul", f"s{i} s{i}", f"s{i + 1}")]


def signed(i: int) -> list[onnx.NodeProto]:
    """s - 3 * (s // 2) + s, which is negative for some sizes."""
    return [
        node("Div", f"s{i} two", f"h{i}"),
        node("Mul", f"h{i} three", f"t{i}"),
        node("Sub", f"s{i} t{i}", f"d{i}"),
        node("Sub", f"d{i} three", f"s{i + 1}"),
    ]


def test_sizes_computed_from_sizes_in_many_steps() -> None:
    """Each model has the outputs s, as numbers, and zeros of max(s, 0) elements, up to 99."""
    steps: dict[str, tuple[Callable[[int], list[onnx.NodeProto]], Callable[[int], int]]] = {
        "half_sum": (half_sum, lambda s: s + s // 2),
        "square": (square, lambda s: s * s),
        "signed": (signed, lambda s: s - 3 * int(s / 2) - 3),
    }
    for name, (nodes, reference) in steps.items():
        chain = [n for i in range(STEPS) for n in nodes(i)]
        ends = [
            node("Identity", f"s{STEPS}", "number"),
            node("Max", f"s{STEPS} zero", "most"),
            node("Min", "most many", "count"),
            node("ConstantOfShape", "count", "zeros"),
        ]
        model_proto = model(
            [node("Shape", "x", "s0"), *chain, *ends],
            [value("x", np.float32, ["n"])],
            ["number", "zeros"],
            consts={
                "two": np.array([2]),
                "three": np.array([3]),
                "zero": np.array([0]),
                "many": np.array([99]),
            },
        )
        f = tk.compile(model_proto.SerializeToString())
        for n in (0, 1, 2) if name == "half_sum" else (0, 1):
            expected = n
            for _ in range(STEPS):
                expected = reference(expected)
            number, zeros = f(np.zeros(n, np.float32))
            assert (number.tolist(), zeros.shape) == ([expected], (min(max(expected, 0), 99),)), (
                name,
                n,
            )


def test_tensors_that_grow_by_half_of_themselves() -> None:
    steps = 8
    nodes = []
    for i in range(steps):
        nodes += [
            node("Shape", f"x{i}", f"s{i}"),
            node("Div", f"s{i} two", f"h{i}"),
            node("Slice", f"x{i} zero h{i}", f"p{i}"),
            node("Concat", f"x{i} p{i}", f"x{i + 1}", axis=0),
        ]
    consts = {"two": np.array([2]), "zero": np.array([0])}
    model_proto = model(nodes, [value("x0", np.float32, ["n"])], [f"x{steps}"], consts=consts)
    f = tk.compile(model_proto.SerializeToString())
    for n in (0, 1, 3, 10):
        expected = x = np.arange(n, dtype=np.float32)
        for _ in range(steps):
            expected = np.concatenate([expected, expected[: len(expected) // 2]])
        assert np.array_equal(f(x), expected), n
