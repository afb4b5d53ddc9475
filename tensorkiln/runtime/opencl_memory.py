"""OpenCL devices through ctypes: a context per device, which all libraries of the process share
with our tensors, and memory in it. `libOpenCL.so.1` is opened when a device is first used."""

from __future__ import annotations

import ctypes
import functools
import weakref
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

_LIBRARY = "libOpenCL.so.1"
_HINT = "install the driver of a device, or a loader of drivers"
_P, _S, _U, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int32
_FLAGS = ctypes.c_uint64
_TRANSFER = (_P, _P, _U, _S, _S, _P, _U, _P, _P)
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "clGetPlatformIDs": (_I, (_U, _P, _P)),
    "clGetDeviceIDs": (_I, (_P, _FLAGS, _U, _P, _P)),
    "clCreateContext": (_P, (_P, _U, _P, _P, _P, _P)),
    "clRetainContext": (_I, (_P,)),
    "clReleaseContext": (_I, (_P,)),
    "clGetContextInfo": (_I, (_P, _U, _S, _P, _P)),
    "clCreateCommandQueue": (_P, (_P, _P, _FLAGS, _P)),
    "clReleaseCommandQueue": (_I, (_P,)),
    "clCreateBuffer": (_P, (_P, _FLAGS, _S, _P, _P)),
    "clGetMemObjectInfo": (_I, (_P, _U, _S, _P, _P)),
    "clRetainMemObject": (_I, (_P,)),
    "clReleaseMemObject": (_I, (_P,)),
    "clEnqueueReadBuffer": (_I, _TRANSFER),
    "clEnqueueWriteBuffer": (_I, _TRANSFER),
    "clEnqueueCopyBuffer": (_I, (_P, _P, _P, _S, _S, _S, _U, _P, _P)),
    "clFinish": (_I, (_P,)),
}
_ALL_DEVICES = 0xFFFFFFFF
_READ_WRITE = 1
_CONTEXT_DEVICES, _MEM_CONTEXT = 0x1081, 0x1106
_NOT_FOUND, _NO_PLATFORM = -1, -1001
_NO_MEMORY = (-4, -5, -6, -61)
_BLOCKING = 1


@functools.cache
def _library() -> Any:
    """The loader of drivers. Raises DeviceError (code `no-driver`) if it is not there."""
    loader = opened_library(_LIBRARY, "OpenCL", _HINT)
    try:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(loader, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise unusable(_LIBRARY, "OpenCL", error, _HINT) from None
    return loader


def _check(error: int, operation: str, code: str = "device-failed") -> None:
    if error in _NO_MEMORY and code == "device-memory":
        message = f"an OpenCL device is out of memory: {operation} failed with error {error}"
        raise DeviceMemoryError(message, code=code)
    if error != 0:
        raise DeviceError(f"{operation} failed with OpenCL error {error}", code=code)


class OpenCLContext(DeviceContext):
    """A context of one device, and a queue in it."""

    def __init__(self, driver: Driver, handle: int, device: int, index: int):
        """Takes a reference to the context `handle` over."""
        super().__init__(driver, index, handle)
        cl, error = _library(), _I()
        self._cl = cl
        self._free: list[Free] = [lambda: cl.clReleaseContext(handle)]
        driver.finalize(self, self._free)
        self._queue = cl.clCreateCommandQueue(handle, device, 0, ctypes.byref(error))
        _check(error.value, "clCreateCommandQueue")
        queue = self._queue
        self._free.insert(0, lambda: cl.clReleaseCommandQueue(queue))

    def _write(self, handle: int, offset: int, source: int, nbytes: int) -> None:
        write = self._cl.clEnqueueWriteBuffer
        error = write(self._queue, handle, _BLOCKING, offset, nbytes, source, 0, None, None)
        _check(error, "a copy to the device")

    def _read(self, handle: int, offset: int, target: int, nbytes: int) -> None:
        read = self._cl.clEnqueueReadBuffer
        error = read(self._queue, handle, _BLOCKING, offset, nbytes, target, 0, None, None)
        _check(error, "a copy from the device")

    def _copy(self, to: int, to_offset: int, source: int, offset: int, nbytes: int) -> None:
        copy = self._cl.clEnqueueCopyBuffer
        error = copy(self._queue, source, to, offset, to_offset, nbytes, 0, None, None)
        _check(error, "a copy on the device")
        _check(self._cl.clFinish(self._queue), "a copy on the device")


class OpenCLDriver(Driver):
    """OpenCL; a handle of memory is a cl_mem."""

    kind, api, data_is_address = "opencl", "OpenCL", False

    def __init__(self) -> None:
        super().__init__()
        self._by_handle: weakref.WeakValueDictionary[int, OpenCLContext] = (
            weakref.WeakValueDictionary()
        )

    def _device_ids(self) -> list[int]:
        """The devices of all platforms, one platform after the other, as crt/opencl.c counts
        them."""
        cl, count = _library(), _U()
        self.require_process()
        platforms = (_P * 32)()
        error = cl.clGetPlatformIDs(len(platforms), platforms, ctypes.byref(count))
        if error == _NO_PLATFORM or (error == 0 and count.value == 0):
            raise DeviceError(
                f"{_LIBRARY} finds no platform: no driver of OpenCL is installed", code="no-driver"
            )
        _check(error, "clGetPlatformIDs", "no-driver")
        devices: list[int] = []
        for platform in platforms[: min(count.value, len(platforms))]:
            platform_devices = (_P * 64)()
            error = cl.clGetDeviceIDs(
                platform, _ALL_DEVICES, len(platform_devices), platform_devices, ctypes.byref(count)
            )
            if error == _NOT_FOUND:
                continue
            _check(error, "clGetDeviceIDs", "no-driver")
            devices += [
                device or 0
                for device in platform_devices[: min(count.value, len(platform_devices))]
            ]
        return devices

    def count_devices(self) -> int:
        """How many OpenCL devices the system has."""
        return len(self._device_ids())

    def _open(self, index: int) -> OpenCLContext:
        device_id = self._device_ids()[index]
        error, device = _I(), _P(device_id)
        handle = _library().clCreateContext(
            None, 1, ctypes.byref(device), None, None, ctypes.byref(error)
        )
        _check(error.value, "clCreateContext", "no-driver")
        context = self._by_handle[handle] = OpenCLContext(self, handle, device_id, index)
        return context

    def new_memory(self, context: DeviceContext, nbytes: int) -> DeviceMemory:
        """Uninitialised memory. Raises DeviceMemoryError (code `device-memory`)."""
        self.require_process()
        cl, error = _library(), _I()
        if not nbytes:
            return DeviceMemory(context, 0, lambda: None)
        handle = cl.clCreateBuffer(context.handle, _READ_WRITE, nbytes, None, ctypes.byref(error))
        _check(error.value, f"clCreateBuffer of {nbytes} bytes", "device-memory")
        return DeviceMemory(context, handle, lambda: cl.clReleaseMemObject(handle))

    def memory_of(self, handle: int, index: int, free: Free) -> DeviceMemory:
        """A memory object that somebody else has made, in its own context."""
        if not handle:
            return DeviceMemory(self.context_of(index), 0, free)
        cl, context, device = _library(), _P(), _P()
        self.require_process()
        size = ctypes.sizeof(context)
        error = cl.clGetMemObjectInfo(handle, _MEM_CONTEXT, size, ctypes.byref(context), None)
        _check(error, "clGetMemObjectInfo")
        with self._lock:
            context_handle = context.value or 0
            owner = self._by_handle.get(context_handle)
            if owner is None:
                error = cl.clGetContextInfo(
                    context_handle, _CONTEXT_DEVICES, size, ctypes.byref(device), None
                )
                _check(error, "clGetContextInfo")
                _check(cl.clRetainContext(context_handle), "clRetainContext")
                owner = OpenCLContext(self, context_handle, device.value or 0, index)
                self._by_handle[context_handle] = owner
        return DeviceMemory(owner, handle, free)


OPENCL_DRIVER = OpenCLDriver()
