"""What programs that load libraries are built with: kiln.h, the C and C++ interfaces built on it,
what build systems find them by, and the crate for Rust."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import plain_path
from tensorkiln.base.folders import write_files
from tensorkiln.base.version import VERSION
from tensorkiln.link.shared import CRT

HOSTS = CRT.parent / "hosts"
CRATE = HOSTS / "rust"


def host_headers() -> list[Path]:
    """Paths of the headers that programs in C or C++ include (docs/howto/hosts.md). They include
    each other by name, so a program needs them all in one folder."""
    return [
        CRT / "kiln.h",
        CRT / "kiln_system.h",
        *sorted(HOSTS.glob("*.h")),
        *sorted(HOSTS.glob("*.hpp")),
    ]


def package_files() -> dict[str, str]:
    """The texts of CMake's package and of pkg-config's, by file name. They refer to the headers by
    the folder that they lie in."""
    paths = [*sorted(HOSTS.glob("*.cmake")), HOSTS / "tensorkiln.pc"]
    return {p.name: p.read_text(encoding="utf-8").replace("@VERSION@", VERSION) for p in paths}


def crate_files() -> dict[str, str]:
    """The texts of the crate, by their names beside the headers. The version of cargo's manifest is
    a place for that of the package, which cargo can read."""
    manifest = CRATE / "Cargo.toml"
    paths = [manifest, CRATE / "README.md", *sorted((CRATE / "src").glob("*.rs"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    version = re.compile(r'^version = "0\.0\.0".*$', re.M)
    texts[manifest] = version.sub(f'version = "{VERSION}"', texts[manifest])
    return {path.relative_to(HOSTS).as_posix(): text for path, text in texts.items()}


def write_headers(folder: str | Path, generated: Mapping[str, str]) -> list[Path]:
    """Write the host headers, the files of `package_files`, the `generated` headers (text by file
    name), and the crate to `folder`, which may hold other files; return their paths. UserError if
    the folder cannot be written, if a generated header has the name of a host header, or if a file
    exists that no former run wrote."""
    target = plain_path(folder)
    headers = {path.name: path.read_text(encoding="utf-8") for path in host_headers()}
    texts = {**headers, **package_files()}
    clash = sorted(texts.keys() & generated.keys())
    if clash:
        raise UserError(
            f"the header of this library would be {clash[0]!r}, which is a header of every host",
            code="name-clash",
            hint="give the model's file another name",
        )
    return write_files(target, {**texts, **generated, **crate_files()})
