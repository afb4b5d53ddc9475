"""Memory of devices, through ctypes: what is the same for all drivers. A kind's own part is a
Driver, in opencl_memory.py or cuda_memory.py; its library is opened when a device is first used."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from tensorkiln.runtime.failures import DeviceError
from tensorkiln.runtime.locks import ProcessLock

Free = Callable[[], object]


class DeviceMemory:
    """Memory on a device; its handle is 0 if it has no bytes. What a handle is says DLPack: an
    address, or a memory object."""

    def __init__(self, context: DeviceContext, handle: int, free: Free):
        """`free` is called when this object is garbage."""
        self.context = context
        self.handle = handle
        context.driver.finalize(self, [free])


class DeviceContext(ABC):
    """What tensors on one device share, and a queue for copies, which wait until they are done.

    `handle` is the context that libraries are to use (kiln_executor_set_device() in kiln.h); 0:
    their own. Offsets and sizes are in bytes, `source` and `target` are addresses on the host.
    """

    def __init__(self, driver: Driver, index: int, handle: int):
        self.driver = driver
        self.index = index
        self.handle = handle

    def write(self, memory: DeviceMemory, offset: int, source: int, nbytes: int) -> None:
        """Copy from the host."""
        self.driver.require_process()
        if nbytes:
            self._write(memory.handle, offset, source, nbytes)

    def read(self, memory: DeviceMemory, offset: int, target: int, nbytes: int) -> None:
        """Copy to the host."""
        self.driver.require_process()
        if nbytes:
            self._read(memory.handle, offset, target, nbytes)

    def copy(
        self, to: DeviceMemory, to_offset: int, source: DeviceMemory, offset: int, nbytes: int
    ) -> None:
        """Copy within the device; both are memory of this context."""
        self.driver.require_process()
        if nbytes:
            self._copy(to.handle, to_offset, source.handle, offset, nbytes)

    def wait(self, stream: int) -> None:  # noqa: B027 -- a kind without streams has nothing to do
        """Wait for a stream. Where a kind has none, all work is done when a call returns."""

    def order(self, before: int, after: int) -> None:  # noqa: B027 -- as `wait`
        """Let what is queued in stream `after` from now on wait for what is in `before` by now."""

    @abstractmethod
    def _write(self, handle: int, offset: int, source: int, nbytes: int) -> None: ...

    @abstractmethod
    def _read(self, handle: int, offset: int, target: int, nbytes: int) -> None: ...

    @abstractmethod
    def _copy(self, to: int, to_offset: int, source: int, offset: int, nbytes: int) -> None: ...


class Driver(ABC):
    """A kind of device. All methods but those of finalizers raise DeviceError: code `no-driver`
    without its library or a driver, and in a child of a process that used it."""

    kind: ClassVar[str]
    api: ClassVar[str]  # as sentences call it
    data_is_address: ClassVar[bool]  # DLPack's `data`

    def __init__(self) -> None:
        self._lock = ProcessLock(threading.Lock)
        self._contexts: dict[int, DeviceContext] = {}  # by index
        self._used_by: list[int] = []  # the process that called the driver

    def require_process(self) -> None:
        """Raise DeviceError (code `no-driver`) in a child of a process that used the driver."""
        self._used_by[:] = self._used_by or [os.getpid()]
        if self._used_by != [os.getpid()]:
            raise DeviceError(
                f"{self.api} was in use before this process was forked: its driver cannot be used "
                "here",
                code="no-driver",
                hint="fork first, then use devices; or start processes by spawn",
            )

    def finalize(self, owner: object, free: list[Free]) -> None:
        """Call the functions, in their order at that time, when `owner` is garbage; not in a child
        of the process, nor at its end."""
        weakref.finalize(owner, self._release_all, free).atexit = False

    def _release_all(self, free: list[Free]) -> None:
        if self._used_by == [os.getpid()]:
            for function in free:
                function()

    def context_of(self, index: int) -> DeviceContext:
        """The context of a device, which lives as long as the process. Raises DeviceError (code
        `no-device`) without a device of that index."""
        with self._lock:
            if (open_context := self._contexts.get(index)) is not None:
                self.require_process()
                return open_context
            count = self.count_devices()
            if index >= count:
                plural = "" if count == 1 else "s"
                raise DeviceError(
                    f"there is no device {self.kind}:{index}: this system has {count} {self.api} "
                    f"device{plural}",
                    code="no-device",
                )
            context = self._contexts[index] = self._open(index)
            return context

    @abstractmethod
    def count_devices(self) -> int:
        """How many devices of this kind the system has."""

    @abstractmethod
    def _open(self, index: int) -> DeviceContext:
        """A new context of the device of that index, which exists. The lock is held."""

    @abstractmethod
    def new_memory(self, context: DeviceContext, nbytes: int) -> DeviceMemory:
        """Uninitialised memory. Raises DeviceMemoryError (code `device-memory`)."""

    @abstractmethod
    def memory_of(self, handle: int, index: int, free: Free) -> DeviceMemory:
        """Memory that somebody else has made, on the device of that index; `free` gives it back."""


def opened_library(name: str, api: str, hint: str) -> Any:
    """A driver's library. Raises DeviceError (code `no-driver`) if it cannot be opened."""
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise unusable(name, api, error, hint) from None


def unusable(name: str, api: str, error: object, hint: str) -> DeviceError:
    """The error for a driver's library that is missing, or lacks a function."""
    return DeviceError(
        f"{name}, which {api} devices need, cannot be opened: {error}", code="no-driver", hint=hint
    )
