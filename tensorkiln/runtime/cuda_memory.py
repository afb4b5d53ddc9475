"""CUDA devices through ctypes: each one's primary context, which the process shares (torch, our
libraries), and memory in it. `libcuda.so.1` is opened when a device is first used."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tensorkiln.runtime.device_memory import (
    DeviceContext,
    DeviceMemory,
    Driver,
    Free,
    opened_library,
    unusable,
)
from tensorkiln.runtime.failures import DeviceError, DeviceMemoryError

_LIBRARY = "libcuda.so.1"
_HINT = "install the driver of an NVIDIA GPU, of CUDA 11.3 or newer"
_P, _S, _U, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int32
# Functions with the version of CUDA in which they got these arguments (crt/cuda_api.h).
_PROTOTYPES: dict[str, tuple[int, tuple[Any, ...]]] = {
    "cuInit": (2000, (_U,)),
    "cuGetErrorName": (6000, (_I, _P)),
    "cuDeviceGetCount": (2000, (_P,)),
    "cuDeviceGet": (2000, (_P, _I)),
    "cuDevicePrimaryCtxRetain": (7000, (_P, _I)),
    "cuCtxPushCurrent": (4000, (_P,)),
    "cuCtxPopCurrent": (4000, (_P,)),
    "cuMemAlloc": (3020, (_P, _S)),
    "cuMemFree": (3020, (_P,)),
    "cuMemcpyHtoDAsync": (3020, (_P, _P, _S, _P)),
    "cuMemcpyDtoHAsync": (3020, (_P, _P, _S, _P)),
    "cuMemcpyDtoDAsync": (3020, (_P, _P, _S, _P)),
    "cuStreamSynchronize": (2000, (_P,)),
    "cuStreamIsCapturing": (10000, (_P, _P)),
    "cuThreadExchangeStreamCaptureMode": (10010, (_P,)),
    "cuStreamWaitEvent": (3020, (_P, _P, _U)),
    "cuEventCreate": (2000, (_P, _U)),
    "cuEventDestroy": (4000, (_P,)),
    "cuEventRecord": (2000, (_P, _P)),
}
_NO_MEMORY, _NO_DEVICE = 2, 100
# Errors after which the driver refuses everything in the context (crt/cuda.c).
_STICKY = (4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719)
# The stream of all copies is the default one, as of cuMemcpy(): it waits for what was queued in
# streams that others have made without saying more, and these wait for it.
_DEFAULT_STREAM = None
_LAST_DEFAULT_STREAM = 2  # of the numbers that stand for default streams
_WITHOUT_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class _Library:
    """The functions of the driver as attributes, found by cuGetProcAddress."""

    def __init__(self) -> None:
        driver = opened_library(_LIBRARY, "CUDA", _HINT)
        find = getattr(driver, "cuGetProcAddress_v2", None) or getattr(
            driver, "cuGetProcAddress", None
        )
        if find is None:
            raise unusable(_LIBRARY, "CUDA", "it has no function cuGetProcAddress", _HINT)
        for name, (version, arguments) in _PROTOTYPES.items():
            address, symbol_status = _P(), _P()  # a fifth argument is ignored by the older form
            error = find(
                name.encode(), ctypes.byref(address), version, ctypes.c_uint64(0), symbol_status
            )
            if error or not address.value:
                raise unusable(_LIBRARY, "CUDA", f"it has no function {name}", _HINT)
            setattr(self, name, ctypes.CFUNCTYPE(_I, *arguments)(address.value))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@functools.cache
def _library() -> Any:
    """The driver. Raises DeviceError (code `no-driver`) if it is not there, or too old."""
    return _Library()


def _error_name(error: int) -> str:
    name = ctypes.c_char_p()
    if _library().cuGetErrorName(error, ctypes.byref(name)) or name.value is None:
        return "CUDA error"
    return name.value.decode(errors="replace")


def _check(error: int, operation: str, code: str = "device-failed") -> None:
    if not error:
        return
    words = f"{operation} failed with {_error_name(error)} ({error})"
    if error == _NO_MEMORY:
        raise DeviceMemoryError(f"a CUDA device is out of memory: {words}", code="device-memory")
    if error in _STICKY:
        message = f"{words}: the device is lost, it cannot be used any more in this process"
        raise DeviceError(message, code="device-lost")
    raise DeviceError(words, code=code)


class CudaContext(DeviceContext):
    """A device's primary context. Libraries retain it themselves, so its handle is 0."""

    def __init__(self, driver: Driver, index: int, context: int):
        super().__init__(driver, index, 0)
        self._context = context

    @contextmanager
    def current(self) -> Iterator[Any]:
        """The driver's functions, in this context. While somebody captures a stream, the driver
        refuses what may wait (memory, other streams), and breaks the capture, unless the thread
        says that it knows what it does."""
        cu, before, mode = _library(), _P(), _I(_RELAXED)
        _check(cu.cuCtxPushCurrent(self._context), "cuCtxPushCurrent")
        refused = cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield cu
        finally:
            if not refused:
                cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            cu.cuCtxPopCurrent(ctypes.byref(before))

    def wait(self, stream: int) -> None:
        """Wait for a stream."""
        with self.current() as cu:
            _check(cu.cuStreamSynchronize(stream), "work that was queued before")

    def order(self, before: int, after: int) -> None:
        """Let a stream wait for what another one has got by now. One that is being captured cannot:
        the host waits."""
        event, captured = _P(), _I()
        with self.current() as cu:
            if after > _LAST_DEFAULT_STREAM:
                error = cu.cuStreamIsCapturing(after, ctypes.byref(captured))
                _check(error, "cuStreamIsCapturing of a stream")
            if captured.value:
                _check(cu.cuStreamSynchronize(before), "work that was queued before")
                return
            _check(cu.cuEventCreate(ctypes.byref(event), _WITHOUT_TIMING), "cuEventCreate")
            error = cu.cuEventRecord(event, before)
            if not error:
                error = cu.cuStreamWaitEvent(after, event, 0)
            cu.cuEventDestroy(event)  # once it has happened
            _check(error, "an event between streams")

    def _write(self, handle: int, offset: int, source: int, nbytes: int) -> None:
        with self.current() as cu:
            error = cu.cuMemcpyHtoDAsync(handle + offset, source, nbytes, _DEFAULT_STREAM)
            _check(error or cu.cuStreamSynchronize(_DEFAULT_STREAM), "a copy to the device")

    def _read(self, handle: int, offset: int, target: int, nbytes: int) -> None:
        with self.current() as cu:
            error = cu.cuMemcpyDtoHAsync(target, handle + offset, nbytes, _DEFAULT_STREAM)
            _check(error or cu.cuStreamSynchronize(_DEFAULT_STREAM), "a copy from the device")

    def _copy(self, to: int, to_offset: int, source: int, offset: int, nbytes: int) -> None:
        with self.current() as cu:
            error = cu.cuMemcpyDtoDAsync(to + to_offset, source + offset, nbytes, _DEFAULT_STREAM)
            _check(error or cu.cuStreamSynchronize(_DEFAULT_STREAM), "a copy on the device")

    def free(self, address: int) -> None:
        """Free memory; the driver waits for what still uses it. After the device is lost there is
        nothing to free."""
        with suppress(DeviceError), self.current() as cu:
            cu.cuMemFree(address)


class CudaDriver(Driver):
    """CUDA; a handle of memory is its address."""

    kind, api, data_is_address = "cuda", "CUDA", True

    def count_devices(self) -> int:
        """How many CUDA devices the system has."""
        cu, count = _library(), _I()
        self.require_process()
        error = cu.cuInit(0)
        if error == _NO_DEVICE:
            return 0
        _check(error, "cuInit", "no-driver")
        _check(cu.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount", "no-driver")
        return count.value

    def _open(self, index: int) -> CudaContext:
        cu, device, context = _library(), _I(), _P()
        _check(cu.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet", "no-driver")
        error = cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        _check(error, "cuDevicePrimaryCtxRetain", "no-driver")
        return CudaContext(self, index, context.value or 0)

    def new_memory(self, context: DeviceContext, nbytes: int) -> DeviceMemory:
        """Uninitialised memory. Raises DeviceMemoryError (code `device-memory`)."""
        assert isinstance(context, CudaContext)
        self.require_process()
        if not nbytes:
            return DeviceMemory(context, 0, lambda: None)
        address = _P()
        with context.current() as cu:
            error = cu.cuMemAlloc(ctypes.byref(address), nbytes)
            _check(error, f"cuMemAlloc of {nbytes} bytes", "device-memory")
        pointer = address.value or 0
        return DeviceMemory(context, pointer, lambda: context.free(pointer))

    def memory_of(self, handle: int, index: int, free: Free) -> DeviceMemory:
        """Memory at an address that somebody else has made; its context is the primary one."""
        return DeviceMemory(self.context_of(index), handle, free)


CUDA_DRIVER = CudaDriver()
