"""Check the arguments of `export_library` before any work is done."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import plain_path

_SYMBOL = re.compile(r"[A-Za-z_.$][\w.$]*\Z", re.ASCII)


def check_link_arguments(
    file_name: object, fcompile: object, workspace_dir: object, addons: object, exports: object
) -> Path:
    """Return the output path. Raise UserError for an argument of the wrong type, and for a path,
    command or symbol name that cannot be valid: code `bad-path` for paths, `bad-addon` for addons,
    `bad-argument` for the rest."""
    path = plain_path(file_name)  # type: ignore[arg-type]
    if workspace_dir is not None:
        plain_path(workspace_dir)  # type: ignore[arg-type]
    check_command(fcompile)
    checked_addons(addons)
    for name in _several(exports, "exports", "symbols", 'exports=["name"]', "bad-argument"):
        if not isinstance(name, str) or not _SYMBOL.match(name):
            message = f"an export is the name of a symbol, not {name!r:.80}"
            raise UserError(message, code="bad-argument")
    return path


def checked_addons(addons: object) -> tuple[Any, ...]:
    """Return `addons` as a tuple; UserError (code `bad-addon`) unless they are an iterable of
    object files, each given as a path or as bytes."""
    entries = _several(addons, "addons", "object files", "addons=[...]", "bad-addon")
    for addon in entries:
        if not isinstance(addon, str | bytes | bytearray | memoryview | os.PathLike):
            kind = type(addon).__name__
            raise UserError(f"an addon is a path or bytes, not {kind}", code="bad-addon")
    return tuple(entries)


def _several(argument: object, subject: str, of: str, hint: str, code: str) -> list[object]:
    is_single = isinstance(argument, str | bytes | bytearray | memoryview | os.PathLike)
    if is_single or not isinstance(argument, Iterable):
        message = f"{subject} are a list of {of}, not {type(argument).__name__}"
        raise UserError(message, code=code, hint=hint)
    return list(argument)


def check_command(fcompile: object) -> None:
    """Raise UserError (code `bad-argument`) unless `fcompile` is None, a callable, or a command
    line that can be split into words and passed to a program."""
    if fcompile is None or callable(fcompile):
        return
    if not isinstance(fcompile, str):
        message = f"fcompile is a command or a function, not {type(fcompile).__name__}"
        raise UserError(message, code="bad-argument", hint='fcompile="gcc"')
    try:
        words = shlex.split(fcompile)
    except ValueError as error:
        raise UserError(f"fcompile {fcompile!r:.200}: {error}", code="bad-argument") from None
    try:
        is_said = b"\0" not in os.fsencode(fcompile)
    except UnicodeEncodeError:
        is_said = False
    if not is_said:
        message = f"fcompile {fcompile!r:.80} holds a zero byte or an unencodable character"
        raise UserError(message, code="bad-argument")
    if fcompile and not words:
        raise UserError(f"fcompile {fcompile!r:.80} names no program", code="bad-argument")
