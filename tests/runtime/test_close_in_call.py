"""close() while a call is under way: refused, or waited for, wherever it comes from."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, Module, load, load_module
from tests.runtime import doubler

MODULE = """
@R.function
def graph(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.add(x, x)
    return a

@R.function
def loaded(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@T.prim_func
def tensors(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = x[i] + x[i]

@T.prim_func
def numbers(x: T.Buffer((4,), "float32"), k: T.float32, y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = x[i] * k

@R.function
def outer(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("tests.close_in_call", x)
    return y

@R.function
def adder(x: R.Tensor((4,), "float32")) -> R.Callable:
    @R.function
    def inner(y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        z: R.Tensor((4,), "float32") = R.add(x, y)
        return z
    return inner
"""
X = np.arange(4, dtype=np.float32)
hook: list[Callable[[], object]] = []  # called by whatever a call calls


def run_hooks() -> None:
    for function in list(hook):
        function()


class Exports:
    """A tensor whose export is a place to close from."""

    def __dlpack__(self, **options: Any) -> Any:
        run_hooks()
        return X.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return X.__dlpack_device__()


class Dies:
    """A tensor whose capsule goes after the call, and it with it."""

    def __dlpack__(self, **options: Any) -> Any:
        view = X.view(type("Watched", (np.ndarray,), {"__del__": lambda _: run_hooks()}))
        return view.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return X.__dlpack_device__()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doubler.export(MODULE, "tests_close", tmp_path_factory.mktemp("close") / "net.so")


@pytest.fixture
def lib(exported: Path, tmp_path: Path) -> Iterator[Module]:
    def called(x: Any) -> Any:
        run_hooks()
        return 2 * x.numpy()

    load.register_loader("tests_close", doubler.doubling(run_hooks))
    tk.runtime.register_function("tests.close_in_call", called)
    hook.clear()
    yield load_module(shutil.copy(exported, tmp_path / "net.so"))
    hook.clear()
    load.unregister_loader("tests_close")
    tk.runtime.unregister_function("tests.close_in_call")


def into(call: Callable[[np.ndarray], object]) -> np.ndarray:
    y = np.zeros(4, np.float32)
    call(y)
    return y


def graph(lib: Module, x: Any, **named: Any) -> Any:
    return Executor(lib, tk.cpu())["graph"](x, **named)


def test_calls_of_another_load_do_not_matter(lib: Module) -> None:
    """Of the same file, which is one library to the system."""
    inside, go_on = threading.Event(), threading.Event()
    second_load = load_module(lib.path)

    def wait() -> None:
        inside.set()
        assert go_on.wait(60)

    hook.append(wait)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(Executor(lib, tk.cpu())["loaded"](X)))
    thread.start()
    try:
        assert inside.wait(60)
        hook.clear()
        second_load.close()
        with pytest.raises(UserError, match="a call of it is under way|calls of it are under way"):
            lib.close()
    finally:
        go_on.set()
        thread.join()
    np.testing.assert_array_equal(results[0], 2 * X)
    lib.close()


# Calls that run the hooks while they are under way; all double X.
CALLS: dict[str, Callable[[Module], Any]] = {
    "graph": lambda lib: graph(lib, Exports()),
    "graph, by name": lambda lib: Executor(lib, tk.cpu())["graph"](x=Exports()),
    "graph, out=": lambda lib: into(lambda y: graph(lib, Exports(), out=y)),
    "graph, an argument dies": lambda lib: graph(lib, Dies()),
    "invoke": lambda lib: (
        e := Executor(lib, tk.cpu()),
        e.set_input("graph", Exports()),
        e.invoke("graph"),
        e.get_outputs("graph"),
    )[3],
    "tensor function": lambda lib: into(lambda y: lib["tensors"](Exports(), y)),
    "loader's function": lambda lib: Executor(lib, tk.cpu())["loaded"](X),
    "outer, argument": lambda lib: Executor(lib, tk.cpu())["outer"](Exports()),
    "outer, callback": lambda lib: Executor(lib, tk.cpu())["outer"](X),
    "closure": lambda lib: Executor(lib, tk.cpu())["adder"](X)(Exports()),
}


def close_in(lib: Module, refused: list[str], **options: Any) -> Callable[[], None]:
    """What closes `lib`, and notes codes: exceptions with tracebacks would hold values."""

    def close() -> None:
        try:
            lib.close(**options)
            refused.append("closed")
        except UserError as error:
            refused.append(error.code)

    return close


@pytest.mark.in_turn("call")
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_from_inside(lib: Module, call: str, wait: bool) -> None:
    """It is refused, also where it would wait: for itself."""
    refused: list[str] = []
    hook.append(close_in(lib, refused, wait=wait))
    for _ in range(2):  # the library is as it was
        np.testing.assert_array_equal(np.asarray(CALLS[call](lib)), 2 * X)
    assert refused and set(refused) == {"in-use"}
    hook.clear()
    lib.close(wait=wait)
    with pytest.raises(UserError, match="is closed"):
        CALLS[call](lib)


@pytest.mark.in_turn("call")
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_from_another_thread(lib: Module, call: str, wait: bool) -> None:
    """It is refused, or comes after the call, and what is called in between raises."""
    entered, go_on = threading.Event(), threading.Event()
    results: list[Any] = []
    answers: list[str] = []

    def stop_here() -> None:
        entered.set()
        assert go_on.wait(60)

    hook.append(stop_here)
    caller = threading.Thread(target=lambda: results.append(np.array(CALLS[call](lib))))
    caller.start()
    assert entered.wait(60)
    hook.clear()
    closer = threading.Thread(target=close_in(lib, answers, wait=wait))
    closer.start()
    if not wait:
        closer.join(60)
        assert answers == ["in-use"]
        np.testing.assert_array_equal(graph(lib, X), 2 * X)
    else:
        while not lib.library.using._closers:
            assert closer.is_alive()
        with pytest.raises(UserError, match="is closed"):
            graph(lib, X)
    go_on.set()
    caller.join(60)
    closer.join(60)
    np.testing.assert_array_equal(results[0], 2 * X)
    assert answers == (["closed"] if wait else ["in-use"])
    lib.close()


def test_a_second_load_of_the_file(lib: Module) -> None:
    """Its calls are not this one's: it is closed beside them, and they go on."""
    again = load_module(lib.path)
    answers: list[str] = []
    hook.append(close_in(again, answers))
    np.testing.assert_array_equal(graph(lib, Exports()), 2 * X)
    assert answers == ["closed"]
    hook.clear()
    np.testing.assert_array_equal(graph(lib, X), 2 * X)
    lib.close()


def test_calls_and_closes_at_random(exported: Path, tmp_path: Path, lib: Module) -> None:
    """Threads call and load while others close: each call is right, or says that it is closed."""
    path = Path(shutil.copy(exported, tmp_path / "other.so"))
    wrong: list[object] = []
    shared = [load_module(path)]
    stop = threading.Event()

    def call(call_number: int) -> None:
        names = list(CALLS)
        while not stop.is_set():
            call_number += 1
            try:
                if not np.array_equal(CALLS[names[call_number % len(names)]](shared[0]), 2 * X):
                    wrong.append(names[call_number % len(names)])
            except UserError as error:
                if error.code != "closed":
                    wrong.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for i in range(30):
        old = shared[0]
        shared[0] = load_module(path)
        while not old.library.closed:
            try:
                old.close(wait=i % 2 == 0)
            except UserError as error:
                assert error.code == "in-use"
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_in_a_child(lib: Module) -> None:
    """Calls and callbacks of the parent's other threads are not under way there."""
    entered, go_on = threading.Event(), threading.Event()
    hook.append(lambda: (entered.set(), go_on.wait(60)))
    results: list[Any] = []

    def call(name: str) -> None:
        results.append(np.array(CALLS[name](lib)))

    callers = [threading.Thread(target=call, args=(n,)) for n in ("graph", "invoke")]
    for caller in callers:
        caller.start()
    assert entered.wait(60)
    while len(lib.library.using._threads) + lib.library.calls.count(this_thread=False) < 2:
        pass
    hook.clear()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            np.testing.assert_array_equal(graph(lib, X), 2 * X)
            lib.close()
            again = load_module(lib.path)
            np.testing.assert_array_equal(graph(again, X), 2 * X)
            tk.runtime.register_function("tests.close_in_call", lambda x: x)
            again.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    for caller in callers:
        caller.join(60)
    assert all(np.array_equal(r, 2 * X) for r in results)
    lib.close()
