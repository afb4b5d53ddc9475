"""Commands that run modules of this package in a new Python process."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of `module`, a module of this package.

    `-P` keeps the current folder out of the module search path: a `json.py` there could be anyone's
    code.
    """
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, *arguments]
