"""A compiler that the caller names makes code for the target, or is refused by name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tests.hosts.build import require
from tests.transform.graphs import graph

X = np.linspace(-2, 2, 6, dtype=np.float32)
NETWORK = graph(lambda g, x: g.emit("exp", x), x=(6,))
ELSEWHERE = [
    ("aarch64-linux-gnu", "compiles for x86_64"),
    ("aarch64-linux-musl", "compiles for x86_64"),
    ("x86_64-linux-musl", "links glibc"),
]


def require_gcc_of_x86_64() -> None:
    require("gcc")
    machine = subprocess.run(["gcc", "-dumpmachine"], capture_output=True, text=True, check=True)
    if not machine.stdout.startswith("x86_64-"):
        pytest.skip("gcc is not installed for x86-64")


@pytest.mark.parametrize("triple, fact", ELSEWHERE)
@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("kind", ["llvm", "c"])
def test_of_another_machine_or_system(
    kind: str,
    by_environment: bool,
    triple: str,
    fact: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_gcc_of_x86_64()
    exe = tk.compile(NETWORK, {"kind": kind, "mtriple": triple})
    if by_environment:
        monkeypatch.setenv("CC", "gcc")
    text = f"'gcc' {fact}; the library is for {triple.replace('-', '-unknown-', 1)}"
    with pytest.raises(UserError, match=text) as caught:
        exe.export_library(tmp_path / "net.so", fcompile=None if by_environment else "gcc")
    assert caught.value.code == "wrong-compiler"
    assert list(tmp_path.iterdir()) == []


def test_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcc has no emulated thread-local variables, clang has."""
    require("gcc")
    monkeypatch.setenv("CC", "gcc")
    with pytest.raises(UserError, match=re.escape("'gcc' has no option -femulated-tls")) as caught:
        tk.compile(NETWORK, "llvmjit")
    assert caught.value.code == "wrong-compiler"
    require("clang")
    monkeypatch.setenv("CC", "clang")
    executor = tk.runtime.Executor(tk.compile(NETWORK, "llvmjit"))
    np.testing.assert_allclose(executor["main"](X).numpy(), np.exp(X), rtol=1e-5)
