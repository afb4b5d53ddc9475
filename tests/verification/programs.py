"""Programs with control flow, for tests of inner values: of every kind of host step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule

X = np.array([0.5, -1.0, 2.0], "float32")


@dataclass(frozen=True, slots=True)
class Program:
    """A function with control flow, its inputs, and how many values a run compares."""

    make: Callable[[], IRModule]
    inputs: tuple[np.ndarray, ...]
    compared: int


def script(text: str) -> Callable[[], IRModule]:
    def make() -> IRModule:
        source = f"@tk.script.ir_module\nclass M:\n{text}"
        return tk.script.from_source(source, infer=tk.ops.infer)

    return make


def onnx(text: str) -> Callable[[], IRModule]:
    def make() -> IRModule:
        parser = pytest.importorskip("onnx.parser")
        return tk.frontend.from_onnx(parser.parse_model(text))

    return make


BRANCH = script(
    """
    @R.function
    def main(x: R.Tensor((3,), "float32"), c: R.Tensor((), "bool")):
        if c:
            y = R.softmax(R.exp(x))
        else:
            y = R.neg(x)
        return R.abs(y)
"""
)
LOOP = script(
    """
    @R.function
    def main(x: R.Tensor((3,), "float32")):
        y = R.exp(x)
        while R.less(R.sum(y, axes=(0,), keepdims=False), R.const(40.0, "float32")):
            y = R.add(y, R.softmax(y))
            y = R.mul(y, R.const(1.5, "float32"))
        return R.tanh(y)
"""
)
NESTED = script(
    """
    @R.function
    def main(x: R.Tensor((3,), "float32")):
        y = x
        while R.less(R.sum(y, axes=(0,), keepdims=False), R.const(20.0, "float32")):
            if R.less(R.max(y, axes=(0,), keepdims=False), R.const(4.0, "float32")):
                y = R.add(y, R.sigmoid(x))
            else:
                y = R.mul(y, R.const(2.0, "float32"))
        return y
"""
)
RECURSION = script(
    """
    @R.function
    def main(x: R.Tensor((3,), "float32"), n: R.Tensor((), "int64")) -> R.Tensor((3,), "float32"):
        y = R.exp(x)
        if R.less(n, R.const(1, "int64")):
            z = R.neg(y)
        else:
            z = M.main(R.tanh(x), R.sub(n, R.const(1, "int64")))
        return R.add(z, y)
"""
)
CALLS = script(
    """
    @R.function
    def twice(x: R.Tensor(("n",), "float32")):
        return R.softmax(R.exp(x))

    @R.function
    def main(x: R.Tensor((3,), "float32"), c: R.Tensor((), "bool")):
        y = M.twice(x)
        if c:
            z = M.twice(y)
        else:
            z = y
        return (z, (y, x))
"""
)
DYNAMIC = script(
    """
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        at = R.nonzero(R.greater(R.exp(x), R.const(1.0, "float32")))
        return (R.exp(x), at)
"""
)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
ONNX_LOOP = onnx(
    f"""{HEAD} doubled (float[3] x, float limit) => (float[3] y) {{
        yes = Constant<value = bool {{1}}>()
        y = Loop ("", yes, x) <body = o (int64 i, bool c, float[3] v) => (bool again, float[3] w) {{
            w = Add(v, v)
            total = ReduceSum<keepdims = 0>(w)
            again = Less(total, limit)
        }}>
    }}"""
)
ONNX_IF = onnx(
    f"""{HEAD} either (float[3] x, bool c) => (float[3] y) {{
        y = If (c) <then_branch = yes () => (float[3] a) {{ a = Exp(x) }},
                    else_branch = no () => (float[3] b) {{ b = Neg(x) }}>
    }}"""
)
ONNX_SCAN = onnx(
    f"""{HEAD} sums (float[3] x, float[N, 3] rows) => (float[3] y, float[N, 3] all) {{
        y, all = Scan <num_scan_inputs = 1,
            body = once (float[3] s, float[3] r) => (float[3] t, float[3] u) {{
                t = Add(s, r)
                u = Tanh(t)
            }}> (x, rows)
    }}"""
)
PROGRAMS = {
    "then": Program(BRANCH, (X, np.array(True)), 4),
    "else": Program(BRANCH, (X, np.array(False)), 3),
    "loop": Program(LOOP, (X,), 20),
    "nested": Program(NESTED, (X,), 20),
    "recursion": Program(RECURSION, (X, np.array(2)), 15),
    "calls": Program(CALLS, (X, np.array(True)), 5),
    "dynamic": Program(DYNAMIC, (X,), 3),
    "onnx loop": Program(ONNX_LOOP, (X, np.array(30, "float32")), 10),
    "onnx if": Program(ONNX_IF, (X, np.array(True)), 1),
    "onnx scan": Program(ONNX_SCAN, (X, np.ones((9, 3), "float32")), 18),
}


__all__ = ["BRANCH", "DYNAMIC", "LOOP", "PROGRAMS", "Program", "X", "script"]
