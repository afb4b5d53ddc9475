"""Names and texts that no file, no C function or no script can hold: of functions, parameters,
modules, attributes. Each compiles to a library that works, or is a UserError."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
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
