"""Every statement of tensor programs, compiled and run, against NumPy."""

# ruff: noqa: ANN202 - the types of scripts are not Python's
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.c_library import RUNTIME_CALLS
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.script import R, T, from_source, ir_module

RNG = np.random.default_rng(5)


def library(*functions: Any) -> Any:
    """The compiled library, of what the script of the functions says."""
    assert all(isinstance(f, PrimFunc) for f in functions)
    return tk.compile(from_source(IRModule(functions).script())).jit()


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def test_while_runs_until_its_condition_fails() -> None:
    @T.prim_func
    def collatz(X: T.Buffer((8,), "int64"), Y: T.Buffer((8,), "int64")):
        for i in range(8):
            Y[i] = 0
            n = T.alloc_buffer((1,), "int64", scope="local")
            n[0] = X[i]
            while n[0] != 1:
                n[0] = T.select(n[0] % 2 == 0, n[0] // 2, 3 * n[0] + 1)
                Y[i] += 1

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    x, y = np.array([1, 2, 3, 6, 7, 9, 25, 27]), np.zeros(8, "int64")
    library(collatz)["collatz"](x, y)
    assert y.tolist() == [steps(int(v)) for v in x]


def test_an_index_is_loaded_again_after_a_store() -> None:
    @T.prim_func
    def scatter(X: T.Buffer((2,), "int64"), Y: T.Buffer((8,), "int64")):
        Y[X[0]] = 1
        X[0] = 5
        Y[X[0]] = 2
        X[1] = Y[X[0]] + 1
        Y[X[1]] = Y[X[0]] * 10

    x, y = np.zeros(2, "int64"), np.zeros(8, "int64")
    library(scatter)["scatter"](x, y)
    assert x.tolist() == [5, 3]
    assert y.tolist() == [1, 0, 0, 20, 0, 2, 0, 0]


def test_conditions_and_roundings_of_indices() -> None:
    @T.prim_func
    def f(X: T.Buffer((8,), "int64"), Y: T.Buffer((8,), "int64"), K: T.int32):
        for i in range(8):
            odd: T.bool = X[0] % 2 == 1
            small: T.bool = T.int32(5) > K
            for j in range(2):
                Y[T.select(odd, i, T.floor(i))] = T.select(small, j, T.trunc(-i)) + T.floor(i * 2)
            Y[i] = Y[T.select(T.select(odd, small, odd), i, 0)] + T.floor(i * 2)

    for first, k in ((1, 2), (1, 9), (2, 2)):
        x, y, want = np.full(8, first, "int64"), np.zeros(8, "int64"), np.zeros(8, "int64")
        library(f)["f"](x, y, k)
        for i in range(8):
            for j in range(2):
                want[i] = (j if k < 5 else -i) + 2 * i
            want[i] = want[i if first % 2 == 1 and k < 5 else 0] + 2 * i
        assert np.array_equal(y, want)


def test_blocks_with_init_and_a_reduction() -> None:
    @T.prim_func
    def matmul(
        A: T.Buffer((6, 10), "float32"),
        B: T.Buffer((10, 8), "float32"),
        C: T.Buffer((6, 8), "float32"),
    ):
        for k0, i, j, k1 in T.grid(2, 6, 8, 5):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                vk = T.axis.reduce(10, k0 * 5 + k1)
                with T.init():
                    C[vi, vj] = 0.5
                C[vi, vj] += A[vi, vk] * B[vk, vj]

    a, b, c = floats(6, 10), floats(10, 8), np.full((6, 8), np.nan, "float32")
    library(matmul)["matmul"](a, b, c)
    np.testing.assert_allclose(c, 0.5 + a.astype("float64") @ b, rtol=1e-5, atol=1e-6)


def test_a_block_with_a_predicate_covers_the_rest() -> None:
    @T.prim_func
    def twice(X: T.Buffer((10,), "float32"), Y: T.Buffer((10,), "float32")):
        for i, j in T.grid(3, 4):
            with T.block("Y"):
                vi = T.axis.spatial(10, i * 4 + j)
                T.where(i * 4 + j < 10)
                Y[vi] = X[vi] * 2.0

    x, y = floats(10), floats(10)
    library(twice)["twice"](x, y)
    assert np.array_equal(y, x * 2)


def test_slices_are_vectors() -> None:
    @T.prim_func
    def halves(X: T.Buffer((4, 16), "float32"), Y: T.Buffer((4, 16), "float32")):
        for i in range(4):
            for j in range(2):
                Y[i, j * 8 : j * 8 + 8] = T.max(X[i, j * 8 : j * 8 + 8], 0.0) + X[i, 0]
            Y[i, 0:16:4] = X[3 - i, 1:16:4]

    x, y = floats(4, 16), floats(4, 16)
    library(halves)["halves"](x, y)
    want = np.maximum(x, 0) + x[:, :1]
    want[:, 0:16:4] = x[::-1, 1:16:4]
    assert np.array_equal(y, want)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_views(kind: str) -> None:
    """Rows and columns become index arithmetic; a diagonal and a flat view are pointers."""
    text = f"""
@T.prim_func
def views(X: T.Buffer((8, 8), "float32"), Y: T.Buffer((8, 8), "float32"),
          D: T.Buffer((8, 2), "float32")):
    diagonal = T.match_buffer(X[0, 0], (8,), "float32", strides=(9,))
    for i in T.{kind}(8):
        row = T.match_buffer(X[i, 0:8], (8,), "float32")
        column = T.match_buffer(Y[0:8, i], (8,), "float32")
        for j in range(8):
            column[j] = row[j]
        both = T.match_buffer(D[i, 0], (2,), "float32")
        tail = T.match_buffer(diagonal[i], (1,), "float32", strides=(5,))
        both[0] = diagonal[i]
        both[1] = tail[0] + diagonal[7 - i]
        column[i] += 1.0
"""
    x, y, d = floats(8, 8), floats(8, 8), floats(8, 2)
    mod = from_source(text)
    lib = tk.compile(from_source(mod.script())).jit()
    lib["views"](x, y, d)
    diagonal = np.diag(x)
    assert np.array_equal(y, x.T + np.eye(8, dtype="float32"))
    assert np.array_equal(d, np.stack([diagonal, diagonal + diagonal[::-1]], 1))


def test_a_view_and_its_source_are_one_memory() -> None:
    @T.prim_func
    def alias(X: T.Buffer((4, 4), "float32"), Y: T.Buffer((4, 4), "float32")):
        skewed = T.match_buffer(Y[0, 0], (4,), "float32", strides=(5,))
        for i in range(4):
            for j in range(4):
                Y[i, j] = X[i, j]
            skewed[i] = Y[i, i] + 1.0
            Y[i, i] = skewed[i] * 2.0 + Y[i, i]

    x, y = floats(4, 4), floats(4, 4)
    library(alias)["alias"](x, y)
    want = x.copy()
    np.fill_diagonal(want, (np.diag(x) + np.float32(1)) * 3)
    np.testing.assert_allclose(y, want, rtol=1e-6)


def test_local_buffers_with_strides() -> None:
    @T.prim_func
    def padded(X: T.Buffer((4, 4), "float32"), Y: T.Buffer((4, 4), "float32")):
        t = T.alloc_buffer((4, 4), "float32", scope="local", strides=(7, 1))
        for i, j in T.grid(4, 4):
            t[j, i] = X[i, j]
        for i, j in T.grid(4, 4):
            Y[i, j] = t[i, j]

    x, y = floats(4, 4), floats(4, 4)
    library(padded)["padded"](x, y)
    assert np.array_equal(y, x.T)


def test_c_functions() -> None:
    @T.prim_func(outputs=3)
    def calls(
        X: T.Buffer((8,), "float64"),
        K: T.Buffer((8,), "int32"),
        Y: T.Buffer((8,), "float64"),
        Z: T.Buffer((8,), "int32"),
        W: T.Buffer((4,), "float64"),
    ):
        for i in range(8):
            Y[i] = T.call_extern("float64", "hypot", X[i], T.float64(2.0))
            Z[i] = T.call_extern("int32", "abs", K[i]) + T.call_extern(
                "int32", "toupper", T.int32(97) + K[i] % T.int32(2)
            )
        T.call_extern("void", "memcpy", T.address_of(W[1]), T.address_of(X[3]), T.uint64(16))

    x = RNG.standard_normal(8)
    k = np.array([-4, 3, 0, -1, 7, -9, 100, -100], "int32")
    y, z, w = np.zeros(8), np.zeros(8, "int32"), np.zeros(4)
    library(calls)["calls"](x, k, y, z, w)
    assert y.tolist() == [math.hypot(v, 2.0) for v in x]
    assert z.tolist() == [abs(v) + (66 if v % 2 else 65) for v in k.tolist()]
    assert w[1:3].tolist() == x[3:5].tolist()


def test_a_c_function_that_is_nowhere_is_named() -> None:
    @T.prim_func(outputs=1)
    def f(X: T.Buffer((1,), "float32")):
        X[0] = T.call_extern("float32", "no_such_function_at_all", X[0])

    with pytest.raises(
        UserError, match="undefined C function: f calls no_such_function_at_all"
    ) as info:
        library(f)
    assert "addons" in info.value.hint


def test_two_signatures_of_one_c_function() -> None:
    @T.prim_func
    def f(X: T.Buffer((2,), "float64")):
        X[0] = T.call_extern("float64", "floor", X[0])
        X[1] = T.Cast("float64", T.call_extern("float32", "floor", X[1]))

    with pytest.raises(UserError, match="floor is called with two signatures"):
        library(f)


def make_checked(kind: str) -> PrimFunc:
    text = f"""
@T.prim_func
def checked(X: T.Buffer((64,), "int64"), Y: T.Buffer((64,), "int64")):
    assert X[0] > 0, 'the "first" is 100% positive'
    for i in T.{kind}(64):
        assert X[i] != 13
        Y[i] = X[i] + 1
"""
    function = from_source(text)["checked"]
    assert isinstance(function, PrimFunc)
    return function


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_assertions_fail_the_call(kind: str) -> None:
    run = library(make_checked(kind))["checked"]
    x, y = np.arange(100, 164), np.zeros(64, "int64")
    run(x, y)
    assert np.array_equal(y, x + 1)
    for bad_position in (5, 63):
        bad = x.copy()
        bad[bad_position] = 13
        with pytest.raises(AssertionError, match=r"checked: assertion failed: X\[i\] != 13"):
            run(bad, y)
    bad = x.copy()
    bad[0] = 0
    y[:] = -1
    with pytest.raises(UserError, match='checked: the "first" is 100% positive') as info:
        run(bad, y)
    assert info.value.code == "assertion"
    assert (y == -1).all()
    run(x, y)  # nothing of the failure is left
    assert np.array_equal(y, x + 1)


def test_an_assertion_stops_the_graph() -> None:
    @ir_module
    class Net:
        @T.prim_func(private=True)
        def check(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
            for i in range(4):
                assert X[i] < 10.0, "too large"
                Y[i] = X[i] * 2.0

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            y = R.call_tir(Net.check, [x], R.Tensor((4,), "float32"))
            z = R.call_tir(Net.check, [y], R.Tensor((4,), "float32"))
            return z

    assert isinstance(Net, IRModule)
    run = tk.runtime.Executor(tk.compile(Net).jit(), tk.cpu())["main"]
    x = np.array([1, 2, 3, 4], "float32")
    assert np.array_equal(run(x).numpy(), x * 4)
    with pytest.raises(AssertionError, match="main: too large"):
        run(x + 4)
    assert np.array_equal(run(x).numpy(), x * 4)


def test_numbers_that_a_call_leaves_out_are_missed() -> None:
    @ir_module
    class Net:
        @T.prim_func(private=True, outputs=2)
        def fill(Y: T.Buffer((4,), "float32"), Z: T.Buffer((4,), "float32"), v: T.float32):
            for i in range(4):
                Y[i] = v
                Z[i] = v

        @R.function(attrs={"outer": True})
        def main(x: R.Object):
            y: R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "float32")) = Net.fill()
            R.call_packed("note", y)
            return y

    assert isinstance(Net, IRModule)
    with pytest.raises(UserError, match="fill takes 1 number, the call gives 0") as info:
        tk.compile(Net)
    assert info.value.code == "malformed-ir" and info.value.where == "main.bindings[0](y)"
    assert "R.prim_value(...) passes: v" in info.value.hint


def test_what_a_cpu_does_not_run_is_refused_all_at_once() -> None:
    @T.prim_func
    def grid(
        X: T.Buffer((8,), "float16"),
        Y: T.Buffer((8, 8), "float16", strides=(16, 1)),
    ):
        for b in T.thread_binding(8, thread="blockIdx.x"):
            tile = T.alloc_buffer((4,), "float16", scope="shared")
            T.sync("block")
            tile[0] = X[b]
            Y[b, 0] = T.call_extern("float16", "half_exp", X[b])

    assert isinstance(grid, PrimFunc)
    with pytest.raises(UnsupportedError) as info:
        tk.compile(IRModule((grid,)))
    hints = {(i.node, i.message): i.hint for i in info.value.issues}
    assert "T.parallel" in hints["grid", "loop b is bound to blockIdx.x"]
    assert (
        'scope="local"' in hints["grid", "buffer tile is shared by the threads of a device's block"]
    )
    assert "leave it out" in hints["grid", "T.sync waits for the threads of a device's block"]
    assert "T.match_buffer" in hints["grid", "parameter Y has strides of its own"]
    assert "T.Cast" in hints["grid", "C function half_exp takes or returns 16-bit floats"]


def test_hints_and_attributes_change_nothing() -> None:
    @T.prim_func
    def f(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
        T.func_attr({"mine.note": "a", "mine.k": (1, 2.5, None)})
        for i in T.serial(8, annotations={"mine.pragma": "x"}):
            Y[i] = X[i] + 1.0

    x, y = floats(8), floats(8)
    library(f)["f"](x, y)
    assert np.array_equal(y, x + 1)


@T.prim_func
def plain(X: T.Buffer((4,), "float32")) -> None:
    X[0] = T.float32(1)


# what a name is that no kernel may have -> such names
TAKEN = {
    "a keyword of C": ("double", "while"),
    "not a C identifier": ("k.1", "a b", "é", "9"),
    "a function of the C library": ("memcpy", "malloc", "strlen", "pthread_create"),
    "a name that the library gives": (
        *("metadata", "functions", "kiln_parallel_for", "_Start", "__memcpy"),
        *("run_net", "dims_net_0", "function_net", "model_net", "model_last_error"),
    ),
}


@pytest.mark.parametrize("name", [n for names in TAKEN.values() for n in names])
def test_names_that_are_taken_are_refused(name: str) -> None:
    owner = next(w for w, names in TAKEN.items() if name in names)
    assert isinstance(plain, PrimFunc)
    with pytest.raises(UnsupportedError, match=f"{name!r} is {owner}") as info:
        tk.compile(IRModule((replace(plain, name="net"), replace(plain, name=name))), "native")
    (issue,) = info.value.issues
    assert issue.node == name and issue.hint.isidentifier()


def test_every_function_that_the_runtime_calls_is_refused() -> None:
    assert isinstance(plain, PrimFunc)
    names = sorted(RUNTIME_CALLS)
    with pytest.raises(UnsupportedError) as info:
        tk.compile(IRModule(tuple(replace(plain, name=name) for name in names)), "native")
    assert [i.node for i in info.value.issues] == names


def test_a_kernel_does_not_stand_in_the_way_of_a_c_function() -> None:
    """One of a user's is refused; what the compiler names itself steps aside."""

    @ir_module
    class Net:
        @T.prim_func(private=True)
        def power(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
            for i in range(4):
                Y[i] = T.call_extern("float32", "tanhf", X[i]) + T.call_extern(
                    "float32", "tanh", X[i]
                )

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            y = R.call_tir(Net.power, [x], R.Tensor((4,), "float32"))
            z = R.tanh(y)
            return z

    assert isinstance(Net, IRModule)
    kernels = tk.compile(Net).module.prim_funcs
    assert "tanh" not in {f.name for f in kernels}
    assert isinstance(plain, PrimFunc)
    with pytest.raises(UnsupportedError, match="'tanh' is a C function that a tensor program"):
        tk.compile(IRModule((Net["power"], replace(plain, name="tanh"))))


def test_names_that_look_like_those_that_are_taken() -> None:
    names = ("run_away", "puts_", "workspace_of", "models", "k_1", "_x", "exp", "abs")
    assert isinstance(plain, PrimFunc)
    lib = library(*(replace(plain, name=name) for name in names))
    for name in names:
        x = floats(4)
        lib[name](x)
        assert x[0] == 1
