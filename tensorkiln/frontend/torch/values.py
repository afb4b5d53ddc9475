"""Tensors of torch as constants, and torch's element types as ours."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.frontend.graph.issues import NodeProblem
from tensorkiln.frontend.torch.complex_values import Complex
from tensorkiln.ir.relax import Constant, constant


def dtype_name(dtype: Any) -> str:
    """Our name of a torch.dtype, such as "float32"; NodeProblem for complex, quantised and packed
    element types."""
    name = str(dtype).removeprefix("torch.")
    if dtype.is_complex:
        raise NodeProblem(
            "dtype",
            f"the element type {name} is not supported here",
            "floats with a last dimension of 2: torch.view_as_real and torch.view_as_complex",
        )
    if name not in PROGRAM_TYPES:
        raise NodeProblem("dtype", f"the element type {name} is not supported")
    return name


def part_name(dtype: Any) -> str:
    """Our name of a torch.dtype; of a complex one, that of its parts."""
    return dtype_name(dtype.to_real() if dtype.is_complex else dtype)


def as_constant(tensor: Any, name: str = "") -> Constant | Complex:
    """A constant that is a view of the tensor's memory, whatever its strides.

    NodeProblem if the tensor is not a dense one in the memory of the host.
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise NodeProblem("dtype", f"{name or 'a constant'} is a sparse or quantised tensor")
    if tensor.device.type != "cpu":
        raise NodeProblem(
            "device", f"{name or 'a constant'} is on device {tensor.device}", "module.cpu()"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        parts = torch.view_as_real(plain)
        real, imag = (_floats(parts[..., k], f"{name}.{k}") for k in range(2))
        return Complex(real, imag)
    return _floats(plain, name)


def _floats(plain: Any, name: str) -> Constant:
    import torch

    dtype = dtype_name(plain.dtype)
    if PROGRAM_TYPES[dtype].in_numpy:
        return constant(plain.numpy(), name)
    # NumPy has no bfloat16 of its own: the bits are read as int16, and named again.
    bits: np.ndarray = plain.view(torch.int16).numpy()
    return constant(bits.view(ml_dtypes.bfloat16), name)
