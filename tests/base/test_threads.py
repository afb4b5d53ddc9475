"""Work in threads: all of it, once, and the first failure."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tensorkiln.base.threads import beside, in_threads


def test_every_item_once() -> None:
    done: list[int] = []
    in_threads(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_nothing_to_do() -> None:
    in_threads(pytest.fail, [])


def test_a_failure_stops_the_rest() -> None:
    begun: list[int] = []

    def work(i: int) -> None:
        begun.append(i)
        if i == 3:
            raise ValueError(f"item {i}")

    with pytest.raises(ValueError, match="item 3"):
        in_threads(work, range(100_000))
    assert len(begun) < 100_000


def test_items_that_fail_to_come() -> None:
    def items() -> object:
        yield 1
        raise OSError("gone")

    before = threading.active_count()
    with pytest.raises(OSError, match="gone"):
        in_threads(lambda i: None, items())  # type: ignore[arg-type]
    assert threading.active_count() == before


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("at", [0, 1, 2, 7, 39])
@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_nobody_works_on_after_an_interrupt(at: int, seconds: float) -> None:
    """Wherever the main thread is: starting others, working, or waiting for them."""
    begun, ended = [0] * 40, [0] * 40

    def work(i: int) -> None:
        begun[i] += 1
        if i == at:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(seconds)
        ended[i] += 1

    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            in_threads(work, range(40))
            time.sleep(1)  # it may arrive when all is done
        counts = list(ended)
        time.sleep(2 * seconds)
        assert ended == counts
        assert sum(begun) - sum(ended) <= 20  # at most the main thread's own item each time
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_beside_gives_what_the_work_gives_or_raises() -> None:
    ready = threading.Event()
    result = beside(lambda: ready.wait(10) and threading.get_ident())
    ready.set()  # by this thread, so the work is that of another one
    assert result() not in (False, threading.get_ident()) and result() == result()

    def fails() -> None:
        raise ValueError("no result")

    with pytest.raises(ValueError, match="no result"):
        beside(fails)()
