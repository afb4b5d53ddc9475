"""Code in memory (target llvmjit) in a process whose free memory lies in pieces far apart, as after
hours of work: LLVM's loader ends the process if a reference cannot reach its section."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensorkiln.codegen.llvm.one_piece import one_piece

PROGRAM = Path(__file__).with_name("scattered.py")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("pages", [1, 2, 4])
def test_sections_far_apart(pages: int, tmp_path: Path) -> None:
    """Sections of so many pages are put 3 GB above those that are larger. One object is a
    caller's, whose references have 32 bits: two pages of code, and constants."""
    made = tmp_path / "extra.o"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-O1", "-c", "-fPIC", "-x", "c", "-"]
    body = "".join(f"    x = (x < {k}.5f ? x * 0.0f : x / 3.0f) + {k}.25f;\n" for k in range(600))
    source = f"float extra(float x)\n{{\n{body}    return x;\n}}\n".encode()
    subprocess.run([*compiler, "-o", str(made)], input=source, check=True)
    command = [sys.executable, str(PROGRAM), str(pages), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]


def test_one_thread_at_a_time_has_a_piece() -> None:
    """A second would take the free piece of the first; an error in the first lets it go on."""
    entered = threading.Event()

    def other() -> None:
        with one_piece():
            entered.set()

    thread = threading.Thread(target=other)
    with pytest.raises(RuntimeError, match="LLVM"), one_piece():
        thread.start()
        assert not entered.wait(0.2)
        raise RuntimeError("LLVM")
    thread.join(60)
    assert entered.is_set()
