"""New Python processes that run our own modules."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that calls `main()` of one of our modules. It finds modules where Python has
    them, never in the current folder (`-P`): others may leave a `json.py` there."""
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, *arguments]
