"""Programs as other compilers spell them: results against NumPy, or an error that names ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.script import from_source

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

X = np.array([0.5, -1.25, 3.0, 2.0], np.float32)
Y = np.array([2.0, 4.0, -0.5, 3.0], np.float32)
I = np.array([5, -7, 12, 3], np.int64)  # noqa: E741
MAX = np.finfo(np.float32).max
F = Callable[[Any, Any], Any]

FLOATS: dict[str, F] = {
    "T.multiply(x, y)": lambda x, y: x * y,
    "T.Mul(x, y) + T.Add(x, y)": lambda x, y: x * y + (x + y),
    "T.Sub(x, y) * T.subtract(y, x)": lambda x, y: (x - y) * (y - x),
    "T.Div(x, y) + T.divide(y, x)": lambda x, y: x / y + y / x,
    "T.Max(x, T.maximum(y, x))": np.maximum,
    "T.Min(x, T.minimum(y, x))": np.minimum,
    "T.Select(x > y, x, y)": np.maximum,
    "T.if_then_else(T.GT(x, y), x, y)": np.maximum,
    "T.negative(T.fabs(T.absolute(x)))": lambda x, y: -abs(x),
    "T.rsqrt(T.abs(x))": lambda x, y: 1 / np.sqrt(abs(x)),
    "T.exp2(x) + T.exp10(x)": lambda x, y: 2**x + 10**x,
    "T.power(T.abs(x), y)": lambda x, y: abs(x) ** y,
    "T.nearbyint(x)": lambda x, y: np.round(x),
    "T.clamp(x, -1.0, y)": lambda x, y: np.minimum(np.maximum(x, -1), y),
    "T.cast(x, 'float32') + T.cast('float32', y)": lambda x, y: x + y,
    "T.reinterpret('float32', T.reinterpret('int32', x))": lambda x, y: x,
    "T.max_value('float32')": lambda x, y: np.full(4, MAX),
    "T.min_value('float32') + 0.0 * x": lambda x, y: np.full(4, -MAX),
    "T.infinity('float32')": lambda x, y: np.full(4, np.inf),
    "T.call_pure_extern('float32', 'fabsf', x)": lambda x, y: abs(x),
    "T.float32(T.And(x > y, x > 0) or T.Or(x < y, T.Not(x < 0)))": lambda x, y: (
        ((x > y) & (x > 0)) | (x < y) | ~(x < 0)
    ).astype(np.float32),
    "T.float32(T.likely(T.EQ(x, y))) + T.float32(T.NE(x, y))": lambda x, y: np.ones(4),
    "T.float32(T.LT(x, y)) + 2.0 * T.float32(T.LE(x, y)) + 4.0 * T.float32(T.GE(x, y))": (
        lambda x, y: (x < y) + 2.0 * (x <= y) + 4.0 * (x >= y)
    ),
    "T.float32(T.isinf(x / 0.0)) + T.float32(T.isinf(x)) + 2.0 * T.float32(T.isfinite(x))": (
        lambda x, y: np.full(4, 3.0)
    ),
    "T.float32(T.isfinite(T.log(0.0 - T.abs(x))))": lambda x, y: np.zeros(4),
}
INTEGERS: dict[str, F] = {
    "T.FloorDiv(i, 3) + T.indexdiv(i, 4)": lambda i, _: i // 3 + i // 4,
    "T.FloorMod(i, 3) + T.indexmod(i, 4)": lambda i, _: i % 3 + i % 4,
    "T.truncmod(i, 3)": lambda i, _: np.fmod(i, 3),
    "T.truncdiv(i, 3)": lambda i, _: np.trunc(i / 3),
    "T.ceildiv(i, 3)": lambda i, _: -(-i // 3),
    "T.shift_left(i, 2) + T.shift_right(i, 1)": lambda i, _: (i << 2) + (i >> 1),
    "T.bitwise_and(i, 6) + T.bitwise_or(i, 8)": lambda i, _: (i & 6) + (i | 8),
    "T.bitwise_xor(i, 5) + T.bitwise_not(i)": lambda i, _: (i ^ 5) + ~i,
    "T.max_value('int64') + T.min_value('int64')": lambda i, _: np.full(4, -1),
    "T.Cast('int64', T.max_value('uint8')) - T.Cast('int64', T.min_value('int8'))": (
        lambda i, _: np.full(4, 383)
    ),
}


def test_functions_of_values() -> None:
    functions = []
    for k, expression in enumerate([*FLOATS, *INTEGERS]):
        dtype, value = ("float32", "X[i]") if expression in FLOATS else ("int64", "X[j]")
        buffer = f'T.Buffer((4,), "{dtype}")'
        functions.append(f"""
    @T.prim_func
    def f{k}(X: {buffer}, Y: {buffer}, Z: {buffer}):
        for {value[2]} in range(4):
            {"x" if dtype == "float32" else "i"} = {value}
            y = Y[{value[2]}]
            Z[{value[2]}] = {expression}""")
    mod = from_source("@tk.script.ir_module\nclass Module:" + "\n".join(functions))
    assert from_source(mod.script()).script() == mod.script()
    lib = tk.compile(mod, "llvm").jit()
    for k, (expression, value) in enumerate((FLOATS | INTEGERS).items()):
        x, y = (X, Y) if expression in FLOATS else (I, I)
        z = np.zeros_like(x)
        lib[f"f{k}"](x, y, z)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(z, value(x, y), rtol=2e-6, err_msg=expression)


COPY = "for i in range(4):\n        Z[i] = X[i]"
STATEMENTS = {
    "allocate": """
    a = T.allocate([4], "float32", "global")
    A = T.Buffer((4,), "float32", data=a)
    for i in range(4):
        A[i] = X[i]
    for i in range(4):
        Z[i] = A[i]""",
    "with allocate": """
    with T.allocate((4,), "float32", "local") as a:
        for i in range(4):
            a[i] = X[i]
            Z[i] = a[i]""",
    "decl_buffer": """
    A = T.decl_buffer((4,), "float32")
    B = T.decl_buffer((2, 2), "float32", data=A.data)
    for i in range(4):
        A[i] = X[i]
    for i, j in T.grid(2, 2):
        Z[i * 2 + j] = B[i, j]""",
    "view of a parameter": """
    B = T.Buffer((2, 2), "float32", data=X.data)
    for i, j in T.grid(2, 2):
        Z[i * 2 + j] = B[i, j]""",
    "evaluate": f"""
    T.evaluate(0)
    {COPY}""",
    "vectorize": """
    for i in T.vectorize(4):
        Z[i] = X[i]""",
    "sblock": """
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.S(4, i)
            Z[vi] = X[vi]""",
    "LetStmt": """
    for i in range(4):
        with T.LetStmt(X[i]) as v:
            Z[i] = v""",
}
HANDLES = {
    "static": """
@T.prim_func
def NAME(x: T.handle, z: T.handle):
    X = T.match_buffer(x, (4,), "float32")
    Z = T.match_buffer(z, [4], dtype="float32", align=64)
    for i in range(4):
        Z[i] = X[i]""",
    "symbolic": """
@T.prim_func
def NAME(x: T.handle, z: T.handle):
    T.func_attr({"tir.noalias": True})
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Z = T.match_buffer(z, (n,), "float32")
    for i in range(n):
        Z[i] = X[i]""",
    "an expression": """
@T.prim_func
def NAME(x: T.handle, z: T.handle):
    m = T.var("int64")
    W = T.match_buffer(z, (m,), "float32")
    X = T.match_buffer(x, (m * 2 - m,), "float32")
    for i in range(m):
        W[i] = X[i]""",
}


def test_statements_and_parameters() -> None:
    head = '@T.prim_func\ndef NAME(X: T.Buffer((4,), "float32"), Z: T.Buffer((4,), "float32")):'
    texts = {**{k: head + s for k, s in STATEMENTS.items()}, **HANDLES}
    functions = [
        from_source(text.replace("NAME", f"f{i}"))[f"f{i}"] for i, text in enumerate(texts.values())
    ]
    lib = tk.compile(tk.IRModule(tuple(functions)), "llvm").jit()
    for i, name in enumerate(texts):
        z = np.zeros(4, np.float32)
        lib[f"f{i}"](X, z)
        np.testing.assert_array_equal(z, X, err_msg=name)


A = np.arange(16, dtype=np.float32).reshape(4, 4) / 7 - 1
B = A[::-1].copy() + 0.25


def _softmax(a: Any) -> Any:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(a: Any) -> Any:
    return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-3)


ONES, ZEROS = "R.const([1.0, 1, 1, 1], 'float32')", "R.const([0.0, 0, 0, 0], 'float32')"
GRAPHS: dict[str, F] = {
    "R.multiply(x, R.subtract(x, y))": lambda a, b: a * (a - b),
    "R.divide(x, R.negative(y))": lambda a, b: a / -b,
    "R.power(R.abs(x), R.const(2.0, 'float32'))": lambda a, b: a**2,
    "R.square(R.add(x, y))": lambda a, b: (a + b) ** 2,
    "R.permute_dims(x)": lambda a, b: a.T,
    "R.permute_dims(x, axes=[1, 0])": lambda a, b: a.T,
    "R.permute_dims(x, [1, 0])": lambda a, b: a.T,
    "R.matmul(x, y, out_dtype='float32')": lambda a, b: a @ b,
    "R.matmul(x, y, out_dtype='void')": lambda a, b: a @ b,
    "R.nn.softmax(x, axis=-1)": lambda a, b: _softmax(a),
    "R.nn.softmax(x, -1)": lambda a, b: _softmax(a),
    "R.nn.relu(x)": lambda a, b: np.maximum(a, 0),
    "R.nn.silu(x)": lambda a, b: a / (1 + np.exp(-a)),
    "R.nn.leaky_relu(x, alpha=0.1)": lambda a, b: np.where(a < 0, 0.1 * a, a),
    f"R.nn.layer_norm(x, {ONES}, {ZEROS}, axes=[-1], epsilon=1e-3)": lambda a, b: _norm(a),
    "R.sum(x, axis=[1], keepdims=True)": lambda a, b: a.sum(1, keepdims=True),
    "R.sum(x, axis=1)": lambda a, b: a.sum(1),
    "R.sum(R.add(x, y))": lambda a, b: (a + b).sum(),
    "R.mean(x, [0])": lambda a, b: a.mean(0),
    "R.max(x, axis=-1)": lambda a, b: a.max(-1),
    "R.reshape(x, R.shape([2, 8]))": lambda a, b: a.reshape(2, 8),
    "R.reshape(x, (16,))": lambda a, b: a.reshape(16),
    "R.flatten(x)": lambda a, b: a.reshape(16),
    "R.expand_dims(x, axis=0)": lambda a, b: a[None],
    "R.expand_dims(x, [0, -1])": lambda a, b: a[None, :, :, None],
    "R.squeeze(R.expand_dims(x, [1]))": lambda a, b: a,
    "R.squeeze(R.expand_dims(x, [0, 2]), axis=[2])": lambda a, b: a[None],
    "R.concat((x, y), axis=0)": lambda a, b: np.concatenate([a, b], 0),
    "R.concat([x, y], axis=1)": lambda a, b: np.concatenate([a, b], 1),
    "R.astype(R.astype(x, 'float64'), dtype='float32')": lambda a, b: a,
    "R.broadcast_to(x, R.shape([2, 4, 4]))": lambda a, b: np.stack([a, a]),
    "R.clip(x, 0, 1)": lambda a, b: a.clip(0, 1),
    "R.tile(x, (2, 1))": lambda a, b: np.tile(a, (2, 1)),
    "R.add(x, R.zeros(R.shape([4, 4]), dtype='float32'))": lambda a, b: a,
    "R.add(x, R.ones((4, 4), 'float32'))": lambda a, b: a + 1,
    "R.add(R.ones_like(x), R.zeros_like(y))": lambda a, b: np.ones_like(a),
    "R.full(R.shape([2]), R.const(3, 'float32'), dtype='float32')": lambda a, b: np.full(2, 3),
}


def test_operators() -> None:
    functions = [
        f"""
    @R.function
    def f{k}(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
        z = {expression}
        return z"""
        for k, expression in enumerate(GRAPHS)
    ]
    mod = from_source("@tk.script.ir_module\nclass Module:" + "\n".join(functions))
    assert from_source(mod.script()).script() == mod.script()
    run = tk.runtime.Executor(tk.compile(mod, "llvm"))
    for k, (expression, value) in enumerate(GRAPHS.items()):
        have, want = run[f"f{k}"](A, B).numpy(), value(A, B)
        assert have.shape == np.shape(want), expression
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6, err_msg=expression)


REFUSED = {
    "T.log2(x)": "T.log(x) * 1.4426950408889634",
    "T.log1p(x)": "T.log(1.0 + x)",
    "T.atan2(x, y)": "atan2f",
    "T.call_intrin('float32', 'tir.exp', x)": "as T.exp(x)",
    "T.StringImm('x')": "a text in quotes",
    "T.reinterpret('int64', x)": "float32 to int32",
    "T.infinity('int32')": "T.max_value",
    "x.astype('int32')": 'T.Cast("int32", x)',
    "x ** 2": "T.pow(a, b)",
    "X.data": "T.address_of(A[0])",
    "X.vload([0], 'float32')": "A[i : i + 4]",
    "T.Selct(x > y, x, y)": "did you mean 'select'",
    "R.split(x, 2)": "R.slice, once for each part",
    "R.strided_slice(x, axes=[0], begin=[0], end=[2])": "R.slice(x, begin=",
    "x.astype('int32')  # of a graph": "operators are calls: R.cast(x, ...)",
    "R.const([0])": 'as R.const([0], "int64")',
    "R.sort(x)": "R.top_k",
    "R.nn.prelu(x, y)": "R.where",
    "R.cumsum(x, axis=1)": "a tensor program computes others: R.call_tir(",
    "x[0]": 'R.take(x, R.const([0], "int64"), axis=0)',
    "R.nn.dropout(x)": "but in training",
    "R.stack((x, y), axis=0)": "R.concat of R.expand_dims",
    "R.matmul(x, y, out_dtype='float16')": 'R.cast(..., dtype="float16")',
    "R.squeeze(x, axis=[0])": "axis 0 has extent 4, not 1",
    "R.expand_dims(x, axis=[7])": "expected axes of -3 to 2, received (7,)",
    "R.sum(x, axis=3)": "expected an axis from -2 to 1, received 3",
    "R.nn.conv2d(x, y, data_layout='NHWC')": "'NCHW', and R.transpose",
    "R.nn.unknown(x)": "there is no operator 'nn.unknown'",
}
OF_PROGRAMS = {"x.astype('int32')", "x ** 2", "X.data", "X.vload([0], 'float32')"}
REFUSED_STATEMENTS = {
    "T.tvm_storage_sync('shared')": 'T.sync("block")',
    "T.buffer_store(Z, X[0], [0])": "A[i] = value",
    "for i in range(0, 4, 2):\n        Z[i] = X[i]": "(hi - lo + step - 1) // step",
    "for i in T.serial(0, 4, step=2):\n        Z[i] = X[i]": "`lo + i * step`",
    "T.comment('x')": "a comment of Python's",
    "T.assume(T.bool(True))": "assert condition",
    "with T.launch_thread('threadIdx.x', 4) as t:\n        Z[t] = X[t]": "T.thread_binding",
    "with T.attr(0, 'pragma', 1):\n        Z[0] = X[0]": "T.func_attr",
    "A = T.alloc_buffer((4,), 'float32', elem_offset=0)": "scope=, align=, strides=, dtype=",
}


def test_words_without_a_counterpart_name_ours() -> None:
    texts = {}
    for expression, says in REFUSED.items():
        if expression.startswith("T.") or expression in OF_PROGRAMS:
            body = f"x = X[0]\n    y = X[1]\n    Z[0] = {expression}"
            texts[body] = says
            continue
        text = f"""
@R.function
def f(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
    z = {expression}
    return z"""
        with pytest.raises(UserError) as caught:
            from_source(text)
        assert says in str(caught.value), expression
    for body, says in {**texts, **REFUSED_STATEMENTS}.items():
        head = 'def f(X: T.Buffer((4,), "float32"), Z: T.Buffer((4,), "float32")):'
        with pytest.raises(UserError) as caught:
            from_source(f"@T.prim_func\n{head}\n    {body}")
        assert says in str(caught.value), body
