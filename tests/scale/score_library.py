"""A library of small functions that tests score tables by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

import tensorkiln as tk
from tensorkiln.script import from_source

Array = npt.NDArray[Any]

# Types of elements that Arrow and the library both have.
TYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")

_TYPED = "\n".join(
    f'''
    @R.function
    def flip_{dtype}(x: R.Tensor(("n", 2, 3), "{dtype}")):
        return R.transpose(x, axes=(0, 2, 1))
'''
    for dtype in TYPES
)
SOURCE = (
    """
@tk.script.ir_module(name="scored")
class Scored:
    @T.prim_func
    def checked(X: T.Buffer(("n", 3), "float32"), Y: T.Buffer(("n", 3), "float32")):
        for i in range(X.shape[0]):
            assert X[i, 0] < 100.0, "the first number is below 100"
            for j in range(3):
                Y[i, j] = X[i, j] * 2.0

    @R.function
    def row_sum(x: R.Tensor(("n", 3), "float32")):
        total = R.sum(x, axes=(1,), keepdims=False)
        return total

    @R.function
    def row_sum_one(x: R.Tensor((1, 3), "float32")):
        total = R.sum(x, axes=(1,), keepdims=False)
        return total

    @R.function
    def row_sum_eight(x: R.Tensor((8, 3), "float32")):
        total = R.sum(x, axes=(1,), keepdims=False)
        return total

    @R.function
    def assertive(x: R.Tensor(("n", 3), "float32")):
        cls = Scored
        y = R.call_tir(cls.checked, [x], R.Tensor(("n", 3), "float32"))
        return y

    @R.function
    def assertive_four(x: R.Tensor((4, 3), "float32")):
        cls = Scored
        y = R.call_tir(cls.checked, [x], R.Tensor((4, 3), "float32"))
        return y

    @R.function
    def tokens(ids: R.Tensor(("n", "t"), "int64")):
        twice = R.add(ids, ids)
        total = R.sum(ids, axes=(1,), keepdims=False)
        return twice, total

    @R.function
    def pairs(
        a: R.Tensor(("n", "t", 2), "float32"),
        b: R.Tensor(("n",), "float32"),
        w: R.Tensor((2,), "float32"),
    ):
        scaled = R.mul(a, w)
        return scaled, R.add(b, b)

    @R.function
    def uneven(x: R.Tensor(("n", 3), "float32"), y: R.Tensor(("m", 3), "float32")):
        return R.add(x, x)

    @R.function
    def wide(x: R.Tensor(("n", 1024), "float32")):
        return R.sum(x, axes=(1,), keepdims=False)

    @R.function
    def all_rows(x: R.Tensor(("n", 3), "float32")):
        return R.sum(x, axes=(0,), keepdims=False)
"""
    + _TYPED
)


def build(path: Path) -> Path:
    """Compile and write the library."""
    tk.compile(from_source(SOURCE)).export_library(path)
    return path
