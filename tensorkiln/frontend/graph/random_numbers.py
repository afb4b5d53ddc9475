"""Random tensors as constants of the compiled model.

A compiled model is a function of its operands, so each call has the same numbers: those that
`numpy.random.RandomState` gives for the seed, in float64, rounded to the element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by name from here on
import numpy as np

from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.ir.relax import Constant, constant

# More random numbers than this in one tensor are refused, since a library would hold all of them.
LIMIT = 1 << 24
# Numbers of a distribution, for a shape.
Draw = Callable[[np.random.RandomState, tuple[int, ...]], np.ndarray]


def random_constant(
    state: np.random.RandomState,
    shape: Sequence[int],
    dtype: str,
    draw: Draw,
    *,
    least: float | None = None,
    below: float | None = None,
) -> Constant:
    """A constant of random numbers. Rounding to `dtype` gives none below `least`, which stands for
    the smallest normal number if it is 0, and none that reaches `below`.

    NodeProblem for a shape with a negative extent, or with more than `LIMIT` elements.
    """
    if any(n < 0 for n in shape) or math.prod(shape) > LIMIT:
        raise unsupported(f"{math.prod(shape)} random numbers", f"up to {LIMIT} are made at import")
    kind = np.dtype(dtype)
    numbers = np.asarray(draw(state, tuple(shape))).astype(kind)
    if below is not None:
        edge = np.asarray(below).astype(kind)
        numbers = np.where(numbers >= edge, np.nextafter(edge, kind.type(-math.inf)), numbers)
    if least is not None:
        smallest = np.asarray(least or np.finfo(np.float32).tiny).astype(kind)
        numbers = np.maximum(numbers, smallest)
    return constant(numbers.astype(kind))


def uniform(low: float, high: float) -> Draw:
    """Numbers from `low` on, below `high`."""
    return lambda state, shape: state.random_sample(shape) * (high - low) + low


def normal(mean: float, scale: float) -> Draw:
    """Normally distributed numbers."""
    return lambda state, shape: state.standard_normal(shape) * scale + mean
