"""Environments of Python that hold the wheels and named packages, and nothing else; no network.

Packages are links to those of the Python that the tests run on, or of another one that has NumPy.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")  # of Python, as the classifiers say
COMPILER = (
    "ml_dtypes",
    "llvmlite",
    "islpy",
    "shtab",
    "ziglang",
)  # what `tensorkiln` requires beside NumPy


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment in a folder, without pip."""

    folder: Path

    @property
    def programs(self) -> Path:
        """Its folder of programs."""
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        """Its folder of packages."""
        (folder,) = (self.folder / "lib").glob("python*/site-packages")
        return folder

    def run(
        self,
        *command: str | Path,
        cwd: Path,
        before: Sequence[str] = (),
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which sees no variables but PATH, the environment's
        programs alone, and `variables`. `before` begins the command, as `unshare` does."""
        return subprocess.run(
            [*before, str(self.programs / command[0]), *map(str, command[1:])],
            cwd=cwd,
            env={"PATH": str(self.programs), **variables},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def install(self, wheels: Iterable[Path], *options: str) -> None:
        """Install files by the pip of the tests' Python; nothing is fetched."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.programs / "python"), "install"]
        offline = ["-q", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
        _done([*pip, *offline, *options, *map(str, wheels)])


def _done(command: Sequence[str]) -> str:
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@functools.cache
def interpreter(version: str) -> str:
    """A Python of this version (`"3.12"`) that has NumPy, of `make pythons` or on PATH; the test is
    skipped without one."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    probe = "import numpy, sys; print(*sys.version_info[:2], sep='.')"
    for folder in (ROOT / ".venv" / "pythons" / version / "bin", *os.get_exec_path()):
        executable = shutil.which(f"python{version}", path=folder)
        if executable is None:
            continue
        process = subprocess.run([executable, "-c", probe], capture_output=True, text=True)
        if process.stdout.strip() == version:
            return executable
    pytest.skip(f"python{version} with NumPy is not installed")


def make_environment(folder: Path, packages: Iterable[str], python: str = sys.executable) -> None:
    """A new environment of `python` in `folder`, with links to `packages` and what they require;
    for another Python than that of the tests, to NumPy and nothing else."""
    _done([python, "-m", "venv", "--without-pip", str(folder)])
    site = Environment(folder).site
    if python == sys.executable:
        _link_distributions(site, packages)
        return
    assert list(packages) == ["numpy"]
    place = Path(_done([python, "-c", "import numpy; print(numpy.__path__[0])"]).strip())
    for path in place.parent.glob("numpy*"):
        (site / path.name).symlink_to(path)


def _link_distributions(site: Path, names: Iterable[str]) -> None:
    queue, linked_names = list(names), set()
    while queue:
        name = queue.pop()
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        linked_names.add(name)
        for text in dist.requires or ():
            needed = Requirement(text)
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if applies and needed.name not in linked_names:
                queue.append(needed.name)
        for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))).resolve())


def has_pip() -> bool:
    """Whether the tests' Python has pip, which installs and builds wheels."""
    return (Path(sysconfig.get_path("purelib")) / "pip").is_dir()
