"""Skips are counted by what they wait for; one that waits for nothing known fails the run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capabilities import CAPABILITIES, capability, packages
from tests.hosts.build import GET
from tests.processors import DEPENDENT

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.capabilities import Skips

def pytest_configure(config):
    config.pluginmanager.register(Skips())
"""
FILE = """
import pytest
pytest.skip("torch is not installed", allow_module_level=True)
"""
TESTS = """
import pytest

@pytest.fixture
def chromium():
    pytest.skip("no chromium on the PATH")

@pytest.mark.parametrize("k", range(3))
def test_pages(chromium, k): ...

def test_c():
    pytest.skip("clang is not installed")

@pytest.mark.xfail
def test_fails():
    assert False

def test_passes(): ...
"""
UNKNOWN = """
import pytest

@pytest.mark.skipif(True, reason="not today")
def test_later(): ...
"""


def test_packages_of_all_tools() -> None:
    names = packages()
    assert {"clang", "qemu-user", "valgrind", "gcc-arm-none-eabi"} < {*names}
    assert len({*names}) == len(names) and not any(set("`,. ") & set(name) for name in names)


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "workers"])
def test_a_run_ends_with_what_its_tests_wait_for(tmp_path: Path, workers: tuple[str, ...]) -> None:
    def run() -> tuple[int, list[str]]:
        command = [sys.executable, "-m", "pytest", "-q", *workers, "-c", "pytest.ini"]
        process = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
        )
        return process.returncode, process.stdout.splitlines()

    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_file.py").write_text(FILE)
    (tmp_path / "test_them.py").write_text(TESTS)
    status, lines_printed = run()
    lines = [line for line in lines_printed if " wait for " in line]
    assert lines == [
        "3 wait for Chromium: `apt-get install chromium`",
        "1 wait for clang: `apt-get install clang`",
        "1 wait for packages: `pip install -e .[dev]`",
    ]
    assert status == 0, lines_printed
    (tmp_path / "test_unknown.py").write_text(UNKNOWN)
    status, lines_printed = run()
    assert [line for line in lines_printed if line in lines] == lines
    assert status == 1
    assert (
        "test_unknown.py::test_later is skipped for a reason that tests/capabilities.py lacks: "
        "not today"
    ) in lines_printed


def test_the_page_has_the_table() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [f"| {name} | {skip_reason.get} |" for name, skip_reason in CAPABILITIES.items()]
    assert "\n".join(rows) in page


def test_reasons_of_the_tools_of_hosts() -> None:
    for tool, get in GET.items():
        assert capability(f"{tool} is not installed ({get}): what needs it was not tested"), tool


def literal_reasons() -> Iterator[tuple[str, str]]:
    """File and reason of every skip whose reason begins with words that stand in the file."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = (
                call.func.attr
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                else ""
            )
            if name not in ("skip", "skipif", "importorskip"):
                continue
            named = [k.value for k in call.keywords if k.arg == "reason"]
            reason = named[0] if named else call.args[0]
            if joined := isinstance(reason, ast.JoinedStr):
                reason = reason.values[0]
            if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                text = reason.value
                if name == "importorskip" and not named:
                    text = f"could not import {text!r}"
                if len(text) > 6 or not joined:  # more than the word before a tool
                    yield str(path.relative_to(ROOT)), text


def test_reasons_that_stand_in_tests() -> None:
    literals = list(literal_reasons())
    assert len(literals) > 50
    assert [row for row in literals if capability(row[1]) is None] == []


def test_files_that_ask_for_features_depend_on_the_processor() -> None:
    """`python -m tests.processors` runs them as on others."""
    asking = re.compile(
        r"processors\.(require|lacking)\(|this machine (has|is older)|without\(Target"
    )
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if asking.search(path.read_text())
    }
    assert files - {"tests/test_capabilities.py"} <= set(DEPENDENT)
    assert all((ROOT / name).is_file() for name in DEPENDENT)


@pytest.mark.parametrize("reason", ["", "-", "strip tease", "later", "torch is too old"])
def test_other_reasons_are_unknown(reason: str) -> None:
    assert capability(reason) is None
