"""A parallel loop over a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from tensorkiln.base.config import available_cpus

T = TypeVar("T")
_MOST = 4


def in_threads(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `work(item)` for all items, in this thread and up to three more, in any order.

    For work that releases the GIL: copies, matrix products, writing files. `items` is advanced by
    one thread at a time, so it may be a generator. After an exception no further item is begun; the
    first exception is raised once all threads have stopped.
    """
    queue, failed = iter(items), list[BaseException]()
    busy: set[int] = set()  # identifiers of threads that are working on an item
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
                    item = next(queue)
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
    except BaseException as interrupt:  # one that interrupts this thread outside of `work`
        failed.append(interrupt)
    # No thread may still be working on return: the caller may then close the files that it writes.
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
