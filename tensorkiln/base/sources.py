"""A digest of this package's own sources: what caches know the compiler by."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def source_digest(room: str = "") -> str:
    """SHA-256 (hex) over the names and texts of all Python files of a room, `codegen/llvm`; of the
    whole package without one."""
    digest = hashlib.sha256()
    for file in sorted((_PACKAGE / room).rglob("*.py")):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()
