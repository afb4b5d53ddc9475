"""Giving values back: however deep they are, and where Python has no form for them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime.native import Value
from tensorkiln.runtime.values import from_value
from tensorkiln.script import from_source

MODULE = """
@R.function
def pair(x: R.Object, y: R.Object) -> R.Tuple(R.Object, R.Object):
    return R.tuple(x, y)

@R.function
def holding(x: R.Object) -> R.Callable:
    @R.function
    def inner() -> R.Object:
        return x
    return inner
"""
DEEP = 200_000  # a call for each of them would take more than a stack of 8 MiB


@pytest.fixture
def libraries(compiled: tk.Executable, tmp_path: Any) -> list[Any]:
    paths = [compiled.export_library(tmp_path / f"{i}.so") for i in range(2)]
    return [tk.runtime.Executor(tk.runtime.load_module(p), tk.cpu()) for p in paths]


@pytest.fixture(scope="module")
def compiled() -> tk.Executable:
    return tk.compile(from_source(MODULE))


Wrap = Callable[[Any, Value, Value], int]


def in_tuple(run: Any, value: Value, tuple_value: Value) -> int:
    return int(
        run.module.library.dll.kiln_make_tuple(ctypes.byref(value), 1, ctypes.byref(tuple_value))
    )


def in_closure(run: Any, value: Value, closure_value: Value) -> int:
    dll = run.module.library.dll
    index = run.module.library.index("holding")
    call = dll.kiln_executor_invoke
    return int(call(run._memory.handle, index, ctypes.byref(value), 1, ctypes.byref(closure_value)))


# What holds the value of the level below, by the number of the level.
NESTS: dict[str, Callable[[int], tuple[int, Wrap]]] = {
    "tuples": lambda i: (0, in_tuple),
    "closures": lambda i: (0, in_closure),
    "both": lambda i: (0, in_tuple if i % 2 else in_closure),
    "tuples of two libraries": lambda i: (i % 2, in_tuple),
}


@pytest.mark.parametrize("nest", NESTS)
def test_deep_values(libraries: list[Any], nest: str) -> None:
    dlls = [run.module.library.dll for run in libraries]
    before = [dll.kiln_live_objects() for dll in dlls]  # names of Python functions
    value = Value()
    assert dlls[0].kiln_make_string(b"0123456789", 10, ctypes.byref(value)) == 0
    for i in range(DEEP):
        library_index, wrap = NESTS[nest](i)
        nested = Value()
        assert wrap(libraries[library_index], value, nested) == 0
        dlls[library_index].kiln_release(ctypes.byref(value))
        value = nested
    assert sum(dll.kiln_live_objects() for dll in dlls) >= DEEP
    dlls[0].kiln_release(ctypes.byref(value))
    assert [dll.kiln_live_objects() for dll in dlls] == before
    for run in libraries:
        run.module.close()


def test_types_without_a_form(libraries: list[Any]) -> None:
    """Elements that NumPy does not have are a typed error, and nothing of them stays."""
    library = libraries[0].module.library
    refused, before = 0, library.dll.kiln_live_objects()
    for shape, code, bits in itertools.product([(3,), (0,), ()], range(8), [8, 16, 64, 128]):
        value, pair = Value(), Value()
        sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        packed = code | bits << 8 | 1 << 16
        if library.dll.kiln_make_tensor(sizes, len(shape), packed, ctypes.byref(value)):
            continue
        assert library.dll.kiln_make_tuple(ctypes.byref(value), 1, ctypes.byref(pair)) == 0
        for value_given in (value, pair):
            try:
                array = from_value(library, value_given)
                assert (array if value_given is value else array[0]).shape == shape
                del array
            except UserError as error:
                assert error.code in ("dtype", "dtype-mismatch")
                refused += 1
            library.dll.kiln_release(ctypes.byref(value_given))
        assert library.dll.kiln_live_objects() == before, (code, bits)
    assert refused
    libraries[0].module.close()
