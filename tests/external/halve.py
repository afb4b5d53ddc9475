"""An external whose code calls a small shared library: relu becomes halve(x)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensorkiln.artifact import Artifact
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.external import External
from tensorkiln.ir.relax import Function

HALVE = ExternalDependency(
    "halve",
    "https://example.org/halve.tar.gz",
    version_spec="1.2",
    license="MIT",
    libraries=("libhalve.so.1",),
)


def build_halve(folder: Path) -> Path:
    """Compile `libhalve.so.1` into a folder; skip the test without a compiler."""
    pytest.importorskip("ziglang", reason="ziglang is not installed: no library to link with")
    (folder / "halve.c").write_text("float halve(float x) { return x / 2; }\n")
    shared = folder / "libhalve.so.1"
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{shared.name}", "-o", str(shared)]
    command = [sys.executable, "-m", "ziglang", "cc", *options, str(folder / "halve.c")]
    subprocess.run(command, check=True, capture_output=True)
    return shared


def emit(f: Function, symbol: str) -> list[Artifact]:
    text = f"""#include <stdint.h>
extern float halve(float x);
void {symbol}(const float *x, float *out);
void {symbol}(const float *x, float *out) {{
    for (int64_t i = 0; i < 4; ++i) out[i] = halve(x[i]);
}}
"""
    return [Artifact("halver", "native", f"{symbol}.c", text.encode())]


def halver(shared: Path, needs: ExternalDependency = HALVE) -> External:
    """The external, linked with the library at `shared`."""
    libraries = (str(shared), f"-Wl,-rpath,{shared.parent}")
    return External("halver", lambda call, target: call.op == "relu", emit, (needs,), libraries)
