"""Programs of others: what their ends mean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.base.tools import ToolFailure, run_tool

ENDS: dict[str, tuple[str, type[BaseException]]] = {
    "an interrupt is the user's": ("os.kill(os.getpid(), signal.SIGINT)", KeyboardInterrupt),
    "another signal": ("os.kill(os.getpid(), signal.SIGTERM)", ToolFailure),
    "a code": ("sys.exit(3)", ToolFailure),
    "too long": ("time.sleep(60)", ToolFailure),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ends(name: str, tmp_path: Path) -> None:
    end, error = ENDS[name]
    program = f"import os, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_DFL); {end}"
    with pytest.raises(error):
        run_tool([sys.executable, "-c", program], tmp_path, seconds=1 if "sleep" in end else None)


def test_what_it_says(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd()); print('no', file=sys.stderr)"
    assert run_tool([sys.executable, "-c", program], tmp_path) == f"{tmp_path}\nno\n"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such compiler or linker"):
        run_tool(["no-such-tool"], tmp_path)
