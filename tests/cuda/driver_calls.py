"""Functions of CUDA's driver, called from Python as a program beside a library would."""

from __future__ import annotations

import ctypes
from typing import Any

from tensorkiln.runtime.cuda_memory import CUDA_DRIVER, CudaContext
from tests.cuda.lookalike import require_cuda

_GLOBAL = 0  # CU_STREAM_CAPTURE_MODE_GLOBAL
# The version of CUDA in which each got the arguments that are used here.
_VERSIONS = {
    "cuDriverGetVersion": 2020,
    "cuDeviceGetName": 2000,
    "cuDeviceGetAttribute": 2000,
    "cuMemcpyDtoDAsync": 3020,
    "cuStreamCreate": 2000,
    "cuStreamDestroy": 4000,
    "cuStreamBeginCapture": 10010,
    "cuStreamEndCapture": 10000,
    "cuGraphInstantiateWithFlags": 11040,
    "cuGraphLaunch": 10000,
    "cuGraphExecDestroy": 10000,
    "cuGraphDestroy": 10000,
    "cuTensorMapEncodeTiled": 12000,
    "cuTensorMapEncodeIm2col": 12000,
}


class Driver:
    """Functions of the driver, in the context of device 0."""

    def __init__(self) -> None:
        require_cuda()
        self._library = ctypes.CDLL("libcuda.so.1")
        context = CUDA_DRIVER.context_of(0)
        assert isinstance(context, CudaContext)
        self.context = context

    def __call__(self, name: str, *arguments: Any) -> int:
        """Call a function; its error, 0 for none."""
        address = ctypes.c_void_p()
        find = self._library.cuGetProcAddress_v2
        null = ctypes.c_void_p()
        flags = ctypes.c_uint64(0)
        assert find(name.encode(), ctypes.byref(address), _VERSIONS[name], flags, null) == 0
        assert address.value is not None
        with self.context.current():
            return int(ctypes.CFUNCTYPE(ctypes.c_int)(address.value)(*arguments))

    def make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that writes a handle to its first parameter."""
        handle = ctypes.c_void_p()
        assert self(name, ctypes.byref(handle), *arguments) == 0
        return handle

    def begin_capture(self, stream: int) -> None:
        """From now on work in a stream is recorded, not run."""
        assert self("cuStreamBeginCapture", ctypes.c_void_p(stream), _GLOBAL) == 0

    def end_capture(self, stream: int) -> ctypes.c_void_p:
        """The graph of what was recorded; null if something could not be."""
        graph = ctypes.c_void_p()
        self("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """A graph made ready for `launch`."""
        return self.make("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))

    def launch(self, ready: ctypes.c_void_p, stream: int) -> None:
        """Queue a graph in a stream."""
        assert self("cuGraphLaunch", ready, ctypes.c_void_p(stream)) == 0
