"""A graph split by hand: storages are made once per executor and key, and kept."""

# ruff: noqa: ANN201, F821 - the types of scripts are not Python's
from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.script import R, T


@tk.script.ir_module
class After:
    """Three kernels over two storages: the run is one tensor program that indexes the set."""

    @T.prim_func(private=True)
    def fn1(x: T.Buffer((4,), "float32", align=4), y: T.Buffer((4,), "float32", align=4)):
        for i in range(4):
            y[i] = x[i] + T.float32(1)

    @T.prim_func(private=True)
    def fn2(x: T.Buffer((4,), "float32", align=4), y: T.Buffer((4,), "float32", align=4)):
        for i in range(4):
            y[i] = x[i] * T.float32(2)

    @T.prim_func(private=True, outputs=1)
    def fn3(
        x: T.Buffer((4,), "float32", align=4),
        k: T.int64,
        y: T.Buffer((4,), "float32", align=4),
    ):
        for i in range(4):
            y[i] = x[i] * x[i] + T.Cast("float32", k)

    @R.function
    def graph_init():
        v0 = R.alloc_storage(16)
        v1 = R.alloc_storage(size=64)
        return (v0, v1)

    @T.prim_func(private=True, outputs=1)
    def fn1_fn2_fn3(
        x: T.Buffer((4,), "float32", align=4),
        storage_set: T.Buffer((2,), "handle", align=8),
        y: T.Buffer((4,), "float32", align=4),
    ):
        T.call(After.fn1, x, storage_set[0])
        for k in range(3):
            T.call(After.fn2, storage_set[0], storage_set[1] + k * 16)
        T.call(After.fn3, storage_set[1] + 32, 5, y)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = After
        storage_set: R.Tuple(R.Object, R.Object) = R.call_packed(
            "alloc_cached_storage_set", cls.graph_init, key="mymod"
        )
        R.call_packed("look", storage_set)
        y: R.Tensor((4,), "float32") = cls.fn1_fn2_fn3(x, storage_set)
        return y


@tk.script.ir_module
class Symbolic:
    """Sizes come as a shape; a row of n numbers twice, through a storage of n numbers."""

    @T.prim_func(private=True)
    def twice(
        x: T.Buffer(("n",), "float32", align=4), y: T.Buffer(("n",), "float32", align=4), n: T.int64
    ):
        for i in range(n):
            y[i] = x[i] + x[i]

    @R.function
    def graph_init(sizes: R.Shape(("n",))):
        v0 = R.alloc_storage(size=n * 4)
        return (v0,)

    @T.prim_func(private=True, outputs=1)
    def run(
        x: T.Buffer(("n",), "float32", align=4),
        storages: T.Buffer((1,), "handle", align=8),
        y: T.Buffer(("n",), "float32", align=4),
        n: T.int64,
    ):
        T.call(Symbolic.twice, x, storages[0], n)
        T.call(Symbolic.twice, storages[0], y, n)

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        storages: R.Tuple(R.Object) = R.call_packed(
            "alloc_cached_storage_set",
            Symbolic.graph_init,
            R.shape([n]),
            key="rows",
        )
        R.call_packed("look", storages)
        y: R.Tensor(("n",), "float32") = Symbolic.run(x, storages, R.shape([n]))
        return y


@tk.script.ir_module
class Parallel:
    """Calls in a parallel loop, at addresses computed from its variable; a row per storage."""

    @T.prim_func(private=True)
    def fill(a: T.Buffer((8,), "float32", align=4), k: T.int64):
        T.func_attr({"mine.note": "outputs are inferred"})
        for i in range(8):
            a[i] = T.Cast("float32", k * 8 + i)

    @T.prim_func(private=True)
    def total(a: T.Buffer((8,), "float32", align=4), y: T.Buffer((1,), "float32", align=4)):
        y[0] = T.float32(0)
        for i in range(8):
            y[0] = y[0] + a[i]

    @R.function
    def init():
        v0 = R.alloc_storage(32 * 16)
        v1 = R.alloc_storage(4 * 16)
        return (v0, v1)

    @T.prim_func(private=True, outputs=1)
    def run(
        x: T.Buffer((16,), "float32", align=4),
        storages: T.Buffer((2,), "handle", align=8),
        y: T.Buffer((16,), "float32", align=4),
    ):
        for k in T.parallel(16):
            T.call(Parallel.fill, storages[0] + k * 32, k)
            T.call(Parallel.total, storages[0] + k * 32, T.address_of(y[k]))

    @R.function
    def main(x: R.Tensor((16,), "float32")) -> R.Tensor((16,), "float32"):
        storages: R.Tuple(R.Object, R.Object) = R.call_packed(
            "alloc_cached_storage_set", Parallel.init, key="rows"
        )
        y: R.Tensor((16,), "float32") = Parallel.run(x, storages)
        return y


storages_seen: list[tuple[tuple[int, int], ...]] = []


@pytest.fixture(scope="module")
def lib() -> tk.runtime.Module:
    return tk.compile(After).jit()


@pytest.fixture(scope="module")
def symbolic() -> tk.runtime.Module:
    return tk.compile(Symbolic).jit()


@pytest.fixture(autouse=True)
def look() -> Iterator[None]:
    """Addresses and sizes of the storages of each call."""

    def look(storages: tuple[tk.runtime.Tensor, ...]) -> None:
        arrays = [s.numpy() for s in storages]
        storages_seen.append(tuple((a.ctypes.data, a.nbytes) for a in arrays))

    tk.runtime.register_function("look", look)
    storages_seen.clear()
    yield


X = np.arange(4, dtype="float32")
Y = ((X + 1) * 2) ** 2 + 5


def test_the_numbers(lib: tk.runtime.Module) -> None:
    vm = tk.runtime.Executor(lib, tk.cpu())
    assert vm["main"](X).numpy().tolist() == Y.tolist()


def test_calls_in_a_parallel_loop() -> None:
    vm = tk.runtime.Executor(tk.compile(Parallel), tk.cpu())
    expected = np.arange(128, dtype="float32").reshape(16, 8).sum(axis=1)
    assert vm["main"](np.zeros(16, "float32")).numpy().tolist() == expected.tolist()


def test_the_text_comes_back() -> None:
    for mod in (After, Symbolic, Parallel):
        exe = tk.compile(mod)
        (text,) = (a.text() for a in exe.artifacts if a.file_name == "module.py")
        again = tk.compile(tk.script.from_source(text), relax_pipeline=None, tir_pipeline=None)
        assert again.artifacts == exe.artifacts


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("(v0, v1)", "(v0, x)", "item 1 of the tuple is an integer, expected a storage"),
        ("return (v0, v1)", "return v1", "gave a tensor, expected a tuple of storages"),
        ('cls.graph_init, key="k"', 'x, key="k"', "takes a function that makes storages"),
        ("x, storage_set)", "x, (storage_set,))", "item 0 of a set must be a storage"),
        ("(v0, v1)", "(v0,)", r"must have shape \[2\], received \[1\]"),
    ],
)
def test_sets_that_are_none(old: str, new: str, says: str) -> None:
    text = """
@tk.script.ir_module
class After:
    @R.function
    def graph_init() -> R.Object:
        x = R.prim_value(3)
        v0 = R.alloc_storage(16)
        v1 = R.alloc_storage(16)
        return (v0, v1)

    @T.prim_func(private=True, outputs=1)
    def run(
        x: T.Buffer((4,), "float32", align=4),
        s: T.Buffer((2,), "handle", align=8),
        y: T.Buffer((4,), "float32", align=4),
    ):
        y[0] = x[0]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = After
        storage_set: R.Object = R.call_packed("alloc_cached_storage_set", cls.graph_init, key="k")
        y: R.Tensor((4,), "float32") = cls.run(x, storage_set)
        return y
"""
    assert old in text
    text = text.replace(old, new)
    vm = tk.runtime.Executor(tk.compile(tk.script.from_source(text)), tk.cpu())
    with pytest.raises(Exception, match=says):
        vm["main"](X)


def test_storages_are_kept(lib: tk.runtime.Module) -> None:
    vm, other_executor = (tk.runtime.Executor(lib, tk.cpu()) for _ in range(2))
    for _ in range(3):
        vm["main"](X)
    other_executor["main"](X)
    assert storages_seen[0] == storages_seen[1] == storages_seen[2]
    assert [size for _, size in storages_seen[0]] == [16, 64]
    assert all(address % 64 == 0 for address, _ in storages_seen[0])
    assert not {address for address, _ in storages_seen[0]} & {
        address for address, _ in storages_seen[3]
    }  # one set per executor


def test_sizes_follow_the_shape(symbolic: tk.runtime.Module) -> None:
    vm = tk.runtime.Executor(symbolic, tk.cpu())
    for n in (4, 4, 1000, 1000, 3):
        x = np.arange(n, dtype="float32")
        assert vm["main"](x).numpy().tolist() == (4 * x).tolist()
    assert [size for ((_, size),) in storages_seen] == [16, 16, 4000, 4000, 12]
    assert storages_seen[0] == storages_seen[1] and storages_seen[2] == storages_seen[3]


@tk.script.ir_module
class Direct:
    @T.prim_func(outputs=1)
    def sum_of(storages: T.Buffer((2,), "handle", align=8), y: T.Buffer((4,), "float32")):
        T.call(Direct.add, storages[0], storages[1], y)

    @T.prim_func(private=True)
    def add(
        a: T.Buffer((4,), "float32", align=4),
        b: T.Buffer((4,), "float32", align=4),
        c: T.Buffer((4,), "float32", align=4),
    ):
        for i in range(4):
            c[i] = a[i] + b[i]


def test_a_tensor_program_takes_a_tuple() -> None:
    """Without an executor too: the program indexes the elements itself."""
    lib, y = tk.compile(Direct).jit(), np.zeros(4, "float32")
    lib["sum_of"]((X, X[::-1].copy()), y)
    assert y.tolist() == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="argument 'storages', item 1, has gaps"):
        lib["sum_of"]((X, np.zeros(8, "float32")[::2]), y)
    with pytest.raises(ValueError, match=r"must have shape \[2\], received \[1\]"):
        lib["sum_of"]((X,), y)
    with pytest.raises(TypeError, match="must be a set of addresses, received float32"):
        lib["sum_of"](X, y)
    with pytest.raises(TypeError, match="item 0, must be a tensor"):
        lib["sum_of"]((None, X), y)


def test_an_executor_gives_its_sets_back(symbolic: tk.runtime.Module) -> None:
    dll = symbolic.library.dll
    gc.collect()
    live = dll.kiln_live_objects()
    vm = tk.runtime.Executor(symbolic, tk.cpu())
    for n in (4, 8, 4):
        vm["main"](np.zeros(n, "float32"))
    gc.collect()
    assert dll.kiln_live_objects() > live
    del vm
    gc.collect()
    assert dll.kiln_live_objects() == live


def test_threads_do_not_share_a_set(symbolic: tk.runtime.Module) -> None:
    vm = tk.runtime.Executor(symbolic, tk.cpu())
    wrong: list[int] = []

    def work(k: int) -> None:
        x = np.full(5000, k, dtype="float32")
        for _ in range(200):
            if (vm["main"](x).numpy() != 4 * k).any():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
