"""Headers for programs that load libraries: kiln.h, and the C and C++ hosts over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import plain_path
from tensorkiln.base.folders import write_files
from tensorkiln.link.shared import CRT

HOSTS = CRT.parent / "hosts"


def host_headers() -> list[Path]:
    """What a program in C or C++ includes, in one folder of its own (docs/howto/hosts.md)."""
    return [
        CRT / "kiln.h",
        CRT / "kiln_system.h",
        *sorted(HOSTS.glob("*.h")),
        *sorted(HOSTS.glob("*.hpp")),
    ]


def write_headers(folder: str | Path, generated: Mapping[str, str]) -> list[Path]:
    """Write the headers of all hosts and those that were generated (by file name) to `folder`,
    which may hold other files; returns their paths. UserError when it cannot be written, or when
    a generated header is called like one of the others, or like a file that is there and is none
    of a former run."""
    target = plain_path(folder)
    texts = {path.name: path.read_text(encoding="utf-8") for path in host_headers()}
    clash = sorted(texts.keys() & generated.keys())
    if clash:
        raise UserError(
            f"the header of this library would be {clash[0]!r}, which is a header of every host",
            code="name-clash",
            hint="give the model's file another name",
        )
    return write_files(target, {**texts, **generated})
