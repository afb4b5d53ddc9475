"""Symbolic dimensions that only shapes tell become parameters."""

from __future__ import annotations

import numpy as np

import tensorkiln as tk
from tensorkiln.runtime import Executor
from tensorkiln.script import R, T
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tests.transform.graphs import check_text


@tk.script.ir_module
class Columns:
    @T.prim_func
    def first(A: T.Buffer(("n", 6), "float32"), C: T.Buffer(("n",), "float32")) -> None:
        for i in range(A.shape[0]):
            C[i] = A[i, 0]

    @R.function
    def main(x: R.Tensor(("m", 6), "float32")) -> R.Tensor(("m",), "float32"):
        cls = Columns
        y = R.call_tir(cls.first, [x], R.Tensor(("m",), "float32"))
        return R.add(y, y)


def test_tensor_programs_and_their_calls_get_the_size() -> None:
    mod = pass_sizes(Columns)
    assert [v.name for v in mod["first"].scalars] == ["n"]
    assert mod["first"].attrs["sizes"] == 1
    assert "R.shape(m)" in mod.script()
    assert pass_sizes(mod) is mod


def test_callers_pass_tensors_only() -> None:
    exe = tk.compile(Columns, "native")
    for rows in (1, 5, 17):
        a = np.random.default_rng(rows).random((rows, 6), np.float32)
        c = np.full(rows, 7, np.float32)
        exe["first"](a, c)
        np.testing.assert_array_equal(c, a[:, 0])
        y = Executor(exe, tk.cpu())["main"](a).numpy()
        np.testing.assert_array_equal(y, 2 * a[:, 0])


@T.prim_func
def half(A: T.Buffer((5,), "float32"), C: T.Buffer((5,), "float32")) -> None:
    for i in range(3):
        C[i] = C[i] + A[i]


def test_what_a_program_does_not_write_stays_wherever_the_tensor_lies() -> None:
    f = tk.compile(tk.IRModule((half,)), "native").jit()["half"]
    memory = np.zeros(64, np.float32)
    for start in range(20):  # aligned, and not
        c = memory[start : start + 5]
        c[:] = 7
        f(np.ones(5, np.float32), c)
        np.testing.assert_array_equal(c, [8, 8, 8, 7, 7])


@tk.script.ir_module
class Branches:
    @T.prim_func(private=True)
    def twice(A: T.Buffer(("n",), "float32"), C: T.Buffer(("n",), "float32")) -> None:
        for i in range(A.shape[0]):
            C[i] = A[i] + A[i]

    @T.prim_func(private=True, outputs=2)
    def both(
        A: T.Buffer(("n",), "float32"),
        C: T.Buffer(("n",), "float32"),
        D: T.Buffer(("n",), "float32"),
        k: T.int64,
    ) -> None:
        for i in range(A.shape[0]):
            C[i] = A[i] * T.Cast("float32", k)
            D[i] = -A[i]

    @R.function
    def main(x: R.Tensor(("m",), "float32"), c: R.Prim("bool")) -> R.Object:
        if c:
            y = R.call_tir_inplace(
                Branches.twice, x, inplace=(-1,), out_type=R.Tensor(("m",), "float32")
            )
            z: R.Object = y
        else:
            p: R.Tuple(R.Tensor(("m",), "float32"), R.Tensor(("m",), "float32")) = Branches.both(
                x, R.prim_value(3)
            )
            z: R.Object = p
        return z


def test_calls_that_are_host_steps_get_the_sizes_too() -> None:
    run = Executor(tk.compile(Branches, "native").jit(), tk.cpu())["main"]
    for rows in (0, 1, 5, 33):
        a = np.random.default_rng(rows).random(rows, np.float32)
        np.testing.assert_array_equal(run(a, True).numpy(), a + a)
        tripled, negated = run(a, False)
        np.testing.assert_array_equal(tripled.numpy(), a * np.float32(3))
        np.testing.assert_array_equal(negated.numpy(), -a)


def test_a_size_that_only_a_shape_tells() -> None:
    check_text(
        pass_sizes,
        """
        @ir_module
        class Module:
            @T.prim_func
            def first(A: T.Buffer(("n", 6), "float32"), C: T.Buffer(("n",), "float32")):
                for i in range(A.shape[0]):
                    C[i] = A[i, 0]

            @R.function
            def main(x: R.Tensor(("m", 6), "float32")):
                y = R.call_tir(Module.first, [x], R.Tensor(("m",), "float32"))
                return y
        """,
        """
        @ir_module
        class Module:
            @T.prim_func
            def first(
                A: T.Buffer(("n", 6), "float32"), C: T.Buffer(("n",), "float32"), n: T.int64
            ):
                T.func_attr({"sizes": 1})
                for i in range(n):
                    C[i] = A[i, 0]

            @R.function
            def main(x: R.Tensor(("m", 6), "float32")):
                y: R.Tensor(("m",), "float32") = Module.first(x, R.shape(m))
                return y
        """,
    )
