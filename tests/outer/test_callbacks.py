"""Python functions by name: what they get and give, and where their exceptions come out."""

from __future__ import annotations

import gc
import threading
import traceback
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tests.outer.build import (
    BOOL,
    FUNC,
    OBJECT,
    SCALAR,
    AnyTensorType,
    F,
    GlobalRef,
    If,
    Lambda,
    StringValue,
    Tuple,
    TupleType,
    binary,
    executor,
    number,
    tensor,
)

HOOK = "tests.outer.hook"


class CallbackFailed(Exception):
    pass


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def hooked(f: F, var: str, x: Any) -> Any:
    return f.packed(var, SCALAR, HOOK, x)


def _branch() -> Any:
    f = F("branch", x=SCALAR)
    big = f.call("big", BOOL, GlobalRef("gt"), f["x"], number(0))
    then_branch, else_branch = F("then"), F("other")
    a, b = hooked(then_branch, "a", f["x"]), hooked(else_branch, "b", f["x"])
    return f.outer(f.let("y", SCALAR, If(big, then_branch.body(a), else_branch.body(b))))


def _loop() -> list[Any]:
    f = F("loop", x=SCALAR)
    out = f.call("out", SCALAR, "while_loop", GlobalRef("positive"), GlobalRef("less"), f["x"])
    cond, body = F("positive", x=SCALAR), F("less", x=SCALAR)
    c = cond.call("c", BOOL, GlobalRef("gt"), cond["x"], number(0))
    once = body.call("once", SCALAR, GlobalRef("sub"), body["x"], number(1))
    return [f.outer(out), cond.outer(c), body.outer(hooked(body, "seen", once))]


def _recursion() -> Any:
    f = F("recursion", x=SCALAR)
    is_positive = f.call("more", BOOL, GlobalRef("gt"), f["x"], number(0))
    then_branch, end = F("then"), F("end")
    decreased = then_branch.call("less", SCALAR, GlobalRef("sub"), f["x"], number(1))
    deeper = then_branch.call("deeper", SCALAR, GlobalRef("recursion"), decreased)
    last = hooked(end, "last", f["x"])
    return f.outer(f.let("y", SCALAR, If(is_positive, then_branch.body(deeper), end.body(last))))


def _closure() -> Any:
    f = F("closure", x=SCALAR)
    inner = F("inner", y=SCALAR)
    total = inner.call("total", SCALAR, GlobalRef("sub"), f["x"], inner["y"])
    adder = f.let("made", FUNC, Lambda(inner.done(hooked(inner, "seen", total))))
    return f.outer(f.call("out", SCALAR, adder, number(0)))


def _nested() -> list[Any]:
    """A call in a call, with values held on every level."""
    out = []
    for depth, callee in enumerate(("branch", "nested0", "nested1")):
        f = F(f"nested{depth}", x=SCALAR)
        held_values = f.let(
            "held", TupleType((SCALAR, OBJECT)), Tuple((f["x"], StringValue("held " * 5)))
        )
        out.append(f.outer(f.call("y", SCALAR, GlobalRef(callee), f["x"])))
        del held_values
    return out


def _as_argument() -> Any:
    """A function that is handed to the callback, which calls it."""
    f = F("as_argument", x=SCALAR)
    return f.outer(f.packed("y", SCALAR, "tests.outer.apply", GlobalRef("branch"), f["x"]))


def _many_values() -> Any:
    f = F("many_values", x=AnyTensorType())
    pair = Tuple((f["x"], StringValue("text")))
    return f.outer(f.packed("y", OBJECT, "tests.outer.values", f["x"], pair, number(3)))


def _by_library() -> Any:
    """Functions of the library itself, by name: a graph and an outer one."""
    f = F("by_library", x=SCALAR)
    decreased = f.packed("less", SCALAR, "sub", f["x"], number(1))
    return f.outer(f.packed("y", SCALAR, "recursion", decreased))


def _wrong_result() -> Any:
    f = F("wrong_result")
    return f.outer(f.packed("y", tensor((2,), "float32"), "tests.outer.wrong"))


def _chain() -> Any:
    """Ten calls in a row, of which each needs the result before only."""
    f = F("chain", x=SCALAR)
    x = f["x"]
    for k in range(10):
        x = hooked(f, f"x{k}", x)
    return f.outer(x)


def _unknown() -> Any:
    f = F("unknown")
    return f.outer(f.packed("y", OBJECT, "tests.outer.nobody"))


@pytest.fixture(scope="module")
def run() -> Any:
    return executor(
        binary("gt", "greater", SCALAR, BOOL),
        binary("sub", "sub"),
        _branch(),
        *_loop(),
        _recursion(),
        _closure(),
        *_nested(),
        _as_argument(),
        _many_values(),
        _by_library(),
        _wrong_result(),
        _unknown(),
        _chain(),
    )


def live(run: Any) -> int:
    gc.collect()  # frames of exceptions hold tensors, in cycles
    return int(run.module.library.dll.kiln_live_objects())


FORMS = ["branch", "loop", "recursion", "closure", "nested2", "as_argument"]


@pytest.mark.parametrize("x", [3.0, -3.0])
@pytest.mark.parametrize("name", FORMS)
def test_an_exception_comes_out_as_itself(run: Any, name: str, x: float) -> None:
    raised = CallbackFailed("from Python")
    fail = True

    def hook(t: Any) -> Any:
        def deeper() -> None:
            raise raised

        if fail:
            deeper()
        return t

    tk.runtime.register_function(HOOK, hook)
    tk.runtime.register_function("tests.outer.apply", lambda f, t: f(t))
    if name == "loop" and x < 0:
        x = 3.0
    before = live(run)
    for _ in range(3):
        with pytest.raises(CallbackFailed) as caught:
            run[name](f32(x))
        assert caught.value is raised
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[-2:] == ["hook", "deeper"]
        raised.__traceback__ = None
        del caught
    assert live(run) == before
    fail = False
    expected = {"loop": 0, "recursion": min(x, 0)}.get(name, x)
    assert run[name](f32(x)).numpy() == expected
    assert live(run) == before


def test_the_exception_after_some_rounds_of_a_loop(run: Any) -> None:
    values_seen: list[float] = []

    def hook(t: Any) -> Any:
        values_seen.append(float(t.numpy()))
        if len(values_seen) == 3:
            raise KeyboardInterrupt
        return t

    tk.runtime.register_function(HOOK, hook)
    with pytest.raises(KeyboardInterrupt):
        run["loop"](f32(10))
    assert values_seen == [9, 8, 7]


def test_values_are_given_back_after_their_last_use(run: Any) -> None:
    counts: list[int] = []

    def hook(t: Any) -> Any:
        counts.append(run.module.library.dll.kiln_live_objects())
        return t.numpy() + 1

    tk.runtime.register_function(HOOK, hook)
    assert run["chain"](f32(0)).numpy() == 10
    assert max(counts[1:]) == min(counts[1:])


def test_the_callback_may_call_the_same_executor(run: Any) -> None:
    depth = 0

    def hook(t: Any) -> Any:
        nonlocal depth
        depth += 1
        return run["branch"](f32(7)) if depth < 5 else f32(depth)

    tk.runtime.register_function(HOOK, hook)
    assert run["branch"](f32(1)).numpy() == 5


def test_an_exception_may_be_dealt_with_on_the_way(run: Any) -> None:
    @tk.runtime.register_function(HOOK)
    def hook(t: Any) -> Any:
        if t.numpy() < 0:
            raise CallbackFailed
        try:
            run["branch"](f32(-1))
        except CallbackFailed:
            return f32(42)
        raise AssertionError

    assert run["branch"](f32(1)).numpy() == 42


def test_what_a_callback_gets(run: Any) -> None:
    arguments: list[Any] = []

    def values(*args: Any) -> Any:
        arguments.extend(args)
        return args

    tk.runtime.register_function("tests.outer.values", values)
    x = np.arange(4, dtype=np.int64).reshape(2, 2)
    y = run["many_values"](x)
    np.testing.assert_array_equal(arguments[0].numpy(), x)
    assert np.shares_memory(arguments[0].numpy(), x)
    assert arguments[1][1] == "text" and arguments[2].numpy() == 3
    arguments[2].numpy()[...] = 4  # its own copy of the constant
    assert run["many_values"](x)[2].numpy() == 3
    np.testing.assert_array_equal(y[1][0].numpy(), x)


def test_functions_of_the_library_by_name(run: Any) -> None:
    tk.runtime.register_function(HOOK, lambda t: t.numpy() - 10)
    assert run["by_library"](f32(3)).numpy() == -10


def test_a_registered_name_comes_first_and_can_be_taken_away(run: Any) -> None:
    tk.runtime.register_function(HOOK, lambda t: t)
    tk.runtime.register_function("sub", lambda a, b: f32(-5))
    try:
        assert run["by_library"](f32(3)).numpy() == -5
    finally:
        tk.runtime.unregister_function("sub")
    assert run["by_library"](f32(3)).numpy() == 0


def test_unknown_names_and_wrong_results(run: Any) -> None:
    with pytest.raises(LookupError, match=r"no function 'tests.outer.nobody'; register it.*at y"):
        run["unknown"]()
    tk.runtime.register_function("tests.outer.wrong", lambda: np.zeros(3, np.float32))
    with pytest.raises(
        ValueError, match=r"the result of 'tests.outer.wrong' must be float32 \[2\]"
    ):
        run["wrong_result"]()
    tk.runtime.register_function("tests.outer.wrong", lambda: {1: 2})
    with pytest.raises(TypeError, match="the result of a callback: dict cannot be passed"):
        run["wrong_result"]()
    with pytest.raises(TypeError, match="expected a function"):
        tk.runtime.register_function("x", 3)


def test_exceptions_of_threads_do_not_meet(run: Any) -> None:
    tk.runtime.register_function(
        HOOK, lambda t: (_ for _ in ()).throw(ValueError(t.numpy().item()))
    )
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(100):
            try:
                run["nested2"](f32(k * 1000 + i))
            except ValueError as error:
                if error.args != (k * 1000 + i,):
                    wrong.append(error)
            else:
                wrong.append("no error")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
