"""CUDA in this process: the machine's driver, or the stand-in of driver/ where there is none."""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from pathlib import Path

from tests.runtime import device_library
from tests.runtime.device_stand import build_driver, build_kernels


def has_gpu() -> bool:
    """Whether the machine itself has a driver and a device."""
    count = ctypes.c_int()
    try:
        cu = ctypes.CDLL("libcuda.so.1")
        return cu.cuInit(0) == 0 and cu.cuDeviceGetCount(ctypes.byref(count)) == 0 < count.value
    except OSError:
        return False


@functools.cache
def load_lookalike() -> None:
    """Load the stand-in under the driver's name, so that whoever opens the driver gets it, until
    the process ends; nobody may have opened another one before."""
    folder_handle = tempfile.TemporaryDirectory(prefix="kiln-cuda-")
    load_lookalike.folder = folder_handle  # type: ignore[attr-defined]
    folder = Path(folder_handle.name)
    os.environ["LOOKALIKE_DIR"] = str(folder)
    build_kernels(folder, device_library.PTX, Path(__file__).parent / "kernels.c")
    ctypes.CDLL(str(build_driver(folder, "cuda")))


@functools.cache
def require_cuda() -> bool:
    """Have devices of CUDA in this process, those of the stand-in where the machine has none;
    whether they are real."""
    if not load_lookalike.cache_info().currsize and has_gpu():
        return True
    load_lookalike()
    return False
