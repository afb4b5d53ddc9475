"""The pictures of `kiln inspect` in the docs are what the command prints on a terminal; --bless
makes them again.

Numbers may differ from those in a picture: sizes change with every better schedule. Everything
else may not.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tests.inspectors.screenshot import letters, screenshot

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "inspect-library": "kiln inspect mlp.so",
    "inspect-folder": "kiln inspect artifacts --all",
    "inspect-weights": "kiln inspect mlp.so --as weights",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network of the README, for a processor that is the same everywhere."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    target = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "haswell"}
    executable = tk.compile(tk.frontend.from_onnx(folder / "mlp.onnx"), target)
    executable.export_library(folder / "mlp.so")
    executable.artifacts.save(folder / "artifacts")
    return folder


def on_a_terminal(command: str, folder: Path) -> str:
    """What the command writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "tensorkiln.cli", *command.split()[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    process = subprocess.Popen(argv, cwd=folder, stdout=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def without_numbers(picture: str) -> str:
    """Numbers, their units, bars of histograms, and the gaps they leave are not compared."""
    text = re.sub(r"-?\d[\d.]*(e[+-]\d+)?( ?[kMG]?B\b)?", "0", picture)
    return re.sub(r"[ ▁▂▃▄▅▆▇█]+", " ", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_pictures(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    output = on_a_terminal(COMMANDS[name], folder)
    assert "\x1b[" in output
    picture = screenshot(COMMANDS[name], output)
    ElementTree.fromstring(picture)
    path = ROOT / "docs" / "images" / f"{name}.svg"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    assert without_numbers(before) == without_numbers(picture), f"{path.name}: pytest --bless"


def test_every_picture_is_in_the_docs() -> None:
    pictures = {p.name for p in (ROOT / "docs" / "images").iterdir()}
    pages = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md"))
    assert {f"{name}.svg" for name in COMMANDS} == {n for n in pictures if n.startswith("inspect-")}
    assert all(f"images/{name}" in pages for name in pictures)


def test_a_picture_holds_every_letter_and_look() -> None:
    text = "plain \x1b[1mbold\x1b[0m \x1b[36mcyan & <x>\x1b[39;49;00m"
    assert letters(text) == "plain bold cyan & <x>"
    root = ElementTree.fromstring(screenshot("run", text))
    spans = list(root.iter("{http://www.w3.org/2000/svg}tspan"))
    assert [s.text for s in spans] == ["$", " run", "plain ", "bold", "cyan & <x>"]
    assert spans[3].get("font-weight") == "bold" and spans[4].get("fill") == "#56b6c2"
    starts = [float(s.get("x", "")) for s in spans[2:]]
    assert starts == [14, 14 + 6 * 8.4, 14 + 11 * 8.4]


def test_what_is_not_compared_is_small() -> None:
    assert without_numbers("a  1.5 kB") == without_numbers("a 23 MB")
    assert without_numbers("llvm/a.o 1 B") != without_numbers("llvm/b.o 1 B")
