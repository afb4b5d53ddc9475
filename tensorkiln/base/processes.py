"""Python processes that run modules of this package, and what is sent to them and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

_ROOT = str(Path(__file__).resolve().parents[2])


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of `module`, a module of this package.

    `-P` keeps the current folder out of the module search path: a `json.py` there could be anyone's
    code.
    """
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, *arguments]


def read_frame(stream: IO[bytes]) -> bytes | None:
    """One length-prefixed block, or None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    data = stream.read(size)
    return data if len(data) == size else None


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one length-prefixed block."""
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()
