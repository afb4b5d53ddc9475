"""Open a compiled library for the commands that call it, and make arrays to call it with."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.cli.options import plain_file
from tensorkiln.cli.tables import size_text
from tensorkiln.inspectors.library import inspect_library

Array = npt.NDArray[Any]


def graph_function(path: Path, name: str = "main") -> FunctionInfo:
    """The metadata of the library's graph function `name`; the library is not loaded. UserError if
    there is no such function, or it takes something other than tensors."""
    functions = inspect_library(path).metadata.functions
    graphs = [function for function in functions if function.kind != "tensor"]
    for function in graphs:
        if function.name == name:
            return _of_tensors(function)
    names = [function.name for function in graphs]
    hint = nearest(name, names) or f"it has: {', '.join(names) or 'none'}"
    raise UserError(f"{str(path)!r} has no graph function {name!r}", hint=hint)


def precision_of(path: Path) -> str:
    """The precision of the library's products, as its target says; the library is not loaded."""
    return str(inspect_library(path).metadata.target.get("precision", "float32"))


def _of_tensors(function: FunctionInfo) -> FunctionInfo:
    """The function itself. UserError (code `argument-kind`) if an input is no tensor of known
    rank."""
    for tensor in function.inputs:
        if tensor.shape is None:
            raise UserError(
                f"{function.name} takes {tensor.name!r}, {tensor.dtype}; from here only tensors "
                "can be passed",
                code="argument-kind",
                hint=f'tk.runtime.Executor(lib, tk.cpu())["{function.name}"](...) in Python',
            )
    return function


def output_names(function: FunctionInfo, count: int) -> list[str]:
    """A name for each of the `count` arrays that a call returned: those of the outputs, or if these
    are not as many, as for a tuple, the first output's name with a number: `out0`, `out1`."""
    names = [tensor.name for tensor in function.outputs]
    return names if len(names) == count else [f"{names[0]}{i}" for i in range(count)]


def open_function(path: Path, name: str = "main") -> tuple[Callable[..., list[Array]], int]:
    """Load the library and bind `name` to this CPU: (a function that takes and returns NumPy
    arrays, the number of threads that it runs on)."""
    (call,), threads = open_streams(path, name, 1)
    return call, threads


def open_streams(path: Path, name: str, count: int) -> tuple[list[Callable[..., list[Array]]], int]:
    """As `open_function`, `count` times: functions of one library, which share its weights, each
    with an executor of its own."""
    import tensorkiln as tk

    library = tk.runtime.load_module(path)

    def bound() -> Callable[..., list[Array]]:
        function = tk.runtime.Executor(library)[name]
        return lambda *arrays: list(_arrays(function(*arrays)))

    return [bound() for _ in range(count)], library.num_threads


def _arrays(result: object) -> Iterator[Array]:
    """Yield all tensors and numbers in a nested result, in order, as arrays."""
    if isinstance(result, tuple | list):
        for part in result:
            yield from _arrays(part)
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

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def shape_of(tensor: ParamInfo, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The tensor's shape, symbolic dimensions from `dims`. UserError (code `unknown-dim`) that
    names a dimension without a size."""
    wanted = tensor.shape or ()
    missing = [dim for dim in wanted if isinstance(dim, str) and dim not in dims]
    if missing:
        raise UserError(
            f"input {tensor.name!r} has the symbolic dimension {missing[0]!r}",
            code="unknown-dim",
            hint=f"--dim {missing[0]}=1",
        )
    return tuple(dims[dim] if isinstance(dim, str) else dim for dim in wanted)


def random_array(tensor: ParamInfo, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Random values for one input: standard normal floats; integers and booleans are 0 or 1, which
    are valid indices for any dimension of at least 2."""
    shape, dtype = shape_of(tensor, dims), numpy_type(tensor.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


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
    wanted = {
        tensor.name: math.prod(shape_of(tensor, dims)) * numpy_type(tensor.dtype).itemsize
        for tensor in function.inputs
    }
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if sum(wanted.values()) > memory:
        name = max(wanted, key=lambda name: wanted[name])
        raise UserError(
            f"input {name!r} takes {size_text(wanted[name])}, and this machine has "
            f"{size_text(memory)} of memory",
            code="out-of-memory",
            hint="--dim with smaller sizes",
        )


def load_inputs(function: FunctionInfo, texts: Sequence[str]) -> dict[str, Array]:
    """Arrays by input name, from texts `x.npy` (for the inputs in order) and `name=x.npy`. Pickled
    arrays are refused.

    Raises UserError for unknown or repeated names, too many files, files that are no arrays.
    """
    names = [tensor.name for tensor in function.inputs]
    found: dict[str, Array] = {}
    for text in texts:
        name, equals, file = text.rpartition("=")
        if not equals:
            free = [candidate for candidate in names if candidate not in found]
            if not free:
                raise UserError(f"{len(texts)} inputs given, the function takes {len(names)}")
            name = free[0]
        if name not in names:
            hint = nearest(name, names) or f"inputs: {', '.join(names)}"
            raise UserError(f"no input named {name!r}", code="unknown-input", hint=hint)
        if name in found:
            raise UserError(f"input {name!r} is given twice")
        found[name] = _load_npy(plain_file(Path(file)))
    return found


def _load_npy(path: Path) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read array {str(path)!r}: {reason}") from None
    if not isinstance(loaded, np.ndarray):
        raise UserError(f"{str(path)!r} holds several arrays; expected one .npy array")
    return loaded
