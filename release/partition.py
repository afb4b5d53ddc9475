"""Which distribution holds a file of the package: `tensorkiln-runtime` loads and runs libraries and
needs NumPy alone, `tensorkiln` is the rest and requires it. Every file belongs to exactly one."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

# The rooms that `tensorkiln.runtime` may import (tests/test_import_floors.py), and what is beside
# them.
RUNTIME_ROOMS = ("artifact", "base", "runtime")
RUNTIME_FILES = ("__init__.py", "py.typed")


def in_runtime(path: PurePosixPath | Path) -> bool:
    """Whether the runtime's distribution holds a file, whose path is relative to `tensorkiln/`."""
    return path.parts[0] in RUNTIME_ROOMS or path.as_posix() in RUNTIME_FILES


def package_files(root: Path) -> list[PurePosixPath]:
    """All files of the package in a repository, relative to `tensorkiln/`, sorted."""
    package = root / "tensorkiln"
    return sorted(
        PurePosixPath(path.relative_to(package).as_posix())
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def version(root: Path) -> str:
    """The version of both distributions."""
    text = (root / "tensorkiln" / "base" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^VERSION = "(.+)"$', text, re.M)
    assert found, "tensorkiln/base/version.py has no VERSION"
    return found[1]


def index_readme(text: str) -> str:
    """A page for the index, where links to other files of the repository lead nowhere: each becomes
    its words and, unless they say it, the file. A picture becomes the words that stand for it."""

    def words(link: re.Match[str]) -> str:
        picture, name, target = link.groups()
        return name if picture or target in name else f"{name} (`{target}`)"

    return re.sub(r"(!?)\[([^]\n]+)\]\((?!https?://|#)([^)\s]+)\)", words, text)
