"""canonicalize: each row before -> after, and its meaning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import constant, tensor
from tensorkiln.kernels.case import Build, Graph, c
from tensorkiln.transform.relax.canonicalize import canonicalize
from tests.transform.graphs import (
    arguments,
    assert_same_values,
    check,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

ones_column = constant(np.ones((3, 1), np.float32))
# x is float32 [2, 3, 4]
ROWS: dict[str, tuple[Build, Build]] = {
    "identity": (lambda g, x: g.identity(x), lambda g, x: x),
    "cast to its own type": (lambda g, x: g.cast(x, dtype="float32"), lambda g, x: x),
    "cast up and down": (
        lambda g, x: g.cast(g.cast(x, dtype="float64"), dtype="float32"),
        lambda g, x: x,
    ),
    "reshape to its own shape": (lambda g, x: g.reshape(x, shape=(2, 3, 4)), lambda g, x: x),
    "reshape of reshape": (
        lambda g, x: g.reshape(g.reshape(x, shape=(6, 4)), shape=(8, 3)),
        lambda g, x: g.reshape(x, shape=(8, 3)),
    ),
    "transpose of transpose": (
        lambda g, x: g.transpose(g.transpose(x, axes=(1, 2, 0)), axes=(1, 0, 2)),
        lambda g, x: g.transpose(x, axes=(2, 1, 0)),
    ),
    "transpose back": (
        lambda g, x: g.transpose(g.transpose(x, axes=(1, 2, 0)), axes=(2, 0, 1)),
        lambda g, x: x,
    ),
    "transpose of units": (
        lambda g, x: g.transpose(g.reshape(x, shape=(2, 1, 12)), axes=(1, 0, 2)),
        lambda g, x: g.reshape(x, shape=(1, 2, 12)),
    ),
    "transpose of merged batches": (
        lambda g, x: g.reshape(
            g.transpose(g.reshape(g.relu(x), shape=(2, 3, 4)), axes=(0, 2, 1)), shape=(1, 2, 4, 3)
        ),
        lambda g, x: g.transpose(g.reshape(g.relu(x), shape=(1, 2, 3, 4)), axes=(0, 1, 3, 2)),
    ),
    "units dropped after a transpose": (
        lambda g, x: g.reshape(
            g.transpose(g.reshape(x, shape=(2, 3, 1, 4)), axes=(3, 2, 0, 1)), shape=(4, 2, 3)
        ),
        lambda g, x: g.transpose(x, axes=(2, 0, 1)),
    ),
    "slice of transpose": (
        lambda g, x: g.slice(
            g.transpose(x, axes=(2, 0, 1)), begin=(1, 0, 0), strides=(2, 1, 1), shape=(2, 2, 3)
        ),
        lambda g, x: g.transpose(
            g.slice(x, begin=(0, 0, 1), strides=(1, 1, 2), shape=(2, 3, 2)), axes=(2, 0, 1)
        ),
    ),
    "slice of a split dimension": (
        lambda g, x: g.slice(
            g.reshape(x, shape=(2, 3, 2, 2)),
            begin=(0, 0, 1, 0),
            strides=(1, 1, 1, 1),
            shape=(2, 3, 1, 2),
        ),
        lambda g, x: g.reshape(
            g.slice(x, begin=(0, 0, 2), strides=(1, 1, 1), shape=(2, 3, 2)), shape=(2, 3, 1, 2)
        ),
    ),
    "take of consecutive elements": (
        lambda g, x: g.take(x, c([1, -1], "int64"), axis=1),
        lambda g, x: g.slice(x, begin=(0, 1, 0), strides=(1, 1, 1), shape=(2, 2, 4)),
    ),
    "take of one element": (
        lambda g, x: g.take(x, c(-1, "int64"), axis=2),
        lambda g, x: g.reshape(
            g.slice(x, begin=(0, 0, 3), strides=(1, 1, 1), shape=(2, 3, 1)), shape=(2, 3)
        ),
    ),
    "slice of everything": (
        lambda g, x: g.slice(x, begin=(0, 0, 0), strides=(1, 1, 1), shape=(2, 3, 4)),
        lambda g, x: x,
    ),
    "concat of one": (lambda g, x: g.concat(x, axis=1), lambda g, x: x),
    "pad with nothing": (
        lambda g, x: g.pad(x, before=(0, 0, 0), after=(0, 0, 0)),
        lambda g, x: x,
    ),
    "tile once": (lambda g, x: g.tile(x, repeats=(1, 1, 1)), lambda g, x: x),
    "broadcast to its own shape": (
        lambda g, x: g.broadcast_to(x, shape=(2, 3, 4)),
        lambda g, x: x,
    ),
    "sum over nothing": (lambda g, x: g.sum(x, axes=(), keepdims=True), lambda g, x: x),
    "mean over units": (
        lambda g, x: g.mean(g.reshape(x, shape=(2, 1, 12)), axes=(1,), keepdims=False),
        lambda g, x: g.reshape(x, shape=(2, 12)),
    ),
    "times one": (lambda g, x: g.mul(ones_column, x), lambda g, x: x),
    "by one": (lambda g, x: g.div(x, 1), lambda g, x: x),
    "plus zero": (lambda g, x: g.add(0, x), lambda g, x: x),
    "minus zero": (lambda g, x: g.sub(x, 0), lambda g, x: x),
    "power of one": (lambda g, x: g.pow(x, 1), lambda g, x: x),
    "square": (lambda g, x: g.pow(x, 2), lambda g, x: g.mul(x, x)),
    "cube": (lambda g, x: g.pow(x, 3), lambda g, x: g.mul(g.mul(x, x), x)),
    "root": (lambda g, x: g.pow(g.abs(x), 0.5), lambda g, x: g.sqrt(g.abs(x))),
    "power of minus one": (lambda g, x: g.pow(x, -1), lambda g, x: g.reciprocal(x)),
    "one over": (lambda g, x: g.div(1, x), lambda g, x: g.reciprocal(x)),
    "reciprocal root": (
        lambda g, x: g.div(1, g.sqrt(g.abs(x))),
        lambda g, x: g.rsqrt(g.abs(x)),
    ),
    "times minus one": (lambda g, x: g.mul(x, -1), lambda g, x: g.neg(x)),
    "by a power of two": (lambda g, x: g.div(x, 8), lambda g, x: g.mul(x, 0.125)),
    "minus a constant": (lambda g, x: g.sub(x, 3), lambda g, x: g.add(x, -3)),
    "negated twice": (lambda g, x: g.neg(g.neg(x)), lambda g, x: x),
    "plus the negative": (
        lambda g, x: g.add(g.neg(g.exp(x)), x),
        lambda g, x: g.sub(x, g.exp(x)),
    ),
    "rectified twice": (lambda g, x: g.relu(g.relu(x)), lambda g, x: g.relu(x)),
    "maximum with zero": (lambda g, x: g.maximum(x, 0), lambda g, x: g.relu(x)),
    "clip from zero": (lambda g, x: g.clip(x, min=0.0), lambda g, x: g.relu(x)),
    "relu6": (
        lambda g, x: g.minimum(g.maximum(x, 0), 6),
        lambda g, x: g.clip(x, min=0.0, max=6.0),
    ),
    "clip of clip": (
        lambda g, x: g.clip(g.clip(x, min=-1.0, max=0.5), min=-0.5, max=1.0),
        lambda g, x: g.clip(x, min=-0.5, max=0.5),
    ),
    "clip to nothing": (lambda g, x: g.clip(x), lambda g, x: x),
    "least of infinity": (lambda g, x: g.minimum(x, math.inf), lambda g, x: x),
    "greatest of -infinity": (lambda g, x: g.maximum(x, -math.inf), lambda g, x: x),
    "greatest of infinity": (
        lambda g, x: g.maximum(x, math.inf),
        lambda g, x: g.clip(x, min=math.inf),
    ),
    "where of not": (
        lambda g, x: g.where(g.logical_not(g.less(x, 0)), x, g.exp(x)),
        lambda g, x: g.where(g.less(x, 0), g.exp(x), x),
    ),
    "where of twice the same": (lambda g, x: g.where(g.less(x, 0), x, x), lambda g, x: x),
    "global average pool": (
        lambda g, x: g.avg_pool2d(g.reshape(x, shape=(1, 2, 3, 4)), kernel=(3, 4)),
        lambda g, x: g.mean(g.reshape(x, shape=(1, 2, 3, 4)), axes=(2, 3), keepdims=True),
    ),
    "matmul with flags": (
        lambda g, x: g.matmul(x, x, transpose_b=True),
        lambda g, x: g.matmul(x, g.transpose(x, axes=(0, 2, 1))),
    ),
    "broadcast before an operator": (
        lambda g, x: g.add(x, g.broadcast_to(g.exp(c([1.0])), shape=(2, 3, 4))),
        lambda g, x: g.add(x, g.exp(c([1.0]))),
    ),
    "full as an operand": (
        lambda g, x: g.mul(x, g.full(shape=(2, 3, 4), value=3.0)),
        lambda g, x: g.mul(x, 3),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    before, after = ROWS[name]
    check(canonicalize, graph(before, x=(2, 3, 4)), graph(after, x=(2, 3, 4)))


KEPT: dict[str, Build] = {
    "division that is not exact": lambda g, x: g.div(x, 3),
    "division by the smallest number": lambda g, x: g.div(x, c(np.float32(1e-45))),
    "times one that broadcasts": lambda g, x: g.mul(x, constant(np.ones((5, 1, 1, 1), np.float32))),
    "square of another type": lambda g, x: g.pow(x, 2.0000002),
    "average pool with padding": lambda g, x: g.avg_pool2d(
        g.reshape(x, shape=(1, 2, 3, 4)), kernel=(3, 4), padding=(1, 0, 1, 0)
    ),
    "lossy cast": lambda g, x: g.cast(g.cast(x, dtype="int32"), dtype="float32"),
    "cast through bool": lambda g, x: g.cast(g.cast(x, dtype="bool"), dtype="float32"),
    "disjoint clips": lambda g, x: g.clip(g.clip(x, min=1.0), max=0.0),
    "slice across a split": lambda g, x: g.slice(
        g.reshape(x, shape=(2, 3, 2, 2)),
        begin=(0, 0, 0, 1),
        strides=(1, 1, 1, 1),
        shape=(2, 3, 2, 1),
    ),
    "take out of order": lambda g, x: g.take(x, c([0, 2, 1], "int64"), axis=1),
    "clip to NaN": lambda g, x: g.minimum(x, float("nan")),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    check_unchanged(canonicalize, graph(KEPT[name], x=(2, 3, 4)))


def test_integers_keep_their_arithmetic() -> None:
    x = tensor((4,), "int32")
    unchanged = graph(lambda g, x: g.div(x, c(2, "int32")), x=x)
    check_unchanged(canonicalize, unchanged)
    moved = graph(lambda g, x: g.sub(x, c(5, "int32")), x=x)
    check(canonicalize, moved, graph(lambda g, x: g.add(x, c(-5, "int32")), x=x))
    unsigned = graph(lambda g, x: g.sub(x, c(5, "uint8")), x=tensor((4,), "uint8"))
    check_unchanged(canonicalize, unsigned)


def test_broadcasts_move_past_cheap_operators() -> None:
    def build(g: Graph, m):  # noqa: ANN001, ANN202
        wide = g.broadcast_to(g.reshape(m, shape=(2, 1, 1, 4)), shape=(2, 1, 4, 4))
        return g.mul(g.sub(1, g.cast(wide, dtype="float32")), -1e4)

    mod = graph(build, m=tensor((2, 4), "int64"))
    out = canonicalize(mod)
    assert ops_of(out) == ["reshape", "cast", "sub", "mul", "broadcast_to"]
    assert_same_values(mod, out)


def test_symbolic_extents() -> None:
    n = Var("n")

    def build(g: Graph, x):  # noqa: ANN001, ANN202
        flat = g.reshape(x, shape=(n * 2, 3, 4))
        turned = g.transpose(flat, axes=(0, 2, 1))
        return g.reshape(turned, shape=(n, 2, 4, 3))

    mod = graph(build, x=tensor((n, 2, 3, 4), "float32"))
    out = canonicalize(mod)
    assert ops_of(out) == ["transpose"]
    assert_same_values(mod, out, n=3)


def test_types_of_results_never_change() -> None:
    for before, _ in ROWS.values():
        mod = graph(before, x=(2, 3, 4))
        assert main(canonicalize(mod)).result.type == main(mod).result.type
        assert arguments(mod).keys() == {"x"}


def test_identities_go_and_subtractions_become_additions() -> None:
    check_text(
        canonicalize,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            a = R.sub(x, R.const(2.0, "float32"))
            b = R.transpose(a, axes=(1, 0))
            c = R.transpose(b, axes=(1, 0))
            d = R.add(c, R.const(0.0, "float32"))
            return d
        """,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            a = R.add(x, R.const(-2.0, "float32"))
            return a
        """,
    )
