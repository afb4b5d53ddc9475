"""Programs of the whole graph language, with inputs, what they call, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.module import IRModule
from tensorkiln.script import from_source


@dataclass(frozen=True)
class Program:
    """`expected` computes the flattened results from the inputs, with NumPy."""

    body: str
    inputs: dict[str, Any]
    expected: Callable[..., list[Any]]
    packed: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def module(self) -> IRModule:
        return from_source(f"@ir_module\nclass Net:{self.body}", infer=ops.infer)


def vec(*values: float) -> np.ndarray:
    return np.array(values, "float32")


X = vec(1, -2, 3, -4)
YES, NO = np.array(True), np.array(False)


def _add_one(x: np.ndarray, y: np.ndarray) -> None:
    y[...] = x + 1


PROGRAMS: dict[str, Program] = {}

for _name, _flag in (("branch_taken", YES), ("branch_not_taken", NO)):
    PROGRAMS[_name] = Program(
        """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
        y = R.relu(x)
        if c:
            z = R.neg(y)
            w = R.add(z, x)
        else:
            w = R.mul(y, y)
            z = x
        return (R.add(w, z), y)
""",
        {"x": X, "c": _flag},
        lambda x, c: (
            [-2 * np.maximum(x, 0) + x, np.maximum(x, 0)]
            if c
            else [np.maximum(x, 0) ** 2 + x, np.maximum(x, 0)]
        ),
    )

PROGRAMS["early_return"] = Program(
    """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((1,), "bool")):
        if n > 8:
            return R.neg(x)
        elif c:
            y = R.add(x, x)
            return R.exp(y)
        return x
""",
    {"x": X, "c": np.array([True])},
    lambda x, c: [np.exp(x + x)],
)

PROGRAMS["recursion"] = Program(
    """
    @R.function
    def power(
        x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")
    ) -> R.Tensor(("n",), "float32"):
        if R.less_equal(k, R.const(0, "int64")):
            one = R.full(shape=(n,), value=1.0, dtype="float32")
            return one
        rest = cls.power(x, R.sub(k, R.const(1, "int64")))
        return R.mul(rest, x)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return cls.power(x, R.const(5, "int64"))
""",
    {"x": X},
    lambda x: [x**5],
)

PROGRAMS["closures"] = Program(
    """
    @R.function
    def twice(f: R.Callable((R.Tensor(("k",), "float32"),), R.Tensor(("k",), "float32")),
              x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = f(x)
        return f(y)

    @R.function
    def main(x: R.Tensor(("n",), "float32"), b: R.Tensor((1,), "float32")):
        scale = R.exp(b)
        @R.function
        def inner(a: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
            @R.function
            def shift(v: R.Tensor(("q",), "float32")) -> R.Tensor(("q",), "float32"):
                return R.add(v, b)
            moved = shift(a)
            return R.mul(moved, scale)
        once = inner(x)
        return (cls.twice(inner, x), once)
""",
    {"x": X, "b": vec(0.5)},
    lambda x, b: [((x + b) * np.exp(b) + b) * np.exp(b), (x + b) * np.exp(b)],
)

PROGRAMS["loop_of_functions"] = Program(
    """
    @R.function
    def again(i: R.Tensor((), "int64"), x: R.Tensor(("n",), "float32")) -> R.Tensor((), "bool"):
        return R.less(i, R.const(3, "int64"))

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        @R.function
        def body(i: R.Tensor((), "int64"), v: R.Tensor(("n",), "float32")):
            return (R.add(i, R.const(1, "int64")), R.add(v, x))
        out = R.while_loop(cls.again, body, R.const(0, "int64"), x)
        return out[1]
""",
    {"x": X},
    lambda x: [4 * x],
)

PROGRAMS["loop_of_python"] = Program(
    """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), limit: R.Tensor((), "float32")):
        total = R.sum(x, axes=(0,), keepdims=False)
        i = R.const(0, "int64")
        while R.less(total, limit):
            x = R.add(x, x)
            if R.less(i, R.const(1, "int64")):
                x = R.relu(x)
            total = R.sum(x, axes=(0,), keepdims=False)
            i = R.add(i, R.const(1, "int64"))
        return (x, i)
""",
    {"x": X, "limit": np.array(30, "float32")},
    lambda x, limit: [8 * np.maximum(x, 0), np.array(3)],
)

PROGRAMS["growing_state"] = Program(
    """
    @R.function
    def main(x: R.Tensor((2,), "float32")):
        grown: R.Tensor(ndim=1, dtype="float32") = x
        go = R.const(True, "bool")
        while go:
            part = R.match_cast(grown, R.Tensor(("k",), "float32"))
            longer: R.Tensor(ndim=1, dtype="float32") = R.concat(part, part, axis=0)
            grown = longer
            go = R.call_packed("short", grown, R.Tensor((), "bool"))
        return grown
""",
    {"x": vec(1, 2)},
    lambda x: [np.tile(x, 4)],
    {"short": lambda v: np.array(len(v) < 8)},
)

PROGRAMS["packed"] = Program(
    """
    @R.function
    def main(x: R.Tensor(("n", 2), "float32")):
        pair = (x, R.prim_value(n * 2))
        y = R.call_packed("scale", R.neg(x), 3, 2.5, "text", R.shape([n, 2]), pair,
                          R.Tensor(("n", 2), "float32"))
        z = R.call_dps_packed("fill", [y], [R.Tensor((n,), "float32"), R.Tensor((2,), "float32")])
        R.call_packed("note", y, key="mymod")
        return (z[0], R.add(z[1], z[1]), "done", n + 1)
""".replace(', "done", n + 1', ', "done", R.prim_value(n + 1)'),
    {"x": np.arange(6, dtype="float32").reshape(3, 2)},
    lambda x: [(-x * 3 * 2.5).sum(1) + 6, 2 * (-x * 3 * 2.5).sum(0), "done", 4],
    {
        "scale": lambda x, a, b, text, shape, pair: (
            x * np.float32(a * b) if (text, list(shape), pair[1]) == ("text", [3, 2], 6) else None
        ),
        "fill": lambda y, a, b: (a.__setitem__(..., y.sum(1) + 6), b.__setitem__(..., y.sum(0))),
        "note": lambda y, key: [y, key],
    },
)

PROGRAMS["tuples"] = Program(
    """
    @R.function
    def main(
        t: R.Tuple(R.Tensor(("n",), "float32"), R.Tuple(R.Tensor(("n",), "float32"), R.Shape(1)))
    ):
        x = t[0]
        pair: R.Tuple(R.Tensor(("n",), "float32"), R.Shape(ndim=1)) = t[1]
        y = R.add(x, pair[0])
        ones = R.full(shape=(n,), value=1.0, dtype="float32")
        return ((y, (pair[1],)), (x, ones))
""",
    {"t": (X, (X * 2, np.array([7])))},
    lambda t: [t[0] * 3, np.array([7]), t[0], np.ones(4)],
)

PROGRAMS["in_place"] = Program(
    """
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32"), room: R.Tensor((4,), "float32")):
        y = R.neg(x)
        cls.add_one(y, room)
        z = R.add(room, x)
        w = R.call_tir_inplace(cls.add_one, [z, z], inplace_indices=[1])
        v = R.call_tir(cls.add_one, [w], R.Tensor((4,), "float32"))
        return R.mul(v, v)
""",
    {"x": X, "room": vec(0, 0, 0, 0)},
    lambda x, room: [np.full(4, 9.0)],
    {"add_one": _add_one},
)

PROGRAMS["casts"] = Program(
    """
    @R.function
    def main(x: R.Tensor, s: R.Object):
        y = R.match_cast(x, R.Tensor(("n", "n * 2"), "float32"))
        u = R.match_cast(s, R.Tuple(R.Tensor(("m",), "float32"), R.Prim("int64"), R.String))
        v = u[0]
        flat = R.reshape(y, shape=(n * 2 * n,))
        if n * n * 2 == m:
            w = R.match_cast(v, R.Tensor((n * 2 * n,), "float32"))
            out: R.Tensor(ndim=1, dtype="float32") = R.add(flat, w)
        else:
            out: R.Tensor(ndim=1, dtype="float32") = v
        return (out, u[1])
""",
    {"x": np.ones((2, 4), "float32"), "s": (np.arange(8, dtype="float32"), 5, "k")},
    lambda x, s: [1 + s[0], 5],
)

PROGRAMS["dynamic"] = Program(
    """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), at: R.Tensor((1,), "int64")):
        where = R.nonzero(R.greater(x, R.const(0.0, "float32")))
        kept = R.compress(x, R.greater(x, R.const(0.0, "float32")), axis=0)
        found = R.match_cast(kept, R.Tensor(("k",), "float32"))
        u = R.unique(R.neg(found))
        cut = R.slice_dynamic(found, at, R.shape([k]))
        return (where, R.add(found, found), u[0], u[3], cut)
""",
    {"x": vec(3, -1, 2, 3, -7), "at": np.array([1])},
    lambda x, at: [
        np.array([[0, 2, 3]]),
        vec(6, 4, 6),
        vec(-3, -2),
        np.array([2, 1]),
        vec(2, 3),
    ],
)
