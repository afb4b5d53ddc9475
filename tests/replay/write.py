"""Compile rows of the corpus and keep what came out:

    python -m tests.replay.write FOLDER [--only TEXT] [--small] [--jobs N]

`FOLDER/files.json` has the sha256 of each file of each row, or the error of one that is refused;
`FOLDER/contents` the files themselves by their sha256, of those that are read when they differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import warnings
from functools import partial
from pathlib import Path

import tensorkiln as tk
from tests.replay.corpus import rows

KEPT_BYTES = 4 << 20  # weights are larger, and known by their sha256


def written(folder: Path, name: str) -> tuple[str, dict[str, str]]:
    """Compile one row; the sha256 of its files by name."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    row = next(r for r in rows() if r.name == name)
    digests: dict[str, str] = {}
    try:
        for file_name, data in row.files():
            digests[file_name] = digest = hashlib.sha256(data).hexdigest()
            path = folder / "contents" / digest
            if len(data) <= KEPT_BYTES and not path.exists():
                path.write_bytes(data)
    except (tk.UserError, tk.UnsupportedError) as error:  # one that changes is a change
        digests["error"] = f"{type(error).__name__}: {error}"
    return name, digests


def main() -> None:
    """Compile all rows that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.write", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--small", action="store_true", help="without the measured models")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    (options.folder / "contents").mkdir(parents=True, exist_ok=True)
    names = [
        r.name for r in rows() if options.only in r.name and not (options.small and r.measured)
    ]
    context = multiprocessing.get_context("forkserver")
    with context.Pool(options.jobs, maxtasksperchild=20) as pool:
        results = dict(pool.imap(partial(written, options.folder), names))
    text = json.dumps(results, indent=1, sort_keys=True) + "\n"
    (options.folder / "files.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
