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
    lock = threading.Lock()

    def run() -> None:
        try:
            while not failed:
                with lock:
                    item = next(left)
                work(item)
        except StopIteration:
            return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(min(_MOST, available_cpus()) - 1)]
    for t in threads:
        t.start()
    run()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
