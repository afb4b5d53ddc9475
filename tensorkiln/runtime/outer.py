"""Outer functions in an executor: they take and return values of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorkiln.artifact.metadata import FunctionInfo
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.arguments import in_order, show, wrong_count
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.runtime.native import ExecutorMemory
from tensorkiln.runtime.tensor import Tensor, as_array, view_of
from tensorkiln.runtime.values import array_at, call_with_values


class OuterFunction:
    """A function with control flow, in an executor. Takes and returns tensors, numbers, strings,
    shapes (tuples of integers), tuples of them, and functions."""

    def __init__(self, memory: ExecutorMemory, info: FunctionInfo):
        self.info = info
        self.name = info.name
        self._memory = memory  # keeps the C executor alive
        self._index = memory.library.index(info.name)

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Run on values, by position or input name. Tensors are shared with the caller, not
        copied; `out` (a tensor, or a nested sequence of them) gets a copy of the result."""
        if named:
            inputs = in_order(self.info, inputs, named)
        elif len(inputs) != len(self.info.inputs):
            raise wrong_count(self.info, len(inputs))
        result = call_with_values(self._memory.library, inputs, self._invoke, self.name)
        if out is None:
            return result
        _copy_into(result, out, self.name)
        return out

    def _invoke(self, arguments: object, count: int, result: object) -> int:
        invoke = self._memory.library.dll.kiln_executor_invoke
        return int(invoke(self._memory.handle, self._index, arguments, count, result))

    def __repr__(self) -> str:
        """Name, inputs and result."""
        inputs = ", ".join(map(show, self.info.inputs))
        return f"<outer function {self.name}({inputs}) -> {show(self.info.outputs[0])}>"


def fill_outputs(result: object, places: Mapping[int, Any], label: str) -> Any:
    """Copy outputs into the tensors of `places`; return the result with these in their place.

    Output k is item k of a tuple; a result that is not a tuple is output 0. Raises
    ArgumentTypeError (code `no-output`) for an index that the result does not have.
    """
    items = list(result) if isinstance(result, tuple) else [result]
    for k, place in places.items():
        if k >= len(items):
            count = f"{len(items)} output{'' if len(items) == 1 else 's'}"
            message = f"{label} has {count}, there is no output {shown(k)}"
            raise ArgumentTypeError(message, code="no-output")
        _copy_into(items[k], place, f"{label}[{k}]")
        items[k] = place
    return tuple(items) if isinstance(result, tuple) else items[0]


def _copy_into(result: object, out: Any, label: str) -> None:
    """Copy a result into `out`, item by item if both are sequences of the same length.

    Raises ArgumentTypeError where structure, shape or dtype differ, ArgumentValueError where `out`
    is read-only.
    """
    places = tuple(out) if isinstance(result, tuple) and is_a(out, list, tuple) else ()
    if isinstance(result, tuple) and len(result) == len(places) and is_a(out, list, tuple):
        for i, (item, place) in enumerate(zip(result, places, strict=True)):
            _copy_into(item, place, f"{label}[{i}]")
        return
    if not isinstance(result, Tensor):
        raise ArgumentTypeError(
            f"{label}: out= for a result that is {type(result).__name__}", code="argument-kind"
        )
    target, owner = as_array(out, numbers=False), None
    if target is None:
        address, owner = view_of(out, f"{label}: out=", writable=True)
        target = array_at(address)
    elif not target.flags.writeable:
        message = f"{label}: out= is read-only and cannot be filled"
        raise ArgumentValueError(message, code="read-only")
    if target.shape != result.shape or target.dtype != result.numpy().dtype:
        raise ArgumentTypeError(
            f"{label}: out= is {target.dtype} {list(target.shape)}, "
            f"the result {result.dtype} {list(result.shape)}",
            code="shape-mismatch",
        )
    np.copyto(target, result.numpy())
    del owner  # it kept the memory of `target` alive


__all__ = ["OuterFunction", "fill_outputs"]
