"""Tensors of no elements, on every kind of target that runs here: results that are empty, and
results of operators that read nothing."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, constant, tensor
from tensorkiln.kernels.case import Build, Graph, c, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.script import from_source
from tests.capabilities import opencl_devices
from tests.transform.graphs import graph, main

NOTHING = c(np.zeros((0, 5), np.float32))
CASES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "elementwise": (lambda g, x: g.exp(x), (0, 3)),
    "chain": (lambda g, x: g.softmax(g.relu(g.matmul(g.exp(x), rand(3, 4)))), (0, 3)),
    "linear of no rows": (lambda g, x: g.linear(x, rand(8, 5), rand(5)), (0, 8)),
    "linear of no terms": (lambda g, x: g.linear(x, NOTHING, rand(5)), (3, 0)),
    "product of no terms": (lambda g, x: g.matmul(x, NOTHING), (3, 0)),
    "sum of none": (lambda g, x: g.sum(x, axes=(1,)), (4, 0)),
    "largest of each of none": (lambda g, x: g.max(x, axes=(1,)), (0, 4)),
    "mean, then more": (lambda g, x: g.add(g.mean(x, axes=(1,)), 1.0), (0, 4)),
    "softmax of no rows": (lambda g, x: g.softmax(x, axis=-1), (0, 5)),
    "softmax of empty rows": (lambda g, x: g.softmax(x, axis=-1), (5, 0)),
    "concat": (
        lambda g, x: g.relu(g.concat(g.relu(x), c(np.ones((2, 3), np.float32)), axis=0)),
        (0, 3),
    ),
    "no images": (lambda g, x: g.relu(g.conv2d(x, rand(4, 3, 3, 3), rand(4))), (0, 3, 8, 8)),
    "pooling": (lambda g, x: g.max_pool2d(x, kernel=(2, 2)), (0, 3, 8, 8)),
    "attention": (lambda g, x: g.attention(x, x, x, scale=1.0), (1, 2, 0, 16)),
    "view": (lambda g, x: g.reshape(x, shape=(3, 0)), (0, 3)),
    "transpose": (lambda g, x: g.transpose(x, axes=(1, 0)), (0, 3)),
    "itself": (lambda g, x: x, (0, 3)),
}


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("target", ["native", "llvmjit", "c", "opencl"])
@pytest.mark.parametrize("name", CASES)
def test_empty(name: str, target: str) -> None:
    if target == "opencl" and not opencl_devices():
        pytest.skip("no device of OpenCL")
    build, shape = CASES[name]
    mod, x = graph(build, x=shape), np.zeros(shape, np.float32)
    (want,) = evaluate(main(mod), {"x": x}, {})
    result = np.asarray(tk.compile(mod, target)(x))
    assert result.shape == want.shape and result.dtype == want.dtype
    np.testing.assert_allclose(result, want, rtol=1e-6)


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("target", ["cuda", "webgpu"])
@pytest.mark.parametrize("name", CASES)
def test_empty_is_compiled(name: str, target: str) -> None:
    build, shape = CASES[name]
    assert tk.compile(graph(build, x=shape), target).functions


N, S = Var("N"), Var("S")
SYMBOLIC: dict[str, tuple[Build, tuple[object, ...]]] = {
    "elementwise": (lambda g, x: g.exp(x), (N, 3)),
    "broadcast": (lambda g, x: g.mul(x, g.sum(x, axes=(0,))), (N, S)),
    "linear": (lambda g, x: g.relu(g.linear(x, rand(8, 5), rand(5))), (N, 8)),
    "sum": (lambda g, x: g.sum(x, axes=(0,)), (N, 4)),
    "sum, then more": (lambda g, x: g.add(g.sum(x, axes=(0,)), 1.0), (N, 4)),
    "max": (lambda g, x: g.max(x, axes=(1,)), (4, N)),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), (N, S)),
    "layer norm": (lambda g, x: g.layer_norm(x, rand(6), rand(6)), (N, S, 6)),
    "convolution": (lambda g, x: g.relu(g.conv2d(x, rand(4, 3, 3, 3), rand(4))), (N, 3, 8, 8)),
    "pooling": (lambda g, x: g.max_pool2d(x, kernel=(2, 2)), (N, 3, 8, 8)),
    "product": (lambda g, x: g.matmul(x, x, transpose_b=True), (2, N, S)),
    "attention": (lambda g, x: g.attention(x, x, x, scale=1.0), (N, 2, S, 16)),
    "concat": (lambda g, x: g.concat(x, g.relu(x), axis=0), (N, 3)),
    "concat with others": (
        lambda g, x: g.concat(x, c(np.ones((2, 3), np.float32)), axis=0),
        (N, 3),
    ),
    "transpose": (lambda g, x: g.transpose(x, axes=(1, 0)), (N, S)),
}


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("target", ["native", "c", "opencl"])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes_of_0(name: str, target: str) -> None:
    """Compiled once, for all sizes."""
    if target == "opencl" and not opencl_devices():
        pytest.skip("no device of OpenCL")
    build, shape = SYMBOLIC[name]
    mod = graph(build, x=shape)
    run = tk.compile(mod, target)
    for n, s in ((0, 5), (3, 0), (0, 0), (2, 3)):
        sizes = [{N: n, S: s}.get(d, d) for d in shape]  # type: ignore[call-overload]
        x = np.random.default_rng(1).random(sizes, np.float32)
        with np.errstate(all="ignore"):
            (want,) = evaluate(main(mod), {"x": x}, {})
        result = np.asarray(run(x))
        assert (result.shape, result.dtype) == (want.shape, want.dtype), (n, s)
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


HUGE = 1 << 40  # loops of so many iterations would not end
# Of x, a float32 of shape (A, B): whose results are small, or empty, if A is HUGE and B is 0.
OF_NO_COLUMNS: dict[str, Build] = {
    "itself, and more": lambda g, x: g.exp(g.relu(x)),
    "transpose": lambda g, x: g.transpose(x, axes=(1, 0)),
    "sum of all": lambda g, x: g.sum(x, axes=(0, 1)),
    "product of all, then more": lambda g, x: g.add(g.prod(x, axes=(0, 1)), 1.0),
    "sums of columns": lambda g, x: g.sum(x, axes=(0,)),
    "largest of columns": lambda g, x: g.argmax(x, axis=0),
    "softmax of rows": lambda g, x: g.softmax(x, axis=-1),
    "softmax of columns": lambda g, x: g.softmax(x, axis=0),
    "concat": lambda g, x: g.concat(x, g.relu(x), axis=1),
    "product of columns": lambda g, x: g.matmul(g.transpose(x, axes=(1, 0)), x),
    "broadcast": lambda g, x: g.mul(x, g.mean(x, axes=(0,))),
    "rows by number": lambda g, x: g.take(x, constant(np.array([0, 5])), axis=0),
    "part": lambda g, x: g.slice(x, begin=(1, 0), strides=(3, 1), shape=(HUGE // 4, 0)),
}


def _of_no_columns(shape: tuple[object, ...]) -> IRModule:
    g = Graph()
    x = g.param("x", tensor(shape, "float32"))  # type: ignore[arg-type]
    return IRModule((g.finish(Tuple(tuple(build(g, x) for build in OF_NO_COLUMNS.values()))),))


@pytest.mark.parametrize("shape", [(N, S), (HUGE, 0)], ids=["symbolic", "constant"])
@pytest.mark.parametrize("target", ["native", "c"])
def test_no_loop_runs_around_no_elements(target: str, shape: tuple[object, ...]) -> None:
    x = np.empty((HUGE, 0), np.float32)
    results = tk.compile(_of_no_columns(shape), target)(x)
    for name, result in zip(OF_NO_COLUMNS, map(np.asarray, results), strict=True):
        assert result.size == 0 or name in ("sum of all", "product of all, then more"), name
        assert result.size == 0 or result.item() in (0, 2), name


FIRST = """
@tk.script.ir_module(name="first")
class First:
    @T.prim_func
    def first(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        for i in range(n):
            y[i] = x[i] * 2.0
        y[0] = x[0]
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        z = R.exp(x)
        y = R.call_tir(First.first, (z,), R.Tensor(("n",), "float32"))
        return y
"""


def test_tensor_programs_of_users_get_no_empty_tensors() -> None:
    """They may access element 0 of a buffer of n."""
    exe = tk.compile(from_source(FIRST, infer=ops.infer))
    result = np.asarray(exe(np.zeros(3, np.float32)))
    np.testing.assert_allclose(result, [1, 2, 2])
    with pytest.raises(ValueError, match="main: n is 0; expected n >= 1"):
        exe(np.zeros(0, np.float32))
    program = tk.runtime.Executor(exe)["first"]
    with pytest.raises(ValueError, match="first: argument 'x' has 0 for n.*expected at least 1"):
        program(np.zeros(0, np.float32), np.zeros(0, np.float32))


def test_convolution_of_no_channels_is_refused() -> None:
    with pytest.raises(UserError, match="at least one input channel"):
        graph(lambda g, x: g.conv2d(x, c(np.zeros((4, 0, 3, 3), np.float32))), x=(1, 0, 8, 8))
