"""insert_barriers: the barriers that device functions need, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.transform.device.hitting_set import cheapest
from tensorkiln.transform.tir.check_races import races_of
from tensorkiln.transform.tir.insert_barriers import insert_barriers, with_barriers
from tests.ir.evaluate_device import ORDERS, launch
from tests.transform.device_programs import (
    CASES,
    SYNC,
    arrays_of,
    barriers,
    device,
    function,
    loop,
    shared,
    text_of,
    threads,
    without_barrier,
)
from tests.transform.graphs import check_text

SIZES = {"n": 2, "m": 3}


def results(f: PrimFunc, order: str) -> tuple[np.ndarray, bool]:
    """(what it writes, whether threads of a block raced)."""
    sizes = {v.name: SIZES[v.name] for v in f.params if isinstance(v, Var)}
    arrays = arrays_of(f, **sizes)
    races = launch(f, arrays, order)
    return arrays[f.buffers[-1].name], any(r.kind == "race" for r in races)


def differs(f: PrimFunc) -> bool:
    """Whether the evaluator sees a race, or another result in another order."""
    outcomes = [results(f, order) for order in ORDERS]
    return any(raced or not np.array_equal(a, outcomes[0][0]) for a, raced in outcomes)


@pytest.mark.parametrize("name", CASES)
def test_texts(name: str) -> None:
    case = CASES[name]
    check_text(
        insert_barriers,
        text_of(*case.parts, parameters=case.parameters, blocks=case.blocks),
        text_of(*case.with_barriers, parameters=case.parameters, blocks=case.blocks),
    )


@pytest.mark.parametrize("name", CASES)
def test_all_orders_of_threads_agree(name: str) -> None:
    assert not differs(with_barriers(function(CASES[name], whole=False)))


@pytest.mark.parametrize("name", CASES)
def test_no_barrier_is_too_many(name: str) -> None:
    """Without any of them, a fault is found, or the evaluator sees a difference."""
    case = CASES[name]
    f = function(case, whole=True)
    barrier_count = barriers(function(case, whole=False))
    for barrier_index in range(barriers(f)):
        weakened = without_barrier(f, barrier_index)
        races = races_of(weakened)
        if races.faults:
            assert differs(weakened), (name, barrier_index)
        else:
            assert races.doubts or barrier_count, (name, barrier_index)


def test_an_unaffine_tree_needs_each_barrier_that_is_assumed() -> None:
    f = function(CASES["a sum as a tree of any depth"], whole=True)
    assert all(differs(without_barrier(f, k)) for k in range(barriers(f)))


def test_nothing_changes_where_no_barrier_is_needed() -> None:
    f = function(CASES["one thread's element"], whole=True)
    mod = IRModule((f,))
    assert insert_barriers(mod) is mod


def test_other_programs_are_left() -> None:
    f = device(shared(), threads("s[t] = X[b, t]"), threads("Y[b, t] = s[7 - t]"))
    plain = PrimFunc(f.name, f.params, f.body, f.outputs)
    assert with_barriers(plain) is plain


def test_rounds_are_dearer_than_places() -> None:
    """One barrier before the loop serves two buffers, not one for each within it."""
    f = with_barriers(
        device(
            shared(),
            shared("r"),
            threads("s[t] = X[b, t]"),
            threads("r[t] = X[b, 7 - t]"),
            loop(
                "for k in range(4):",
                threads("Y[b, t] = s[7 - t]"),
                threads("Y[b, t] = Y[b, t] + r[7 - t]"),
            ),
        )
    )
    assert barriers(f) == 1
    lines = [line.strip() for line in f.script().splitlines()]
    assert lines.index(SYNC) + 1 == lines.index("for k in T.serial(4):")
    verify(IRModule((f,)))


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], []),
        ([{1, 2}, {2, 3}], [2]),
        ([{1}, {1, 2}, {2, 3}], [1, 2]),
        ([{1, 4}, {2, 4}, {3, 4}], [4]),
        ([{1, 5}, {2, 5}], [1, 2]),  # 5 costs more than both
    ],
)
def test_cheapest(sets: list[set[int]], expected: list[int]) -> None:
    assert cheapest(sets, {1: 1, 2: 1, 3: 1, 4: 2, 5: 9}) == expected
