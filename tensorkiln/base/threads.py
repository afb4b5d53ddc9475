"""A parallel loop over a few threads, and work beside that of the calling thread."""

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


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Begin `work()` in a thread of its own; what is returned waits for its result, or raises what
    it raised.

    For work that releases the GIL, such as the hash of a file, while this thread does something
    that does not.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> T:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
