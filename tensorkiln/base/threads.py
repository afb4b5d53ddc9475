"""Work of many pieces in a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from tensorkiln.base.config import available_cpus

T = TypeVar("T")
_MOST = 4


def in_threads(work: Callable[[T], None], items: Iterable[T]) -> None:
    """`work(item)` for all items, in this thread and up to three more, in any order.

    For work outside of Python's lock: copies, products of matrices, writing. Items are made one at
    a time. The first failure is raised when all have stopped, and no further item is begun.
    """
    left, failed = iter(items), list[BaseException]()
    busy: set[int] = set()  # threads that have an item
    changed = threading.Condition()

    def run() -> None:
        me = threading.get_ident()
        while True:
            with changed:
                busy.discard(me)
                changed.notify_all()
                if failed:
                    return
                try:
                    item = next(left)
                except StopIteration:
                    return
                except BaseException as error:
                    failed.append(error)
                    return
                busy.add(me)
            try:
                work(item)
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(min(_MOST, available_cpus()) - 1)]
    try:
        for t in threads:
            t.start()
        run()
    except BaseException as interrupt:  # anywhere in this thread, not in its work
        failed.append(interrupt)
    # Nobody works on when this returns: what others write to would be closed.
    busy.discard(threading.get_ident())
    while busy:
        try:
            with changed:
                changed.wait_for(lambda: not busy)
        except KeyboardInterrupt as interrupt:
            failed.append(interrupt)
    for t in threads:
        if t.is_alive():
            t.join()
    if failed:
        raise failed[0]
