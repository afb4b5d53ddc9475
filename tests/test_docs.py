"""Every code block of the README and of docs/ runs, in order, each page in one folder.

A block is skipped only by a comment `<!-- not run: why -->` on the line before it. One after
`<!-- needs: tool, package, /folder -->` is left out where one of them is missing, and then the
page is reported as skipped when the rest of it has run. Blocks of C, C++ and Rust, and Dockerfiles,
are files; their first line names them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorkiln.base.config import KNOBS
from tensorkiln.cli.entry import COMMANDS
from tensorkiln.target.kinds import KINDS
from tests.fork_server import fork_server
from tests.rotation import rows_in_turn

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The requirements are run one by one in test_requirements.py.
PAGES = [page for page in PAGES if page.name not in ("ARCHITECTURE.md", "requirements.md")]
ALL_PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>.+?) -->\n)?(?:<!-- needs: (?P<tool>.+?) -->\n)?"
    r"```(?P<kind>\w+)\n(?P<text>.*?)```",
    re.S,
)
FILES = ("c", "cpp", "rust", "dockerfile")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    skipped: bool
    tool: str


def blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"))


def blocks_of(text: str) -> list[Block]:
    matches = BLOCK.finditer(text)
    return [Block(m["kind"], m["text"], bool(m["why"]), m["tool"] or "") for m in matches]


def lacks(tools: str) -> bool:
    """Whether a block needs a program, a package of Python or a folder (which begins with `/`) that
    is not here; `tools` are names with commas."""
    return any(map(_lacks, filter(None, tools.split(", "))))


def _lacks(tool: str) -> bool:
    if tool.startswith("/"):
        return not Path(tool).exists()
    return shutil.which(tool) is None and importlib.util.find_spec(tool) is None


def script(page_blocks: list[Block]) -> list[tuple[str, str]]:
    """(kind, text) to run, in order; a python block begins with all those before it.

    A later block may use names of an earlier one, as a reader would.
    """
    steps: list[tuple[str, str]] = []
    python = ""
    for block in page_blocks:
        assert block.kind in ("python", "sh", *FILES), block.kind
        if block.skipped or lacks(block.tool):
            continue
        if block.kind != "python":
            steps.append((block.kind, block.text))
            continue
        python += block.text
        if steps and steps[-1][0] == "python":
            steps.pop()  # a prefix of this one
        steps.append(("python", python))
    return steps


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    """A folder with `kiln` and `python` of this checkout."""
    with fork_server() as folder:
        yield folder


def run_blocks(page_blocks: list[Block], folder: Path, commands: Path) -> None:
    """Run blocks in a folder, in order, with the commands of another."""
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KILN_PROGRESS": "off",
    }
    for kind, text in script(page_blocks):
        if kind in FILES:
            (folder / text.split()[1]).write_text(text, encoding="utf-8")
            continue
        (folder / "page.py").write_text(text, encoding="utf-8")  # scripts need their source
        command = [commands / "python", "page.py"] if kind == "python" else ["sh", "-euc", text]
        process = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert process.returncode == 0, f"{text}\n{process.stdout}\n{process.stderr}"


@pytest.mark.parametrize(
    "page", rows_in_turn(PAGES, family=lambda page: page.parent), ids=lambda page: page.name
)
def test_blocks_run(page: Path, tmp_path: Path, commands: Path) -> None:
    run_blocks(blocks(page), tmp_path, commands)
    missing = {b.tool for b in blocks(page) if lacks(b.tool)}
    if missing:
        tools = sorted(missing)
        left_out = f"{tools[0]} is not installed: {page.name} ran but for its blocks of {tools}"
        (pytest.fail if os.environ.get("REQUIRE_HOSTS") else pytest.skip)(left_out)


def test_only_the_two_commands_are_not_run() -> None:
    skipped = [block.text for page in PAGES for block in blocks(page) if block.skipped]
    assert len(skipped) == 1
    assert "make demo" in skipped[0]


def test_links_lead_somewhere() -> None:
    for page in ALL_PAGES:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.M))
    texts = [makefile, *(page.read_text(encoding="utf-8") for page in ALL_PAGES)]
    named = {name for text in texts for name in re.findall(r"[`\"\n]make ([a-z0-9-]+)", text)}
    assert named - targets == set()
    assert {"quick", "test", "lint", "fuzz"} <= named


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    named = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", index)}
    assert {page.resolve() for page in ALL_PAGES} - named == {ROOT / "docs" / "README.md"}


def test_pages_name_everything_there_is() -> None:
    cli = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"`kiln {name}" in cli
    for knob in KNOBS:
        assert f"`{knob.variable}`" in cli
    pages = ("targets.md", "target-options.md")
    targets = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    for kind in KINDS.values():
        assert f"`{kind.name}`" in targets
        for option in kind.options:
            assert f"`{option.name}`" in targets
