"""Hand-written scripts in the printer's own form: parsed and printed, they are the same text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.ir.verify import verify
from tensorkiln.script import from_source, print_function, print_module

GOLDEN = Path(__file__).parent / "golden"
CONSTANTS = {"fc.weight": np.arange(64 * 16, dtype="float32").reshape(64, 16)}


@pytest.mark.parametrize("name", ["statements", "expressions", "graph"])
def test_golden_scripts(name: str, golden: Callable[[Path, str], None]) -> None:
    path = GOLDEN / f"{name}.txt"
    mod = from_source(path.read_text(encoding="utf-8"), CONSTANTS, file=path.name)
    verify(mod)
    golden(path, print_module(mod))


def test_canonical_texts(golden: Callable[[Path, str], None]) -> None:
    text = ""
    for name in ("statements", "graph"):
        path = GOLDEN / f"{name}.txt"
        mod = from_source(path.read_text(encoding="utf-8"), CONSTANTS, file=path.name)
        text += "".join(print_function(f, canonical=True) + "\n" for f in mod.functions)
    golden(GOLDEN / "canonical.txt", text)
