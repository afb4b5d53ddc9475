"""Random numbers with a seed: constants, made at import.

A compiled model is a function of its operands, so each call has the same numbers: those that
`numpy.random.RandomState` gives for the seed, as in the standard's reference. Without a seed there
is nothing that they could follow from, and the operator is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.tensors import dtype_name, numpy_dtype
from tensorkiln.ir.relax import Constant, constant

# Random tensors are constants of the compiled model.
MOST = 1 << 24
Draw = Callable[[np.random.RandomState, tuple[int, ...]], np.ndarray]


def _drawn(seed: float | None, shape: Sequence[int], dtype: str, draw: Draw) -> Constant:
    if seed is None or not math.isfinite(seed):
        raise unsupported(
            "random numbers without a seed",
            "give the node the attribute seed, or make the random tensor an input of the model",
        )
    if any(n < 0 for n in shape) or math.prod(shape) > MOST:
        raise unsupported(f"{math.prod(shape)} random numbers", f"up to {MOST} are made at import")
    state = np.random.RandomState(int(seed) & 0xFFFFFFFF)
    return constant(draw(state, tuple(shape)).astype(numpy_dtype(dtype)))


def _uniform(low: float, high: float) -> Draw:
    return lambda state, shape: state.rand(*shape) * (high - low) + low


def _normal(mean: float, scale: float) -> Draw:
    return lambda state, shape: state.randn(*shape) * scale + mean


def _float_name(dtype: int) -> str:
    name = dtype_name(dtype, "dtype")
    if "float" not in name:
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
    return _drawn(seed, shape, _float_name(dtype), _uniform(low, high))


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
    return _drawn(seed, *_like(g, x, dtype), _uniform(low, high))


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
    return _drawn(seed, shape, _float_name(dtype), _normal(mean, scale))


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
    return _drawn(seed, *_like(g, x, dtype), _normal(mean, scale))


def bernoulli(g: Context, x: Val, *, dtype: Int | None = None, seed: Float | None = None) -> Val:
    """1 with the probability that the operand has, else 0."""
    u = _drawn(seed, g.static(x, "the operand"), g.dtype(x), _uniform(0, 1))
    hit = g.emit("less", u, x)
    return g.cast(hit, g.dtype(x) if dtype is None else dtype_name(dtype, "dtype"))


# -- dropout ----------------------------------------------------------------------------------


def dropout(g: Context, x: Val, *, ratio: Float = 0.5) -> tuple[Val, ...]:
    """Dropout at inference: the operand itself, and if the mask is used, a mask of all true."""
    if not any(g.outputs[1:]):
        return (x,)
    return x, g.emit("full", shape=g.shape(x), value=1.0, dtype="bool")


def dropout_12(
    g: Context,
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
    u = _drawn(seed, g.static(x, "the operand"), "float64", _uniform(0, 1))
    mask = g.emit("greater_equal", u, g.cast(part, "float64"))
    rest = g.emit("sub", g.const(1, "float64"), g.cast(part, "float64"))
    kept = g.emit("mul", x, g.cast(g.emit("div", g.const(1, "float64"), rest), g.dtype(x)))
    y = g.emit("where", mask, kept, g.like(0, x))
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
    "Dropout": {7: dropout, 12: dropout_12},
}
