"""Random legal schedules compute what the program does; illegal ones are refused."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    ScheduleError,
    TraceStep,
    children,
    loops,
    normal,
)
from tests.ir.evaluate import run
from tests.schedule.corpus import CASES, Case
from tests.schedule.gpu.random_device_schedules import DEVICE_ONLY
from tests.schedule.random_schedules import ACTIONS, Tally, random_schedule

FAST, ALL, PARTS, COMPILED = 168, 2100, 4, 42


def outputs(case: Case, f: PrimFunc, seed: int) -> list[np.ndarray]:
    arrays = case.arrays(seed)
    run(f, arrays, seed)
    return list(arrays.values())


def same(case: Case, a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    if case.exact:
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))
    return all(np.allclose(x, y, rtol=1e-5) for x, y in zip(a, b, strict=True))


def first_wrong(case: Case, steps: list[TraceStep], seed: int) -> str:
    """The trace up to the first step after which results differ."""
    f = normal(case.func)
    want = outputs(case, f, seed)
    for k, step in enumerate(steps):
        f, _ = step.apply(f)
        try:
            right = same(case, outputs(case, f, seed), want)
        except (AssertionError, KeyError) as e:
            return "\n".join([*map(str, steps[: k + 1]), str(e), f.script()])
        if not right:
            return "\n".join([*map(str, steps[: k + 1]), f.script()])
    return "no step alone"


def check(case: Case, seed: int, tally: Tally) -> None:
    rng = Random(f"{case.name} {seed}")
    f, steps = random_schedule(case.func, rng, rng.randint(2, 12), tally)
    want = outputs(case, case.func, seed)
    try:
        right = same(case, outputs(case, f, seed), want)
    except (AssertionError, KeyError):
        right = False
    if not right:
        pytest.fail(f"{case.name}:\n{first_wrong(case, steps, seed)}")


def run_many(count: int, first: int) -> Tally:
    tally = Tally()
    for k in range(count):
        check(CASES[k % len(CASES)], first + k // len(CASES), tally)
    return tally


def healthy(tally: Tally) -> None:
    """Most tries are legal, many are not, and every primitive was seen on both sides."""
    assert 0.4 < tally.share < 0.95, tally
    assert tally.given_up <= 0.01 * sum(tally.illegal.values()), tally
    for name in {name for name, _ in ACTIONS}:
        assert tally.legal.get(name, 0) > 0, f"{name} was never legal"
    for name in ("split", "reorder", "vectorize", "parallel", "fuse", "bind"):
        assert tally.illegal.get(name, 0) > 0, f"{name} was never refused"


@pytest.mark.slow
def test_refusals_are_right_and_so_are_proofs() -> None:
    """Every change of order that one step can make: proved where it is right, and only there."""
    proved = refused = 0
    for case in CASES:
        f = normal(case.func)
        names = loops(f)
        steps = [(p, (n,)) for n in names for p in ("parallel", "vectorize")]
        steps += [("reorder", (m, n)) for n in names for m in children(f, n) if m in names]
        want = [outputs(case, f, seed) for seed in range(3)]
        for primitive, args in steps:
            try:
                after = PRIMITIVES[primitive](f, *args, check=False)
            except ScheduleError:
                continue  # refused for its form
            right = all(_right(case, after, seed, w) for seed, w in enumerate(want))
            try:
                PRIMITIVES[primitive](f, *args)
                proved += 1
                assert right, f"{case.name}: {primitive}{args} was proved"
            except ScheduleError as e:
                refused += 1
                assert not right, f"{case.name}: {e}"
    assert proved > 100 and refused > 50


def _right(case: Case, f: PrimFunc, seed: int, want: list[np.ndarray]) -> bool:
    try:
        return same(case, outputs(case, f, seed), want)
    except AssertionError:
        return False  # a race, or an index outside its buffer


def test_random_schedules() -> None:
    healthy(run_many(FAST, 20000))


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_two_thousand_random_schedules(part: int) -> None:
    tally = run_many(ALL // PARTS, 1000 * (part + 1))
    print(f"\npart {part}: {tally.text()}")
    healthy(tally)
    assert max(tally.lengths) == 12


def test_every_primitive_takes_part() -> None:
    known = {*(name for name, _ in ACTIONS), *DEVICE_ONLY}
    assert known == set(PRIMITIVES)


@pytest.mark.slow
def test_the_compiler_agrees() -> None:
    compile_many(range(COMPILED))


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_the_compiler_agrees_on_hundreds(part: int) -> None:
    first = 1000 * (part + 1)
    compile_many(range(first, first + 3 * COMPILED))


def compile_many(numbers: range) -> None:
    """Random schedules, compiled: block lowering, lanes, threads and all."""
    functions, wanted = [], []
    # a program of its own has its sizes as numbers
    fixed = [case for case in CASES if not case.sizes]
    for k in numbers:
        case = fixed[k % len(fixed)]
        rng = Random(f"compiled {k}")
        f, _ = random_schedule(case.func, rng, 8, Tally(), leave_out=("bind",))
        verify(IRModule((f,)))
        name = f"f{k}"
        functions.append(type(f)(name, f.params, f.body, f.outputs, public=True))
        wanted.append((case, name, outputs(case, case.func, k)))
    lib = tk.compile(IRModule(tuple(functions)), relax_pipeline=None).jit()
    for k, (case, name, want) in zip(numbers, wanted, strict=True):
        arrays = case.arrays(k)
        lib[name](*arrays.values())
        for got, expected in zip(arrays.values(), want, strict=True):
            np.testing.assert_allclose(
                got, expected, rtol=1e-5, err_msg=f"{case.func.name}, {name}"
            )
