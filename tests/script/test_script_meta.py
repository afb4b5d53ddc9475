"""Metaprogramming: macros, templates, captured functions, what Python decides while parsing."""

# ruff: noqa: ANN001, ANN201, ANN202 - the types of scripts are not Python's
from __future__ import annotations

import math

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import FloatImm, IntImm
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.script import T, from_source

WIDTH = 8
relu = lambda x: T.max(x, 0.0)  # noqa: E731


def tile(n: int) -> int:
    return max(1, n // WIDTH)


def same(f: object, body: str, params: str) -> None:
    """`f` is what the plain script says."""
    assert isinstance(f, PrimFunc)
    verify(IRModule((f,)))
    text = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    plain = from_source(f"@T.prim_func\ndef {f.name}({params}):\n{text}\n")[f.name]
    assert first_difference(f, plain) is None, f.script()


XY = 'X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")'


@T.macro
def copy(dst, src, lo, n=4, *, scale=1.0):
    for i in range(n):
        dst[lo + i] = src[lo + i] * scale


@T.macro
def store_twice(dst, value):
    """Reads `value` once."""
    dst[0] = value
    dst[1] = value


def test_a_macro_is_put_where_it_is_called() -> None:
    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        copy(Y, X, 0)
        for i in range(2):
            copy(Y, X, i * 4, n=tile(32), scale=2.0)

    body = """
for i in range(4):
    Y[0 + i] = X[0 + i] * 1.0
for i in range(2):
    for j in range(4):
        Y[i * 4 + j] = X[i * 4 + j] * 2.0
"""
    assert isinstance(f, PrimFunc)
    same(f, body, XY)


def test_an_argument_that_reads_memory_is_read_once() -> None:
    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        store_twice(Y, Y[0] + 1.0)

    same(f, "with T.let(Y[0] + 1.0) as v:\n    Y[0] = v\n    Y[1] = v", XY)


def test_macros_are_hygienic() -> None:
    """Names in a macro are those of its own place, also where the caller has others."""

    @T.macro
    def fill(dst):
        for i in range(WIDTH):
            dst[i] = 3.0

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        i = X[0]
        WIDTH = X[1]
        fill(Y)
        Y[0] = i + WIDTH

    same(
        f,
        "i = X[0]\nw = X[1]\nfor j in range(8):\n    Y[j] = 3.0\nY[0] = i + w",
        XY,
    )


def test_macros_call_macros_and_take_python_values() -> None:
    table = [0.5, 0.25]

    @T.macro
    def one(dst, k, v):
        if v > 0.3:
            dst[k] = v
        else:
            dst[k] = -v

    @T.macro
    def many(dst, values):
        for k, v in enumerate(values):
            one(dst, k, v)

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        many(Y, table)

    same(f, "Y[0] = 0.5\nY[1] = -0.25", XY)


def test_an_error_in_a_macro_names_both_places() -> None:
    with pytest.raises(UserError) as info:

        @T.prim_func
        def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "int8")):
            copy(Y, X, 0)

    message = info.value.message
    assert "Y takes int8 here" in message or "dst" in message
    assert "dst[lo + i] = src[lo + i] * scale" in message
    assert "in macro 'copy', called at" in message and "test_script_meta.py" in message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("copy(X)", "copy needs src, lo"),
        ("copy(X, X, 0, 1, 2)", "takes 4 arguments, got 5"),
        ("copy(X, X, 0, size=3)", "takes no 'size' here"),
        ("X[0] = copy(X, X, 0)", "a macro is a statement"),
        ("relu(X[0])", "a value, not a statement"),
        ("X[0] = fail(3)", "in Python: ZeroDivisionError"),
        ("x = tile.__globals__", "no attribute '__globals__'"),
    ],
)
def test_wrong_calls(call: str, message: str) -> None:
    text = f'@T.prim_func\ndef f(X: T.Buffer((32,), "float32")):\n    {call}\n'
    names = {"copy": copy, "relu": relu, "fail": lambda x: x / 0, "tile": tile}
    with pytest.raises(UserError, match=message) as info:
        from_source(text, namespace=names, file="net.py")
    assert info.value.where.startswith("net.py:3:")


def test_captured_functions_of_numbers() -> None:
    n, config = 4, {"rows": [1, 2]}

    @T.prim_func
    def f(X: T.Buffer((tile(32) * WIDTH,), "float32"), Y: T.Buffer((2 ** tile(40),), "float32")):
        for i in range(tile(n * 16)):
            Y[i] = X[i] * math.sqrt(n) + len(config["rows"])
        Y[max(n, 5)] = float(n) / 3

    same(f, f"for i in range(8):\n    Y[i] = X[i] * 2.0 + 2.0\nY[5] = {4 / 3!r}", XY)


def test_captured_functions_of_expressions() -> None:
    def blend(a, b, t=0.5):
        return a * t + b * (1 - t)

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        for i in range(32):
            Y[i] = relu(X[i] - 1.0) + blend(X[i], Y[i], t=0.25)
        Y[0] = T.exp(relu(X[0])) + first(X)

    body = """
for i in range(32):
    Y[i] = T.max(X[i] - 1.0, 0.0) + (X[i] * 0.25 + Y[i] * 0.75)
Y[0] = T.exp(T.max(X[0], 0.0)) + X[0]
"""
    same(f, body, XY)


def first(buffer):
    return buffer[0]


def test_every_word_of_expressions_works_in_captured_functions() -> None:
    def g(x, i):
        wide = T.Broadcast(T.select(i < 3, x, T.float32(i)), 4)
        return T.fma(wide, 2.0, T.Cast("float32", T.Ramp(i, 1, 4)))

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        for i in range(8):
            Y[T.Ramp(i * 4, 1, 4)] = g(X[i], i)

    body = """
for i in range(8):
    Y[T.Ramp(i * 4, 1, 4)] = T.fma(
        T.Broadcast(T.select(i < 3, X[i], T.float32(i)), 4),
        2.0,
        T.Cast("float32x4", T.Ramp(i, 1, 4)),
    )
"""
    same(f, body, XY)


def test_loops_over_python_values_are_unrolled() -> None:
    offsets, pairs = [0, 5], {"a": 1, "b": 2}

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        for o in offsets:
            Y[o] = X[o]
        for i, (name, k) in enumerate(pairs.items()):
            if name == "b":
                Y[i] = k
        for i in T.meta.unroll(range(2)):
            x = X[i]
            Y[i] = x
        for b in T.meta.unroll([X, Y]):
            Y[b.shape[0] - 1] = b[0]
        for i in range(1):
            Y[i] = 0.0

    body = """
Y[0] = X[0]
Y[5] = X[5]
Y[1] = 2.0
with T.let(X[0]) as x:
    Y[0] = x
with T.let(X[1]) as x:
    Y[1] = x
Y[31] = X[0]
Y[31] = Y[0]
for i in range(1):
    Y[i] = 0.0
"""
    same(f, body, XY)


@pytest.mark.parametrize("bias", [False, True])
def test_python_decides_branches(bias: bool) -> None:
    half = WIDTH // 2

    @T.prim_func
    def f(X: T.Buffer((32,), "float32"), Y: T.Buffer((32,), "float32")):
        assert half % 2 == 0, "even"
        if bias and half > 3:
            one = 1.0
            b = T.alloc_buffer((half,), "float32", scope="local")
            b[0] = X[0]
            Y[0] = b[0] + one
        elif not bias:
            Y[0] = X[0] if bias else X[1]
        if bias or X[0] > 0.0:
            Y[1] = 1.0

    plain = "Y[0] = X[1]\nif X[0] > 0.0:\n    Y[1] = 1.0"
    if bias:
        plain = """
one = T.float32(1.0)
b = T.alloc_buffer((4,), "float32", scope="local")
b[0] = X[0]
Y[0] = b[0] + one
Y[1] = 1.0
"""
    same(f, plain, XY)


def test_a_failed_assertion_on_python_values_is_an_error_at_once() -> None:
    with pytest.raises(UserError, match="only even") as info:

        @T.prim_func
        def f(X: T.Buffer((32,), "float32")):
            assert WIDTH % 2 == 1, "only even"

    assert "\n                       ^^^^^^^^^^^^^^" in info.value.message


@T.meta
def elementwise(shape, dtype, op, name="f"):
    rest = shape[1:]

    @T.prim_func(name=name, private=True)
    def f(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)):
        T.func_attr({"mine.rank": len(shape), "mine.op_name": name})
        for i in range(shape[0]):
            for j in range(rest[0]):
                Y[i, j] = op(X[i, j])

    return f


@pytest.mark.parametrize("dtype", ["float32", np.float64, np.dtype("float16"), object])
def test_templates(dtype) -> None:
    if dtype is object:
        with pytest.raises(UserError, match="literal"):
            elementwise((4, 8), dtype, T.exp)
        return
    f = elementwise((4, 8), dtype, T.exp, name="exp_4_8")
    text = np.dtype(dtype).name
    assert f.name == "exp_4_8" and not f.public
    assert f.attrs["mine.rank"] == 2 and f.attrs["mine.op_name"] == "exp_4_8"
    assert [str(b.dtype) for b in f.buffers] == [text, text]
    assert f.buffers[0].shape == (IntImm(4), IntImm(8))
    g = elementwise((2, 2), dtype, lambda x: x + 1)
    assert g.name == "f" and str(g.body.body.body.value.b.dtype) == text
    verify(IRModule((f, g)))


def test_the_values_are_those_of_the_decoration() -> None:
    made = []
    for n in (1, 2):

        @T.prim_func
        def f(X: T.Buffer((n,), "float32")):
            X[0] = n  # noqa: B023 - read while it is defined

        made.append(f)
    n = 3
    assert [f.body.value for f in made] == [FloatImm(1.0), FloatImm(2.0)]


def test_symbolic_shapes_from_strings() -> None:
    shape = ("n", 4)

    @T.prim_func
    def f(X: T.Buffer(shape, "float32"), Y: T.Buffer((*shape, 2), "float32"), n: T.int64):
        for i in range(n):
            Y[i, 0, 0] = X[i, 0]

    assert isinstance(f, PrimFunc)
    x, y = f.buffers
    assert x.shape[0] is y.shape[0] is f.scalars[0] and y.shape[2] == IntImm(2)


def test_block_names_are_python_strings() -> None:
    @T.prim_func
    def f(Y: T.Buffer((4,), "float32")):
        for k in T.meta.unroll(range(2)):
            for i in range(4):
                with T.block(f"step_{k}"):
                    vi = T.axis.remap("S", [i])
                    Y[vi] = k

    assert isinstance(f, PrimFunc)
    assert [s.body.name for s in f.body.stmts] == ["step_0", "step_1"]


def test_macros_of_a_text() -> None:
    text = """
n = 2

@T.macro
def put(b, v):
    b[0] = v * n

@T.prim_func
def f(X: T.Buffer((4,), "float32")):
    put(X, 3.0)
"""
    f = from_source(text)["f"]
    same(f, "X[0] = 6.0", 'X: T.Buffer((4,), "float32")')


@pytest.mark.parametrize(
    "expression",
    [
        "size.__class__",
        "size.real",
        'name.format("x")',
        "len(name)",
        "size ** 100000",
        "size << 100000",
        "name * 10000000",
        "abs(size)",
        "open(name)",
        "().__class__",
        "(lambda: 1)()",
        "[x for x in name]",
        "exit()",
    ],
)
def test_a_text_makes_nothing_run(expression: str) -> None:
    text = f'size = 3\nname = "x"\n@T.prim_func\ndef f(n: T.int64):\n    v = {expression}\n'
    if expression == "len(name)":  # it only counts
        assert isinstance(from_source(text)["f"], PrimFunc)
        return
    with pytest.raises(UserError) as info:
        from_source(text, file="net.py")
    assert info.value.where.startswith("net.py:5:")


def test_recursion_without_end_is_an_error() -> None:
    text = """
@T.macro
def again(b):
    again(b)

@T.prim_func
def f(X: T.Buffer((4,), "float32")):
    again(X)
"""
    with pytest.raises(UserError, match="nested too deeply"):
        from_source(text)
