"""Elementary functions never compute numbers below the smallest normal one, which many processors
take 150 cycles for: not as results, and not on the way to others."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.codegen.expand.math import expand
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Binary,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Select,
    Unary,
    Var,
)
from tests.codegen.test_elementary import ONE

_UNARY = {"abs": np.abs, "floor": np.floor, "trunc": np.trunc, "neg": np.negative, "sqrt": np.sqrt}
_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": lambda a, b: np.where(a < b, a, b),
    "max": lambda a, b: np.where(a > b, a, b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "bitand": np.bitwise_and,
    "shl": np.left_shift,
    "shr": np.right_shift,
}


def subnormal(x: np.ndarray) -> np.ndarray:
    """Which of these numbers are below the smallest normal one, and not 0."""
    if x.dtype.kind != "f":
        return np.zeros(x.shape, bool)
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


class Program:
    """An elementary function as it is generated, in NumPy; `slow` are the arguments for which it
    computes a number that is not normal."""

    def __init__(self, name: str, dtype: str, *arguments: np.ndarray):
        parameters, lets, result = expand(name, DType(dtype))
        self.values = dict(zip((p.name for p in parameters), arguments, strict=True))
        self.slow = np.zeros(len(arguments[0]), bool)
        for var, value in lets:
            self.values[var.name] = self.of(value)
        self.result = self.of(result)

    def of(self, e: Expr) -> np.ndarray:
        """The value of an expression."""
        value = np.broadcast_to(self._computed(e), self.slow.shape)
        self.slow |= subnormal(value)
        return value

    def _computed(self, e: Expr) -> np.ndarray:
        kind = np.dtype(e.dtype.name)
        match e:
            case Var(name):
                return self.values[name]
            case IntImm() | FloatImm():
                return np.asarray(e.value, kind)
            case Unary(op, a):
                return _UNARY[op](self.of(a))
            case Binary(op, a, b):
                return _BINARY[op](self.of(a), self.of(b))
            case Select(c, a, b):
                return np.where(self.of(c), self.of(a), self.of(b))
            case Cast(a):
                return self.of(a).astype(kind)
            case Intrin("fma", (a, b, c)):
                x, y, z = (self.of(v).astype(np.longdouble) for v in (a, b, c))
                return (x * y + z).astype(kind)
            case Intrin(_, (a,)):
                return self.of(a).view(kind)
        raise AssertionError(e)


def magnitudes(dtype: str) -> np.ndarray:
    """Normal numbers of both signs, over all magnitudes and closely about the limits of exp."""
    low = np.log2(np.finfo(dtype).tiny)
    size = np.concatenate(
        [
            np.exp2(np.linspace(low + 2, 100, 20_000)),
            np.linspace(0.5, 1.3, 20_000) * -low * np.log(2),
            np.linspace(0, 40, 20_000)[1:],
        ]
    )
    return np.concatenate([size, -size]).astype(dtype)


# The square of an arc is multiplied by the arc below 1e-13.
_NOT_NORMAL = {"asin", "acos"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_computed_is_normal(dtype: str) -> None:
    x = magnitudes(dtype)
    with np.errstate(all="ignore"):
        slow = {name: x[Program(name, dtype, x).slow] for name in ONE}
    assert {name: x for name, x in slow.items() if len(x)}.keys() == _NOT_NORMAL, slow


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_normal_or_zero(dtype: str) -> None:
    """Of exp, sigmoid and powers, to the last number whose exp is normal."""
    info = np.finfo(dtype)
    edge = np.log(np.longdouble(info.tiny))
    near = np.array([edge], dtype)
    for _ in range(40):
        near = np.unique(np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, -2000)]))
    x = np.concatenate([near, magnitudes(dtype)[60_000 - 1 :]])
    with np.errstate(all="ignore"):
        results = {name: Program(name, dtype, x).result for name in ("exp", "sigmoid")}
        results["pow"] = Program("pow", dtype, np.full_like(x, np.e), x).result
    for name, y in results.items():
        margin = 1e-6 * abs(edge) if name == "pow" else 0  # log(e) is rounded
        assert not subnormal(y).any(), name
        assert (y[x < edge - margin] == 0).all(), name
        assert (y[x > edge + margin] != 0).all(), name
