"""Branches, loops, recursion, closures and functions as values."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.outer.build import (
    ANY,
    BOOL,
    FUNC,
    OBJECT,
    SCALAR,
    AnyTensorType,
    F,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    Tuple,
    TupleItem,
    TupleType,
    Var,
    binary,
    executor,
    number,
    tensor,
    unary,
)


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _absolute() -> Any:
    """x if x > 0 else -x, and within the second branch another one."""
    f = F("absolute", x=SCALAR)
    positive = f.call("positive", BOOL, GlobalRef("gt"), f["x"], number(0))
    else_branch = F("other")
    tiny = else_branch.call("tiny", BOOL, GlobalRef("lt"), f["x"], number(-100))
    negated = else_branch.call("negated", SCALAR, GlobalRef("neg"), f["x"])
    limit = F("limit").body(number(100))
    inner = else_branch.let("inner", SCALAR, If(tiny, limit, F("").body(negated)))
    return f.outer(f.let("y", SCALAR, If(positive, F("").body(f["x"]), else_branch.body(inner))))


def _power() -> Any:
    """x ** n by recursion: power(x, n) = x * power(x, n - 1)."""
    f = F("power", x=SCALAR, n=SCALAR)
    is_positive = f.call("more", BOOL, GlobalRef("gt"), f["n"], number(0))
    then_branch = F("then")
    decreased = then_branch.call("less", SCALAR, GlobalRef("sub"), f["n"], number(1))
    power = then_branch.call("rest", SCALAR, GlobalRef("power"), f["x"], decreased)
    product = then_branch.call("product", SCALAR, GlobalRef("mul"), f["x"], power)
    return f.outer(
        f.let("y", SCALAR, If(is_positive, then_branch.body(product), F("").body(number(1))))
    )


def _parity() -> list[Any]:
    """is_even and is_odd, which call each other."""
    out = []
    for name, other_name, base in (("is_even", "is_odd", True), ("is_odd", "is_even", False)):
        f = F(name, n=SCALAR)
        is_positive = f.call("more", BOOL, GlobalRef("gt"), f["n"], number(0))
        then_branch = F("then")
        decreased = then_branch.call("less", SCALAR, GlobalRef("sub"), f["n"], number(1))
        parity = then_branch.call("rest", BOOL, GlobalRef(other_name), decreased)
        value = F("").body(_bool(base))
        out.append(f.outer(f.let("y", BOOL, If(is_positive, then_branch.body(parity), value))))
    return out


def _bool(value: bool) -> Any:
    from tests.outer.build import constant

    return constant(np.array(value))


def _collatz() -> list[Any]:
    """Doubles x until it is at least `limit`; gives x and how often: two values of state, the limit
    captured by the condition."""
    f = F("until", x=SCALAR, limit=SCALAR)
    cond = F("below", a=SCALAR, b=SCALAR)
    below = cond.call("c", BOOL, GlobalRef("lt"), cond["a"], f["limit"])
    test = f.let("test", FuncType((SCALAR, SCALAR), BOOL), Lambda(cond.done(below)))
    state = TupleType((SCALAR, SCALAR))
    out = f.call("out", state, "while_loop", test, GlobalRef("double_count"), f["x"], number(0))
    step = F("double_count", a=SCALAR, b=SCALAR)
    doubled = step.call("doubled", SCALAR, GlobalRef("add"), step["a"], step["a"])
    count = step.call("count", SCALAR, GlobalRef("add"), step["b"], number(1))
    return [f.outer(out), step.outer(Tuple((doubled, count)))]


def _one_state() -> list[Any]:
    """A loop whose condition and body are graph functions, over one tensor."""
    f = F("halve", x=SCALAR)
    out = f.call("out", SCALAR, "while_loop", GlobalRef("big"), GlobalRef("half"), f["x"])
    big = F("big", x=SCALAR)
    half = F("half", x=SCALAR)
    return [
        f.outer(out),
        big.done(big.call("y", BOOL, "greater", big["x"], number(1))),
        half.done(half.call("y", SCALAR, "mul", half["x"], number(0.5))),
    ]


def _closures() -> list[Any]:
    """make_adder(x) returns a function; apply_twice(f, y) calls one; both in `closures`."""
    make = F("make_adder", x=SCALAR)
    inner = F("adder", y=SCALAR)
    total = inner.call("total", SCALAR, GlobalRef("add"), make["x"], inner["y"])
    adder_function = make.let("made", FUNC, Lambda(inner.done(total)))
    twice = F("apply_twice", f=FUNC, y=SCALAR)
    once = twice.call("once", SCALAR, twice["f"], twice["y"])
    again = twice.call("again", SCALAR, twice["f"], once)
    closures = F("closures", x=SCALAR, y=SCALAR)
    adder = closures.call("adder", FUNC, GlobalRef("make_adder"), closures["x"])
    out = closures.call("out", SCALAR, GlobalRef("apply_twice"), adder, closures["y"])
    return [make.outer(adder_function), twice.outer(again), closures.outer(out)]


def _functions_as_values() -> list[Any]:
    """A graph function, chosen by a branch, called as a value; and one in a tuple."""
    f = F("choose", x=SCALAR, first=BOOL)
    negation = F("").body(GlobalRef("neg"))
    chosen = f.let("chosen", ANY, If(f["first"], negation, F("").body(GlobalRef("double"))))
    called = f.call("called", OBJECT, chosen, f["x"])
    pair = f.let("pair", TupleType((ANY, ANY)), Tuple((chosen, GlobalRef("absolute"))))
    second = f.let("second", ANY, TupleItem(pair, 1))
    return [f.outer(Tuple((called, f.call("y", OBJECT, second, called))))]


def _symbols() -> list[Any]:
    """A closure that captures a dimension, and one that is bound in the middle."""
    n, m = Var("n"), Var("m")
    row, free = tensor((n,), "float32"), AnyTensorType(1)
    f = F("captured_size", x=row, z=free)
    inner = F("inner", y=free)
    same_row = inner.let("same", row, MatchCast(inner["y"], row))
    closure = f.let("made", FuncType((free,), row), Lambda(inner.done(same_row)))
    checked = f.call("checked", row, closure, f["z"])
    cast = f.let("other", tensor((m,), "float32"), MatchCast(f["z"], tensor((m,), "float32")))
    return [f.outer(Tuple((checked, cast)))]


@pytest.fixture(scope="module")
def run() -> Any:
    double = F("double", x=SCALAR)
    return executor(
        binary("gt", "greater", SCALAR, BOOL),
        binary("lt", "less", SCALAR, BOOL),
        binary("add", "add"),
        binary("sub", "sub"),
        binary("mul", "mul"),
        unary("neg", "neg"),
        double.done(double.call("y", SCALAR, "add", double["x"], double["x"])),
        _absolute(),
        _power(),
        *_parity(),
        *_collatz(),
        *_one_state(),
        *_closures(),
        *_functions_as_values(),
        *_symbols(),
    )


@pytest.mark.parametrize("x", [3.0, -4.0, -1000.0, 0.0])
def test_branches_in_branches(run: Any, x: float) -> None:
    assert run["absolute"](f32(x)).numpy() == min(abs(x), 100 if x < 0 else abs(x))


@pytest.mark.parametrize("n", [0, 1, 5, 30])
def test_recursion(run: Any, n: int) -> None:
    assert run["power"](f32(1.5), f32(n)).numpy() == pytest.approx(1.5**n)


def test_mutual_recursion(run: Any) -> None:
    for n in range(7):
        assert bool(run["is_even"](f32(n)).numpy()) == (n % 2 == 0)


def test_endless_recursion_is_an_error_and_the_executor_goes_on(run: Any) -> None:
    for _ in range(2):
        with pytest.raises(RecursionError, match=r"power: calls are \d+ deep.*while_loop"):
            run["power"](f32(1), f32(1e9))
        assert run["power"](f32(2), f32(3)).numpy() == 8


def test_endless_recursion_on_a_small_stack(run: Any) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            run["power"](f32(1), f32(1e9))
        except RecursionError as error:
            caught.append(error)

    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert "the stack is used up" in str(caught[0])


def test_a_loop_with_a_captured_limit(run: Any) -> None:
    x, count = run["until"](f32(3), f32(100))
    assert (x.numpy(), count.numpy()) == (192, 6)
    x, count = run["until"](f32(3), f32(1))
    assert (x.numpy(), count.numpy()) == (3, 0)


def test_a_loop_of_many_rounds_needs_no_stack(run: Any) -> None:
    assert run["halve"](f32(8)).numpy() == 1
    assert run["halve"](f32(5)).numpy() == 0.625


def test_closures_outlive_the_function_that_made_them(run: Any) -> None:
    add_five = run["make_adder"](f32(5))
    add_six = run["make_adder"](f32(6))
    assert (add_five(f32(1)).numpy(), add_six(f32(1)).numpy()) == (6, 7)
    assert run["apply_twice"](add_six, f32(1)).numpy() == 13
    assert run["closures"](f32(10), f32(1)).numpy() == 21


def test_python_functions_as_arguments(run: Any) -> None:
    assert run["apply_twice"](lambda t: t.numpy() * 3, f32(2)).numpy() == 18


def test_functions_as_values(run: Any) -> None:
    assert [t.numpy() for t in run["choose"](f32(4), np.array(True))] == [-4, 4]
    assert [t.numpy() for t in run["choose"](f32(4), np.array(False))] == [8, 8]


def test_dimensions_are_captured(run: Any) -> None:
    x = np.arange(3, dtype=np.float32)
    same_row, cast_row = run["captured_size"](x, x + 1)
    np.testing.assert_array_equal(same_row.numpy(), x + 1)
    np.testing.assert_array_equal(cast_row.numpy(), x + 1)
    with pytest.raises(ValueError, match=r"the value of same must be float32 \[n\].*\[2\]"):
        run["captured_size"](x, x[:2])


def test_wrong_arguments(run: Any) -> None:
    with pytest.raises(ValueError, match=r"absolute: argument 'x' must be float32 \[\].*\[2\]"):
        run["absolute"](np.zeros(2, np.float32))
    with pytest.raises(TypeError, match=r"must be float32 \[\], received float64 \[\]"):
        run["absolute"](np.array(1.0))
    with pytest.raises(TypeError, match="expected 1 input"):
        run["absolute"]()
    with pytest.raises(TypeError, match=r"argument 'f' must be a function, received a tensor"):
        run["apply_twice"](f32(1), f32(1))
    with pytest.raises(LookupError, match="an outer function"):
        run.module["absolute"]
