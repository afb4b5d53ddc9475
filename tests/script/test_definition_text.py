"""Programs that are in no file: of `python -c`, of standard input, typed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorkiln.script.definition_text import command_of

# The example of the proposal for `compile`, but for the imports.
EXAMPLE = """
import numpy as np
import tensorkiln as tvm
from tensorkiln.script import R, T
@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def add_one(
        X: T.Buffer((4,), "float32"),
        Y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            Y[i] = X[i] + 1
    @R.function
    def main(x: R.Tensor((4, ), "float32")):
        cls = MyModule
        with R.dataflow():
            y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
        return y

lib = tvm.compile(MyModule, {"kind": "llvm"})
x = tvm.nd.array(np.arange(4, dtype="float32"))
y = tvm.nd.empty(4, dtype="float32")
lib["add_one"](x, y)
vm = tvm.runtime.Executor(lib, tvm.cpu())
print(vm["main"](x).numpy())
vm["add_one"](x, y)
@T.prim_func
def twice(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = X[i] * 2

def outer(n):
    @T.macro
    def copy(A, B):
        for i in range(n):
            B[i] = A[i]
    @T.prim_func
    def inner(X: T.Buffer((n,), "float32"), Y: T.Buffer((n,), "float32")):
        copy(X, Y)
    return inner

print(twice.name, outer(4).name)
""".lstrip()
RESULT = ["[1. 2. 3. 4.]", "twice inner"]
QUIET = [sys.executable, "-W", "ignore"]


def _environment(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return {**own, "PYTHONPATH": str(Path(__file__).parents[2]), **more}


def _run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUIET, *arguments],
        capture_output=True,
        text=True,
        env=_environment(),
        timeout=300,
        **options,  # type: ignore[call-overload]
    )


def test_a_command(tmp_path: Path) -> None:
    done = _run("-c", EXAMPLE)
    assert done.stdout.split("\n")[:2] == RESULT, done.stderr


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_a_redirected_file(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(EXAMPLE)
    with (tmp_path / "program.py").open() as stream:
        done = _run(*arguments, stdin=stream)
    assert done.stdout.split("\n")[:2] == RESULT, done.stderr


def test_a_pipe() -> None:
    """What came in one piece is in the C library's buffer still; what was longer is not, and is an
    error that says so."""
    done = _run("-", input=EXAMPLE)
    assert done.stdout.split("\n")[:2] == RESULT, done.stderr
    done = _run("-", input=EXAMPLE + "# more\n" * 2000)
    assert "what came from standard input, which is no file, cannot be read again" in done.stderr
    assert "or use from_source(text)" in done.stderr


def test_text_that_only_looks_like_the_program() -> None:
    """A definition that `exec` runs within a command is not that of the command, whatever its
    line."""
    text = EXAMPLE.replace("+ 1", "+ 7").replace("print", "str")
    done = _run("-c", f"exec({text!r})\n{'#' + chr(10)}{EXAMPLE}")
    assert "<string>: the source text is not available" in done.stderr
    assert done.stdout == ""


def _typed(lines: list[str], prompt: bytes = b">>> ") -> str:
    """What Python shows where lines are typed at its prompt."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*QUIET, "-q"],
        stdin=child,
        stdout=child,
        stderr=child,
        env=_environment(TERM="dumb", PYTHONHISTFILE=os.devnull, PYTHON_BASIC_REPL="1"),
        close_fds=True,
    )
    os.close(child)
    shown = b""

    def wait(ends: tuple[bytes, ...]) -> None:
        nonlocal shown
        start, limit = len(shown), time.monotonic() + 120
        while not shown[start:].endswith(ends) and time.monotonic() < limit:
            if select.select([parent], [], [], 0.2)[0]:
                shown += os.read(parent, 1 << 16)

    wait((prompt,))
    for line in lines:
        os.write(parent, line.encode() + b"\n")
        wait((prompt, b"... "))
    os.write(parent, b"exit()\n")
    process.wait(60)
    os.close(parent)
    return shown.decode()


def test_typed_lines() -> None:
    """A blank line ends a statement of several lines."""
    lines: list[str] = []
    for line in EXAMPLE.split("\n"):
        if lines and lines[-1].startswith((" ", ")")) and line and not line.startswith((" ", ")")):
            lines.append("")
        lines.append(line)
    shown = _typed(lines)
    assert all(text in shown for text in RESULT), shown


COMMANDS = {
    ("python", "-c", "x"): "x",
    ("python", "-cx"): "x",
    ("python", "-Bc", "x"): "x",
    ("python", "-W", "ignore", "-c", "x", "-c", "y"): "x",
    ("python", "-Wignore", "-X", "dev", "-c", "x"): "x",
    ("python", "-Xdev", "--check-hash-based-pycs", "never", "-c", "x"): "x",
    ("python", "-IWc", "-c", "x"): "x",
    ("python", "-W", "-c", "x"): None,
    ("python", "-m", "module", "-c", "x"): None,
    ("python", "file", "-c", "x"): None,
    ("python", "-", "-c", "x"): None,
    ("python",): None,
    ("python", "-c"): None,
}


def test_arguments_of_python() -> None:
    assert {words: command_of(words) for words in COMMANDS} == COMMANDS
