"""Work in threads: all of it, once, and the first failure."""

from __future__ import annotations

import threading

import pytest

from tensorkiln.base.threads import in_threads


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
