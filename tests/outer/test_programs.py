"""Programs of the whole graph language, compiled and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.script import constant_table, from_source
from tests.script.language import PROGRAMS


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple) and not (value and all(isinstance(v, int) for v in value)):
        return [leaf for part in value for leaf in _flat(part)]
    return [value]


def _same(have: list[Any], want: list[Any]) -> None:
    assert len(have) == len(want)
    for h, w in zip(have, want, strict=True):
        if isinstance(w, np.ndarray):
            array = np.asarray(h)  # a shape comes as a tuple of integers
            assert array.shape == w.shape
            np.testing.assert_allclose(array, w, rtol=1e-5)
        else:
            assert h == w


def _on_arrays(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy arrays as one of Tensors. What it returns for side effects is dropped."""

    def call(*args: Any) -> Any:
        result = f(*(a.numpy() if isinstance(a, tk.runtime.Tensor) else a for a in args))
        return None if isinstance(result, list | tuple) else result

    return call


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_compiled(name: str) -> None:
    program = PROGRAMS[name]
    lib = tk.compile(program.module(), "llvm").jit()
    for called, f in program.packed.items():
        if called not in lib:
            tk.runtime.register_function(called, _on_arrays(f))
    inputs = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in program.inputs.items()}
    result = tk.runtime.Executor(lib, tk.cpu())["main"](**inputs)
    _same(_flat(result), program.expected(**program.inputs))
    del result


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_text_of_what_was_compiled_compiles_to_the_same(name: str) -> None:
    exe = tk.compile(PROGRAMS[name].module(), "llvm")
    (text,) = (a.text() for a in exe.artifacts if a.file_name == "module.py")
    again = from_source(text, constant_table(exe.module))
    second = tk.compile(again, "llvm", relax_pipeline=None, tir_pipeline=None)
    assert [a.file_name for a in second.artifacts] == [a.file_name for a in exe.artifacts]
    for a, b in zip(exe.artifacts, second.artifacts, strict=True):
        assert a == b, a.file_name
