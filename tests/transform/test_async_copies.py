"""async_copies: which copies go on while a round computes, what waits for them, and that a copy
which is used before is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.codegen.ptx.instructions import require_instructions
from tensorkiln.ir.copies import copy_of, is_asynchronous
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc, Stmt, Sync
from tensorkiln.ir.visit import map_stmt, walk_stmt
from tensorkiln.target import Target
from tensorkiln.transform.tir.async_copies import AsyncCopies, with_async_copies
from tensorkiln.transform.tir.check_races import races_of
from tensorkiln.transform.tir.insert_barriers import insert_barriers, with_barriers
from tests.ir.evaluate_device import ORDERS, launch
from tests.transform.device_programs import (
    SYNC,
    arrays_of,
    barriers,
    device,
    loop,
    text_of,
    threads,
    without_barrier,
)
from tests.transform.graphs import check_text

PARAMETERS = 'X: T.Buffer((5, 8), "int32"), Y: T.Buffer((2, 8), "int32"), m: T.int64'
RING = 's = T.alloc_buffer((2, 8), "int32", scope="shared")'
ASYNC = 'for t in T.thread_binding(8, thread="threadIdx.x", annotations={"asynchronous": True}):'
WAIT = 'T.sync("copies")'
CUDA = Target({"kind": "cuda", "arch": "sm_80"})
FIRST = "s[0, t] = X[0, t]"
NEXT = "s[(k + 1) % 2, t] = X[k + 1, t]"
SUM = "Y[b, t] = Y[b, t] + s[k % 2, 7 - t]"
ZERO = threads("Y[b, t] = 0")


def rounds(*parts: str) -> str:
    return loop("for k in range(4):", *parts)


def ahead(first: str, following: str, *inside: str) -> tuple[str, ...]:
    """A loop that copies for the next round, with `inside` at the top of each."""
    ready = loop("if k + 1 < 4:", following)
    return RING, ZERO, first, rounds(*inside, ready, threads(SUM))


PLAIN = ahead(threads(FIRST), threads(NEXT))
MARKED = ahead(loop(ASYNC, FIRST), loop(ASYNC, NEXT))
WHOLE = ahead(loop(ASYNC, FIRST), loop(ASYNC, NEXT), WAIT)


def function(parts: tuple[str, ...]) -> PrimFunc:
    return device(*parts, parameters=PARAMETERS)


def changed(f: PrimFunc, scope: str) -> PrimFunc:
    """`f` with all its barriers of another scope."""

    def stmt(s: Stmt) -> Stmt:
        return Sync(scope) if isinstance(s, Sync) else map_stmt(s, lambda e: e, stmt)

    return replace(f, body=stmt(f.body))


def test_text() -> None:
    """Marks, and one barrier a round, at its top: what it waits for has had a round's time."""
    check_text(
        AsyncCopies(),
        text_of(*PLAIN, parameters=PARAMETERS),
        text_of(*MARKED, parameters=PARAMETERS),
    )
    check_text(
        insert_barriers,
        text_of(*MARKED, parameters=PARAMETERS),
        text_of(*WHOLE, parameters=PARAMETERS),
    )


# Of three parts, two rounds ahead; conditions move into the nests, so that each round has a batch.
LONGER = 's = T.alloc_buffer((3, 8), "int32", scope="shared")'
THIRD = "s[(k + 2) % 3, t] = X[k + 2, t]"
USE = threads("Y[b, t] = Y[b, t] + s[k % 3, 7 - t]")
FIRST_TWO = loop("for a in range(2):", threads("s[a % 3, t] = X[a, t]"))
FIRST_TWO_MARKED = loop("for a in range(2):", loop(ASYNC, "s[a % 3, t] = X[a, t]"))
THREE = (LONGER, ZERO, FIRST_TWO, rounds(loop("if k + 2 < 4:", threads(THIRD)), USE))
THREE_MARKED = (
    LONGER,
    ZERO,
    FIRST_TWO_MARKED,
    rounds(loop(ASYNC, loop("if k + 2 < 4:", THIRD)), USE),
)
THREE_WHOLE = (
    LONGER,
    ZERO,
    FIRST_TWO_MARKED,
    rounds('T.sync("copies", pending=1)', loop(ASYNC, loop("if k + 2 < 4:", THIRD)), USE),
)


def test_text_of_three_parts() -> None:
    """One barrier a round, at which the copies of one round may still go on."""
    for p, before, after in (
        (AsyncCopies(), THREE, THREE_MARKED),
        (insert_barriers, THREE_MARKED, THREE_WHOLE),
    ):
        check_text(
            p,
            text_of(*before, parameters=PARAMETERS),
            text_of(*after, parameters=PARAMETERS),
        )
    f = function(THREE_WHOLE)
    assert with_barriers(f) is f
    assert not races_of(f).faults
    ir = emit_ptx_ir(f, CUDA)
    assert ir.count("call void @llvm.nvvm.cp.async.commit.group()") == 2
    assert ir.count("call void @llvm.nvvm.cp.async.wait.group(i32 1)") == 1


@pytest.mark.parametrize("pending", [2, 3, 8])
def test_a_barrier_that_leaves_too_many_batches_is_found(pending: int) -> None:
    def more(s: Stmt) -> Stmt:
        return Sync(s.scope, pending) if isinstance(s, Sync) else map_stmt(s, lambda e: e, more)

    f = function(THREE_WHOLE)
    wrong = replace(f, body=more(f.body))
    (fault, *_) = races_of(wrong).faults
    assert fault.kind == "copy" and "no wait for copies" in str(fault)


def test_batches_are_of_copies() -> None:
    for text, message in (
        ('T.sync("block", pending=1)', "scope 'block' that leaves 1 batches"),
        ('T.sync("copies", pending=-1)', "leaves -1 batches"),
    ):
        with pytest.raises(InternalError, match=message):
            function((LONGER, ZERO, FIRST_TWO_MARKED, rounds(text, USE)))


def test_results_are_those_of_copies_at_once() -> None:
    outputs = []
    for f in (with_barriers(function(PLAIN)), function(WHOLE)):
        for order in ORDERS:
            arrays = arrays_of(f, m=1)
            assert not [r for r in launch(f, arrays, order) if r.kind == "race"]
            outputs.append(arrays["Y"])
    assert all(np.array_equal(a, outputs[0]) for a in outputs)


# Nests that fill a buffer ahead, and are no copies; or copy to a buffer that is not filled ahead.
LEFT_ALONE = {
    "a value": ahead(
        threads("s[0, t] = X[0, t] + 1"), threads("s[(k + 1) % 2, t] = X[k + 1, t] * 2")
    ),
    "two uses": ahead(
        threads("s[0, t] = X[0, t]\nY[b, t] = 0"),
        threads("s[(k + 1) % 2, t] = X[k + 1, t]\nY[b, t] = Y[b, t] + 1"),
    ),
    "no zero": ahead(
        threads("s[0, t] = X[0, t]\ns[0, t] = 0"),
        threads("if t < m:\n    s[(k + 1) % 2, t] = X[k + 1, t]\nelse:\n    s[(k + 1) % 2, t] = 1"),
    ),
    "in place": (RING, rounds(threads("s[0, t] = X[k, t]"), threads("Y[b, t] = s[0, 7 - t]"))),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_copy_ahead_stays(name: str) -> None:
    f = function(LEFT_ALONE[name])
    assert with_async_copies(f) is f


def test_only_devices_that_are_named() -> None:
    mod = IRModule((function(PLAIN),))
    assert AsyncCopies(())(mod) is mod
    assert AsyncCopies(("gpu",))(mod)["f"] == mod["f"]


ZEROS = [
    "s[k % 2, t] = T.select(t < m, X[k, t], 0)",
    "if t < m:\n    s[k % 2, t] = X[k, t]\nelse:\n    s[k % 2, t] = 0",
    "if t < m:\n    s[k % 2, t] = T.select(k < m, X[k, t], 0)\nelse:\n    s[k % 2, t] = 0",
]


@pytest.mark.parametrize("text", ZEROS)
def test_zeros_in_the_place_of_some(text: str) -> None:
    f = with_async_copies(function((RING, rounds(threads(text), threads(SUM)))))
    (nest,) = (s for s in walk_stmt(f.body) if is_asynchronous(s))
    (copy,) = (c for s in [nest.body] if (c := copy_of(s)))  # type: ignore[attr-defined]
    assert copy.cond is not None and copy.load.buffer.name == "X"
    ir = emit_ptx_ir(with_barriers(f), CUDA)
    assert "select i1" in ir and "br i1 %t" in ir
    text = ptx_of({"f": ir}, ["sm_80"])["sm_80"]
    assert "cp.async.ca.shared.global" in text and "cp.async.wait_all" in text


# ---- found ---------------------------------------------------------------------------------------


def test_a_barrier_that_does_not_wait_is_found() -> None:
    f = function(WHOLE)
    assert races_of(f).proved and barriers(f) == 1
    faults = races_of(changed(f, "block"), notes=False).faults
    assert {fault.kind for fault in faults} == {"copy"}
    assert "with no wait for copies in between" in str(faults[0])
    assert any(fault.first.statement == "s[0, t] = X[0, t]" for fault in faults)


def test_a_missing_barrier_is_found() -> None:
    kinds = {fault.kind for fault in races_of(without_barrier(function(WHOLE), 0)).faults}
    assert kinds == {"copy", "race"}


def test_a_thread_waits_for_its_own_copies() -> None:
    """Without another thread that reads what it copies, a wait is needed all the same."""
    own_sum = SUM.replace("7 - t", "t")
    parts = (RING, ZERO, loop(ASYNC, FIRST), threads(own_sum.replace("k % 2", "0")))
    kinds = {fault.kind for fault in races_of(function(parts)).faults}
    assert kinds == {"copy"}
    whole = with_barriers(function(parts))
    assert [s.scope for s in walk_stmt(whole.body) if isinstance(s, Sync)] == ["copies"]
    assert races_of(whole).proved
    plain = (RING, ZERO, threads(FIRST), threads(own_sum.replace("k % 2", "0")))
    assert barriers(with_barriers(function(plain))) == 0


def test_a_source_that_changes_is_found() -> None:
    """A copy may read as late as its thread waits."""
    parts = (RING, loop(ASYNC, "s[0, t] = Y[b, t]"), SYNC, threads("Y[b, t] = 3"), WAIT)
    assert {fault.kind for fault in races_of(function(parts)).faults} == {"copy"}
    good = (*parts[:2], WAIT, threads("Y[b, t] = 3"))
    assert races_of(function(good)).proved


# ---- refused -------------------------------------------------------------------------------------

WRONG = {
    "s[0, t] = X[0, t] + 1": "the store to s in loop t, which is asynchronous, is no copy",
    "Y[b, t] = X[0, t]": "the store to Y in loop t",
    "if t < m:\n    s[0, t] = X[0, t]\nelse:\n    s[0, t] = 2": "a If in loop t",
    "while s[0, t] < 3:\n    s[0, t] = X[0, t]": "a While in loop t",
}


@pytest.mark.parametrize("body", WRONG)
def test_loops_that_do_not_only_copy(body: str) -> None:
    inside = "\n".join("    " + line for line in body.splitlines())
    with pytest.raises(InternalError) as info:
        function((RING, f"{ASYNC}\n{inside}"))
    assert WRONG[body] in str(info.value) and "elements of global memory" in info.value.hint


def test_loops_that_are_no_threads() -> None:
    with pytest.raises(InternalError, match="asynchronous, and no nest over threadIdx"):
        function((RING, loop('for t in T.serial(8, annotations={"asynchronous": True}):', FIRST)))


def test_a_gpu_without_such_copies() -> None:
    f = function(WHOLE)
    require_instructions(f, ["sm_80", "sm_90a"])
    with pytest.raises(UnsupportedError, match="sm_75 does not have asynchronous copies"):
        require_instructions(f, ["sm_80", "sm_75"])
