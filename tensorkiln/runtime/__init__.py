"""Load and run compiled libraries; needs no compiler, only NumPy and the standard library."""

from tensorkiln.runtime.callbacks import register_function, unregister_function
from tensorkiln.runtime.device import Device, cpu, cuda, ext_dev, opencl
from tensorkiln.runtime.device_tensor import DeviceTensor
from tensorkiln.runtime.failures import DeviceError
from tensorkiln.runtime.library_file import read_metadata
from tensorkiln.runtime.load import load_module, register_loader, unregister_loader
from tensorkiln.runtime.loaded import LoadedFunction, LoadedModel, Outputs
from tensorkiln.runtime.module import Executor, Module
from tensorkiln.runtime.tensor import Tensor

__all__ = [
    "Device",
    "DeviceError",
    "DeviceTensor",
    "Executor",
    "LoadedFunction",
    "LoadedModel",
    "Module",
    "Outputs",
    "Tensor",
    "cpu",
    "cuda",
    "ext_dev",
    "load_module",
    "opencl",
    "read_metadata",
    "register_function",
    "register_loader",
    "unregister_function",
    "unregister_loader",
]
