"""check_races: races, missing barriers and accesses out of bounds are found, with the threads."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.transform.tir.check_races import UnprovedWarning, check_races, races_of
from tests.ir.evaluate_device import ORDERS, launch
from tests.transform.device_programs import (
    ADDED,
    CASES,
    HALVES,
    IN,
    KEPT,
    NEXT,
    OUT,
    REVERSED,
    SYMBOLIC,
    SYNC,
    ZERO,
    arrays_of,
    device,
    function,
    loop,
    shared,
    text_of,
    threads,
)
from tests.transform.graphs import check_text

TWO = threads(threads("s[4 * u + t] = X[b, 4 * u + t]", 4), 2, "y")
VECTOR = 'X: T.Buffer((2, 8), "float32"), Y: T.Buffer((2, 8), "float32")'
# name: (parts, kind, buffer)
FAULTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a missing barrier": ((shared(), IN, REVERSED), "race", "s"),
    "all threads write one element": ((shared(), threads("s[0] = X[b, t]")), "race", "s"),
    "all threads write one element of global memory": (
        (threads("Y[b, 0] = X[b, t]"),),
        "race",
        "Y",
    ),
    "neighbours in one nest": (
        (shared(), IN, SYNC, threads("s[t] = s[(t + 1) % 8]")),
        "race",
        "s",
    ),
    "two nests without a barrier, in global memory": (
        (threads("Y[b, t] = X[b, t]"), threads("Y[b, 7 - t] = X[b, t]")),
        "race",
        "Y",
    ),
    "no barrier at the end of a round": (
        (shared(), ZERO, loop("for k in range(3):", NEXT, SYNC, ADDED)),
        "race",
        "s",
    ),
    "no barrier at the start of a round": (
        (shared(), ZERO, loop("for k in range(3):", NEXT, ADDED, SYNC)),
        "race",
        "s",
    ),
    "the wrong one of two tiles": (
        (
            shared(size="16"),
            ZERO,
            loop(
                "for k in range(4):",
                SYNC,
                threads("s[t + 8 * (k % 2)] = X[b, t]"),
                threads("Y[b, t] = s[7 - t + 8 * (k % 2)]"),
            ),
        ),
        "race",
        "s",
    ),
    "a step of a tree without barrier": (
        (shared(), IN, SYNC, HALVES[0], HALVES[1], SYNC, HALVES[2], OUT),
        "race",
        "s",
    ),
    "a condition that reads what others write": (
        (shared(), IN, loop("if s[0] < 25:", KEPT)),
        "race",
        "s",
    ),
    "a barrier in a branch that is not taken": (
        (shared(), IN, loop("if b == 0:", SYNC, ZERO), REVERSED),
        "doubt",
        "s",
    ),
    "an index from memory, of which callers may know the end": (
        (threads('Y[b, t] = X[b, T.Cast("int64", X[0, 0])]'),),
        "doubt",
        "X",
    ),
    "threads of different indices": (
        (shared(), TWO, threads(threads("Y[b, 2 * u + t] = s[2 * u + t]", 2), 4, "y")),
        "race",
        "s",
    ),
    "two blocks write one element": ((threads("Y[0, t] = X[b, t]"),), "blocks", "Y"),
    "a block reads what another writes": (
        (threads("Y[b, t] = X[b, t]"), SYNC, threads("Y[b, t] = Y[0, t] + 1")),
        "blocks",
        "Y",
    ),
    "overlapping rows of blocks": (
        (threads("Y[b // 2, t] = X[b, t]"),),
        "blocks",
        "Y",
    ),
    "before the first element": ((threads("Y[b, t] = X[b, t - 1]"),), "bounds", "X"),
    "behind the last element": ((threads("Y[b, t] = X[b, t + 1]"),), "bounds", "X"),
    "before the first element of shared memory": (
        (shared(), threads("s[t - 1] = X[b, t]")),
        "bounds",
        "s",
    ),
    "behind the last element of shared memory": (
        (shared(size="7"), threads("s[t] = X[b, t]")),
        "bounds",
        "s",
    ),
    "behind the last row": ((threads("Y[b + 1, t] = X[b, t]"),), "bounds", "Y"),
    "a guard that is one too wide": (
        (threads("if t + 4 * b <= 12:\n    Y[b, t + 4 * b] = X[b, t]"),),
        "bounds",
        "Y",
    ),
    "a register tile": (
        (threads('r = T.alloc_buffer((4,), "int32", scope="local")\nr[t // 2 + 1] = 0'),),
        "bounds",
        "r",
    ),
    "the last lane of a vector": (
        (threads("Y[b, t : t + 4] = X[b, 0:4]", 6),),
        "bounds",
        "Y",
    ),
    "a select computes both operands": (
        (threads("Y[b, t] = T.select(t > 0, X[b, t - 1], 0)"),),
        "bounds",
        "X",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    parts, kind, buffer = FAULTS[name]
    blocks = "4" if "overlapping" in name else "2"
    parameters = 'X: T.Buffer((4, 8), "int32"), Y: T.Buffer((4, 8), "int32")'
    f = device(*parts, blocks=blocks, **({"parameters": parameters} if blocks == "4" else {}))
    found = races_of(f)
    if kind == "doubt":
        assert not found.faults and [d.buffer for d in found.doubts] == [buffer]
        return
    match = [x for x in found.faults if (x.kind, x.buffer) == (kind, buffer)]
    assert match and not found.doubts, found
    fault = match[0]
    if kind == "bounds":
        b = next(a for a in (*f.buffers, *_allocated(f)) if a.name == buffer)
        shape = [getattr(d, "value", 0) for d in b.shape]
        inside = all(0 <= i < n for i, n in zip(fault.element, shape, strict=True))
        assert not inside and fault.second is None
        with pytest.raises(AssertionError, match="outside"):
            launch(f, arrays_of(f))
        return
    assert fault.second is not None
    assert fault.first.write or fault.second.write
    if kind == "race":
        assert fault.first.block == fault.second.block
        assert fault.first.thread != fault.second.thread
    else:
        assert fault.first.block != fault.second.block
    inside = not any(x.kind == "bounds" for x in found.faults)
    races = launch(f, arrays_of(f)) if inside else []
    pairs = {(r.buffer, r.kind) for r in races}
    assert not inside or (buffer, kind) in pairs, races


def _allocated(f: PrimFunc) -> list[Buffer]:
    return [s.buffer for s in walk_stmt(f.body) if isinstance(s, Alloc)]


def test_the_text_of_a_fault_names_all_of_it() -> None:
    faults = races_of(device(shared(), IN, REVERSED)).faults
    assert len(faults) == 1
    text = str(faults[0])
    assert re.fullmatch(
        r"s\[(\d)\] is written by `s\[t\] = X\[b, t\]` in thread \((\d), 0, 0\) and read by "
        r"`Y\[b, t\] = s\[7 - t\]` in thread \((\d), 0, 0\) of block \(\d, 0, 0\) with no barrier "
        r"in between",
        text,
    )
    element, writer, reader = (int(x) for x in re.findall(r"(?:\[|\()(\d)(?:\]|, 0, 0)", text)[:3])
    assert element == writer == 7 - reader
    outside = str(races_of(device(threads("Y[b, t] = X[b, t + 1]"))).faults[0])
    assert outside.startswith("X[") and "in thread (7, 0, 0) of block (" in outside
    assert "outside of its buffer" in outside
    race_text = str(races_of(device(threads("Y[0, t] = X[b, t]"))).faults[0])
    assert re.search(
        r"of block \((\d), 0, 0\) and written by .* of block \((?!\1)\d, 0, 0\)", race_text
    )


def test_symbolic_sizes_are_part_of_a_witness() -> None:
    f = device(threads("Y[b, t] = X[b + 1, t]"), parameters=SYMBOLIC, blocks="n")
    (fault,) = races_of(f).faults
    (size,) = (v for k, v in fault.sizes if k == "n")
    assert fault.element[0] == size and f"n = {size}" in str(fault)
    arrays = arrays_of(f, n=size, m=1)
    with pytest.raises(AssertionError, match="outside"):
        launch(f, arrays)


@pytest.mark.parametrize("name", CASES)
def test_programs_with_their_barriers_are_proved(name: str) -> None:
    races = races_of(function(CASES[name], whole=True))
    assert not races.faults
    if "tree of any depth" in name:  # 4 >> k: other than all else here, not affine
        assert {d.kind for d in races.doubts} == {"race", "bounds"}
    elif name != "a barrier that is there":
        assert not races.doubts, races.doubts


SAFE = {
    "a guard at both ends": (
        (threads("if t > 0:\n    if t < 7:\n        Y[b, t] = X[b, t - 1] + X[b, t + 1]"),),
        None,
        "2",
    ),
    "rows of a symbolic number": (
        (threads("if 4 * b + t < n:\n    Y[4 * b + t, 0] = X[4 * b + t, 7]", 4),),
        SYMBOLIC,
        "(n + 3) // 4",
    ),
    "columns of a symbolic number": (
        (
            loop(
                "for k in range((n + 7) // 8):",
                threads("if 8 * k + t < n:\n    Y[b, 8 * k + t] = X[8 * k + t, b]"),
            ),
        ),
        'X: T.Buffer(("n", 8), "int32"), Y: T.Buffer((8, "n"), "int32"), n: T.int64',
        "8",
    ),
    "elements counted through rows": (
        (threads("Y[(8 * b + t) // 4, (8 * b + t) % 4] = X[b, t]"),),
        'X: T.Buffer((2, 8), "int32"), Y: T.Buffer((4, 4), "int32")',
        "2",
    ),
    "a permutation": (
        (shared(), threads("s[(t + 3) % 8] = X[b, t]"), SYNC, KEPT),
        None,
        "2",
    ),
    "a window of shared memory": (
        (
            shared(size="10"),
            threads("s[t + 1] = X[b, t]"),
            threads("s[9 * t] = 0", 2),
            SYNC,
            threads("Y[b, t] = s[t] + s[t + 1] + s[t + 2]"),
        ),
        None,
        "2",
    ),
    "vectors": (
        (threads("Y[b, 4 * t : 4 * t + 4] = X[b, 4 * t : 4 * t + 4]", 2),),
        VECTOR,
        "2",
    ),
    "registers of a thread": (
        (
            threads(
                """
                r = T.alloc_buffer((4,), "int32", scope="local")
                for k in range(4):
                    r[k] = X[b, (t + k) % 8]
                Y[b, t] = r[0] + r[1] + r[2] + r[3]
                """
            ),
        ),
        None,
        "2",
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_is_safe_is_proved(name: str) -> None:
    parts, parameters, blocks = SAFE[name]
    f = device(*parts, blocks=blocks, **({"parameters": parameters} if parameters else {}))
    races = races_of(f)
    assert races.proved, (races.faults, races.doubts)
    for n in (1, 5, 8):
        sizes = {v.name: n for v in f.params if isinstance(v, Var)}
        outcomes = []
        for order in ORDERS:
            arrays = arrays_of(f, **sizes)
            assert launch(f, arrays, order) == []
            outcomes.append(arrays["Y"])
        assert all(np.array_equal(outcomes[0], outcome) for outcome in outcomes)


def test_an_input_that_lies_where_the_output_does() -> None:
    """In place, what a thread reads must be what it writes itself."""
    in_place = replace(device(threads("Y[b, t] = X[b, t] + 1")), inplace=(0,))
    assert races_of(in_place).proved
    mirrored = replace(device(threads("Y[b, t] = X[b, 7 - t]")), inplace=(0,))
    (fault,) = races_of(mirrored).faults
    assert fault.kind == "race" and fault.second is not None
    crossed = replace(device(threads("Y[b, t] = X[1 - b, t]")), inplace=(0,))
    (fault,) = races_of(crossed).faults
    assert fault.kind == "blocks"
    # a value that changes is not the same for all
    first = 'T.Cast("int64", X[0, 0])'
    row = threads(f"Y[{first} - {first} + b, t] = 1")
    assert races_of(device(row)).proved
    assert not races_of(replace(device(row), inplace=(0,))).proved


DOUBTS = {
    "an index from memory": ((threads("Y[b, X[b, t]] = 1"),), {"race", "bounds"}),
    "a row from memory": ((threads("Y[X[b, 0], t] = 1"),), {"blocks", "bounds"}),
    "a product of variables": (
        (shared("s", "64"), threads("for k in range(8):\n    s[k * t] = 0")),
        {"race", "bounds"},
    ),
    "a condition from memory": (
        (shared(), IN, threads("if X[b, t] < 3:\n    s[7 - t] = 0")),
        {"race"},
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_what_cannot_be_proved_is_said(name: str) -> None:
    parts, kinds = DOUBTS[name]
    f = device(*parts)
    races = races_of(f)
    assert not races.faults and {d.kind for d in races.doubts} == kinds
    with pytest.warns(UnprovedWarning, match="f: cannot prove that"):
        assert check_races(IRModule((f,))).functions == (f,)


def test_the_pass_raises_and_says_how_many() -> None:
    mod = IRModule((device(shared(), IN, REVERSED, threads("Y[b, t] = s[t ^ 0]")),))
    with pytest.raises(UserError, match="no barrier in between") as info:
        check_races(mod)
    assert info.value.code == "device-race" and info.value.where == "f"
    assert "insert_barriers" in info.value.hint
    with pytest.raises(UserError, match="outside of its buffer") as info:
        check_races(IRModule((device(threads("Y[b, t] = X[b, t + 1]")),)))
    assert info.value.code == "out-of-bounds"
    with pytest.raises(UserError, match="of block") as info:
        check_races(IRModule((device(threads("Y[0, t] = X[b, t]")),)))
    assert "each block" in info.value.hint


def test_the_pass_changes_nothing() -> None:
    case = CASES["two tiles in turn"]
    check_text(
        check_races,
        text_of(*case.with_barriers),
        text_of(*case.with_barriers),
    )


def test_the_pass_is_silent_where_all_is_proved() -> None:
    mod = IRModule((function(CASES["two tiles in turn"], whole=True),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_races(mod) is mod


def test_a_proof_that_is_given_up_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorkiln.arith.integer_sets.MOST_OPERATIONS", 10)
    races = races_of(function(CASES["a tile per round"], whole=True))
    assert not races.faults and races.doubts


WIDE = 'X: T.Buffer((64, 64), "float32"), Y: T.Buffer((64, 64), "float32")'
SLOW = {
    "rows": (("Y[b, t] = X[b, t]",), []),
    "columns": (("Y[b, t] = X[t, b]",), [("uncoalesced", "X", 32, 4)]),
    "every second": (("Y[b, t] = X[b, 2 * t]",), [("uncoalesced", "X", 8, 4)]),
    "one for all": (("Y[b, t] = X[b, 0]",), []),
    "moved by one": (("Y[b, t] = X[b, t + 1]",), [("uncoalesced", "X", 5, 4)]),
    "vectors": (("Y[b, 2 * t : 2 * t + 2] = X[b, 2 * t : 2 * t + 2]",), []),
    "banks": (("s[t, 0] = X[b, t]", "Y[b, t] = s[t, 0]"), [("bank conflict", "s", 32, 1)] * 2),
    "banks of two": (("s[t // 16, 2 * (t % 16)] = X[b, t]",), [("bank conflict", "s", 2, 1)]),
    "banks, padded": (("p[t, 0] = X[b, t]", "Y[b, t] = p[t, 0]"), []),
    "a guard": (("if t < 8:\n    Y[b, t] = X[t, b]",), [("uncoalesced", "X", 8, 1)]),
    "a swizzle": (("s[t, t] = X[b, t]",), []),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_accesses_are_noted(name: str) -> None:
    lines, expected = SLOW[name]
    f = device(
        's = T.alloc_buffer((32, 32), "float32", scope="shared")',
        'p = T.alloc_buffer((32, 32), "float32", scope="shared", strides=(33, 1))',
        *(part for line in lines for part in (SYNC, threads(line, 32))),
        parameters=WIDE,
    )
    notes = races_of(f).notes
    assert [(n.kind, n.buffer, n.count, n.best) for n in notes] == expected
    for n in notes:
        assert f" in {n.count} " in str(n) and str(n).startswith(n.kind)


def test_results_do_not_depend_on_the_run() -> None:
    f = device(shared(), IN, REVERSED, threads("Y[0, t] = X[b, t + 1]"))
    assert races_of(f) == races_of(f)
