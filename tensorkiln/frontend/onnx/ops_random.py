"""Random numbers with a seed, and dropout.

A node of a seed has numbers of its own, as in the standard's reference (`random_numbers`). Without
a seed there is nothing that they could follow from, and the operator is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.random_numbers import Draw, normal, random_constant, uniform
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Table
from tensorkiln.frontend.onnx.tensors import dtype_name
from tensorkiln.ir.relax import Constant


def _drawn(seed: float | None, shape: Sequence[int], dtype: str, draw: Draw) -> Constant:
    return random_constant(_state(seed), shape, dtype, draw)


def _state(seed: float | None) -> np.random.RandomState:
    if seed is None or not math.isfinite(seed):
        raise unsupported(
            "random numbers without a seed",
            "give the node the attribute seed, or make the random tensor an input of the model",
        )
    return np.random.RandomState(int(seed) & 0xFFFFFFFF)


def _shares(seed: float | None, shape: Sequence[int], dtype: str) -> Constant:
    """Numbers from 0 on, below 1 whatever they are rounded to: all are below a probability of 1."""
    return random_constant(_state(seed), shape, dtype, uniform(0, 1), below=1)


def _float_name(dtype: int) -> str:
    name = dtype_name(dtype, "dtype")
    if not PROGRAM_TYPES[name].is_float:
        raise malformed(f"dtype is {name}, expected a float")
    return name


def _like(g: Context, x: Val, dtype: int | None) -> tuple[tuple[int, ...], str]:
    return g.static(x, "the operand"), g.dtype(x) if dtype is None else _float_name(dtype)


def random_uniform(
    g: Context,
    *,
    shape: Ints,
    dtype: Int = 1,
    high: Float = 1.0,
    low: Float = 0.0,
    seed: Float | None = None,
) -> Val:
    """Numbers from `low` to `high`."""
    return _drawn(seed, shape, _float_name(dtype), uniform(low, high))


def random_uniform_like(
    g: Context,
    x: Val,
    *,
    dtype: Int | None = None,
    high: Float = 1.0,
    low: Float = 0.0,
    seed: Float | None = None,
) -> Val:
    """Numbers from `low` to `high` in the shape of the operand."""
    return _drawn(seed, *_like(g, x, dtype), uniform(low, high))


def random_normal(
    g: Context,
    *,
    shape: Ints,
    dtype: Int = 1,
    mean: Float = 0.0,
    scale: Float = 1.0,
    seed: Float | None = None,
) -> Val:
    """Normally distributed numbers."""
    return _drawn(seed, shape, _float_name(dtype), normal(mean, scale))


def random_normal_like(
    g: Context,
    x: Val,
    *,
    dtype: Int | None = None,
    mean: Float = 0.0,
    scale: Float = 1.0,
    seed: Float | None = None,
) -> Val:
    """Normally distributed numbers in the shape of the operand."""
    return _drawn(seed, *_like(g, x, dtype), normal(mean, scale))


def bernoulli(g: Context, x: Val, *, dtype: Int | None = None, seed: Float | None = None) -> Val:
    """1 with the probability that the operand has, else 0."""
    u = _shares(seed, g.static(x, "the operand"), g.dtype(x))
    hit = g.emit("less", u, x)
    return g.cast(hit, g.dtype(x) if dtype is None else dtype_name(dtype, "dtype"))


def multinomial(
    g: Context, x: Val, *, dtype: Int = 6, sample_size: Int = 1, seed: Float | None = None
) -> Val:
    """Classes by their logarithmic probabilities x [N, classes], as [N, sample_size]: the largest
    of the probabilities, each divided by an exponentially distributed number, wins."""
    name = dtype_name(dtype, "dtype")
    if name not in ("int32", "int64"):
        raise malformed(f"dtype is {name}, expected int32 or int64")
    if g.rank(x) != 2 or sample_size < 1:
        raise malformed(f"{sample_size} samples of {g.rank(x)} dimensions, expected [N, classes]")
    rows, classes = g.static(x, "the operand")
    waits = random_constant(
        _state(seed),
        (rows, sample_size, classes),
        "float32",
        lambda state, shape: np.log(np.maximum(state.standard_exponential(shape), 1e-300)),
    )
    logits = g.reshape(g.cast(x, "float32"), (rows, 1, classes))
    return g.cast(g.emit("argmax", g.emit("sub", logits, waits), axis=2, keepdims=False), name)


# -- dropout ----------------------------------------------------------------------------------


def dropout(g: OnnxContext, x: Val, *, ratio: Float = 0.5) -> tuple[Val, ...]:
    """Dropout at inference: the operand itself, and if the mask is used, a mask of all true."""
    if not any(g.outputs[1:]):
        return (x,)
    return x, g.emit("full", shape=g.shape(x), value=1.0, dtype="bool")


def dropout_12(
    g: OnnxContext,
    x: Val,
    ratio: Val | None = None,
    training: Val | None = None,
    *,
    seed: Int | None = None,
) -> tuple[Val, ...]:
    """Dropout with the ratio and the training flag as operands. In training, elements are dropped
    by the numbers of the seed, the others divided by 1 - ratio."""
    if training is None or (
        isinstance(training, Constant) and not g.scalar(training, "training_mode")
    ):
        return dropout(g, x)
    part = g.const(0.5, "float32") if ratio is None else g.reshape(ratio, ())
    if isinstance(part, Constant):
        number = g.scalar(part, "ratio")
        if not 0 <= number < 1:
            raise malformed(f"ratio={number}, expected 0 to below 1")
        if number == 0:
            return dropout(g, x)
    u = _shares(seed, g.static(x, "the operand"), "float64")
    mask = g.emit("greater_equal", u, g.cast(part, "float64"))
    keep_share = g.emit("sub", g.const(1, "float64"), g.cast(part, "float64"))
    survivors = g.emit(
        "mul", x, g.cast(g.emit("div", g.const(1, "float64"), keep_share), g.dtype(x))
    )
    y = g.emit("where", mask, survivors, g.like(0, x))
    if isinstance(training, Constant):
        return y, mask
    now = g.reshape(training, ())
    return g.emit("where", now, y, x), g.emit("logical_or", mask, g.emit("logical_not", now))


TABLE: Table = {
    "RandomUniform": {1: random_uniform},
    "RandomUniformLike": {1: random_uniform_like},
    "RandomNormal": {1: random_normal},
    "RandomNormalLike": {1: random_normal_like},
    "Bernoulli": {15: bernoulli},
    "Multinomial": {7: multinomial},
    "Dropout": {7: dropout, 12: dropout_12},
}
