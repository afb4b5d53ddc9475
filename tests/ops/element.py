"""Runs an operator's tensor program element by element, in Python, and compares it with NumPy.

Both sides of a select are evaluated and every read is checked against the operand's shape, so a
program that forgets to clamp an index fails here.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Binary,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Reduce,
    Select,
    Unary,
    Var,
    reduce_identity,
)
from tensorkiln.ir.relax import RVar, TensorType, tensor
from tensorkiln.ops.match_value import match_shapes
from tensorkiln.ops.op import Element, TensorIn
from tests.ir import numbers

Number = bool | int | float
INTRINSICS = {
    "exp": lambda x: math.exp(min(x, 709.0)) if x == x else x,
    "exp_nonpositive": math.exp,
    "log": lambda x: math.log(x) if x > 0 else (-math.inf if x == 0 else math.nan),
    "erf": math.erf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(min(-x, 709.0))) if x == x else x,
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "sin": math.sin,
    "cos": math.cos,
    "isnan": math.isnan,
    **{name: getattr(np, name) for name in ("tan", "sinh", "cosh")},
    **{
        name: getattr(np, f"arc{name[1:]}")
        for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
    **{
        f"bitcast_{to}": lambda x, a=a, z=z: struct.unpack(z, struct.pack(a, x))[0]
        for to, a, z in (("i32", "f", "i"), ("f32", "i", "f"), ("i64", "d", "q"), ("f64", "q", "d"))
    },
}


def wrap(value: Number, dtype: DType) -> Number:
    """A result as its dtype holds it: integers wrap, floats round."""
    return numbers.rounded(value, dtype) if dtype.is_float else numbers.wrapped(int(value), dtype)


class Run:
    """Evaluates expressions over operand arrays."""

    def __init__(self, arrays: Mapping[Buffer, np.ndarray]):
        self.arrays = arrays

    def value(self, e: Expr, env: dict[Var, Number]) -> Number:
        match e:
            case Var():
                return env[e]
            case IntImm(v, _) | FloatImm(v, _):
                return wrap(v, e.dtype)
            case Load(buffer, indices):
                return self.load(buffer, [self.value(i, env) for i in indices])
            case Select(c, a, b):
                picked = self.value(a, env), self.value(b, env)
                return picked[0 if self.value(c, env) else 1]
            case Reduce():
                return self.reduce(e, env)
            case Cast(a, dtype):
                return numbers.cast(self.value(a, env), a.dtype, dtype)
            case Unary(op, a):
                return numbers.unary(op, self.value(a, env), a.dtype)
            case Intrin(name, args):
                return wrap(self.intrin(name, [self.value(a, env) for a in args]), e.dtype)
            case Binary(op, a, b):
                assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}"
                return numbers.binary(op, self.value(a, env), self.value(b, env), a.dtype)
        raise TypeError(f"not an expression of a tensor program: {e!r}")

    def load(self, buffer: Buffer, at: Sequence[Number]) -> Number:
        array = self.arrays[buffer]
        assert len(at) == array.ndim, f"{buffer.name} has {array.ndim} dimensions, index {at}"
        inside = all(0 <= i < n for i, n in zip(at, array.shape, strict=True))
        assert inside, f"{buffer.name}{list(array.shape)} read at {at}"
        return array[tuple(at)].item()

    def intrin(self, name: str, args: list[Number]) -> Number:
        with np.errstate(all="ignore"):
            if name in ("pow", "fmod"):
                return float((np.power if name == "pow" else np.fmod)(*map(np.float64, args)))
            return INTRINSICS[name](args[0])

    def reduce(self, e: Reduce, env: dict[Var, Number]) -> Number:
        total = self.value(reduce_identity(e.op, e.dtype), env)
        ranges = [range(int(self.value(n, env))) for _, n in e.axes]
        for point in itertools.product(*ranges):
            inner = {**env, **dict(zip((v for v, _ in e.axes), point, strict=True))}
            term = self.value(e.value, inner)
            total = numbers.binary(REDUCE_BINARY[e.op], total, term, e.dtype)
        return total


def run_program(
    op: str, arrays: Sequence[np.ndarray], types: Sequence[TensorType], attrs: Attrs
) -> np.ndarray:
    """The program's whole result; symbolic dimensions are bound from the arrays."""
    out = ops.get(op).infer(types, attrs)
    env: dict[Var, int] = {}
    for k, (t, a) in enumerate(zip(types, arrays, strict=True)):
        match_shapes(f"operand {k}", t.shape, a.shape, env)
    buffers = [Buffer(f"in{k}", t.dtype, t.shape) for k, t in enumerate(types)]

    def element(b: Buffer) -> Element:
        return lambda *index: Load(b, tuple(index))

    program = ops.get(op).program
    assert program is not None, f"{op} has no program"
    ins = [TensorIn(t, element(b)) for t, b in zip(types, buffers, strict=True)]
    run = Run(dict(zip(buffers, arrays, strict=True)))
    index = [Var(f"i{d}") for d in range(out.ndim)]
    value = program(ins, attrs, out)(*index)
    assert value.dtype == out.dtype, f"program of {op} gives {value.dtype}, not {out.dtype}"
    shape = [int(run.value(n, dict(env))) for n in out.shape]
    result = np.empty(shape, out.dtype.name)
    for point in np.ndindex(*shape):
        result[point] = run.value(value, {**env, **dict(zip(index, point, strict=True))})
    return result


def check(
    op: str,
    *arrays: np.ndarray,
    shapes: Sequence[Sequence[Expr | int]] | None = None,
    rtol: float = 1e-9,
    **attrs: object,
) -> np.ndarray:
    """Program, type rule and NumPy reference of one call must agree; the reference's result.

    `shapes` gives (symbolic) operand shapes in place of the arrays' own.
    """
    shapes = shapes or [a.shape for a in arrays]
    types = [tensor(tuple(s), str(a.dtype)) for s, a in zip(shapes, arrays, strict=True)]
    call = ops.call(op, *(RVar(f"x{k}", t) for k, t in enumerate(types)), **attrs)
    out = ops.infer(call)
    env: dict[Var, int] = {}
    for t, a in zip(types, arrays, strict=True):
        match_shapes("operand", t.shape, a.shape, env)
    want = ops.get(op).numpy(list(arrays), plain(call.attrs, env))
    have = run_program(op, arrays, types, call.attrs)
    assert want.dtype.name == out.dtype.name, f"reference gives {want.dtype}, rule {out.dtype}"
    assert want.shape == have.shape
    if out.dtype.is_float:
        np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(have, want)
    return want


def plain(attrs: Attrs, env: Mapping[Var, int]) -> Attrs:
    """Attributes with symbols replaced by their values."""
    run = Run({})

    def number(v: object) -> object:
        if isinstance(v, tuple):
            return tuple(number(x) for x in v)
        return run.value(v, dict(env)) if isinstance(v, Expr) else v

    return Attrs.of(**{k: number(v) for k, v in attrs.items()})


def data(*shape: int, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    """Random values: floats around zero, small signed integers, booleans."""
    rng = np.random.default_rng(seed + 31 * len(shape) + sum(shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith("float"):
        return np.asarray(rng.standard_normal(shape) * 2).astype(dtype)
    low = 0 if dtype.startswith("uint") else -9
    return rng.integers(low, 10, shape).astype(dtype)
