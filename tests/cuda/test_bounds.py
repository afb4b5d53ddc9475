"""A kernel behind the stand-in for the driver may touch the memory of its device, and nothing else:
not what lies behind an allocation, was freed, or is another device's."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.emulator.build import build
from tests.runtime.device_stand import build_driver

# What the stand-in reads of a module: its hash, and what its functions take.
PTX = ".visible .entry touch(\n\t.param .u64 .ptr .align 4 touch_param_0\n)\n"
# Thread t stores 1 at an address that is given, plus 4 * t.
IR = """
define ptx_kernel void @touch(ptr align 4 %p0) #0 {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %to = getelementptr i32, ptr %p0, i32 %tid
  store i32 1, ptr %to, align 4
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
attributes #0 = { "nvvm.reqntid"="16,1,1" }
"""
LOST = 719  # CUDA_ERROR_LAUNCH_FAILED
NONE = ctypes.c_void_p(None)


class Cuda:
    """A driver of its own, with the module of PTX on device 0."""

    def __init__(self, folder: Path):
        build([IR], folder / f"{hashlib.sha256(PTX.encode()).hexdigest()}.so")
        self.driver = ctypes.CDLL(str(_renamed(build_driver(folder, "cuda"))))
        self.driver.fake_log.restype = ctypes.c_char_p
        self.contexts = [self.made("cuDevicePrimaryCtxRetain", device) for device in (0, 1)]
        self("cuCtxPushCurrent", self.contexts[0])
        self.module = self.made("cuModuleLoadDataEx", PTX.encode(), 0, None, None)
        self.function = self.made("cuModuleGetFunction", self.module, b"touch")

    def __call__(self, name: str, *arguments: object) -> None:
        assert self.driver[name](*arguments) == 0, name

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self(name, ctypes.byref(handle), *arguments)
        return handle

    def memory(self, elements: int) -> ctypes.c_void_p:
        return self.made("cuMemAlloc", ctypes.c_size_t(4 * elements))

    def touch(self, memory: ctypes.c_void_p, first_element: int = 0) -> str:
        """Let 16 threads store from an element on; what the emulator says of it, if anything."""
        start = ctypes.c_void_p((memory.value or 0) + 4 * first_element)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(start))
        self("cuLaunchKernel", self.function, *(1, 1, 1), *(16, 1, 1), 0, NONE, values, None)
        status = self.driver.cuStreamSynchronize(NONE)
        if status != LOST:
            return ""
        self.driver.fake_fail(b"", 0, 0)  # the device is back
        return self.driver.fake_log().decode().splitlines()[-1]


def _renamed(driver: Path) -> Path:
    """A driver that the loader knows by another name: who asks for CUDA's does not get it."""
    content = driver.read_bytes()
    assert content.count(b"libcuda.so.1\0") == 1
    renamed_path = driver.with_name("libmine.so.1")
    renamed_path.write_bytes(content.replace(b"libcuda.so.1\0", b"libmine.so.1\0"))
    return renamed_path


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setenv("LOOKALIKE_DIR", str(tmp_path))
    return Cuda(tmp_path)


def test_it_stays_unseen(cuda: Cuda) -> None:
    """Who looks for CUDA's driver does not find this one, which would pass for a GPU."""
    with contextlib.suppress(OSError):
        assert ctypes.CDLL("libcuda.so.1")._handle != cuda.driver._handle


def test_memory_of_the_device(cuda: Cuda) -> None:
    before, memory = cuda.memory(40), cuda.memory(16)
    assert cuda.touch(memory) == cuda.touch(before, 24) == ""
    elements = np.ctypeslib.as_array(ctypes.cast(memory, ctypes.POINTER(ctypes.c_int32)), (16,))
    assert (elements == 1).all()


@pytest.mark.parametrize(("first_element", "thread"), [(1, 15), (25, 0), (-1, 0)])
def test_beside_an_allocation(cuda: Cuda, first_element: int, thread: int) -> None:
    """By as little as an element: kernel, thread and address are named, and the place."""
    memory = cuda.memory(16)
    message = cuda.touch(memory, first_element)
    first = 4 * (first_element + thread)
    start = f"failed touch: kernel touch, block (0, 0, 0): thread ({thread}, 0, 0) writes 4 bytes"
    address = hex((memory.value or 0) + first)
    place = f"at {address}, outside of all buffers: bytes {first} to {first + 3} of one of 64"
    assert message == f"{start} {place}"
    assert cuda.touch(memory) == ""


def test_memory_that_was_freed(cuda: Cuda) -> None:
    memory, other_memory = cuda.memory(16), cuda.memory(16)
    cuda("cuMemFree", memory)
    assert "thread (0, 0, 0) writes 4 bytes" in cuda.touch(memory)
    cuda("cuMemFree", other_memory)
    assert "outside of all buffers" in cuda.touch(other_memory)  # where none is left, too


def test_memory_of_another_device(cuda: Cuda) -> None:
    cuda("cuCtxPushCurrent", cuda.contexts[1])
    foreign_memory = cuda.memory(16)
    cuda("cuCtxPopCurrent", ctypes.byref(ctypes.c_void_p()))
    assert "outside of all buffers" in cuda.touch(foreign_memory)


def test_a_module_that_is_loaded_again_knows_what_is_there(cuda: Cuda) -> None:
    memory = cuda.memory(16)
    cuda("cuModuleUnload", cuda.module)
    freed_memory = cuda.memory(16)
    cuda("cuMemFree", freed_memory)
    cuda.module = cuda.made("cuModuleLoadDataEx", PTX.encode(), 0, None, None)
    cuda.function = cuda.made("cuModuleGetFunction", cuda.module, b"touch")
    assert cuda.touch(memory) == "" and "outside of all buffers" in cuda.touch(freed_memory)
