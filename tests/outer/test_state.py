"""Executors with state, in threads, after exceptions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tests.outer.build import (
    BOOL,
    SCALAR,
    STRING,
    AnyTensorType,
    F,
    GlobalRef,
    If,
    MatchCast,
    Tuple,
    Var,
    binary,
    library,
    number,
    tensor,
    unary,
)


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _pair() -> Any:
    """A graph function with two outputs, of a size that comes with the call."""
    n = Var("n")
    row = tensor((n,), "float32")
    f = F("pair", x=row, y=row)
    total = f.call("total", row, "add", f["x"], f["y"])
    return f.done(Tuple((total, f.call("product", row, "mul", f["x"], f["y"]))))


def _steps() -> list[Any]:
    """Two rows summed n times, through a loop, a branch, and a call by name."""
    n = Var("n")
    row = tensor((n,), "float32")
    plus = F("plus", a=row, b=row)
    twice = F("twice", x=AnyTensorType(1, row.dtype), k=SCALAR)
    x = twice.let("sized", row, MatchCast(twice["x"], row))
    small = twice.call("small", BOOL, GlobalRef("lt"), twice["k"], number(2))
    then, other = F("then"), F("other")
    a = then.call("a", row, GlobalRef("plus"), x, x)
    b = other.packed("b", row, "plus", x, x)
    c = other.call("c", row, GlobalRef("plus"), b, x)
    out = twice.let("out", row, If(small, then.body(a), other.body(c)))
    return [plus.done(plus.call("y", row, "add", plus["a"], plus["b"])), twice.outer(out)]


@pytest.fixture(scope="module")
def lib() -> Any:
    called = F("called", x=SCALAR)
    return library(
        binary("lt", "less", SCALAR, BOOL),
        unary("negate", "neg"),
        _pair(),
        *_steps(),
        called.outer(called.packed("y", SCALAR, "tests.outer.state", called["x"])),
    )


@pytest.fixture
def run(lib: Any) -> Any:
    return tk.runtime.Executor(lib, tk.cpu())


def test_inputs_stay_and_outputs_are_read_after(run: Any) -> None:
    x, y = np.arange(3, dtype=np.float32), np.full(3, 2, np.float32)
    run.set_input("pair", x, y=y)
    run.invoke("pair")
    total, product = run.get_outputs("pair")
    assert (total.numpy().tolist(), product.numpy().tolist()) == ([2, 3, 4], [0, 2, 4])
    x[0] = 10  # inputs are read when the function runs
    run.invoke("pair")
    assert run.get_outputs("pair")[0].numpy()[0] == 12


def test_bound_outputs_are_written_directly(run: Any) -> None:
    x = np.arange(4, dtype=np.float32)
    place = np.zeros(4, np.float32)
    run.set_input("pair", x, x)
    run.set_output("pair", 1, place)
    run.invoke("pair")
    total, product = run.get_outputs("pair")
    assert product is place and place.tolist() == [0, 1, 4, 9]
    assert total.numpy().tolist() == [0, 2, 4, 6]
    run.set_output("pair", 1, None)
    place[:] = -1
    run.invoke("pair")
    assert place.tolist() == [-1] * 4 and run.get_outputs("pair")[1].numpy()[3] == 9


def test_outer_functions_have_state_too(run: Any) -> None:
    x, place = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    run.set_input("twice", x=x, k=f32(5))
    run.invoke("twice")
    assert run.get_outputs("twice").numpy().tolist() == [0, 3, 6]
    run.set_output("twice", 0, place)
    run.invoke("twice")
    assert run.get_outputs("twice") is place and place.tolist() == [0, 3, 6]


def test_state_is_of_one_executor(run: Any, lib: Any) -> None:
    other = tk.runtime.Executor(lib, tk.cpu())
    run.set_input("pair", np.ones(1, np.float32), np.ones(1, np.float32))
    with pytest.raises(UserError, match="has no inputs yet") as caught:
        other.invoke("pair")
    assert 'executor.set_input("pair", ...)' in str(caught.value)


def test_misuse_of_state(run: Any) -> None:
    with pytest.raises(UserError, match="it was not invoked, or failed"):
        run.get_outputs("pair")
    with pytest.raises(TypeError, match="there is no output 2"):
        run.set_output("pair", 2, np.zeros(1))
    with pytest.raises(TypeError, match=r"no input 'z'"):
        run.set_input("pair", z=1)
    with pytest.raises(TypeError, match="missing y"):
        run.set_input("pair", x=1)
    with pytest.raises(LookupError, match="no function 'pears'"):
        run.invoke("pears")


def test_no_outputs_after_a_failure_and_the_next_call_is_whole(run: Any) -> None:
    tk.runtime.register_function("tests.outer.state", lambda t: t)
    run.set_input("called", f32(3))
    run.invoke("called")

    def fail(t: Any) -> Any:
        raise ArithmeticError("no")

    tk.runtime.register_function("tests.outer.state", fail)
    with pytest.raises(ArithmeticError):
        run.invoke("called")
    with pytest.raises(UserError, match="it was not invoked, or failed"):
        run.get_outputs("called")
    tk.runtime.register_function("tests.outer.state", lambda t: -t.numpy())
    run.invoke("called")
    assert run.get_outputs("called").numpy() == -3


def test_eight_threads_of_a_thousand_calls_on_one_library(lib: Any) -> None:
    """Half of the threads share an executor, the others have one each; a tenth of all calls raises
    in a callback."""
    shared = tk.runtime.Executor(lib, tk.cpu())
    live = lib.library.dll.kiln_live_objects()
    wrong: list[object] = []

    def callback(t: Any) -> Any:
        if t.numpy() % 10 == 0:
            raise ZeroDivisionError(int(t.numpy()))
        return t

    tk.runtime.register_function("tests.outer.state", callback)

    def work(k: int) -> None:
        run = shared if k % 2 else tk.runtime.Executor(lib, tk.cpu())
        x = np.arange(1 + 100 * k, dtype=np.float32)
        for i in range(500):
            try:
                y = run["twice"](x + i, f32(i % 4)).numpy()
                if not np.array_equal(y, (x + i) * (2 if i % 4 < 2 else 3)):
                    wrong.append((k, i))
                if run["called"](f32(i)).numpy() != i or i % 10 == 0:
                    wrong.append(("called", k, i))
            except ZeroDivisionError as error:
                if error.args != (i,) or i % 10:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert lib.library.dll.kiln_live_objects() == live


def test_an_output_is_an_item_of_the_tuple() -> None:
    """As docs/howto/control-flow.md has it, for tuples of every kind of value."""
    n = Var("n")
    row = tensor((n,), "float32")
    f = F("main", x=row, label=STRING)
    shown = f.packed("shown", row, "tests.outer.state.rows", f["x"])
    one = F("one", x=row)
    lib = library(
        f.outer(Tuple((shown, Tuple((f["label"], f["x"])), shown))),
        one.outer(one.packed("y", row, "tests.outer.state.rows", one["x"])),
    )
    tk.runtime.register_function("tests.outer.state.rows", lambda t: t.numpy() * 2)
    run, x = tk.runtime.Executor(lib, tk.cpu()), np.arange(3, dtype=np.float32)
    rooms = {k: np.zeros(3, np.float32) for k in (0, 2)}
    run.set_input("main", x, "words")
    for k, room in rooms.items():
        run.set_output("main", k, room)
    run.invoke("main")
    first, (label, given), last = run.get_outputs("main")
    assert first is rooms[0] and last is rooms[2] and label == "words"
    assert first.tolist() == last.tolist() == [0, 2, 4] and given.numpy().tolist() == [0, 1, 2]
    run.set_output("main", 2, None)
    rooms[2].fill(-1)
    run.invoke("main")
    assert rooms[2].tolist() == [-1] * 3 and run.get_outputs("main")[2].numpy()[2] == 4
    for index, place, words in [
        (1, rooms[2], r"main\[1\]: out= for a result that is tuple"),
        (3, rooms[2], "main has 3 outputs, there is no output 3"),
        (2, np.zeros(4, np.float32), r"main\[2\]: out= is float32 \[4\], the result float32 \[3\]"),
    ]:
        run.set_output("main", index, place)
        with pytest.raises(TypeError, match=words) as caught:
            run.invoke("main")
        assert isinstance(caught.value, UserError)
        run.set_output("main", index, None)
    with pytest.raises(TypeError, match="there is no output -1"):
        run.set_output("main", -1, rooms[0])
    run.set_input("one", x)
    run.set_output("one", 1, rooms[0])
    with pytest.raises(TypeError, match="one has 1 output, there is no output 1"):
        run.invoke("one")
