"""Outer functions in hosts without Python: every kind of value, functions of the host, threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.runtime import Executor, load_module
from tests.hosts.build import run
from tests.hosts.conftest import VALUES, program
from tests.outer.test_hosts import _everything

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose `main` takes a vector, a string, a shape and a function, and calls `hook`."""
    executable = tk.compile(IRModule(_everything(), "whole"), "llvm")
    return Path(executable.export_library(tmp_path_factory.mktemp("whole") / "whole.so"))


X = np.array([1, 0, 2], np.float32)
CODES = {"no-function": 10, "argument-kind": 7, "argument-count": 1}


def in_python(whole: Path, *arguments: object) -> str:
    """Code and sentence for a bad call."""
    with pytest.raises(UserError) as caught:
        Executor(load_module(whole))["main"](*arguments)
    return f"{CODES[caught.value.code]} {caught.value.message}"


@pytest.mark.parametrize("language", VALUES)
def test_values_and_functions_of_the_host(whole: Path, programs: Path, language: str) -> None:
    """The results of Python, and its sentences, with C and C++ under the sanitizers."""
    process = run(program(VALUES, language, programs), whole)
    assert process.returncode == 0, process.stdout + process.stderr
    unknown, result, closure, arity, no, *further_lines = process.stdout.splitlines()
    bad, few, further_lines = further_lines[:4], further_lines[4], further_lines[5:]

    def f(x: object) -> object:
        return x

    assert unknown == in_python(whole, X, "text", (4, 5), f)
    assert result == "a string of some length [4, 5] 0 0 [1, 2] 0 2"
    assert closure == "3 of 1"
    assert arity.startswith("1 ") and "expected 1 argument, received 0" in arity
    assert no.startswith("13 ") and "the host said no [in " in no
    assert bad == [in_python(whole, X, label, (4, 5), f) for label in (3, 0.5, True, X)]
    assert few == in_python(whole, X, "text", (4, 5))
    type_errors = [
        "7 the value is not a string",
        "7 the value is not a function",
        "7 the elements of a view with strides are not contiguous",
    ]
    assert further_lines == [*(type_errors if language != "C" else []), "0 live, 2 gone"]
