"""Values in and out: tensors of any form, numbers, strings, shapes, nested tuples; checks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Var, as_expr
from tensorkiln.ir.relax import ShapeValue
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tests.outer.build import (
    OBJECT,
    SCALAR,
    STRING,
    AnyTensorType,
    F,
    FloatImm,
    GlobalRef,
    IntImm,
    MatchCast,
    PrimType,
    PrimValue,
    ShapeType,
    StringValue,
    Tuple,
    TupleItem,
    TupleType,
    binary,
    executor,
    number,
    tensor,
    unary,
)

F32, I64, BOOLEAN = (PrimType(tensor((), d).dtype) for d in ("float32", "int64", "bool"))


def _echo(name: str, **params: Any) -> Any:
    f = F(name, **params)
    result: Any = f.params[0] if len(f.params) == 1 else Tuple(f.params)
    return f.outer(result)


def _matrix() -> Any:
    """x as float32 [n, m] with n = 2 m - 1, and what is computed of n and m."""
    n, m = Var("rows"), Var("m")
    f = F("sizes", x=AnyTensorType())
    t = tensor((n, m), "float32")
    x = f.let("x2", t, MatchCast(f["x"], t))
    again = tensor((m * 2 - 1, m), "float32")
    y = f.let("y", again, MatchCast(x, again))
    shape = ShapeValue((n, m, n * m, n // 2, n % 2))
    whole = Tuple((shape, PrimValue(n - m), PrimValue(n), y))
    return f.outer(whole)


def _increment(name: str, public: bool) -> PrimFunc:
    """x[i] += k in place, k a number: float32 [n]."""
    n, k, i = Var("n"), Var("k", INT64), Var("i")
    x = Buffer("x", tensor((), "float32").dtype, (n,))
    from tensorkiln.ir.expr import cast

    body = For(i, as_expr(0), n, "serial", Store(x, (i,), Load(x, (i,)) + cast(k, x.dtype)))
    return PrimFunc(name, (x, n, k), body, outputs=1, public=public)


def _scale() -> PrimFunc:
    """y[i] = x[i] * 2: float32 [n]."""
    n, i = Var("n"), Var("i")
    f32 = tensor((), "float32").dtype
    x, y = Buffer("x", f32, (n,)), Buffer("y", f32, (n,))
    return PrimFunc(
        "scale", (x, y, n), For(i, as_expr(0), n, "serial", Store(y, (i,), Load(x, (i,)) * 2.0))
    )


def _tensor_programs() -> list[Any]:
    n = Var("n")
    row = tensor((n,), "float32")
    f = F("programs", x=row)
    doubled = f.call("doubled", row, GlobalRef("scale"), f["x"], ShapeValue((n,)))
    more = f.call(
        "more",
        row,
        "call_tir_inplace",
        GlobalRef("increment"),
        doubled,
        ShapeValue((n, as_expr(5))),
        inplace=(0,),
    )
    made = f.call("made", row, "call_dps_packed", more, name="tests.outer.reverse")
    return [f.outer(Tuple((more, made))), _scale(), _increment("increment", False)]


def _constants() -> Any:
    f = F("constants")
    pair = Tuple((StringValue("a 'long' \"string\" \u00e9"), StringValue("short")))
    numbers = Tuple((PrimValue(IntImm(-3)), PrimValue(FloatImm(2.5)), number(4)))
    return f.outer(Tuple((pair, numbers, Tuple(()))))


def _nested() -> Any:
    inner = TupleType((SCALAR, STRING))
    f = F("swap", x=TupleType((inner, ShapeType(2))))
    left = f.let("left", inner, TupleItem(f["x"], 0))
    a = f.let("a", SCALAR, TupleItem(left, 0))
    b = f.let("b", STRING, TupleItem(left, 1))
    shape = f.let("shape", ShapeType(2), TupleItem(f["x"], 1))
    negated = f.call("negated", SCALAR, GlobalRef("neg"), a)
    return f.outer(Tuple((shape, Tuple((b, negated)))))


@pytest.fixture(scope="module")
def run() -> Any:
    tk.runtime.register_function(
        "tests.outer.reverse", lambda x, out: np.copyto(out.numpy(), x.numpy()[::-1])
    )
    n = Var("n")
    any_tensor = AnyTensorType()
    return executor(
        unary("neg", "neg"),
        binary("plus", "add", tensor((n, 3), "float32")),
        _echo("tensor_back", x=any_tensor),
        _echo("values", i=I64, f=F32, b=BOOLEAN, s=STRING, shape=ShapeType(2)),
        _echo("object_back", x=OBJECT),
        _echo("square", x=tensor((n, n), "float32"), y=tensor((n * 2,), "float32")),
        _matrix(),
        *_tensor_programs(),
        _constants(),
        _nested(),
    )


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(12, dtype=np.int64).reshape(3, 4)[::-1, ::2],
    np.array(3, np.int8),
    np.zeros((0, 4), np.float64),
    np.array([True, False]),
    np.frombuffer(b"\1\2\3", np.uint8),  # read-only
]


@pytest.mark.parametrize("x", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_tensors_go_through_unchanged(run: Any, x: np.ndarray) -> None:
    y = run["tensor_back"](x).numpy()
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(y, x)


def test_tensors_are_shared_not_copied(run: Any) -> None:
    x = np.arange(4, dtype=np.float32)
    y = run["tensor_back"](x).numpy()
    x[0] = 9
    assert y[0] == 9 and np.shares_memory(x, y)
    del x
    gc.collect()
    assert y[0] == 9


def test_bfloat16(run: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1, 2.5], ml_dtypes.bfloat16)
    y = run["tensor_back"](x).numpy()
    assert y.dtype == x.dtype and (y == x).all()


def test_torch_tensors(run: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(4).reshape(2, 2).float()
    np.testing.assert_array_equal(run["tensor_back"](x).numpy(), x.numpy())


def test_each_kind_of_value(run: Any) -> None:
    assert run["values"](7, 2, True, "a string \u00e9\0x", (3, 4)) == (
        7,
        2.0,
        True,
        "a string \u00e9\0x",
        (3, 4),
    )
    got = run["values"](np.int32(7), np.float64(1.5), np.array(False), "", [0, 1])
    assert got == (7, 1.5, False, "", (0, 1))


@pytest.mark.parametrize(
    "x", [None, (), (1, (2.5, ("x", None)), "long enough to be an object"), 1 << 62, -1.5]
)
def test_any_value_goes_through(run: Any, x: object) -> None:
    assert run["object_back"](x) == x
    assert run["object_back"](x=x) == x


def test_functions_go_through(run: Any) -> None:
    f = run["object_back"](lambda a, b: (b, a))
    assert f(1, "x") == ("x", 1)
    assert run["object_back"](f)(1, 2) == (2, 1)


def test_nested_tuples(run: Any) -> None:
    shape, (text, negated) = run["swap"](((np.array(3, np.float32), "hello"), (5, 6)))
    assert (shape, text, negated.numpy()) == ((5, 6), "hello", -3)


def test_constants(run: Any) -> None:
    pair, numbers, empty = run["constants"]()
    assert pair == ("a 'long' \"string\" \u00e9", "short") and empty == ()
    assert numbers[:2] == (-3, 2.5) and numbers[2].numpy() == 4


def test_sizes_are_bound_and_computed(run: Any) -> None:
    shape, less, rows, y = run["sizes"](np.zeros((5, 3), np.float32))
    assert (shape, less, rows) == ((5, 3, 15, 2, 1), 2, 5)
    assert y.shape == (5, 3)


def test_tensor_programs_in_place_and_by_name(run: Any) -> None:
    x = np.arange(3, dtype=np.float32)
    more, reverse = run["programs"](x)
    np.testing.assert_array_equal(more.numpy(), [5, 7, 9])
    np.testing.assert_array_equal(reverse.numpy(), [9, 7, 5])
    np.testing.assert_array_equal(x, [0, 1, 2])


MUST_FAIL = [
    (
        "sizes",
        (np.zeros((5, 4), np.float32),),
        ValueError,
        "sizes: the value of y must be float32 [m * 2 - 1, m], received float32 [5, 4]: "
        "dimension 0 is 5, expected 7",
    ),
    (
        "sizes",
        (np.zeros((5, 3), np.int32),),
        TypeError,
        "the value of x2 must be float32 [rows, m], received int32 [5, 3]",
    ),
    ("sizes", (np.zeros(5, np.float32),), ValueError, "received float32 [5]"),
    (
        "square",
        (np.zeros((2, 3), np.float32), np.zeros(4, np.float32)),
        ValueError,
        "argument 'x' must be float32 [n, n], received float32 [2, 3]: "
        "dimension 1 is 3, expected 2",
    ),
    (
        "square",
        (np.zeros((2, 2), np.float32), np.zeros(3, np.float32)),
        ValueError,
        "argument 'y' must be float32 [n * 2], received float32 [3]: dimension 0 is 3, expected 4",
    ),
    (
        "values",
        (1.5, 1, True, "", (1, 2)),
        TypeError,
        "values: argument 'i' must be a number (int64), received a number with a fraction",
    ),
    ("values", (1, 1, True, 3, (1, 2)), TypeError, "argument 's' must be a string"),
    (
        "values",
        (1, 1, True, "", (1, 2, 3)),
        ValueError,
        "argument 'shape' must be a shape of 2, received a shape of 3",
    ),
    ("values", (1, 1, True, "", (1, "x")), TypeError, "must be a shape of 2, received a tuple"),
    ("values", (1, 1, True, "", (1, 2), 3), TypeError, "expected 5 inputs"),
    ("values", (1 << 70, 1, True, "", (1, 2)), ValueError, "must be an integer from 0 to"),
    ("swap", (3,), TypeError, "must be a tuple"),
    ("swap", (((np.array(3, np.float32),), (5, 6)),), TypeError, "received a tuple of 1"),
    ("swap", ((("x", "y"), (5, 6)),), TypeError, "must be float32 [] in a tuple"),
    ("object_back", ({"a": 1},), TypeError, "dict cannot be passed"),
    ("tensor_back", (3,), TypeError, "argument 'x' must be a tensor, received an integer"),
]


@pytest.mark.parametrize(("name", "args", "error", "words"), MUST_FAIL)
def test_refused(run: Any, name: str, args: tuple[Any, ...], error: Any, words: str) -> None:
    live = run.module.library.dll.kiln_live_objects()
    with pytest.raises(error) as caught:
        run[name](*args)
    assert words in str(caught.value)
    assert run.module.library.dll.kiln_live_objects() == live


def test_out_gets_a_copy(run: Any) -> None:
    place = np.empty((2, 3), np.float32)
    assert run["tensor_back"](ARRAYS[0], out=place) is place
    np.testing.assert_array_equal(place, ARRAYS[0])
    with pytest.raises(TypeError, match=r"out= is float32 \[2, 3\], the result uint8 \[3\]"):
        run["tensor_back"](ARRAYS[-1], out=place)
