"""Standard input in the place of a file: `-` on the command line."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorkiln.artifact.read_binary import BINARY_FORMATS
from tensorkiln.base.errors import UserError
from tensorkiln.base.trust import private_temporary
from tensorkiln.cli.options import STDIO
from tensorkiln.cli.screen import Screen

NAME = "<stdin>"
_ONNX = b"\x08"  # the number of its first field, with which no text begins
# What other files begin with -> how they are called.
_MAGIC = {b"!<arch>\n": ".a", b"KILNSET": ".kiln"}
_MAGIC |= {form.magic: form.shared_suffix for form in BINARY_FORMATS}


@contextmanager
def standard_input(args: argparse.Namespace, screen: Screen) -> Iterator[None]:
    """Write standard input to a private file, which takes the place of the argument that is `-`,
    and which `screen` calls `<stdin>`: libraries and weights are mapped from files.

    Raises UserError: `conflict` if it is asked for twice, `missing-input` if it is a terminal, and
    with a hint what the command raises of weights in other files.
    """
    names = [name for name, value in vars(args).items() if value == Path(STDIO)]
    arrays = [x for x in getattr(args, "input", ()) if x.rpartition("=")[2] == STDIO]
    if len(names) + len(arrays) > 1:
        raise UserError("standard input (-) can be read only once", code="conflict")
    if (names or arrays) and sys.stdin.isatty():
        raise UserError(
            "standard input is a terminal",
            code="missing-input",
            hint="kiln ... - < FILE, or the output of a program: ... | kiln ... -",
        )
    if not names:
        yield
        return
    with private_temporary("kiln-stdin-") as folder:
        path = _written(Path(folder).resolve(), "" if args.command == "inspect" else ".onnx")
        screen.names[str(path)] = NAME
        setattr(args, names[0], path)
        try:
            yield
        except UserError as error:
            if str(path.parent) not in str(error).replace(str(path), ""):
                raise
            # What a model names beside itself is looked for in the folder of its file.
            raise UserError(
                error.message.replace(f"{path.parent}/", ""),
                code=error.code,
                where=error.where,
                hint="its weights lie in files beside it: name the model's file instead of -",
            ) from None


def _written(folder: Path, otherwise: str) -> Path:
    """A file with what standard input has. Its name ends as that of such a file would, or in
    `otherwise` if its first bytes say nothing."""
    path = folder / "stdin"
    with path.open("xb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    with path.open("rb") as stream:
        head = stream.read(512)
    suffix = next((s for magic, s in _MAGIC.items() if head.startswith(magic)), otherwise)
    if head[257:262] == b"ustar":
        suffix = ".tar"
    elif head.startswith(_ONNX):
        suffix = ".onnx"
    elif not suffix and _is_text(head):
        suffix = ".txt"
    return path.rename(folder / f"stdin{suffix}")


def _is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text in UTF-8, whose last letter may be cut."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.end < len(head) or error.start < len(head) - 3:
            return False
        text = head[: error.start].decode()
    return all(c.isprintable() or c.isspace() for c in text)
