"""Which indices are checked before the kernels that read there, and what a call with a wrong one
does. What operators of models say is in tests/frontend/test_index_checks.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Var, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, Value, constant, tensor
from tensorkiln.kernels.case import Graph
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.runtime.failures import IndexOutsideError
from tensorkiln.transform.relax.check_indices import CheckIndices
from tensorkiln.transform.relax.infer_types import infer_types
from tests.transform.graphs import check_text, graph, main, ops_of

TARGET = tk.Target("llvm")
CLAMP = tk.Target({"kind": "llvm", "indices": "clamp"})


def checked(mod: IRModule, target: tk.Target = TARGET) -> IRModule:
    return CheckIndices(target)(infer_types(mod))


def test_text() -> None:
    """Two tables of one size are read at indices that are checked once."""
    check_text(
        checked,
        """
        @R.function
        def main(
            x: R.Tensor(("n", 4), "float32"),
            z: R.Tensor(("n",), "float32"),
            i: R.Tensor((3,), "int64"),
        ):
            a = R.take(x, i, axis=0)
            b = R.take(z, i, axis=0)
            c = R.take(x, i, axis=0, outside="clamp")
            return a, b, c
        """,
        """
        @R.function
        def main(
            x: R.Tensor(("n", 4), "float32"),
            z: R.Tensor(("n",), "float32"),
            i: R.Tensor((3,), "int64"),
        ):
            n = T.int64()
            a_indices = R.bounds_check(i, extent=n, negative=True)
            a = R.take(x, a_indices, axis=0, outside="error")
            b = R.take(z, a_indices, axis=0, outside="error")
            c = R.take(x, i, axis=0, outside="clamp")
            return a, b, c
        """,
    )


# Indices that are proved to be inside of n rows, and those that are not.
Indices = Callable[[Graph, Value, Value], Value]


def _number(value: int) -> Value:
    return constant(np.array(value, np.int64))


PROVED: dict[str, Indices] = {
    "constants": lambda g, x, i: constant(np.array([0, -5, 4])),
    "argmax": lambda g, x, i: g.argmax(x, axis=0, keepdims=False),
    "top_k": lambda g, x, i: g.top_k(g.transpose(x, axes=(1, 0)), k=2),
    "counted": lambda g, x, i: g.arange(start=0, step=1, count=5, dtype="int64"),
    "backwards": lambda g, x, i: g.arange(start=4, step=-1, count=5, dtype="int64"),
    "clamped": lambda g, x, i: g.minimum(g.maximum(i, _number(0)), _number(4)),
    "clipped": lambda g, x, i: g.clip(i, min=-5, max=4),
    "of a byte": lambda g, x, i: g.minimum(
        g.cast(g.cast(i, dtype="uint8"), dtype="int64"), _number(4)
    ),
    "a bool": lambda g, x, i: g.cast(g.less(i, _number(0)), dtype="int64"),
    "a remainder": lambda g, x, i: g.mod(i, _number(5)),
    "a sum": lambda g, x, i: g.add(g.clip(i, min=0, max=2), g.clip(i, min=-1, max=2)),
    "checked before": lambda g, x, i: g.bounds_check(i, extent=5),
    "moved": lambda g, x, i: g.reshape(
        g.concat(g.argmax(x, axis=0, keepdims=True), _row(g), axis=1), shape=(8,)
    ),
    "chosen": lambda g, x, i: g.where(g.less(i, _number(0)), _number(3), g.clip(i, min=0, max=4)),
}
OPEN: dict[str, Indices] = {
    "data": lambda g, x, i: i,
    "one below": lambda g, x, i: g.clip(i, min=-6, max=4),
    "one above": lambda g, x, i: g.clip(i, min=0, max=5),
    "no upper limit": lambda g, x, i: g.maximum(i, _number(0)),
    "of a float": lambda g, x, i: g.cast(
        g.clip(g.cast(i, dtype="float32"), min=0.0, max=9.0), dtype="int64"
    ),
    "a sum": lambda g, x, i: g.add(g.clip(i, min=0, max=2), g.clip(i, min=-1, max=3)),
    "a difference": lambda g, x, i: g.sub(_number(-5), g.clip(i, min=0, max=1)),
    "narrowed": lambda g, x, i: g.cast(g.clip(i, min=0, max=260), dtype="int8"),
}


def _row(g: Graph) -> Value:
    return constant(np.array([[4, 0, 1, 2]]))


@pytest.mark.parametrize("name", PROVED)
def test_indices_that_are_inside_are_not_checked(name: str) -> None:
    mod = graph(
        lambda g, x, i: g.take(x, PROVED[name](g, x, i), axis=0),
        x=(5, 4),
        i=tensor((3,), "int64"),
    )
    assert ops_of(checked(mod)) == ops_of(mod)


@pytest.mark.parametrize("name", OPEN)
def test_others_are(name: str) -> None:
    mod = graph(
        lambda g, x, i: g.take(x, OPEN[name](g, x, i), axis=0),
        x=(5, 4),
        i=tensor((3,), "int64"),
    )
    assert ops_of(checked(mod))[-2:] == ["bounds_check", "take"]


@pytest.mark.parametrize("is_assumed", [True, False])
def test_sizes_that_the_function_assumes_prove_it(is_assumed: bool) -> None:
    n = Var("n")
    mod = graph(
        lambda g, x, y: g.take(x, g.arange(start=0, step=1, count=n, dtype="int64"), axis=0),
        x=(512, 4),
        y=(n,),
    )
    f = main(mod)
    if is_assumed:
        f = Function(
            f.name, f.params, f.bindings, f.result, Attrs.of(assumes=(binary("le", n, 512),))
        )
    assert ("bounds_check" in ops_of(checked(IRModule((f,))))) != is_assumed


# -- calls ------------------------------------------------------------------------------------

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXTENT = 200  # beyond int8


def taking(dtype: str, extent: int | Var, count: int | Var) -> IRModule:
    return graph(
        lambda g, x, i: g.take(x, i, axis=1),
        x=(2, extent),
        i=tensor((count, 3), dtype),
    )


def numbers(dtype: str, extent: int) -> list[int]:
    limits = np.iinfo(dtype)
    candidates = (-extent - 1, -extent, -1, 0, extent - 1, extent, limits.min, limits.max)
    return sorted({n for n in candidates if limits.min <= n <= limits.max})


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_take(dtype: str, symbolic: bool) -> None:
    """As NumPy's, which raises for each index outside; with `clamp` its nearest inside. Many
    indices are looked at by vectors, of which the wrong one may be in any part."""
    extent, count = (Var("n"), Var("k")) if symbolic else (EXTENT, 30)
    mod = taking(dtype, extent, count)
    f, clamping = tk.compile(mod), tk.compile(mod, indices="clamp")
    x = np.arange(2 * EXTENT, dtype=np.float32).reshape(2, EXTENT)
    for spot in [(0, 0), (29, 2), (17, 1)]:
        for number in numbers(dtype, EXTENT):
            indices = np.ones((30, 3), dtype)
            indices[spot] = number
            near = np.clip(indices.astype(object), -EXTENT, EXTENT - 1).astype(np.int64)
            if dtype != "uint64" or number < 1 << 63:
                np.testing.assert_array_equal(clamping(x, indices), x.take(near, 1))
            if -EXTENT <= number < EXTENT:
                np.testing.assert_array_equal(f(x, indices), x.take(near, 1))
                continue
            with pytest.raises(IndexOutsideError) as failure:
                f(x, indices)
            lowest = 0 if dtype.startswith("u") else -EXTENT
            message = (
                f"main: index {number} at {list(spot)} is outside of a dimension of {EXTENT}, "
            )
            assert (
                failure.value.message == f"{message}expected {lowest} to {EXTENT - 1} (node take)"
            )
            assert failure.value.code == "index" and isinstance(failure.value, IndexError)
            with pytest.raises(UserError, match=f"index {number} at"):
                evaluate(checked(taking(dtype, EXTENT, 30)), {"x": x, "i": indices})


def test_nothing_to_read() -> None:
    """No index is outside of anything; each is of a dimension without elements."""
    f = tk.compile(taking("int32", Var("n"), Var("k")))
    no_indices, empty = np.zeros((0, 3), np.int32), np.zeros((2, 0), np.float32)
    assert f(np.zeros((2, 5), np.float32), no_indices).shape == (2, 0, 3)
    assert f(empty, no_indices).shape == (2, 0, 3)
    with pytest.raises(UserError, match="n is 0"):
        f(empty, np.zeros((1, 3), np.int32))
    n = Var("n")
    alone = tk.compile(
        graph(lambda g, x, i: g.bounds_check(i, extent=n), x=(n,), i=tensor((3,), "int64"))
    )
    with pytest.raises(
        IndexOutsideError, match=r"at \[0\] is outside of a dimension of 0, which has no"
    ):
        alone(np.zeros(0, np.float32), np.zeros(3, np.int64))


@pytest.mark.parametrize("kind", ["llvmjit", "c"])
def test_every_kind_of_cpu(kind: str) -> None:
    f = tk.compile(taking("int64", 5, 1), kind)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(f(x, np.array([[0, -5, 4]])), x[:, None, [0, -5, 4]])
    with pytest.raises(IndexOutsideError, match=r"index 5 at \[0, 1\]"):
        f(x, np.array([[0, 5, 4]]))


@pytest.mark.parametrize("pipeline", ["default", "minimal"])
def test_computed_indices(pipeline: str) -> None:
    """Indices are checked as they are computed, by the kernel that computes them."""
    mod = graph(
        lambda g, x, i, j: g.take(g.exp(x), g.cast(g.add(i, j), dtype="int64"), axis=0),
        x=(Var("n"), 2),
        i=tensor((3, 1), "int32"),
        j=tensor((4,), "int32"),
    )
    f = tk.compile(mod, relax_pipeline=pipeline)
    x = np.ones((7, 2), np.float32)
    i, j = np.array([[0], [1], [3]], np.int32), np.array([0, 1, 2, 3], np.int32)
    np.testing.assert_allclose(f(x, i, j), np.exp(x)[i + j], rtol=1e-6)
    with pytest.raises(
        IndexOutsideError, match=r"index 6 at \[2, 3\] is outside of a dimension of 6"
    ):
        f(x[:6], i, j)


def test_devices_with_memory_of_their_own() -> None:
    """The host checks what it has; nobody checks what such a device has computed."""
    target = {"kind": "composite", "host": "llvm", "devices": ["opencl"]}
    data = {"x": (5, 4), "i": tensor((3,), "int64")}
    executable = tk.compile(graph(lambda g, x, i: g.take(g.exp(x), i, axis=0), **data), target)
    placed = {p.kernel: p.device for p in executable.placement()}
    assert placed["bounds_check"] == "host" and placed["take"] == "opencl"
    mod = graph(lambda g, x, i: g.take(g.exp(x), g.add(i, i), axis=0), **data)
    assert {p.device for p in tk.compile(mod, target).placement()} == {"opencl"}
    text = tk.compile(mod, target).module.script()
    assert "bounds_check" not in text
