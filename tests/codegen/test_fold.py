"""What literals decide, against NumPy; and WGSL, which refuses modules that leave it undecided."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensorkiln.codegen.expand.fold import fold
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.expr import Binary, Cast, Expr, FloatImm, IntImm, Unary
from tensorkiln.ir.stmt import PrimFunc, Store

VALUES = (0, 1, -1, 5, 31, 32, 40, 65536, 2**31 - 1, -(2**31))
OPS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def folded(e: Expr) -> Expr:
    """`e` as it stands in a folded program, below an operator of something that is not known."""
    x = Buffer("X", e.dtype, (IntImm(1),))
    f = PrimFunc("f", (x,), Store(x, (IntImm(0),), Binary("add", x[0], e)))
    stored = fold(f).body
    assert isinstance(stored, Store)
    value = stored.value
    return value.b if isinstance(value, Binary) else IntImm(0, e.dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16"])
def test_integers_wrap(dtype: str) -> None:
    t = DType(dtype)
    values = [int(np.int64(v).astype(dtype)) for v in VALUES]
    for (op, compute), a, b in itertools.product(OPS.items(), values, values):
        want = int(compute(np.array([a], dtype), np.array([b], dtype))[0])
        assert folded(Binary(op, IntImm(a, t), IntImm(b, t))) == IntImm(want, t), (op, a, b)


@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shifts_by_the_width_and_more(op: str) -> None:
    t = DType("int32")
    for a, b in itertools.product(VALUES, (0, 1, 31, 32, 63, 2**31 - 1)):
        whole = a << min(b, 64) if op == "shl" else a >> min(b, 64)
        want = int(np.int64(whole & 0xFFFFFFFF).astype("int32"))
        assert folded(Binary(op, IntImm(a, t), IntImm(b, t))) == IntImm(want, t), (a, b)
    assert isinstance(folded(Binary(op, IntImm(1, t), IntImm(-1, t))), Binary)


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (Binary("mul", FloatImm(3e38), FloatImm(10.0)), np.inf),
        (Binary("div", FloatImm(1.0), FloatImm(-0.0)), -np.inf),
        (Binary("add", FloatImm(16777216.0), FloatImm(1.0)), 16777216.0),
        (Unary("sqrt", FloatImm(-1.0)), np.nan),
        (Unary("neg", FloatImm(2.5)), -2.5),
    ],
)
def test_floats_are_those_of_32_bits(e: Expr, want: float) -> None:
    literal = folded(e)
    assert isinstance(literal, FloatImm)
    assert literal.dtype == FLOAT32
    np.testing.assert_equal(literal.value, want)


def test_what_is_converted_and_what_is_nested() -> None:
    t, u = DType("int32"), DType("uint16")
    inner = Binary("mul", IntImm(65536, t), IntImm(65536, t))
    assert folded(Cast(Binary("sub", inner, IntImm(3, t)), u)) == IntImm(65533, u)


def test_a_program_without_literals_is_the_same_object() -> None:
    x = Buffer("X", FLOAT32, (IntImm(4),))
    f = PrimFunc("f", (x,), Store(x, (IntImm(0),), Binary("add", x[1], x[2])))
    assert fold(f) is f
