"""Groups that are scheduled by several processes: this one, and helpers that run `main`.

Schedules are Python, of which a process runs one thread at a time. A helper needs as long to start
as it takes to schedule some fifteen groups, so few groups are scheduled here alone; of many, each
process takes the next one when it is ready. What a helper cannot do is done here: errors are those
of a compile without helpers, of the first group in order that has one.

A request is a target and the function of a group; the reply is its kernel, or nothing. Both are
length-prefixed pickles, which nobody but these processes writes.
"""

from __future__ import annotations

import gc
import io
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO

from tensorkiln.base.frames import with_frame_room
from tensorkiln.base.processes import python_command, read_frame, write_frame
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import Param, PrimFunc
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target

# For how many groups a helper is worth its start.
_GROUPS = 12
# Bytes of a request that a pipe holds on every system, while a helper writes a reply.
_PIPE = 1 << 15
# Requests that a helper has at a time, so that it does not wait for the next one.
_REQUESTS = 2
# Objects of a helper between two searches for garbage, of which nodes of programs make next to
# none: they refer to each other in one direction.
_MANY_OBJECTS = 1_000_000


def schedule_groups(groups: Sequence[Group], jobs: int) -> list[PrimFunc]:
    """The scheduled kernels of groups, each for its target, made by up to `jobs` processes. Raises
    what `schedule_group` raises for the first group that has no kernel."""
    kernels: list[PrimFunc | None] = [None] * len(groups)
    numbers = iter(range(len(groups)))
    with ExitStack() as helpers:
        for _ in range(min(jobs - 1, len(groups) // _GROUPS - 1)):
            helpers.enter_context(_Helper(groups, numbers, kernels))
        for i in numbers:
            try:
                kernels[i] = schedule_group(groups[i], groups[i].target)
            except Exception:
                deque(numbers, maxlen=0)  # nobody begins another
    return [
        schedule_group(group, group.target) if kernel is None else kernel
        for group, kernel in zip(groups, kernels, strict=True)
    ]


class _Helper:
    """A process that schedules the groups whose numbers it takes, until `numbers` has no more."""

    def __init__(
        self, groups: Sequence[Group], numbers: Iterator[int], kernels: list[PrimFunc | None]
    ) -> None:
        self._groups, self._numbers, self._kernels = groups, numbers, kernels
        self._is_ready = False
        self._process = subprocess.Popen(
            python_command("tensorkiln.schedule.helpers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the groups that the process has begun, unless there was an error here."""
        deque(self._numbers, maxlen=0)
        if kind is not None or not self._is_ready:
            self._process.kill()
        self._thread.join()
        self._process.kill()
        with self._process:
            pass

    def _run(self) -> None:
        process, requested = self._process, deque[int]()
        assert process.stdin is not None and process.stdout is not None
        try:
            self._is_ready = read_frame(process.stdout) is not None
            for i in self._numbers if self._is_ready else ():
                group = self._groups[i]
                request = pickle.dumps((group.target, group.function), pickle.HIGHEST_PROTOCOL)
                if len(request) <= _PIPE:
                    write_frame(process.stdin, request)
                    requested.append(i)
                if len(requested) == _REQUESTS:
                    self._receive(requested.popleft(), process.stdout)
            while requested:
                self._receive(requested.popleft(), process.stdout)
        except Exception:
            return  # a process that ended, or what cannot be sent: scheduled in this process

    def _receive(self, number: int, stream: IO[bytes]) -> None:
        reply = read_frame(stream)
        if reply is None:
            raise EOFError
        if reply:
            params = _parameters(self._groups[number])
            self._kernels[number] = _Unpickler(io.BytesIO(reply), params).load()


def _parameters(group: Group) -> tuple[Param, ...]:
    """The parameters that the kernel of a group may have: with their shapes, and flat."""
    return (*group.params, *group.flat_params)


class _Pickler(pickle.Pickler):
    """Writes numbers in place of a group's parameters, which are compared by identity."""

    def __init__(self, stream: io.BytesIO, params: tuple[Param, ...]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(p): i for i, p in enumerate(params)}

    def persistent_id(self, value: object) -> int | None:
        return self._numbers.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Reads numbers as the parameters of a group of this process."""

    def __init__(self, stream: io.BytesIO, params: tuple[Param, ...]) -> None:
        super().__init__(stream)
        self._params = params

    def persistent_load(self, number: int) -> Param:
        return self._params[number]


def _reply(target: Target, function: Function) -> bytes:
    group, stream = Group(function, function.name, target), io.BytesIO()
    params = _parameters(group)
    _Pickler(stream, params).dump(schedule_group(group, target))
    return stream.getvalue()


@with_frame_room
def main() -> None:
    """Serve requests until the input closes."""
    gc.set_threshold(_MANY_OBJECTS)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    write_frame(stdout, b"")  # ready
    while (request := read_frame(stdin)) is not None:
        try:
            reply = _reply(*pickle.loads(request))
        except Exception:
            reply = b""
        write_frame(stdout, reply)
