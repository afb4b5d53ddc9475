"""Random operators of ATen: constants of the compiled model, by the seed of its import.

All numbers are from one `numpy.random.RandomState(seed)`, drawn in the order of the program's
nodes; they have torch's distributions, and none of its bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.random_numbers import Draw, normal, random_constant, uniform
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_index import topk
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.relax import Constant


def _state(g: AtenContext) -> np.random.RandomState:
    if g.random_state is None:
        raise unsupported(
            "random numbers without a seed",
            "from_torch(..., seed=0), or pass the random tensor as an input",
        )
    if g.repeated:
        raise unsupported(
            "random numbers in the body of a loop, which would be the same in each iteration",
            "make them before the loop, and index them by its counter",
        )
    return g.random_state


def _extents(g: AtenContext, shape: Sequence[Operand]) -> tuple[int, ...]:
    sizes = [int_value(as_expr(d)) for d in shape]
    if None in sizes:
        raise unsupported(
            "random numbers of a symbolic shape", "freeze={name: size} makes it static"
        )
    return tuple(n for n in sizes if n is not None)


def _numbers(g: AtenContext, draw: Draw, **limits: float) -> Constant:
    """Numbers in the shape and element type of the result."""
    state = _state(g)
    return random_constant(state, _extents(g, g.out.shape), g.out.dtype.name, draw, **limits)


def distribution(draw: Draw, **limits: float) -> AtenImporter:
    """Numbers of one distribution, whatever the operands."""

    def run(g: AtenContext, *operands: Operand, **options: Any) -> Val:
        return _numbers(g, draw, **limits)

    return run


def randint(g: AtenContext, low: Operand, high: Operand, *size: Any, **options: Any) -> Val:
    """Whole numbers from `low` on, below `high`."""
    lower, upper = _extents(g, (low, high))
    if not -(2**63) <= lower < upper <= 2**63:
        raise malformed(f"whole numbers from {lower}, below {upper}")
    return _numbers(g, lambda state, shape: state.randint(lower, upper, shape, dtype=np.int64))


def randperm(g: AtenContext, n: Operand, **options: Any) -> Val:
    """The numbers 0 .. n-1 in random order."""
    return _numbers(g, lambda state, shape: state.permutation(shape[0]))


def _check(name: str, number: float, low: float, high: float = math.inf) -> None:
    if not low <= number <= high:
        raise malformed(f"{name}={number}, expected {low:g} to {high:g}")


def bernoulli(g: AtenContext, x: Val, probability: Operand = None, **options: Any) -> Val:
    """1 with a probability, which is a number, a tensor or the operand itself; else 0."""
    p: Operand = x if probability is None else probability
    if not isinstance(p, Val):
        _check("p", p, 0, 1)
        return _numbers(g, lambda state, shape: state.random_sample(shape) < p)
    dtype = g.dtype(p) if g.type(p).dtype.is_float else "float32"
    u = random_constant(_state(g), _extents(g, g.out.shape), dtype, uniform(0, 1), below=1)
    return g.cast(g.emit("less", u, g.cast(p, dtype)), g.out.dtype.name)


def dropout(g: AtenContext, x: Val, probability: float, train: bool | None = None) -> list[Val]:
    """Elements dropped with a probability in training, the others divided by 1 - probability; the
    mask is true for these."""
    if train is False or not probability:
        return [x, g.emit("full", shape=g.shape(x), value=1.0, dtype="bool")]
    _check("p", probability, 0, 1)
    state, shape = _state(g), _extents(g, g.shape(x))
    mask = random_constant(
        state, shape, "bool", lambda state, s: state.random_sample(s) >= probability
    )
    scale = 1 / (1 - probability) if probability < 1 else 0.0
    return [g.emit("where", mask, g.emit("mul", x, g.like(scale, x)), g.like(0, x)), mask]


def normal_of(g: AtenContext, mean: Operand, std: Operand = 1.0, *size: Any, **options: Any) -> Val:
    """Normally distributed numbers; mean and deviation are numbers or tensors."""
    if not isinstance(mean, Val) and not isinstance(std, Val):
        _check("std", std, 0)
        return _numbers(g, normal(mean, std))
    dtype = g.out.dtype.name
    x = g.emit("mul", _numbers(g, normal(0, 1)), g.number(std, dtype))
    return g.emit("add", x, g.number(mean, dtype))


def uniform_within(g: AtenContext, x: Val, low: float = 0.0, high: float = 1.0) -> Val:
    """Numbers from `low` on, below `high`, in the shape of the operand."""
    _check("to", high, low)
    if low == high:
        return _numbers(g, lambda state, shape: np.full(shape, low))
    return _numbers(g, uniform(low, high), below=high)


def exponential(g: AtenContext, x: Val, rate: float = 1.0) -> Val:
    """Exponentially distributed numbers, all greater than 0."""
    _check("lambd", rate, 0)
    return _numbers(
        g, lambda state, shape: state.standard_exponential(shape) / (rate or math.nan), least=0
    )


def cauchy(g: AtenContext, x: Val, median: float = 0.0, sigma: float = 1.0) -> Val:
    """Numbers of a Cauchy distribution."""
    _check("sigma", sigma, 0)
    return _numbers(g, lambda state, shape: state.standard_cauchy(shape) * sigma + median)


def log_normal(g: AtenContext, x: Val, mean: float = 1.0, std: float = 2.0) -> Val:
    """Powers of e whose exponents are normally distributed."""
    _check("std", std, 0)
    return _numbers(g, lambda state, shape: np.exp(state.standard_normal(shape) * std + mean))


def geometric(g: AtenContext, x: Val, probability: float) -> Val:
    """Numbers of trials, from 1 on, up to the first success."""
    _check("p", probability, np.finfo(np.float64).tiny, 1)
    return _numbers(g, lambda state, shape: state.geometric(probability, shape))


def multinomial(
    g: AtenContext, x: Val, num_samples: Operand, replacement: bool = False, **options: Any
) -> Val:
    """Places in rows of weights, each with the probability of its share of the row's sum.

    Weights are divided by exponentially distributed numbers; the place of the largest quotient has
    these probabilities, and those of the next ones are those of drawing without replacement.
    """
    (count,) = _extents(g, (num_samples,))
    *lead, classes = _extents(g, g.shape(x))
    if not 1 <= count <= (classes if not replacement else count):
        raise malformed(f"{count} samples of {classes} places")
    shape = (*lead, count, classes) if replacement else (*lead, classes)
    dtype = g.type(x).dtype.sums.name
    waits = random_constant(
        _state(g), shape, dtype, lambda state, s: state.standard_exponential(s), least=0
    )
    weights = g.cast(x, dtype)
    if not replacement:
        return topk(g, g.emit("div", weights, waits), count)[1]
    wide = g.reshape(weights, (*lead, 1, classes))
    return g.emit("argmax", g.emit("div", wide, waits), axis=len(lead) + 1, keepdims=False)


def rrelu(
    g: AtenContext,
    x: Val,
    noise: Val,
    lower: Operand = 1 / 8,
    upper: Operand = 1 / 3,
    train: bool = False,
    **options: Any,
) -> list[Val]:
    """The operand times a slope where it is not positive: random ones in training, else the mean
    of both bounds. The second result has them."""
    shape, dtype = g.shape(x), g.dtype(x)
    slope = (
        random_constant(_state(g), _extents(g, shape), dtype, uniform(lower, upper))
        if train
        else g.like((lower + upper) / 2, x)
    )
    nonpositive = g.emit("less_equal", x, g.like(0, x))
    y = g.emit("where", nonpositive, g.emit("mul", x, slope), x)
    return [y, g.spread(g.emit("where", nonpositive, slope, g.like(1, x)), shape)]


TABLE: AtenTable = {
    **{name: distribution(uniform(0, 1), below=1) for name in ("rand", "rand_like")},
    **{name: distribution(normal(0, 1)) for name in ("randn", "randn_like")},
    "randint": lambda g, high, size, **options: randint(g, 0, high),
    "randint.low": randint,
    "randint_like": lambda g, x, high, **options: randint(g, 0, high),
    "randint_like.low_dtype": lambda g, x, low, high, **options: randint(g, low, high),
    "randperm": randperm,
    "bernoulli": bernoulli,
    "bernoulli.p": bernoulli,
    "bernoulli.Tensor": bernoulli,
    "native_dropout": dropout,
    "normal.Tensor_Tensor": normal_of,
    "normal.Tensor_float": normal_of,
    "normal.float_Tensor": normal_of,
    "normal.float_float": normal_of,
    "normal_functional": lambda g, x, mean=0.0, std=1.0, **options: normal_of(g, mean, std),
    "uniform": uniform_within,
    "exponential": exponential,
    "cauchy": cauchy,
    "log_normal": log_normal,
    "geometric": geometric,
    "multinomial": multinomial,
    "rrelu_with_noise_functional": rrelu,
}
