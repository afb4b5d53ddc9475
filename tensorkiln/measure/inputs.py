"""Random arrays to call a function with, and the arrays in what it returned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.element_types import NARROW_TYPES, PARAMETER_TYPES, program_type
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.machine import memory_bytes
from tensorkiln.base.text import size_text

Array = npt.NDArray[Any]


def arrays_of(result: object) -> Iterator[Array]:
    """Yield all tensors and numbers in a nested result, in order, as arrays."""
    if isinstance(result, tuple | list):
        for part in result:
            yield from arrays_of(part)
    elif isinstance(result, np.ndarray):
        yield result
    elif hasattr(result, "numpy"):
        yield result.numpy()
    elif isinstance(result, bool | int | float):
        yield np.asarray(result)


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name; types that NumPy lacks, as bfloat16, are from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def in_bytes(array: Array) -> Array:
    """An array of a type that programs hold as bytes as the array of these, which shares its
    memory; others as they are."""
    stored = program_type(array.dtype.name)
    return array if stored == array.dtype.name else array.view(stored)


def typed(array: Array, tensor: ParamInfo) -> Array:
    """Bytes as an array of the tensor's type, if that is one that programs hold as bytes."""
    if tensor.dtype not in NARROW_TYPES or array.dtype != program_type(tensor.dtype):
        return array
    return array.view(numpy_type(tensor.dtype))


def shape_of(tensor: ParamInfo, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The tensor's shape, symbolic dimensions from `dims`. UserError (code `unknown-dim`) that
    names a dimension without a size."""
    shape = tensor.shape or ()
    missing = [dim for dim in shape if isinstance(dim, str) and dim not in dims]
    if missing:
        raise UserError(
            f"input {tensor.name!r} has the symbolic dimension {missing[0]!r}",
            code="unknown-dim",
            hint=f"--dim {missing[0]}=1",
        )
    return tuple(dims[dim] if isinstance(dim, str) else dim for dim in shape)


def random_array(tensor: ParamInfo, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Random values for one input: standard normal floats, of a type without negative numbers their
    magnitudes; integers and booleans are 0 or 1, which are valid indices for any dimension of at
    least 2."""
    shape, dtype = shape_of(tensor, dims), numpy_type(tensor.dtype)
    row = PARAMETER_TYPES.get(tensor.dtype)
    if dtype.kind in "biu" or (row is not None and row.is_integer):
        return rng.integers(0, 2, shape).astype(dtype)
    values = rng.standard_normal(shape)
    return (values if row is None or row.is_signed else np.abs(values)).astype(dtype)


def random_inputs(function: FunctionInfo, dims: Mapping[str, int], seed: int) -> list[Array]:
    """One random array per input, the same for the same seed. UserError for a name in `dims` that
    no input has (code `unknown-dim`), and for inputs larger than memory (`out-of-memory`)."""
    symbols = {d for tensor in function.inputs for d in tensor.shape or () if isinstance(d, str)}
    unknown = sorted(set(dims) - symbols)
    if unknown:
        hint = nearest(unknown[0], symbols) or f"symbolic dimensions: {sorted(symbols) or 'none'}"
        raise UserError(f"no symbolic dimension {unknown[0]!r}", code="unknown-dim", hint=hint)
    rng = np.random.default_rng(seed)
    _require_memory(function, dims)
    return [random_array(tensor, dims, rng) for tensor in function.inputs]


def _require_memory(function: FunctionInfo, dims: Mapping[str, int]) -> None:
    """Raise UserError, before anything is allocated, if the inputs are larger than this machine's
    memory: the system might overcommit it, and kill the process later."""
    sizes = {
        tensor.name: math.prod(shape_of(tensor, dims)) * numpy_type(tensor.dtype).itemsize
        for tensor in function.inputs
    }
    memory = memory_bytes()
    if memory and sum(sizes.values()) > memory:
        name = max(sizes, key=lambda name: sizes[name])
        raise UserError(
            f"input {name!r} takes {size_text(sizes[name])}, and this machine has "
            f"{size_text(memory)} of memory",
            code="out-of-memory",
            hint="--dim with smaller sizes",
        )
