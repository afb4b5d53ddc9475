"""Tensors of extreme ranks and sizes through every way into a library (extremes.py), also under the
sanitizers: a result or a typed error, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.link.headers import HOSTS
from tensorkiln.link.shared import CRT
from tests.crt import extremes
from tests.hosts.build import WARN, build, require

CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA, /proc")


@pytest.fixture(scope="module")
def exe() -> Any:
    return tk.compile(extremes.module(), name="extremes")


@pytest.mark.parametrize("flags", [(), CHECKED], ids=["plain", "checked"])
def test_every_entry(exe: Any, tmp_path: Path, flags: tuple[str, ...]) -> None:
    gcc = require("gcc")
    environment = dict(os.environ, KILN_NUM_THREADS="1")
    if flags:
        preload = [_runtime(gcc, name) for name in ("libasan.so", "libubsan.so")]
        environment |= {
            "LD_PRELOAD": " ".join(preload),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512",
        }
    library = exe.export_library(
        tmp_path / "extremes.so", fcompile=" ".join([gcc, *flags]) if flags else None
    )
    (tmp_path / "host.c").write_text(extremes.HOST)
    command = (gcc, "-std=c99", *WARN, *flags, "-O1", "-g", "-shared", "-fPIC")
    build(*command, "-I", CRT, "-I", HOSTS, tmp_path / "host.c", "-o", tmp_path / "host.so")
    process = subprocess.run(
        [sys.executable, "-m", "tests.crt.extremes", str(library), str(tmp_path / "host.so")],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    last = (tmp_path / "LAST").read_text().strip() if (tmp_path / "LAST").exists() else "none"
    assert process.returncode == 0, (
        f"last call: {last}\n{process.stdout[-2000:]}{process.stderr[-6000:]}"
    )
    calls, gave = (int(word) for word in process.stdout.split()[:3:2])
    assert calls > 50_000 and gave > 500, process.stdout[:200]


def _runtime(gcc: str, name: str) -> str:
    """A library of the compiler's."""
    process = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True)
    return process.stdout.strip()
