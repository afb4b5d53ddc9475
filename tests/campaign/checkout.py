"""Which checkout of the repository this is: a campaign tests one state of it on all machines."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path

from tensorkiln.base.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def checkout(root: Path = ROOT) -> str:
    """The commit, and after a `+` a hash of what was changed since: of the difference to the commit
    and of files that git does not know and does not ignore. Raises UserError where there is no
    checkout of git."""
    commit = _git(root, "rev-parse", "HEAD").strip().decode()
    changed = hashlib.sha256()
    difference = _git(root, "diff", "--binary", "--no-ext-diff", "HEAD")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]
    changed.update(difference)
    for name in sorted(untracked):
        path = root / name.decode(errors="surrogateescape")
        content = path.read_bytes() if path.is_file() else b""
        changed.update(name + b"\0" + hashlib.sha256(content).digest())
    return f"{commit}+{changed.hexdigest()[:16]}" if difference or untracked else commit


def require_checkout(expected: str, root: Path = ROOT) -> None:
    """Raise UserError (code `other-checkout`) unless this machine has the checkout `expected`."""
    current = checkout(root)
    if current != expected:
        raise UserError(
            f"the checkout on {platform.node()} is {current}, expected {expected}",
            code="other-checkout",
            where=str(root),
            hint="bring the machines that run the campaign to the same commit and changes",
        )


def require_outside(folder: Path, root: Path = ROOT) -> None:
    """Raise UserError for a folder whose files would be changes of the checkout."""
    place = folder.resolve()
    if not place.is_relative_to(root):
        return
    command = ["git", "-C", str(root), "check-ignore", "-q", str(place / "findings.json")]
    if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
        raise UserError(
            "it is in the checkout and git does not ignore it: what is written there would change "
            "what is tested",
            code="other-checkout",
            where=str(folder),
            hint="name a folder in build/, or elsewhere",
        )


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", None) or b""
        raise UserError(
            f"{root} on {platform.node()} is no checkout of git",
            code="no-checkout",
            where=stderr.decode(errors="replace").strip() or str(error),
            hint="campaigns run where the repository is checked out, with the commit under test",
        ) from None
