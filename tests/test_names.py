"""Names and texts that no file, no C function or no script can hold: of functions, parameters,
modules, attributes. Each compiles to a library that works, or is a UserError."""

from __future__ import annotations

import inspect
import keyword
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.external import External
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.script import from_source

ODD = [
    "\ud800",
    "a\0b",
    "a\nb",
    "\u00e9",
    "\x7f",
    " ",
    'a"b',
    "a'b\\",
    "*/",
    "??/",
    "%s",
    "",
    "a" * 150,
    "a" * 5000,
]
X = np.ones(4, np.float32)


def module(where: str, odd: str) -> IRModule:
    given = {where: odd}
    b = GraphBuilder()
    x = b.param(given.get("parameter", "x"), tensor((4,), "float32"))
    attrs = {
        "attribute": {"mine.note": (odd,)},
        "input": {"input_names": (odd,)},
        "output": {"output_names": (odd,)},
        "target": {"target": odd},
    }.get(where, {})
    f = b.finish(b.emit("neg", x), given.get("function", "main"), **attrs)
    return IRModule((f,), given.get("module", "model"))


@pytest.mark.parametrize(
    "where", ["function", "parameter", "module", "attribute", "input", "output", "target"]
)
def test_odd_names(where: str, tmp_path: Path) -> None:
    worked = 0
    for odd in ODD:
        mod = module(where, odd)
        try:
            exe = tk.compile(mod)
        except TensorkilnError as error:
            assert isinstance(error, UserError), error
            str(error).encode()
            continue
        # What was made can be written, read and run.
        text = mod.script()
        text.encode()
        assert structural_equal(from_source(text), mod), odd
        exe.artifacts.save(tmp_path / f"{where}{ODD.index(odd)}")
        assert exe(X).tolist() == [-1] * 4
        worked += 1
    hopeless = where in ("target",)
    assert worked >= (0 if hopeless else 1)
    assert where not in ("function", "attribute", "input", "output", "module") or worked < len(ODD)


# Words and types of C, C++ and OpenCL C, macros of C's headers and ours, names in our own C.
_OF_C = """
    INT64_MAX INT64_C KILN_ERROR_ASSERTION KILN_API KILN_OK NULL EOF stdin errno assert double bool
    image2d_t event_t sampler_t main linux unix I M_PI size_t int64_t uint8_t wchar_t restrict half
    float4 kernel global local constant __kernel __local true inline class new this template
    typename operator namespace memcpy exp kiln_run kiln_tensor params symbols dims workspace out
    shape printf _Bool complex _Complex alignas static_assert nullptr char8_t xor and not
    get_global_id fn let var f32 array thread_local auto asm typeof __int128 _Float16 __FILE__
    SIGINT CHAR_BIT RAND_MAX noreturn small N n
"""
OF_C = _OF_C.split()
INCLUDES = "stdint.h limits.h errno.h stdio.h stdlib.h math.h complex.h signal.h string.h wchar.h"


# A function has at most 64 symbolic dimensions.
PARTS = {"first": OF_C[::2], "second": OF_C[1::2]}


def _named(function: str, words: list[str]) -> Function:
    """The sum of an input for each word, whose name and dimension are that word."""
    b = GraphBuilder()
    inputs = [b.param(word, tensor((Var(word), 2), "float32")) for word in words]
    total, *rows = [b.emit("sum", b.emit("exp", x), axes=(0,)) for x in inputs]
    for row in rows:
        total = b.emit("add", total, row)
    return b.finish(total, function, input_names=tuple(words))


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("kind", ["llvm", "c"])
def test_inputs_and_dimensions_named_like_words_of_c(kind: str, tmp_path: Path) -> None:
    functions = tuple(_named(name, words) for name, words in PARTS.items())
    exe = tk.compile(IRModule(functions, "model"), kind)
    library = tk.load(exe.export_library(tmp_path / "model.so"))
    for name, words in PARTS.items():
        arrays = {word: np.full((k % 3 + 1, 2), k % 5, np.float32) for k, word in enumerate(words)}
        expected = sum(np.exp(x).sum(0) for x in arrays.values())
        f = library[name]
        np.testing.assert_allclose(f(arrays), expected, rtol=1e-5)
        np.testing.assert_allclose(f(*arrays.values()), expected, rtol=1e-5)
    (tmp_path / "model.h").write_text(exe.header())
    includes = "".join(f"#include <{name}>\n" for name in INCLUDES.split())
    (tmp_path / "use.c").write_text(f'{includes}#include "model.h"\n')
    for compiler, standard in (("gcc", "-std=c99"), ("gcc", "-std=gnu17"), ("g++", "-std=c++20")):
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed")
        language = "c++" if compiler == "g++" else "c"
        command = [compiler, standard, "-x", language, "-fsyntax-only", "-Wall", "use.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr[:2000]


def test_inputs_named_like_words_of_python(tmp_path: Path) -> None:
    """They are named by a dictionary, in what compile returns, a library and its signature."""
    words = [*keyword.kwlist, *keyword.softkwlist, "__init__", "__class__", "self", "out"]
    b = GraphBuilder()
    total = None
    for word in words:
        x = b.param(word, tensor((2,), "float32"))
        total = x if total is None else b.emit("add", total, x)
    exe = tk.compile(IRModule((b.finish(total, "main", input_names=tuple(words)),), "model"))
    arrays = {word: np.full(2, k, np.float32) for k, word in enumerate(words)}
    expected = sum(range(len(words)))
    library = tk.load(exe.export_library(tmp_path / "model.so"))
    for f in (exe, library):
        assert f(*arrays.values())[0] == expected
        assert len(inspect.signature(f).parameters) == len(words) + 1
        assert f(arrays)[0] == expected
    assert "in" in repr(library) and "in" in library._repr_html_()


@pytest.mark.parametrize(
    "name",
    ["kiln", "kiln_npu", "_", "__", "_A", "x" * 65, "x" * 300, "", ".", "a b", "\u00e9"],
)
def test_names_that_no_external_may_have(name: str) -> None:
    with pytest.raises(UserError) as caught:
        External(name, lambda call, target: True, lambda function, symbol: [])
    assert caught.value.code == "bad-external" and len(str(caught.value)) < 300
