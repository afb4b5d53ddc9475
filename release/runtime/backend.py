"""Build backend of `tensorkiln-runtime`: setuptools, in a folder to which its files were copied."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from partition import in_runtime, package_files  # noqa: E402

_PAGES = ("LICENSE", "CHANGELOG.md", "SECURITY.md")
_OWN = 'build-backend = "backend"\nbackend-path = ["."]\n'


@contextmanager
def _copied() -> Iterator[None]:
    """Within, the current folder is a plain project of setuptools, as a source distribution is."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tensorkiln-runtime-") as name:
        folder = Path(name)
        project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
        assert _OWN in project
        plain = project.replace(_OWN, 'build-backend = "setuptools.build_meta"\n')
        (folder / "pyproject.toml").write_text(plain, encoding="utf-8")
        (folder / "MANIFEST.in").write_text("include *.md\n", encoding="utf-8")
        for path in (HERE / "README.md", *(ROOT / name for name in _PAGES)):
            shutil.copy(path, folder)
        for file in filter(in_runtime, package_files(ROOT)):
            target = folder / "tensorkiln" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / "tensorkiln" / file, target)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


# setuptools, which pyproject.toml names, is all that a build requires: there are no hooks that ask.


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """The wheel of the runtime in a folder; its name."""
    place = str(Path(wheel_directory).resolve())
    with _copied():
        return build_meta.build_wheel(place, config_settings)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """The source distribution of the runtime in a folder; its name."""
    place = str(Path(sdist_directory).resolve())
    with _copied():
        return build_meta.build_sdist(place, config_settings)
