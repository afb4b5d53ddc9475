"""Groups that several processes schedule: the same kernels, the same errors, and nothing left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.base.processes import read_frame
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_module
from tensorkiln.kernels.case import Graph, N, rand
from tensorkiln.pipeline import relax_passes
from tensorkiln.schedule import helpers
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tests.transform.graphs import graph

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
COUNT = 8


@pytest.fixture(scope="module")
def groups() -> IRModule:
    """A module of COUNT different groups, of any number of rows."""

    def build(g: Graph, x: RVar) -> RVar:
        for width in range(8, 8 + COUNT):
            x = g.tanh(g.linear(x, rand(width, width + 1)))
        return x

    mod = graph(build, x=(N, 8))
    for p in relax_passes(TARGET):
        if isinstance(p, LowerGroups):
            break
        mod = p(mod)
    return mod


@pytest.fixture(scope="module")
def alone(groups: IRModule) -> IRModule:
    """The module with the kernels that this process schedules alone."""
    lowered = LowerGroups(TARGET)(groups)
    assert len(lowered.kernels) == COUNT
    return lowered


@pytest.fixture(autouse=True)
def leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few groups have a helper, and neither threads nor processes are left."""
    monkeypatch.setattr(helpers, "_GROUPS", 2)
    before = _running()
    yield
    assert _running() == before


def _running() -> tuple[set[str], set[threading.Thread]]:
    texts = (p.read_text() for p in Path("/proc/self/task").glob("*/children"))
    return {pid for text in texts for pid in text.split()}, set(threading.enumerate())


Act = Callable[["helpers._Helper", int], None]


def _first_replies(
    monkeypatch: pytest.MonkeyPatch, act: Act = lambda helper, number: None
) -> list[int]:
    """Have this process wait for the first reply of a helper before it schedules its second group,
    and `act` before each reply is read. Returns the numbers of the replies, as they come."""
    numbers, replied, receive = list[int](), threading.Event(), helpers._Helper._receive

    def received(self: helpers._Helper, number: int, stream: object) -> None:
        try:
            act(self, number)
            receive(self, number, stream)  # type: ignore[arg-type]
            numbers.append(number)
        finally:
            replied.set()

    first = threading.Event()

    def scheduled(group: Group, target: Target) -> PrimFunc:
        assert not first.is_set() or replied.wait(120)
        first.set()
        return schedule_group(group, target)

    monkeypatch.setattr(helpers._Helper, "_receive", received)
    monkeypatch.setattr(helpers, "schedule_group", scheduled)
    return numbers


def test_kernels_are_those_of_one_process(
    groups: IRModule, alone: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parameters too are the very objects of the groups here: later compiles find them."""
    numbers = _first_replies(monkeypatch)
    lowered = LowerGroups(TARGET, jobs=2)(groups)
    assert numbers != []
    assert print_module(lowered) == print_module(alone)
    assert lowered.kernel_keys == alone.kernel_keys
    assert len(lowered.kernel_keys) == COUNT


def _kill(helper: helpers._Helper, number: int) -> None:
    helper._process.kill()
    helper._process.wait()


def test_a_helper_that_ends_leaves_its_groups_to_this_process(
    groups: IRModule, alone: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = _first_replies(monkeypatch, _kill)
    assert print_module(LowerGroups(TARGET, jobs=2)(groups)) == print_module(alone)
    assert len(numbers) <= helpers._REQUESTS


def test_large_requests_are_not_sent(
    groups: IRModule, alone: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "_PIPE", 16)
    assert print_module(LowerGroups(TARGET, jobs=2)(groups)) == print_module(alone)


def test_the_first_group_that_fails_is_named(
    groups: IRModule, alone: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f.name for f in alone.kernels]

    def failing(group: Group, target: Target) -> PrimFunc:
        if group.name in names[3:]:
            raise UserError(f"no {group.name}", code="bad-knob")
        return schedule_group(group, target)

    receive = helpers._Helper._receive

    def received(self: helpers._Helper, number: int, stream: IO[bytes]) -> None:
        """As from a helper whose groups fail, too."""
        if number < 3:
            receive(self, number, stream)
        else:
            assert read_frame(stream) is not None

    monkeypatch.setattr(helpers, "schedule_group", failing)
    monkeypatch.setattr(helpers._Helper, "_receive", received)
    for jobs in (1, 2):
        with pytest.raises(UserError, match=f"no {names[3]}$"):
            LowerGroups(TARGET, jobs=jobs)(groups)


def test_an_interrupt_ends_helpers(groups: IRModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(group: Group, target: Target) -> PrimFunc:
        raise KeyboardInterrupt

    monkeypatch.setattr(helpers, "schedule_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LowerGroups(TARGET, jobs=2)(groups)


def test_few_groups_have_no_helper(groups: IRModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "_Helper", lambda *_: pytest.fail("a helper"))
    monkeypatch.setattr(helpers, "_GROUPS", COUNT)
    LowerGroups(TARGET, jobs=8)(groups)
