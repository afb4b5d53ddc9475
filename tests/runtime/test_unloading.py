"""A library stays in the process as long as something of it is used, and not longer."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, dlopen, load_module
from tensorkiln.script import from_source
from tests.runtime import doubler

MODULE = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@T.prim_func
def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = 2.0 * x[i]

@R.function
def nonzero(x: R.Tensor((4,), "float32")) -> R.Object:
    y: R.Object = R.nonzero(x)
    return y

@R.function
def pair(x: R.Object, y: R.Object) -> R.Tuple(R.Object, R.Object):
    return R.tuple(x, y)

@R.function
def adder(x: R.Tensor((4,), "float32")) -> R.Callable:
    @R.function
    def inner(y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        z: R.Tensor((4,), "float32") = R.add(x, y)
        return z
    return inner

@R.function
def apply(f: R.Callable, x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("tests.unloading", x)
    return y
"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doubler.export(
        MODULE, "tests_unloading", tmp_path_factory.mktemp("unloading") / "net.so"
    )


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    from tensorkiln.runtime import load

    tk.runtime.register_loader("tests_unloading", doubler.doubling())
    tk.runtime.register_function("tests.unloading", lambda x: x)
    yield
    load.unregister_loader("tests_unloading")
    tk.runtime.unregister_function("tests.unloading")


@pytest.fixture
def library(exported: Path, tmp_path: Path) -> Path:
    """A copy that nobody has loaded."""
    return Path(shutil.copy(exported, tmp_path / "copy.so"))


def is_mapped(path: Path) -> bool:
    """Its code: an exception that somebody keeps has the artifacts, which are views of the file."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return any(line.endswith(f" {path}") and "r-xp" in line for line in maps)


def executor(path: Path) -> Executor:
    return Executor(load_module(path), tk.cpu())


def ran(path: Path) -> Executor:
    fresh_executor = executor(path)
    fresh_executor["main"](X)
    return fresh_executor


# What is kept of a library, how it is used after all else was dropped, and what that gives.
KEPT: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any], Any]] = {
    "module": (load_module, lambda m: Executor(m, tk.cpu())["main"](X).numpy(), 2 * X),
    "tensor function": (
        lambda path: load_module(path)["twice"],
        lambda f: (y := np.zeros(4, np.float32), f(X, y))[0],
        2 * X,
    ),
    "executor": (ran, lambda e: e["main"](X).numpy(), 2 * X),
    "graph function": (lambda path: executor(path)["main"], lambda f: f(X).numpy(), 2 * X),
    "new outputs": (
        lambda path: executor(path)["main"]._call,  # type: ignore[attr-defined]
        lambda call: call(X).numpy(),
        2 * X,
    ),
    "outer function": (
        lambda path: executor(path)["pair"],
        lambda f: f(1, 2),
        (1, 2),
    ),
    "bound method": (lambda path: ran(path).invoke, lambda f: callable(f), True),
    "values' tensor": (
        lambda path: executor(path)["nonzero"](X),
        lambda t: np.asarray(t.numpy()).reshape(-1),
        np.array([1, 2, 3]),
    ),
    "array of it": (
        lambda path: executor(path)["nonzero"](X).numpy().reshape(-1)[1:],
        lambda a: a,
        np.array([2, 3]),
    ),
    "view by DLPack": (
        lambda path: np.from_dlpack(executor(path)["nonzero"](X).numpy()),
        lambda a: a.reshape(-1),
        np.array([1, 2, 3]),
    ),
    "closure": (lambda path: executor(path)["adder"](X), lambda f: f(X).numpy(), 2 * X),
    "closure in a tuple": (
        lambda path: (e := executor(path), e["pair"](e["adder"](X), 1))[1],
        lambda pair: pair[0](X).numpy(),
        2 * X,
    ),
    "state": (
        lambda path: (e := executor(path), e.set_input("main", X), e)[2],
        lambda e: (e.invoke("main"), e.get_outputs("main").numpy())[1],
        2 * X,
    ),
}
# What needs nothing of the library.
FREE: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: None,
    "nothing, after a run": lambda path: ran(path) and None,
    "a result": lambda path: executor(path)["main"](X),
    "an array": lambda path: executor(path)["main"](X).numpy(),
    "metadata": lambda path: load_module(path).metadata,
    "signatures": lambda path: load_module(path).functions,
    "numbers": lambda path: executor(path)["pair"](1, ("a", 2.5)),
    "a module of a loader": lambda path: load_module(path).imported_modules[0],
    "a function of one": lambda path: load_module(path).imported_modules[0]["doubler_mul"],
    "weak reference": lambda path: weakref.ref(load_module(path)),
    "a callback that it had": lambda path: (f := lambda x: x, executor(path)["pair"](f, 1)[1])[0],
}


@pytest.mark.parametrize("kept_object", list(KEPT))
def test_what_keeps_a_library(library: Path, kept_object: str) -> None:
    make, use, want = KEPT[kept_object]
    thing = make(library)
    assert is_mapped(library)
    gc.collect()
    assert is_mapped(library)
    np.testing.assert_array_equal(use(thing), want)
    del thing
    assert not is_mapped(library)


@pytest.mark.parametrize("kept_object", list(FREE))
def test_what_does_not(library: Path, kept_object: str) -> None:
    """At once: without a garbage collection."""
    gc.disable()
    try:
        thing = FREE[kept_object](library)
        assert not is_mapped(library), thing
    finally:
        gc.enable()


def test_cycles_and_attributes(library: Path) -> None:
    """Garbage in cycles frees executors, values and libraries in any order."""
    for _ in range(20):
        e = ran(library)
        box: dict[str, Any] = {"e": e, "f": e["main"], "m": e.module, "v": e["adder"](X)}
        box["self"] = box
        e.box = box  # type: ignore[attr-defined]
        del e, box
    assert is_mapped(library)
    gc.collect()
    assert not is_mapped(library)


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_the_last_load_is_garbage_while_the_file_is_loaded_again(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run anywhere, in 3.12 after any call."""
    looked = dlopen._is_changed

    def collecting(*arguments: Any) -> bool:
        gc.collect()
        return looked(*arguments)

    box: dict[str, Any] = {"e": ran(library)}
    box["self"] = box
    monkeypatch.setattr(dlopen, "_is_changed", collecting)
    before = open_descriptors()
    del box
    e = ran(library)
    assert e["main"](X).numpy().tolist() == (2 * X).tolist()
    assert open_descriptors() == before
    del e
    gc.collect()
    assert not is_mapped(library)
    assert open_descriptors() < before


def test_a_hundred_libraries(exported: Path, tmp_path: Path) -> None:
    def count() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    for i in range(100):
        path = Path(shutil.copy(exported, tmp_path / f"{i}.so"))
        ran(path)
        path.unlink()
        assert count() == 0


def test_a_file_that_is_loaded_twice(library: Path) -> None:
    """It goes with the last of both."""
    first, two = ran(library), ran(library)
    del first
    assert is_mapped(library)
    assert two["main"](X).numpy().tolist() == (2 * X).tolist()
    two.module.close()
    assert not is_mapped(library)


def test_values_that_another_library_holds(exported: Path, library: Path, tmp_path: Path) -> None:
    other_path = Path(shutil.copy(exported, tmp_path / "other.so"))
    holder = Executor(load_module(other_path), tk.cpu())
    pair = holder["pair"](executor(library)["adder"](X), 5)
    gc.collect()
    assert is_mapped(library)
    np.testing.assert_array_equal(pair[0](X).numpy(), 2 * X)
    del pair
    assert not is_mapped(library)


@pytest.mark.parametrize("keeps_exception", [False, True])
def test_loads_that_fail(library: Path, keeps_exception: bool) -> None:
    """Loaders that raise, and make nothing of use; also where the exception is kept."""
    errors = []

    def raises(artifacts: Any, devices: Any) -> Any:
        raise RuntimeError("the device is on fire")

    for loader, cause in ((raises, RuntimeError), (lambda a, d: 5, type(None))):
        tk.runtime.register_loader("tests_unloading", loader)
        with pytest.raises(UserError) as caught:
            load_module(library)
        assert isinstance(caught.value.__cause__, cause)
        if keeps_exception:
            errors.append(caught)
        assert not is_mapped(library)
    tk.runtime.register_loader("tests_unloading", doubler.doubling())
    assert ran(library) is not None


def test_damaged_and_foreign_libraries(library: Path) -> None:
    data = library.read_bytes()
    symbol_offset = data.index(b"kiln_abi_version\0")
    library.write_bytes(data[:symbol_offset] + b"kiln_abi_versiom\0" + data[symbol_offset + 17 :])
    with pytest.raises(UserError):
        load_module(library)
    assert not is_mapped(library)


def test_jit() -> None:
    exe = tk.compile(from_source(MODULE.replace("R.mul(", "R.add(")))
    path = exe.jit().path
    assert is_mapped(path)  # the executable has it
    executor = Executor(exe, tk.cpu())
    del exe
    assert is_mapped(path)
    executor["main"](X)
    del executor
    assert not is_mapped(path)


def test_libraries_in_memory() -> None:
    exe = tk.compile(from_source(MODULE.replace("R.mul(", "R.add(")), "llvmjit")
    for _ in range(5):
        module = tk.load_artifacts(exe.artifacts)
        alive, executor = weakref.ref(module.library), Executor(module, tk.cpu())
        del module
        np.testing.assert_array_equal(executor["main"](X).numpy(), X + 2)
        closure = executor["adder"](X)
        del executor
        np.testing.assert_array_equal(closure(X).numpy(), 2 * X)
        assert alive() is not None
        del closure
        assert alive() is None
