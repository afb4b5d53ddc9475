"""The pictures of `kiln inspect` in the docs are what the command prints on a terminal, of the
ResNet-18 that `kiln demo` makes; --bless makes them again.

Numbers may differ from those in a picture: sizes change with every better schedule. Of code and
bytes only the beginning is compared. Everything else may not differ.
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

from tests.inspectors.conftest import ResNet
from tests.inspectors.screenshot import letters, screenshot

ROOT = Path(__file__).resolve().parents[2]
LINES = 34  # of what is long, as `head` would show it
COMMANDS = {
    "inspect-library": "kiln inspect resnet18.so",
    "inspect-folder": "kiln inspect artifacts --all",
    "inspect-weights": "kiln inspect resnet18.so --as weights",
    "inspect-weight": "kiln inspect resnet18.so --weight stem.conv.weight",
    "inspect-kernel": "kiln inspect artifacts --artifact relayout_mean.ll",
    "inspect-assembly": "kiln inspect resnet18.so --artifact relayout_mean.code",
    "inspect-container": "kiln inspect resnet18.set --as hexdump",
}
# What is long, and changes with every better schedule behind the words that are compared.
SHORTENED = {
    "inspect-kernel": ">define",
    "inspect-assembly": " bytes in ",
    "inspect-container": "KILNSET",
}


def on_a_terminal(command: str, folder: Path, line_limit: int = 1 << 20) -> str:
    """What the command writes when its output is a terminal, or the first lines of that."""
    controller, terminal = pty.openpty()
    argv = [sys.executable, "-m", "tensorkiln.cli", *command.split()[1:]]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "COLUMNS": "150",
        "TERM": "xterm",
        "NO_COLOR": "",
        "FORCE_COLOR": "",
    }
    process = subprocess.Popen(argv, cwd=folder, stdout=terminal, env=environment)
    os.close(terminal)
    written = b""
    while written.count(b"\n") < line_limit:
        try:
            piece = os.read(controller, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(controller)
    whole = written.count(b"\n") < line_limit
    if not whole:
        process.kill()
    assert process.wait() == 0 or not whole
    lines = written.decode(errors="ignore").replace("\r\n", "\n").split("\n")
    return "\n".join(lines[:line_limit])


def without_numbers(picture: str) -> str:
    """Numbers, their units, bars of histograms, and the gaps they leave are not compared."""
    text = re.sub(r"-?\d[\d.]*(e[+-]\d+)?( ?[kMG]?B\b)?", "0", picture)
    return re.sub(r"[ ▁▂▃▄▅▆▇█]+", " ", text)


def compared(name: str, picture: str) -> str:
    """What must not differ."""
    if name in SHORTENED:
        picture, separator, _ = picture.partition(SHORTENED[name])
        assert separator
    return without_numbers(picture)


@pytest.mark.parametrize("name", COMMANDS)
def test_pictures(name: str, resnet: ResNet, request: pytest.FixtureRequest) -> None:
    command = COMMANDS[name]
    if name in SHORTENED:
        output = on_a_terminal(command, resnet.root, LINES)
        command += f" | head -{LINES}"
        assert output.count("\n") == LINES - 1
    else:
        output = on_a_terminal(command, resnet.root)
    assert "\x1b[" in output
    picture = screenshot(command, output)
    ElementTree.fromstring(picture)
    path = ROOT / "docs" / "images" / f"{name}.svg"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    assert compared(name, before) == compared(name, picture), f"{path.name}: pytest --bless"


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
