"""The small libraries that the harness calls: together they need every service of the runtime."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.script import from_source
from tests.artifact.test_loaders import STREAMER

NAMES = ("graphs", "outers", "loaders")
WEIGHTS = np.arange(32, dtype=np.float32).reshape(8, 4) / 8 - 2
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)

# Straight-line functions: symbols, computed sizes, symbolic workspaces, several inputs that may
# need copies, weights, a condition on sizes, loops over threads.
GRAPHS = """
@tk.script.ir_module(name="graphs")
class Graphs:
    @R.function
    def add(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32")):
        return R.add(x, y)

    @R.function
    def scalar(x: R.Tensor((), "float32")):
        return R.neg(x)

    @R.function
    def total(x: R.Tensor(("n", 1), "float32"), y: R.Tensor((1, "n"), "float32")):
        z = R.matmul(x, y)
        return R.sum(z, axes=(0, 1), keepdims=False)

    @R.function
    def four(a: R.Tensor(("n",), "float32"), b: R.Tensor(("n",), "float32"),
             c: R.Tensor(("n",), "float32"), d: R.Tensor(("n",), "float32")):
        e = R.sum(a, axes=(0,), keepdims=False)
        f = R.sum(b, axes=(0,), keepdims=False)
        g = R.sum(c, axes=(0,), keepdims=False)
        h = R.sum(d, axes=(0,), keepdims=False)
        return R.add(R.add(e, f), R.add(g, h))

    @R.function
    def concat(x: R.Tensor(("n", 2), "float32"), y: R.Tensor(("m", 2), "float32")):
        z = R.concat(x, y, axis=0)
        return (z, R.softmax(z, axis=1))

    @R.function
    def take(x: R.Tensor(("n", "m"), "float32"), i: R.Tensor(("k",), "int64")):
        return R.take(x, i, axis=0)

    @R.function
    def best(x: R.Tensor(("n", "m"), "float32")):
        return R.argmax(x, axis=1, keepdims=False)

    @R.function
    def deep(x: R.Tensor(("a", "b", "c", "d", "e", "f", "g", "h"), "int8")):
        return R.transpose(x, axes=(7, 6, 5, 4, 3, 2, 1, 0))

    @R.function
    def grow(x: R.Tensor(("n", "m"), "float32")):
        y = R.tile(x, repeats=(256, 256))
        return R.sum(R.exp(y), axes=(0, 1), keepdims=False)

    @R.function
    def dense(x: R.Tensor(("n", 8), "float32")):
        y = R.linear(x, R.const("w", "float32", (8, 4)))
        return R.relu(y)

    @T.prim_func
    def scale(x: T.Buffer(("n",), "float32"), factor: T.float32, shift: T.int64):
        for i in range(n):
            x[i] = x[i] * factor + T.cast("float32", shift)

    @T.prim_func
    def flip(x: T.Buffer(("n", "m"), "int16"), y: T.Buffer(("n", "m"), "int16")):
        for i in range(n):
            for j in range(m):
                y[i, j] = x[n - 1 - i, m - 1 - j]

"""
COPY = """    @T.prim_func
    def copy_{0}(x: T.Buffer(("n",), "{0}"), y: T.Buffer(("n",), "{0}"), z: T.{0}):
        for i in range(n):
            y[i] = x[i]
        for i in range(n):
            x[i] = z

"""

# Values: everything whose size the data decides, control flow, closures, callbacks, storage sets.
OUTERS = """
@tk.script.ir_module(name="outers")
class Outers:
    @R.function
    def nonzero(x: R.Tensor):
        return R.nonzero(x)

    @R.function
    def unique(x: R.Tensor):
        return R.unique(x)

    @R.function
    def unique_first(x: R.Tensor(ndim=2)):
        return R.unique(x, axis=0, sorted=False)

    @R.function
    def unique_last(x: R.Tensor(ndim=3)):
        return R.unique(x, axis=-1)

    @R.function
    def compress(x: R.Tensor, c: R.Tensor):
        return R.compress(x, c)

    @R.function
    def compress_second(x: R.Tensor(ndim=3), c: R.Tensor):
        return R.compress(x, c, axis=1)

    @R.function
    def cut(x: R.Tensor, starts: R.Tensor(ndim=1, dtype="int64"),
            ends: R.Tensor(ndim=1, dtype="int64"), axes: R.Tensor(ndim=1, dtype="int64"),
            steps: R.Tensor(ndim=1, dtype="int64")):
        return R.slice_dynamic(x, starts, ends, axes, steps)

    @R.function
    def suppress(boxes: R.Tensor, scores: R.Tensor, most: R.Tensor, overlap: R.Tensor,
                 least: R.Tensor):
        return R.non_max_suppression(boxes, scores, most, overlap, least)

    @R.function
    def same(x: R.Object):
        return x

    @R.function
    def ask(x: R.Object) -> R.Object:
        y: R.Object = R.call_packed("safety.host", x, R.Object)
        return (x, y)

    @R.function
    def halve(x: R.Tensor(("n",), "float32"), limit: R.Tensor((), "float32"), label: R.String):
        total = R.sum(x, axes=(0,), keepdims=False)
        while R.less(limit, total):
            x = R.mul(x, R.const(0.5, "float32"))
            total = R.sum(x, axes=(0,), keepdims=False)
        return (x, label, R.shape([n]))

    @R.function
    def pick(x: R.Tensor(("n", "m"), "float32"), which: R.Tensor((), "bool")):
        if which:
            y: R.Tensor(ndim=2, dtype="float32") = R.exp(x)
        else:
            y: R.Tensor(ndim=2, dtype="float32") = R.matmul(x, x, transpose_b=True)
        return y

    @R.function
    def spread(pair: R.Tuple(R.Object, R.Object)):
        return (pair[1], pair[0])

"""
LOADERS = """
@tk.script.ir_module(name="loaders")
class Loaders:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        a = R.tanh(x)
        b = R.mul(a, R.const(2.0, "float32"))
        return R.exp(b)

    @R.function
    def ask(x: R.Object) -> R.Object:
        y: R.Object = R.call_packed("streamer_mul", x, R.Object)
        return y
"""


@functools.cache
def executable(name: str) -> Any:
    """What `tk.compile` makes of one of them."""
    native = tk.Target("native")
    if name == "graphs":
        text = GRAPHS + "".join(COPY.format(dtype) for dtype in DTYPES)
        return tk.compile(from_source(text, constants={"w": WEIGHTS}), native)
    if name == "outers":
        return tk.compile(from_source(OUTERS), native)
    return tk.compile(from_source(LOADERS), native, externals=[STREAMER])
