"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import plain_path
from tensorkiln.base.progress import Progress, make_progress


def add_target(parser: argparse.ArgumentParser) -> None:
    """`--target`, as text: JSON, a kind, or `native`."""
    parser.add_argument(
        "--target",
        metavar="TARGET",
        default="native",
        help="native (default: this CPU), llvm (x86-64 baseline), or JSON text; see kiln targets",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model file and `--freeze`."""
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument(
        "--freeze",
        metavar="DIM=N",
        action="append",
        default=[],
        help="give a symbolic dimension a fixed size; may be repeated, or a list with commas",
    )


def read_dims(texts: Sequence[str], option: str) -> dict[str, int]:
    """`["batch=1", "seq=128,heads=2"]` as a dict. Raises UserError for anything else."""
    out: dict[str, int] = {}
    for text in ",".join(texts).split(","):
        if not text:
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip().isdecimal() or int(value) < 1:
            raise UserError(
                f"{option} {text!r}: expected NAME=N with N of at least 1", hint=f"{option} batch=1"
            )
        if out.setdefault(name.strip(), int(value)) != int(value):
            raise UserError(f"{option}: {name.strip()!r} is given two sizes")
    return out


def model_file(path: Path) -> Path:
    """`path`, which must be a file that is there."""
    if not plain_path(path).exists():
        raise UserError(f"no such file: {str(path)!r}", code="missing-file")
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a folder; expected a model file", code="missing-file")
    return path


def writable_parent(path: Path) -> Path:
    """`path`, whose folder must take new files: better to know before minutes of compiling."""
    if plain_path(path).is_dir():
        raise UserError(f"cannot write {str(path)!r}: it is a folder", code="cannot-write")
    folder = path.parent
    if not folder.is_dir():
        raise UserError(
            f"cannot write {str(path)!r}: no folder {str(folder)!r}", code="cannot-write"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write {str(path)!r}: permission denied",
            code="cannot-write",
            hint="name a place that you may write to",
        )
    return path


def stderr_progress(quiet: bool = False) -> Progress:
    """Progress as KILN_PROGRESS says, on standard error."""
    return make_progress(sys.stderr, "off" if quiet else read_config().progress)
