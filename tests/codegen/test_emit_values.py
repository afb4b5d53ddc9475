"""Every expression node reaches LLVM and computes what NumPy computes, on every x86-64 level."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import attrgetter

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np
import pytest

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Expr,
    IntImm,
    Ramp,
    Select,
    Shuffle,
    Var,
    VectorReduce,
    binary,
    cast,
    const,
    intrin,
    unary,
)
from tensorkiln.ir.stmt import For, If, Let, Seq, Store
from tensorkiln.ops.elementwise import cast_array
from tests.codegen.kernels import (
    EVERY_FORM,
    FORMS,
    Case,
    N,
    compiled,
    elementwise,
    numbers,
    program,
)
from tests.emulated.machine import Library
from tests.rotation import rows_in_turn

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
Fn = Callable[..., np.ndarray]


def _op(name: str, dtypes: tuple[str, ...], numpy: Fn, result: str = "") -> list[Case]:
    return [
        Case(f"{name}_{d}", (d, d), result or d, lambda x, y: binary(name, x, y), numpy)
        for d in dtypes
    ]


def _in_single(f: Fn) -> Fn:
    """16-bit floats are computed in float32 and rounded once."""

    def wrapped(*xs: np.ndarray) -> np.ndarray:
        narrow = xs[0].dtype.name in ("float16", "bfloat16")
        out = f(*(x.astype(np.float32) if narrow else x for x in xs))
        return out.astype(xs[0].dtype) if narrow and out.dtype.kind != "b" else out

    return wrapped


def _less(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x < y, x, y)


def _greater(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x > y, x, y)


def _wide(f: Fn) -> Fn:
    """Exact in Python's integers, then wrapped to the width; by 0 it is 0."""

    def wrapped(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = x.astype(object), np.broadcast_to(y, x.shape).astype(object)
        whole = np.array([f(m, n) if n else 0 for m, n in zip(a, b, strict=True)], object)
        return (whole & ((1 << 8 * x.itemsize) - 1)).astype(f"uint{8 * x.itemsize}").view(x.dtype)

    return wrapped


def _truncated(m: int, n: int) -> int:
    return m // n if (m < 0) == (n < 0) else -(-m // n)


DIVISIONS = {
    "floordiv": _wide(lambda m, n: m // n),
    "floormod": _wide(lambda m, n: m % n),
    "div": _wide(_truncated),
}


def _division_cases() -> list[Case]:
    """Any dividend, any divisor; and constants, those that become shifts and those that trap."""
    out = []
    for d in INTS:
        for op, f in DIVISIONS.items():
            out.append(Case(f"{op}_{d}", (d, d), d, lambda x, y, op=op: Binary(op, x, y), f))
            for n in (4, 7, 0, *((-1, -3, -128) if d.startswith("int") else ())):
                out.append(
                    Case(
                        f"{op}{n}_{d}".replace("-", "_"),
                        (d,),
                        d,
                        lambda x, op=op, n=n: Binary(op, x, const(n, x.dtype)),
                        lambda x, f=f, n=n: f(x, np.array([n], x.dtype)),
                    )
                )
    return out


def _shifted(op: str) -> Fn:
    """Python's integers: all bits go by as many or more, and the sign stays."""

    def f(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bits = 8 * x.itemsize
        counts = [min(int(n) & ((1 << bits) - 1), bits) for n in np.broadcast_to(y, x.shape)]
        shift = (lambda m, n: m << n) if op == "shl" else (lambda m, n: m >> n)
        whole = np.array([shift(int(m), n) for m, n in zip(x, counts, strict=True)], object)
        return (whole & ((1 << bits) - 1)).astype(f"uint{bits}").view(x.dtype)

    return f


def _shift_cases() -> list[Case]:
    out = []
    for d in INTS:
        bits = np.dtype(d).itemsize * 8
        for op in ("shl", "shr"):
            out.append(
                Case(f"{op}_{d}", (d, d), d, lambda x, y, op=op: Binary(op, x, y), _shifted(op))
            )
            for n in (0, bits - 1, bits, bits + 5):
                out.append(
                    Case(
                        f"{op}{n}_{d}",
                        (d,),
                        d,
                        lambda x, op=op, n=n: Binary(op, x, const(n, x.dtype)),
                        lambda x, op=op, n=n: _shifted(op)(x, np.array([n])),
                    )
                )
    return out


def _cast_reference(dst: str) -> Fn:
    def f(x: np.ndarray) -> np.ndarray:
        if dst == "bool":
            return x != 0
        if x.dtype.name == "bfloat16" and np.dtype(dst).kind in "iu":
            x = x.astype(np.float32)
        if dst == "bfloat16" and x.dtype.kind in "iu":
            x = x.astype(np.float64)
        return cast_array(x, dst)

    return f


EVERY = ("bool", *INTS, *FLOATS)
CASES: list[Case] = [
    *(c for op, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
      for c in _op(op, (*INTS, *FLOATS), _in_single(f))),
    *_op("div", FLOATS, _in_single(np.divide)),
    *(c for op, f in (("bitand", np.bitwise_and), ("bitor", np.bitwise_or),
                      ("bitxor", np.bitwise_xor)) for c in _op(op, INTS, f)),
    *(c for op, f in (("lt", np.less), ("le", np.less_equal), ("gt", np.greater),
                      ("ge", np.greater_equal), ("eq", np.equal), ("ne", np.not_equal))
      for c in _op(op, EVERY, f, "bool")),
    *_op("and", ("bool",), np.logical_and), *_op("or", ("bool",), np.logical_or),
    *_op("min", (*INTS, *FLOATS), _less), *_op("max", (*INTS, *FLOATS), _greater),
    *_division_cases(), *_shift_cases(),
    *(Case(f"{op}_{d}", (d,), d, lambda x, op=op: unary(op, x), _in_single(f))
      for op, f in (("floor", np.floor), ("ceil", np.ceil), ("round", np.rint),
                    ("trunc", np.trunc), ("sqrt", np.sqrt), ("abs", np.abs), ("neg", np.negative))
      for d in FLOATS),
    *(Case(f"{op}_{d}", (d,), d, lambda x, op=op: unary(op, x), f)
      for op, f in (("abs", np.abs), ("neg", np.negative)) for d in INTS[:4]),
    *(Case(f"{op}_{d}", (d,), d, lambda x, op=op: unary(op, x), f)
      for op, f in (("floor", np.positive), ("round", np.positive)) for d in INTS),
    *(Case(f"abs_{d}", (d,), d, lambda x: unary("abs", x), np.abs) for d in INTS[4:]),
    *(Case(f"not_{d}", (d,), d, lambda x: unary("not", x), np.invert) for d in ("bool",)),
    *(Case(f"cast_{a}_{b}", (a,), b, lambda x, b=b: cast(x, b), _cast_reference(b))
      for a in EVERY for b in EVERY if a != b),
    *(Case(f"select_{d}", ("bool", d, d), d, Select, np.where) for d in EVERY),
    *(Case(f"isnan_{d}", (d,), "bool", lambda x: intrin("isnan", x), np.isnan) for d in FLOATS),
    *(Case(f"const_{d}", (d,), d, lambda x: binary("add", x, const(0.1, x.dtype)),
           _in_single(lambda x: x + x.dtype.type(0.1))) for d in ("float32", "float64")),
    Case("const_float16", ("float16",), "float16", lambda x: const(0.1, x.dtype),
         lambda x: np.full_like(x, 0.1)),
    Case("const_bfloat16", ("bfloat16",), "bfloat16", lambda x: const(0.1, x.dtype),
         lambda x: np.full_like(x, 0.1)),
    Case("bits_to_int", ("float32",), "int32", lambda x: intrin("bitcast_i32", x),
         lambda x: x.view(np.int32)),
    Case("bits_to_float", ("int32",), "float32", lambda x: intrin("bitcast_f32", x),
         lambda x: x.view(np.float32)),
    Case("floordiv_float", ("float32", "float32"), "float32",
         lambda x, y: binary("floordiv", x, y), lambda x, y: np.floor(x / y)),
    *[Case(f"floormod_{d}", (d, d), d, lambda x, y: binary("floormod", x, y), np.mod)
      for d in ("float16", "float32", "float64")],
]  # fmt: skip


CASES = rows_in_turn(CASES, attrgetter("name"))


@pytest.fixture(scope="module", params=EVERY_FORM)
def library(request: pytest.FixtureRequest) -> Library:
    return compiled([k for c in CASES for k in c.kernels()], FORMS[request.param])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_expression(case: Case, library: Library) -> None:
    xs = [numbers(d, seed) for seed, d in enumerate(case.ins)]
    with np.errstate(all="ignore"):
        want = case.numpy(*xs)
    for width in (1, 8):
        output = np.zeros(N, case.out)
        library[f"{case.name}_x{width}"](*xs, output)
        bad = ~((output == want) | ((output != output) & (want != want)))
        bad_places = np.flatnonzero(bad)[:5]
        assert not bad.any(), (
            width,
            [x[bad_places] for x in xs],
            output[bad_places],
            want[bad_places],
        )
        if case.out in FLOATS and not case.name.startswith("floor"):
            zero = (output == 0) & (want == 0)
            np.testing.assert_array_equal(np.signbit(output[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("level", EVERY_FORM)
def test_floats_round_to_narrow_integers_in_every_width(level: str) -> None:
    def rounded(dtype: str) -> Case:
        def formula(x: Expr) -> Expr:
            return cast(unary("round", x), dtype)

        exact = _cast_reference(dtype)
        return Case(f"round_{dtype}", ("float32",), dtype, formula, lambda x: exact(np.rint(x)))

    cases, widths = [rounded(d) for d in ("int8", "uint8", "int16", "uint16")], (1, 4, 8, 16, 32)
    library = compiled([k for c in cases for k in c.kernels(widths)], FORMS[level])
    x = numbers("float32", 0)
    edges = np.arange(-600, 600, dtype=np.float32) / 2
    x[-edges.size :] = np.where(edges % 3, edges, edges * 128)
    for case, width in itertools.product(cases, widths):
        output = np.zeros(N, case.out)
        library[f"{case.name}_x{width}"](x, output)
        np.testing.assert_array_equal(output, case.numpy(x), f"{case.name} by {width}")


# -- vectors and statements ------------------------------------------------------------


def _tree(x: np.ndarray, f: Fn) -> np.ndarray:
    """Upper half onto lower half until one is left: the order VectorReduce promises."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = f(x[..., :half], x[..., half:])
    return x[..., 0]


REDUCES = {"sum": np.add, "prod": np.multiply, "max": _greater, "min": _less}


def _reduce_kernel(op: str, dtype: str, lanes: int):  # noqa: ANN202
    def body(x, out):  # noqa: ANN001, ANN202
        i = Var("i")
        row = Load(x, (i, Ramp(IntImm(0), IntImm(1), lanes)))
        return For(i, IntImm(0), IntImm(32), "serial", Store(out, (i,), VectorReduce(op, row)))

    return program(f"reduce_{op}_{dtype}_{lanes}", [((32, lanes), dtype), ((32,), dtype)], body)


@pytest.mark.parametrize("level", EVERY_FORM)
def test_vector_reduce_has_one_order(level: str) -> None:
    table = [
        (op, d, n)
        for op in REDUCES
        for d in ("float32", "int32", "float64", "int8")
        for n in (2, 4, 16)
    ]
    library = compiled([_reduce_kernel(*row) for row in table], FORMS[level])
    for op, dtype, lanes in table:
        x = numbers(dtype, 3)[100 : 100 + 32 * lanes].reshape(32, lanes)
        output = np.zeros(32, dtype)
        library[f"reduce_{op}_{dtype}_{lanes}"](x, output)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(output, _tree(x, REDUCES[op]).astype(dtype))


def _strided_kernel(dtype: str, lanes: int, stride: int):  # noqa: ANN202
    def body(x, out):  # noqa: ANN001, ANN202
        i = Var("i")
        index = Ramp(i + 1, IntImm(stride), lanes)
        row = Store(out, (i, Ramp(IntImm(0), IntImm(1), lanes)), Load(x, (index,)))
        return For(i, IntImm(0), IntImm(3), "serial", row)

    count = (lanes - 1) * stride + 4  # not one element behind the last that is asked for
    name = f"strided_{dtype}_{lanes}_{stride}"
    return program(name, [((count,), dtype), ((3, lanes), dtype)], body)


@pytest.mark.parametrize("level", EVERY_FORM)
def test_lanes_some_elements_apart(level: str) -> None:
    types = ("float32", "int8", "float64", "bool", "float16")
    table = [(d, n, s) for d in types for n in (3, 4, 8, 16) for s in (2, 3, 4, 5)]
    library = compiled([_strided_kernel(*row) for row in table], FORMS[level])
    for dtype, lanes, stride in table:
        x = numbers(dtype, 5)[200 : 200 + (lanes - 1) * stride + 4]
        output = np.zeros((3, lanes), dtype)
        library[f"strided_{dtype}_{lanes}_{stride}"](x, output)
        want = [x[i + 1 : i + 2 + (lanes - 1) * stride : stride] for i in range(3)]
        np.testing.assert_array_equal(output, want)


def _statements() -> list:
    def one_lane(x, out):  # noqa: ANN001, ANN202
        a, b = (Load(x, (Ramp(IntImm(n), IntImm(1), 4),)) for n in (0, 4))
        return Seq(
            tuple(Store(out, (IntImm(k),), Shuffle(a, b, (n,))) for k, n in enumerate((2, 5)))
        )

    def shuffle(x, out):  # noqa: ANN001, ANN202
        a = Load(x, (Ramp(IntImm(0), IntImm(1), 4),))
        b = Load(x, (Ramp(IntImm(4), IntImm(1), 4),))
        return Store(out, (Ramp(IntImm(0), IntImm(1), 6),), Shuffle(a, b, (7, 0, 3, 4, 4, 1)))

    def strided(x, out):  # noqa: ANN001, ANN202
        """Lanes two rows apart are read, lanes three elements apart are written."""
        index = Ramp(IntImm(1), IntImm(2), 4)
        return Store(out, (Ramp(IntImm(0), IntImm(3), 4),), Load(x, (index, IntImm(2))))

    def gather(x, indices, out):  # noqa: ANN001, ANN202
        index = cast(Load(indices, (Ramp(IntImm(0), IntImm(1), 8),)), "int64")
        return Store(out, (Ramp(IntImm(0), IntImm(1), 8),), Load(x, (index,)))

    def scatter(x, indices, out):  # noqa: ANN001, ANN202
        index = cast(Load(indices, (Ramp(IntImm(0), IntImm(1), 8),)), "int64")
        return Store(out, (index,), Load(x, (Ramp(IntImm(0), IntImm(1), 8),)))

    def branches(x, out):  # noqa: ANN001, ANN202
        """Conditions on data and on indices, with and without an else, values used after both."""
        i, v = Var("i"), Var("v", x.dtype)
        inner = Seq(
            (
                Store(out, (i,), v),
                If(v < 0.0, Store(out, (i,), v * 2.0), Store(out, (i,), v + 1.0)),
                If(binary("eq", i % 3, 0), Store(out, (i,), Load(out, (i,)) * 10.0)),
            )
        )
        return For(i, IntImm(0), IntImm(40), "serial", Let(v, Load(x, (i,)), inner))

    def ramp(out):  # noqa: ANN001, ANN202
        i = Var("i")
        wide = Ramp(i * 5, IntImm(-3), 4) + Broadcast(i, 4)
        return For(
            i, IntImm(2), IntImm(6), "serial", Store(out, (Ramp((i - 2) * 4, IntImm(1), 4),), wide)
        )

    f32, i32 = "float32", "int32"
    return [
        program("shuffle", [((8,), f32), ((6,), f32)], shuffle),
        program("one_lane", [((8,), f32), ((2,), f32)], one_lane),
        program("strided", [((9, 3), f32), ((10,), f32)], strided),
        program("gather", [((50,), f32), ((8,), i32), ((8,), f32)], gather),
        program("scatter", [((8,), f32), ((8,), i32), ((50,), f32)], scatter),
        program("branches", [((40,), f32), ((40,), f32)], branches),
        program("ramp", [((24,), "int64")], ramp),
        elementwise("twice", lambda x: x + x, (f32,), f32, 16, 48),
    ]


@pytest.mark.parametrize("level", EVERY_FORM)
def test_statements_and_memory(level: str) -> None:
    m = compiled(_statements(), FORMS[level])
    x = np.arange(8, dtype=np.float32)
    out = np.zeros(6, np.float32)
    m["shuffle"](x, out)
    assert out.tolist() == [7, 0, 3, 4, 4, 1]
    out = np.zeros(2, np.float32)
    m["one_lane"](x, out)
    assert out.tolist() == [2, 5]
    rows, out = np.arange(27, dtype=np.float32).reshape(9, 3), np.zeros(10, np.float32)
    m["strided"](rows, out)
    assert out[::3].tolist() == rows[1::2, 2].tolist() and out.sum() == rows[1::2, 2].sum()
    many, indices = (
        np.random.default_rng(0).random(50).astype(np.float32),
        [3, 49, 0, 3, 7, 8, 31, 2],
    )
    out = np.zeros(8, np.float32)
    m["gather"](many, np.array(indices, np.int32), out)
    assert out.tolist() == many[indices].tolist()
    places, out = np.array([3, 49, 0, 4, 7, 8, 31, 2], np.int32), np.zeros(50, np.float32)
    m["scatter"](x + 1, places, out)
    assert out[places].tolist() == (x + 1).tolist() and np.count_nonzero(out) == 8
    values = np.linspace(-2, 2, 40).astype(np.float32)
    out = np.zeros(40, np.float32)
    m["branches"](values, out)
    want = np.where(values < 0, values * 2, values + 1)
    want[::3] *= 10
    np.testing.assert_array_equal(out, want)
    out64 = np.zeros(24, np.int64)
    m["ramp"](out64)
    assert out64.tolist() == [i * 6 - 3 * k for i in range(2, 8) for k in range(4)]
