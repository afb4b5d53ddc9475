"""Operators whose result's size the data decides, in the runtime alone (builtins.c): every element
type at every address, tensors of others that lack something, sizes of which one is 0."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tensorkiln.link.shared import CRT
from tests.hosts.build import build, require

FILES = (
    "nms",
    "dynamic",
    "append",
    "unique",
    "match",
    "tensor",
    "strided",
    "value",
    "object",
    "error",
    "os_posix",
    "mem",
    "scalar",
    "bind",
)


def test_operators_and_values(tmp_path: Path) -> None:
    sources = [CRT / f"{name}.c" for name in FILES]
    checked = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-g", "-fno-builtin")
    program = tmp_path / "builtins"
    main = Path(__file__).with_name("builtins.c")
    build(require("gcc"), "-std=gnu99", *checked, "-I", CRT, main, *sources, "-o", program)
    process = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stdout + process.stderr) == (0, "")
