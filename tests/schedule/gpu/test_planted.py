"""What is wrong with a kernel of a device is found, in every class: a missing barrier, threads and
blocks that write one element, an access outside of a buffer, with the threads named. Accesses that
are uncoalesced, or conflict in banks, are known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

import pytest

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import IntImm, Ramp
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.stmt import BLOCK_INDICES, THREAD_INDICES, For, PrimFunc, Stmt, Store
from tensorkiln.ir.visit import map_stmt, substitute, walk_stmt
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.transform.tir.check_races import races_of
from tests.schedule.gpu.kernels import group_of
from tests.schedule.gpu.runner import OPENCL, Kernels
from tests.transform.device_programs import barriers, without_barrier

# A kernel of each class, its barriers, and how many times more sectors or turns of banks than
# needed its worst access takes: rows of 43 do not begin with a sector, a stride of 2 reads twice as
# many, and rows of 50 terms are shared by threads of several rows of a tile.
ONES: dict[str, tuple[int, float]] = {
    "broadcast": (0, 1),
    "depthwise_rows": (0, 2.5),
    "sum_rows": (2, 1),
    "softmax": (6, 1),
    "layer_norm": (6, 1),
    "linear": (2, 2),
    "attention": (4, 2),
}
# The result of these is stored by one thread of a block.
ONE_THREAD = {"sum_rows"}


@cache
def device_function(name: str) -> PrimFunc:
    made = Kernels([schedule_group(group_of(name), OPENCL)])
    (launch,) = made.launches(made.names[0])
    return made.func(launch.name)


def stored_elsewhere(f: PrimFunc, without: Collection[str] = (), further: int = 0) -> PrimFunc:
    """`f` with its result stored where some indices of blocks and threads were 0, or `further`."""
    out = [p for p in f.params if isinstance(p, Buffer)][-1]
    loops = [s for s in walk_stmt(f.body) if isinstance(s, For) and thread_of(s) in without]
    zero = {s.var: IntImm(0, s.var.dtype) for s in loops}

    def moved(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer is out:
            *first, last = (substitute(i, zero) for i in s.indices)
            if isinstance(last, Ramp):  # a vector
                return replace(s, indices=(*first, replace(last, base=last.base + further)))
            return replace(s, indices=(*first, last + further))
        return map_stmt(s, lambda e: e, moved)

    return replace(f, body=moved(f.body))


@pytest.mark.parametrize("name", ONES)
def test_a_missing_barrier_is_found(name: str) -> None:
    f = device_function(name)
    count, most = ONES[name]
    found = races_of(f)
    assert found.proved and barriers(f) == count
    assert max((n.count / n.best for n in found.notes), default=1) <= most, found.notes
    for k in range(count):
        faults = races_of(without_barrier(f, k), notes=False).faults
        assert faults and all(fault.kind == "race" for fault in faults)
        first, second = faults[0].first, faults[0].second
        assert second is not None and first.block == second.block
        assert first.thread != second.thread and str(first.thread) in str(faults[0])


@pytest.mark.parametrize("name", ONES)
@pytest.mark.parametrize(("kind", "indices"), [("race", THREAD_INDICES), ("blocks", BLOCK_INDICES)])
def test_two_that_write_one_element_are_found(name: str, kind: str, indices: tuple[str]) -> None:
    if kind == "race" and name in ONE_THREAD:
        return
    faults = races_of(stored_elsewhere(device_function(name), indices), notes=False).faults
    found = [fault for fault in faults if fault.kind == kind]
    assert found, faults
    first, second = found[0].first, found[0].second
    assert second is not None and (first.write or second.write)
    assert (first.thread, first.block) != (second.thread, second.block)


@pytest.mark.parametrize("name", ONES)
def test_an_access_outside_of_a_buffer_is_found(name: str) -> None:
    faults = races_of(stored_elsewhere(device_function(name), further=5000), notes=False).faults
    assert [fault for fault in faults if fault.kind == "bounds" and fault.first.write]
    assert "outside of its buffer" in str(faults[0]) and "in thread (" in str(faults[0])
