"""Programs of others that this package runs: compilers, linkers, assemblers."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tensorkiln.base.debug import COMMANDS, say
from tensorkiln.base.errors import UserError

_FULL = ("No space left on device", "File too large", "Disk quota exceeded", "NoSpaceLeft")
# How zig calls what it may not write to.
_REFUSED = ("AccessDenied", "PermissionDenied", "ReadOnlyFileSystem", "FileTooBig", "DiskQuota")
_KILLED_BY_FULL_DISK = (-signal.SIGBUS, -signal.SIGXFSZ)


class ToolFailure(Exception):
    """A tool ended with an error; `full` when the reason was a full disk, `refused` when it was
    that or a file that may not be written."""

    def __init__(self, command: Sequence[str], stderr: str, status: int):
        self.command, self.stderr, self.status = tuple(command), stderr, status
        self.full = status in _KILLED_BY_FULL_DISK or any(text in stderr for text in _FULL)
        self.refused = self.full or any(text in stderr for text in _REFUSED)
        words = stderr.strip()[:4000] or f"exit status {status}"
        super().__init__(f"{shlex.join(command)}\n{words}")


def run_tool(
    command: Sequence[str],
    folder: Path,
    environ: dict[str, str] | None = None,
    umask: int = -1,
    seconds: float | None = None,
) -> str:
    """Run `command` in `folder` and return what it wrote to stdout and stderr. A `umask` of -1
    keeps that of this process. Raises ToolFailure if the command fails or takes longer than
    `seconds`, UserError (code `no-tool`) if there is no such program or it cannot be started,
    KeyboardInterrupt if an interrupt ended it."""
    say(COMMANDS, f"(in {folder}) {shlex.join(command)}")
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            umask=umask,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except FileNotFoundError as error:
        raise UserError(f"no such compiler or linker: {command[0]!r}", code="no-tool") from error
    except OSError as error:
        raise UserError(
            f"cannot start {command[0]!r}: {error.strerror or error}", code="no-tool"
        ) from error
    except subprocess.TimeoutExpired:
        raise ToolFailure(command, f"it did not finish within {seconds} s", 1) from None
    if process.returncode == -signal.SIGINT:
        raise KeyboardInterrupt  # the user's, who meant this process as well
    if process.returncode != 0:
        raise ToolFailure(command, process.stderr or process.stdout, process.returncode)
    return process.stdout + process.stderr
