"""Probabilities of classes from those of pairs of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import const, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import OpDef, Operands
from tensorkiln.ops.rules import FLOAT, mismatch, require_dtype, require_ndim, show_type


def pairs(classes: int) -> list[tuple[int, int]]:
    """The pairs (i, j) of classes, i < j, in the order of columns."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def rounds(classes: int) -> tuple[int, float]:
    """How many rounds are made at most, and the error at which they end."""
    return max(100, classes), 0.005 / classes


def _infer_coupled(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    require_dtype("coupled", "x", x, FLOAT)
    require_ndim("coupled", "x", x, 2, "(samples, pairs)")
    count = a.classes * (a.classes - 1) // 2
    if int_value(x.shape[1]) != count:
        expected = f"{count} columns, one for each pair of {a.classes} classes"
        raise mismatch("coupled", "x", expected, show_type(x))
    return TensorType((x.shape[0], const(a.classes)), x.dtype)


def _np_coupled(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    """The p that makes sum over i != j of (r[j, i] p[i] - r[i, j] p[j])**2 least, where r[i, j] = x
    is how probable i is of i and j (Wu, Lin, Weng 2004). p comes nearer to it round by round, until
    no part of the gradient is off by more than `rounds` says."""
    k, (round_limit, tolerance) = a.classes, rounds(a.classes)
    out = np.empty((len(arrays[0]), k), arrays[0].dtype)
    for row, values in enumerate(arrays[0]):
        r = np.zeros((k, k), values.dtype)
        for (i, j), value in zip(pairs(k), values, strict=True):
            r[i, j], r[j, i] = value, 1 - value
        q = -r * r.T
        np.fill_diagonal(q, (r * r).sum(axis=0))
        p = np.full(k, 1 / k, values.dtype)
        for _ in range(round_limit):
            slope = q @ p
            total = p @ slope
            if np.abs(slope - total).max() < tolerance:
                break
            for t in range(k):
                step = (total - slope[t]) / q[t, t]
                grown = 1 + step
                p[t] += step
                total = (total + step * (step * q[t, t] + 2 * slope[t])) / grown / grown
                slope = (slope + step * q[t]) / grown
                p = p / grown
        out[row] = p
    return out


COUPLING: dict[str, OpDef] = {
    # Only a kernel of its own can compute it: how many rounds it takes depends on the sample.
    "coupled": OpDef(
        "coupled",
        ("x",),
        {"classes": at.integer(2)},
        "opaque",
        _infer_coupled,
        _np_coupled,
    ),
}
