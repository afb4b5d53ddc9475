"""The C executor behind an Executor."""

from __future__ import annotations

import ctypes
import weakref

from tensorkiln.runtime.native import NativeLibrary


class ExecutorMemory:
    """Memory for intermediate results; freed when neither the Executor nor a function of it is
    left."""

    def __init__(self, library: NativeLibrary):
        self.library = library
        self.handle = ctypes.c_void_p()
        library.check(library.dll.kiln_executor_create(ctypes.byref(self.handle)))
        weakref.finalize(self, library.dll.kiln_executor_destroy, self.handle)
