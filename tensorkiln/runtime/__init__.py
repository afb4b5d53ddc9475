"""Load and run compiled libraries; needs no compiler, only NumPy and the standard library."""

from tensorkiln.runtime.callbacks import register_function, unregister_function
from tensorkiln.runtime.device import Device, cpu
from tensorkiln.runtime.library_file import read_metadata
from tensorkiln.runtime.load import load_module, register_loader, unregister_loader
from tensorkiln.runtime.module import Executor, Module
from tensorkiln.runtime.tensor import Tensor

__all__ = [
    "Device",
    "Executor",
    "Module",
    "Tensor",
    "cpu",
    "load_module",
    "read_metadata",
    "register_function",
    "register_loader",
    "unregister_function",
    "unregister_loader",
]
