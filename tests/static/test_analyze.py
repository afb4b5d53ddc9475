"""The part of `make analyze` that needs gcc only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tensorkiln.link.shared import ALL_KINDS, crt_sources
from tests.static.analyze import TOOLS, findings, generated

GCC = ("gcc", "gcc -fanalyzer")
ANALYZER = 12  # the version of gcc whose false alarms are silenced


def _require_clean(name: str, source: Path) -> None:
    tool = TOOLS[name]()
    if tool is None:
        pytest.skip("gcc is not installed")
    if name == "gcc -fanalyzer":
        command = [tool.before[0], "-dumpversion"]
        version = subprocess.run(command, capture_output=True, text=True).stdout.partition(".")[0]
        if int(version) != ANALYZER:
            pytest.skip(f"gcc {version} sees other things than gcc {ANALYZER}: `make analyze`")
    assert not findings(tool, source)


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("name", GCC)
@pytest.mark.parametrize("source", crt_sources(devices=ALL_KINDS), ids=lambda path: path.name)
def test_the_runtime(name: str, source: Path) -> None:
    _require_clean(name, source)


def test_generated_code(tmp_path: Path) -> None:
    for source in generated(tmp_path):
        for name in GCC:
            _require_clean(name, source)


def test_findings_are_seen(tmp_path: Path) -> None:
    """Each tool that is here finds its own kind of fault."""
    source = tmp_path / "faulty.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "int narrow(long x);\nint narrow(long x) { return x; }\n"
        "int zero(void);\nint zero(void) { int *p = malloc(4); free(p); return *p; }\n"
    )
    for find in TOOLS.values():
        tool = find()
        assert tool is None or findings(tool, source)
