"""Open a compiled library for the commands that call it, and read arrays to call it with."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.cli.options import STDIO, plain_file, sizes
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.measure.inputs import arrays_of, numpy_type, random_inputs

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
    """The function itself. UserError (code `argument-kind`) if an input is not a tensor of known
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


def open_function(
    path: Path, name: str = "main", sha256: str | None = None
) -> tuple[Callable[..., list[Array]], int]:
    """Load the library and bind `name` to this CPU: (a function that takes and returns NumPy
    arrays, the number of threads that it runs on). With `sha256`, another file than that is refused
    before any code of it runs."""
    (call,), threads = open_streams(path, name, 1, sha256)
    return call, threads


def open_streams(
    path: Path, name: str, count: int, sha256: str | None = None
) -> tuple[list[Callable[..., list[Array]]], int]:
    """As `open_function`, `count` times: functions of one library, which share its weights, each
    with an executor of its own."""
    import tensorkiln as tk

    library = tk.runtime.load_module(path, sha256=sha256)

    def bound() -> Callable[..., list[Array]]:
        function = tk.runtime.Executor(library)[name]
        return lambda *arrays: list(arrays_of(function(*arrays)))

    return [bound() for _ in range(count)], library.num_threads


def given_inputs(
    function: FunctionInfo, args: argparse.Namespace, needs: str = ""
) -> dict[str, Array]:
    """Arrays by input name: those in the files of `--input`, and random ones of `--dim` and
    `--seed` for the others.

    Raises UserError: `missing-input` if there are others, and they may only be random with the
    option `needs`; `conflict` for `--dim` or `--seed` if there are none; and as `load_inputs`.
    """
    arrays = load_inputs(function, args.input)
    missing = [tensor.name for tensor in function.inputs if tensor.name not in arrays]
    if missing and needs:
        raise UserError(
            f"no value for input(s): {', '.join(missing)}",
            code="missing-input",
            hint=f"--input {missing[0]}=x.npy, or {needs}",
        )
    dims = sizes(args.dim, "--dim")
    if not missing and (dims or args.seed is not None):
        raise UserError(
            f"{'--dim' if dims else '--seed'} is only for random values, and every input is given",
            code="conflict",
        )
    if missing:
        drawn = random_inputs(function, dims, args.seed or 0)
        for tensor, array in zip(function.inputs, drawn, strict=True):
            arrays.setdefault(tensor.name, array)
    return arrays


def load_inputs(function: FunctionInfo, texts: Sequence[str]) -> dict[str, Array]:
    """Arrays by input name, from texts `x.npy` (for the inputs in order) and `name=x.npy`, where
    `-` stands for standard input. Pickled arrays are refused.

    Raises UserError for unknown or repeated names, too many files, files that are no arrays.
    """
    names = [tensor.name for tensor in function.inputs]
    arrays: dict[str, Array] = {}
    for text in texts:
        name, equals, file = text.rpartition("=")
        if not equals:
            free = [candidate for candidate in names if candidate not in arrays]
            if not free:
                raise UserError(f"{len(texts)} inputs given, the function takes {len(names)}")
            name = free[0]
        if name not in names:
            hint = nearest(name, names) or f"inputs: {', '.join(names)}"
            raise UserError(f"no input named {name!r}", code="unknown-input", hint=hint)
        if name in arrays:
            raise UserError(f"input {name!r} is given twice")
        loaded = _load_npy(Path(file) if file == STDIO else plain_file(Path(file)))
        arrays[name] = _named_type(loaded, function.inputs[names.index(name)])
    return arrays


def _named_type(array: Array, tensor: ParamInfo) -> Array:
    """Raw bytes, which is what NumPy's files have for types that it lacks, as the tensor's type."""
    dtype = numpy_type(tensor.dtype)
    is_raw = array.dtype.type is np.void and array.dtype.names is None
    return array.view(dtype) if is_raw and array.dtype.itemsize == dtype.itemsize else array


def _load_npy(path: Path) -> Array:
    try:
        source = io.BytesIO(sys.stdin.buffer.read()) if path == Path(STDIO) else path
        loaded = np.load(source, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read array {str(path)!r}: {reason}") from None
    if not isinstance(loaded, np.ndarray):
        raise UserError(f"{str(path)!r} holds several arrays; expected one .npy array")
    return loaded
