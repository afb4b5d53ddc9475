"""OpenCL by ctypes, for tests of device functions as text: build it, launch it on NumPy arrays.

Devices are those of libOpenCL.so.1; where there is none, tests are skipped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache

import numpy as np
import pytest

_ALL_DEVICES, _BUILD_LOG, _READ_WRITE = 0xFFFFFFFF, 0x1183, 1
_OPTIONS = b"-cl-std=CL1.2"
_RESULTS = ("clCreateContext", "clCreateCommandQueue", "clCreateProgramWithSource")


class OpenCLError(Exception):
    """A call that failed, with the compiler's words where it has any."""


@cache
def device() -> Device:
    """The first device; skips the test where there is none."""
    try:
        library = ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        pytest.skip("no libOpenCL.so.1")
    for name in (*_RESULTS, "clCreateKernel", "clCreateBuffer"):
        getattr(library, name).restype = c_void_p
    platforms, count = (c_void_p * 16)(), c_uint32()
    library.clGetPlatformIDs(16, platforms, byref(count))
    for platform in platforms[: count.value]:
        device_handle = c_void_p()
        kind = c_uint64(_ALL_DEVICES)
        if library.clGetDeviceIDs(c_void_p(platform), kind, 1, byref(device_handle), None) == 0:
            return Device(library, device_handle)
    pytest.skip("no device of OpenCL")


def _check(status: int, call_name: str) -> None:
    if status != 0:
        raise OpenCLError(f"{call_name}: error {status}")


class Device:
    """A device with a context and a queue."""

    def __init__(self, library: ctypes.CDLL, handle: c_void_p):
        self.library, self.handle = library, handle
        status = c_int32()
        self.context = c_void_p(
            library.clCreateContext(None, 1, byref(handle), None, None, byref(status))
        )
        _check(status.value, "clCreateContext")
        self.queue = c_void_p(
            library.clCreateCommandQueue(self.context, handle, c_uint64(0), byref(status))
        )
        _check(status.value, "clCreateCommandQueue")

    def build(self, text: str) -> Program:
        """Compile OpenCL C."""
        source, status = c_char_p(text.encode()), c_int32()
        program = c_void_p(
            self.library.clCreateProgramWithSource(
                self.context, 1, byref(source), None, byref(status)
            )
        )
        _check(status.value, "clCreateProgramWithSource")
        failed = self.library.clBuildProgram(program, 1, byref(self.handle), _OPTIONS, None, None)
        if failed:
            size = c_size_t()
            about = (program, self.handle, c_uint32(_BUILD_LOG))
            self.library.clGetProgramBuildInfo(*about, c_size_t(0), None, byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.library.clGetProgramBuildInfo(*about, size, log, None)
            raise OpenCLError(f"clBuildProgram: {failed}\n{log.value.decode()[:4000]}")
        return Program(self, program)


class Program:
    """A built program; kernels are launched by name."""

    def __init__(self, device: Device, handle: c_void_p):
        self.device, self.handle = device, handle
        self._kernels: dict[str, c_void_p] = {}

    def _kernel(self, name: str) -> c_void_p:
        if name not in self._kernels:
            status = c_int32()
            kernel_handle = self.device.library.clCreateKernel(
                self.handle, name.encode(), byref(status)
            )
            _check(status.value, f"clCreateKernel({name})")
            self._kernels[name] = c_void_p(kernel_handle)
        return self._kernels[name]

    def run(
        self, name: str, grid: Sequence[int], block: Sequence[int], args: Sequence[object]
    ) -> None:
        """Launch a kernel on arrays, which it may change, and NumPy numbers. Each array lies at an
        offset of its own in its memory object."""
        memory: dict[int, Memory] = {}
        for k, a in enumerate(args):
            if isinstance(a, np.ndarray) and id(a) not in memory:
                memory[id(a)] = Memory(self.device, a, 64 * (k % 3 + 1))
        try:
            self.launch(name, grid, block, [memory.get(id(a), a) for a in args])
            for m in memory.values():
                m.read()
        finally:
            for m in memory.values():
                m.release()

    def launch(
        self, name: str, grid: Sequence[int], block: Sequence[int], args: Sequence[object]
    ) -> None:
        """The same on memory of the device."""
        library, kernel = self.device.library, self._kernel(name)
        passed: list[object] = []
        for a in args:
            passed += [a.handle, ctypes.c_int64(a.start)] if isinstance(a, Memory) else [_number(a)]
        for k, value in enumerate(passed):
            size = c_size_t(ctypes.sizeof(value))  # type: ignore[arg-type]
            status = library.clSetKernelArg(kernel, c_uint32(k), size, byref(value))  # type: ignore[arg-type]
            _check(status, f"clSetKernelArg({name}, {k})")
        if 0 in grid:
            return
        sizes = (c_size_t * 3)(*(g * b for g, b in zip(grid, block, strict=True)))
        local = (c_size_t * 3)(*block)
        _check(
            library.clEnqueueNDRangeKernel(
                self.device.queue, kernel, c_uint32(3), None, sizes, local, c_uint32(0), None, None
            ),
            f"launch of {name}, {tuple(grid)} blocks of {tuple(block)}",
        )
        _check(library.clFinish(self.device.queue), f"{name}")


def _number(a: object) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a NumPy number as a kernel's parameter has them."""
    return ctypes.create_string_buffer(np.asarray(a).tobytes(), np.asarray(a).itemsize)


class Memory:
    """A memory object that holds a copy of an array from byte `start` on, with a guard behind it
    that a kernel may not change."""

    _GUARD = 64

    def __init__(self, device: Device, array: np.ndarray, start: int):
        self.device, self.array, self.start = device, array, start
        status = c_int32()
        before = np.random.default_rng(start).integers(0, 256, start, np.uint8)
        after = np.random.default_rng(start + 1).integers(0, 256, self._GUARD, np.uint8)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes = np.concatenate([before, content, after])
        size = c_size_t(self.bytes.size)
        self.handle = c_void_p(
            device.library.clCreateBuffer(
                device.context, c_uint64(_READ_WRITE), size, None, byref(status)
            )
        )
        _check(status.value, "clCreateBuffer")
        data = self.bytes.ctypes.data_as(POINTER(ctypes.c_uint8))
        _check(
            device.library.clEnqueueWriteBuffer(
                device.queue, self.handle, 1, c_size_t(0), size, data, 0, None, None
            ),
            "clEnqueueWriteBuffer",
        )

    def read(self) -> None:
        """Copy the result into the array; the bytes around it must be as they were."""
        content = np.empty_like(self.bytes)
        size = c_size_t(content.size)
        data = content.ctypes.data_as(POINTER(ctypes.c_uint8))
        _check(
            self.device.library.clEnqueueReadBuffer(
                self.device.queue, self.handle, 1, c_size_t(0), size, data, 0, None, None
            ),
            "clEnqueueReadBuffer",
        )
        end = self.start + self.array.nbytes
        for part in (slice(0, self.start), slice(end, None)):
            assert np.array_equal(content[part], self.bytes[part]), "wrote outside of its buffer"
        if self.array.flags.writeable:
            self.array[...] = (
                content[self.start : end].view(self.array.dtype).reshape(self.array.shape)
            )

    def release(self) -> None:
        """Free the memory of the device."""
        self.device.library.clReleaseMemObject(self.handle)
