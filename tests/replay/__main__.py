"""Whether a change of the compiler changes what it compiles:

    python -m tests.replay [BASE] [--only TEXT] [--small] [--jobs N] [--changed GLOB ...] [--show]

compiles the corpus (corpus.py) with the tree of commit BASE (the last commit where none is named)
and with the working tree, and prints which files of which rows differ, with `--show` the
differences of texts. Files that `--changed` names (`row/file`, with * and ?) may differ. Exit code
1 if others do. What a commit compiles is kept in the user's cache, so that a second change takes
half the time.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Files = Mapping[str, Mapping[str, str]]


def commit_of(name: str) -> str:
    """The full name of a commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def work_tree(commit: str) -> Iterator[Path]:
    """A work tree of a commit, removed in the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run([*git, "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compiled_by(tree: Path, folder: Path, options: argparse.Namespace) -> None:
    """Compile the corpus with the compiler in `tree`, into `folder`."""
    command = [sys.executable, "-m", "tests.replay.write", str(folder), "--only", options.only]
    command += ["--jobs", str(options.jobs), *(["--small"] if options.small else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, cwd=tree, env=environment, check=True)


def compiled_before(commit: str, options: argparse.Namespace) -> Path:
    """What the compiler of `commit` makes of the corpus of today: from the cache, or compiled in a
    work tree of its own."""
    ours = ROOT / "tests" / "replay"
    corpus = b"".join(path.read_bytes() for path in sorted(ours.glob("*.py")))
    key = f"{commit[:16]}-{options.only}-{options.small}-".encode() + corpus
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tensorkiln-replay"
    folder = cache / hashlib.sha256(key).hexdigest()[:32]
    if (folder / "files.json").exists():
        return folder
    with work_tree(commit) as tree:
        shutil.copytree(ours, tree / "tests" / "replay", dirs_exist_ok=True)
        compiled_by(tree, folder, options)
    return folder


def differences(before: Files, now: Files) -> Iterator[tuple[str, str, str, str]]:
    """(row, file, what happened, kind) of each file that is not the same in both."""
    for row in sorted({*before, *now}):
        old, new = before.get(row), now.get(row)
        if old is None or new is None:
            yield row, "", "is new" if old is None else "is gone", "row"
            continue
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                state = "is new" if name not in old else "is gone" if name not in new else "differs"
                yield row, name, state, "file"


def difference_of_texts(before: Path, now: Path) -> list[str]:
    """A unified difference of two texts; nothing where one is not a text or was not kept."""
    try:
        texts = [path.read_text(encoding="utf-8").splitlines() for path in (before, now)]
    except (OSError, UnicodeDecodeError):
        return []
    return list(difflib.unified_diff(*texts, "before", "now", lineterm=""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile twice, compare, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("base", nargs="?", default="HEAD", help="a commit")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--small", action="store_true", help="without the measured models")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--changed", action="append", default=[], metavar="GLOB")
    parser.add_argument("--show", action="store_true", help="print differences of texts")
    options = parser.parse_args(arguments)
    folder = compiled_before(commit_of(options.base), options)
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        compiled_by(ROOT, Path(scratch), options)
        before, now = (
            json.loads((f / "files.json").read_text(encoding="utf-8"))
            for f in (folder, Path(scratch))
        )
        unlisted = 0
        for row, name, state, kind in differences(before, now):
            where = f"{row}/{name}" if name else row
            listed = any(fnmatchcase(where, glob) for glob in options.changed)
            unlisted += not listed
            print(f"{kind} {where} {state}{' (listed)' if listed else ''}")
            if options.show and state == "differs":
                pair = before[row][name], now[row][name]
                if name == "error":
                    print(*pair, sep="\n")
                else:
                    paths = folder / "contents" / pair[0], Path(scratch) / "contents" / pair[1]
                    print(*difference_of_texts(*paths), sep="\n")
    files = sum(map(len, now.values()))
    refused = sum("error" in digests for digests in now.values())
    print(f"{len(now)} rows, {refused} of them refused, {files} files: {unlisted} differ")
    return int(unlisted > 0)


if __name__ == "__main__":
    raise SystemExit(main())
