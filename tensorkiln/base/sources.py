"""A digest of this package's own sources, which identifies the compiler in cache keys."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def source_digest(*rooms: str) -> str:
    """Return the SHA-256 (hex) over the names and texts of all Python files below folders of the
    package, such as `codegen/llvm`; of the whole package if none is given. Memoised."""
    digest = hashlib.sha256()
    for name in sorted(name for room in rooms or ("",) for name in _sources(room)):
        text = (_PACKAGE / name).read_bytes()
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


@functools.cache
def package_digest() -> str:
    """Return the SHA-256 (hex) over the names and bytes of all files of the package, the C runtime,
    headers, templates and tables included: what decides the bytes of everything made. Memoised."""
    digest = hashlib.sha256()
    for path in sorted(p for p in _PACKAGE.rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    """Yield the Python files below a folder of the package, as `folder/file.py`."""
    for entry in os.scandir(_PACKAGE / folder):
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name.endswith(".py"):
            yield name
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(name)
