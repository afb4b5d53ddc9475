"""`tk.nd`: create tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tensorkiln.runtime import device_tensor
from tensorkiln.runtime.device import CPU, CUDA, OPENCL, Device
from tensorkiln.runtime.device_tensor import DeviceTensor
from tensorkiln.runtime.tensor import Array, Tensor, aligned_empty, dtype_named


def array(
    source: object, device: Device | None = None, dtype: DTypeLike | None = None
) -> Tensor | DeviceTensor:
    """A tensor with a copy of `source`: a NumPy array, nested list, number, or DLPack tensor.

    Row-major; 64-byte aligned on the host. Raises ArgumentTypeError for an unknown `dtype`, and
    DeviceError if there is no such device, or it is out of memory.
    """
    host_array = _host_array(source, dtype)
    if device is not None and device.dlpack_type != CPU:
        return device_tensor.copied(host_array, device)
    out = aligned_empty(host_array.shape, host_array.dtype)
    np.copyto(out, host_array)
    return Tensor(out, device)


def _host_array(source: Any, dtype: DTypeLike | None) -> Array:
    if isinstance(source, Tensor | DeviceTensor):
        source = source.numpy()
    elif hasattr(source, "__dlpack__") and not isinstance(source, np.ndarray):
        source = from_dlpack(source).numpy()
    return np.asarray(source, dtype=None if dtype is None else dtype_named(dtype))


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor | DeviceTensor:
    """An uninitialised tensor, row-major, and 64-byte aligned on the host; `empty(3)` has shape
    (3,). Errors as of `array`."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else shape
    if device is not None and device.dlpack_type != CPU:
        return device_tensor.empty(sizes, dtype_named(dtype), device)
    return Tensor(aligned_empty(sizes, dtype_named(dtype)), device)


def zeros(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor | DeviceTensor:
    """A tensor of zeros; as `empty`."""
    tensor = empty(shape, dtype, device)
    if isinstance(tensor, DeviceTensor):
        return tensor.copyfrom(np.zeros(tensor.shape, tensor.dtype))
    tensor.numpy().fill(0)
    return tensor


def from_dlpack(source: Any) -> Tensor | DeviceTensor:
    """A tensor that shares the memory of `source`, any tensor with `__dlpack__` on the host or on
    an OpenCL or CUDA device. Raises ArgumentValueError (codes `dlpack`, `strides`) for a tensor on
    a device that cannot be taken."""
    dlpack_device = getattr(source, "__dlpack_device__", None)
    if dlpack_device is not None and int(dlpack_device()[0]) in (CUDA, OPENCL):
        return device_tensor.imported(source)
    return Tensor(np.from_dlpack(source))
