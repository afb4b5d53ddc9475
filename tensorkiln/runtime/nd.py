"""`tk.nd`: making tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from tensorkiln.runtime.device import Device
from tensorkiln.runtime.tensor import Tensor, aligned_empty, dtype_named, make_tensor


def array(source: object, device: Device | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor with a copy of `source`: a NumPy array, nested list, number, or DLPack tensor."""
    return make_tensor(source, device, dtype)


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor:
    """An uninitialised tensor, 64-byte aligned; a number is the shape of a vector."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else shape
    return Tensor(aligned_empty(sizes, dtype_named(dtype)), device)


def zeros(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | None = None
) -> Tensor:
    """A tensor of zeros, 64-byte aligned."""
    made = empty(shape, dtype, device)
    made.numpy().fill(0)
    return made


def from_dlpack(source: object) -> Tensor:
    """A tensor that shares the memory of any host tensor with DLPack."""
    return Tensor(np.from_dlpack(source))  # type: ignore[arg-type]
