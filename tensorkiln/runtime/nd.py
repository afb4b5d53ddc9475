"""`tk.nd`: create tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from tensorkiln.runtime.device import Device
from tensorkiln.runtime.tensor import Tensor, aligned_empty, dtype_named, make_tensor


def array(source: object, device: Device | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor with a copy of `source`: a NumPy array, nested list, number, or DLPack tensor.

    Row-major, 64-byte aligned. Raises UnsupportedError for a device other than the CPU, and
    ArgumentTypeError for an unknown `dtype`.
    """
    return make_tensor(source, device, dtype)


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor:
    """An uninitialised tensor, row-major and 64-byte aligned; `empty(3)` has shape (3,)."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else shape
    return Tensor(aligned_empty(sizes, dtype_named(dtype)), device)


def zeros(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor:
    """A tensor of zeros, row-major and 64-byte aligned."""
    made = empty(shape, dtype, device)
    made.numpy().fill(0)
    return made


def from_dlpack(source: object) -> Tensor:
    """A tensor that shares the memory of `source`, any host tensor with `__dlpack__`."""
    return Tensor(np.from_dlpack(source))  # type: ignore[arg-type]
