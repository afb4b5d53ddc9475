"""Commands that go on where everything is imported are as those of a fresh process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import fork_server


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    with fork_server() as folder:
        yield folder


SCRIPT = """\
import atexit, inspect, os, sys
def f(): return 1
assert __name__ == "__main__" and inspect.getsource(f) == "def f(): return 1\\n"
assert "tensorkiln.pipeline" in sys.modules
atexit.register(lambda: print("the end"))
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], sys.path[0], sys.stdin.read())
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_script(code: int, commands: Path, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "script.py").write_text(SCRIPT)
    process = subprocess.run(
        [commands / "python", "below/script.py", str(code), "ü b"],
        cwd=tmp_path,
        env={**os.environ, "WORD": "ä"},
        input="read",
        capture_output=True,
        text=True,
    )
    assert process.stderr == "an error\n"
    line = f"['{code}', 'ü b'] {tmp_path} ä {tmp_path}/below read\nthe end\n"
    assert (process.stdout, process.returncode) == (line, code)


def test_what_fails(commands: Path, tmp_path: Path) -> None:
    for text, code in {
        "raise ValueError('why')": 1,
        "import os; os.kill(os.getpid(), 9)": 137,
    }.items():
        (tmp_path / "script.py").write_text(text)
        process = subprocess.run([commands / "python", tmp_path / "script.py"], capture_output=True)
        assert process.returncode == code and (b"ValueError: why" in process.stderr) == (code == 1)


def test_kiln_and_options_of_python(commands: Path) -> None:
    process = subprocess.run(
        [commands / "kiln", "compile", "none.onnx"], capture_output=True, text=True
    )
    assert process.returncode == 2 and process.stderr.startswith("kiln: error: ")
    assert subprocess.run([commands / "python", "-c", "raise SystemExit(3)"]).returncode == 3
