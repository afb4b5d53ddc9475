"""Colours, widths and pipes: what a terminal gets, and what everybody else does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tensorkiln.artifact import Artifact, ArtifactSet

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
PLAIN = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of artifacts with one name that is too long for a narrow terminal."""
    long = f"{'very-' * 30}long.json"
    rows = [
        Artifact("a", "b", long, b'{"x": [1, 2]}'),
        Artifact("a", "b", "t.txt", b"\x1b[2Jred\n"),
    ]
    ArtifactSet(tuple(rows)).save(tmp_path / "folder")
    return tmp_path / "folder"


def on_a_terminal(argv: list[object], width: int = 80, **environment: str) -> tuple[str, str]:
    """Standard output and standard error of `kiln`, both terminals."""
    command = [sys.executable, "-m", "tensorkiln.cli", *map(str, argv)]
    return run_on_a_terminal(command, width, **environment)


def run_on_a_terminal(command: list[str], width: int, **environment: str) -> tuple[str, str]:
    (out, out_end), (err, err_end) = pty.openpty(), pty.openpty()
    for end in (out_end, err_end):
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    variables = {**PLAIN, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    process = subprocess.Popen(command, stdout=out_end, stderr=err_end, env=variables)
    os.close(out_end)
    os.close(err_end)
    texts = tuple(_all(end).decode().replace("\r\n", "\n") for end in (out, err))
    process.wait()
    return texts[0], texts[1]


def _all(end: int) -> bytes:
    written = b""
    while True:
        try:
            piece = os.read(end, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            piece = b""
        if not piece:
            os.close(end)
            return written
        written += piece


def piped(argv: list[object], **environment: str) -> str:
    variables = {**PLAIN, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "tensorkiln.cli", *map(str, argv)]
    process = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return process.stdout


@pytest.mark.parametrize("command", ["inspect", "targets"])
def test_who_gets_colours(folder: Path, command: str) -> None:
    argv: list[object] = ["inspect", folder] if command == "inspect" else ["targets", "llvm"]
    assert ESCAPE.search(on_a_terminal(argv)[0])
    assert not ESCAPE.search(piped(argv))
    assert ESCAPE.search(on_a_terminal(argv, NO_COLOR="")[0])  # no-color.org: when not empty
    assert not ESCAPE.search(on_a_terminal(argv, NO_COLOR="1")[0])
    assert not ESCAPE.search(on_a_terminal(argv, TERM="dumb")[0])
    assert ESCAPE.search(piped(argv, FORCE_COLOR="1"))
    assert not ESCAPE.search(piped(argv, FORCE_COLOR="1", NO_COLOR="1"))
    # What is asked for on the command line counts most.
    assert ESCAPE.search(piped([*argv, "--color", "always"], NO_COLOR="1"))
    assert not ESCAPE.search(on_a_terminal([*argv, "--color", "never"], FORCE_COLOR="1")[0])


def test_errors_are_red_on_a_terminal() -> None:
    _, err = on_a_terminal(["inspect", "none.so"])
    assert err.startswith("\x1b[1;31mkiln: error:\x1b[0m no such file: 'none.so'")
    _, err = on_a_terminal(["inspect", "none.so"], NO_COLOR="1")
    assert err.startswith("kiln: error: no such file: 'none.so'")


@pytest.mark.parametrize("width", [30, 80, 300])
def test_lines_of_tables_end_where_the_terminal_does(folder: Path, width: int) -> None:
    lines = ESCAPE.sub("", on_a_terminal(["inspect", folder], width)[0]).splitlines()
    assert max(map(len, lines)) <= width
    whole = piped(["inspect", folder])
    assert "long.json  " in whole  # a pipe has no width
    assert "".join("".join(lines).split()) == "".join(whole.split())  # nothing is cut


def test_a_file_that_is_shown_moves_no_cursor(folder: Path) -> None:
    argv: list[object] = ["inspect", folder, "--artifact", "t.txt"]
    assert on_a_terminal(argv, NO_COLOR="1")[0] == "\\x1b[2Jred\n"
    assert piped(argv) == "\x1b[2Jred\n"


def test_a_reader_that_leaves_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(os.urandom(1 << 20))
    variables = {**PLAIN, "PYTHONPATH": str(ROOT)}
    for argv in (["inspect", "large.bin"], ["inspect", "--help"], ["targets"]):
        command = [sys.executable, "-m", "tensorkiln.cli", *argv]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=variables
        )
        assert process.stdout is not None and process.stderr is not None
        if argv[-1] == "large.bin":
            process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 141  # as of any program that SIGPIPE ends


def test_letters_that_the_encoding_lacks(tmp_path: Path) -> None:
    (tmp_path / "ü.txt").write_text("schön ▁█\n")
    output_text = piped(["inspect", tmp_path / "ü.txt"], PYTHONIOENCODING="ascii")
    assert output_text == "sch\\xf6n \\u2581\\u2588\n"


STRANGE = "a\x1b]0;title\x07\x9b2J\u202eb\u2066c\r"
SHOWN = "a\\x1b]0;title\\x07\\x9b2J\\u202eb\\u2066c\\x0d"
SAYS = """
import sys
from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import TtyProgress
from tensorkiln.cli import entry
from tensorkiln.cli.screen import Screen
name = sys.argv[1]
class Command:
    def add_arguments(parser): pass
    def run(args, screen):
        screen.report(name)
        print(name)
        progress = TtyProgress(sys.stderr)
        progress.phase(name, 2)
        progress.advance(1, name)
        progress.note(name)
        progress.finish()
        raise UserError(name)
entry._module = lambda command: Command
sys.exit(entry.main(["run", "--color", "always"]))
"""


def test_names_move_no_cursor() -> None:
    """Whoever writes them: a report, `print`, progress, an error."""
    command = [sys.executable, "-c", SAYS, STRANGE]
    out, err = run_on_a_terminal(command, 200)
    for text in (ESCAPE.sub("", out), ESCAPE.sub("", err).replace("\r\x1b[K", "")):
        assert SHOWN in text
        assert not [c for c in text if c != "\n" and not c.isprintable()], text
    assert out.count(SHOWN) == 2 and err.count(SHOWN) >= 3
