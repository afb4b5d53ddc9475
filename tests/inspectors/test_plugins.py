"""Inspectors of installed packages, and packages that are broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
def show(artifact):
    yield f"{artifact.size} commands"
    yield " of an npu\\n"


def add_inspectors(register):
    register("commands", show, codegen_id="npu", suffix=".bin", writes=".commands")
    register("commands", show, suffix=".npu")
"""
# name of the module -> its text, and what the warning says
BROKEN = {
    "raises": ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
    "leaves": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "lacks": ("", "AttributeError"),
    "clashes": (
        "def add_inspectors(register):\n"
        "    register('fresh', str, suffix='.fresh')\n"
        "    register('hexdump', str, suffix='*')\n",
        "by tensorkiln; now by package kiln-clashes",
    ),
    "wrong": ("def add_inspectors(register): register('a', str)", "it has no key"),
    "mistyped": ("def add_inspectors(register): register('a', str, sufix='x')", "sufix"),
}


def install(site: Path, name: str, module: str, text: str) -> None:
    """What pip leaves: the module and its dist-info."""
    (site / f"{module}.py").write_text(text)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"[tensorkiln.inspectors]\n{module} = {module}:add_inspectors\n"
    (info / "entry_points.txt").write_text(points)


def kiln(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{site}"}
    command = [sys.executable, "-m", "tensorkiln.cli", "inspect", *argv]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_an_installed_package_adds_its_own(tmp_path: Path) -> None:
    install(tmp_path, "npu-tools", "npu_tools", GOOD)
    (tmp_path / "stream.npu").write_bytes(bytes(7))
    process = kiln(tmp_path, str(tmp_path / "stream.npu"))
    assert (process.returncode, process.stdout, process.stderr) == (0, "7 commands of an npu\n", "")
    listed = kiln(tmp_path, str(tmp_path / "stream.npu"), "--list").stdout
    assert "artifact.inspect_npu_commands" in listed and "package npu-tools" in listed


def test_broken_packages_are_named_and_do_no_harm(tmp_path: Path) -> None:
    for module, (text, _) in BROKEN.items():
        install(tmp_path, f"kiln-{module}", module, text)
    install(tmp_path, "npu-tools", "npu_tools", GOOD)
    (tmp_path / "a.json").write_text('{"a": [1]}')
    (tmp_path / "a.fresh").write_text("text")
    process = kiln(tmp_path, str(tmp_path / "a.json"))
    assert process.returncode == 0
    assert process.stdout == '{"a": [1]}\n'
    lines = process.stderr.splitlines()
    assert len(lines) == len(BROKEN)
    for module, (_, says) in BROKEN.items():
        (line,) = [line for line in lines if f"package kiln-{module} are left out" in line]
        assert line.startswith("kiln: warning: ") and says in line
    # Of a package that clashes, nothing is there.
    assert "fresh" not in kiln(tmp_path, str(tmp_path / "a.fresh"), "--list").stdout.replace(
        "a.fresh", ""
    )
