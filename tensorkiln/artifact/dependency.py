"""External dependencies of a library that an external code generator had a part in, and the linker
arguments that name them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest

URL_TYPES = ("path", "url", "git")
_SHORT_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)
# Linker arguments that an artifact set may hold. None of them writes a file, reads options from a
# file (`@file`), or changes what the runtime relies upon (exports, page sizes, entry).
LIBRARY_FORMS = "'/path/libx.so', '-lx', '-L/path', '-Wl,-rpath,/path'"
_NAMED = re.compile(r"-l:?[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)
_FOLDER = re.compile(r"-L/[^,]*\Z")
_RPATH = re.compile(r"-Wl,-{1,2}rpath(-link)?[,=](/|\$ORIGIN|\$\{ORIGIN\})[^,]*\Z")
_SWITCH = re.compile(r"-Wl,--(no-)?(as-needed|whole-archive)\Z")


@dataclass(frozen=True, slots=True)
class ExternalDependency:
    """Something a library needs that is not part of it: `short_name` identifies it, `url` says
    where to fetch it.

    `url_type` is `path`, `url` or `git`; `version_spec` is a version, or a commit or tag, which
    `git` requires. Raises UserError (code `bad-dependency`) for an invalid field.
    """

    short_name: str
    url: str
    url_type: str = "url"
    version_spec: str = ""

    def __post_init__(self) -> None:
        """Check the fields."""
        if not _SHORT_NAME.match(self.short_name):
            raise self._bad("a short_name is letters, digits, '_', '-', '+', '.'")
        if not self.url.strip() or any(ord(c) < 32 for c in self.url):
            raise self._bad(f"url {self.url!r} is empty or holds a control character")
        if self.url_type not in URL_TYPES:
            hint = nearest(self.url_type, URL_TYPES) or f"one of {', '.join(URL_TYPES)}"
            raise self._bad(f"unknown url_type {self.url_type!r}", hint)
        if self.url_type == "git" and not self.version_spec:
            raise self._bad("url_type 'git' needs a version_spec", "a commit or a tag")

    def _bad(self, message: str, hint: str = "") -> UserError:
        where = f"dependency {self.short_name!r}"
        return UserError(message, code="bad-dependency", where=where, hint=hint)


def checked_library(argument: object, where: str) -> str:
    """Return `argument` if it is a linker argument that an external's `libraries` and a link plan
    may hold: one of LIBRARY_FORMS, or a switch such as `-Wl,--no-as-needed` or
    `-Wl,--whole-archive`.

    Raises UserError (code `bad-library`), with a hint at the form that was probably meant.
    """
    if not isinstance(argument, str):
        message = f"a library is text, not {type(argument).__name__} ({argument!r:.80})"
        raise UserError(message, code="bad-library", where=where, hint=LIBRARY_FORMS)
    forms = (_NAMED, _FOLDER, _RPATH, _SWITCH)
    plain = argument.startswith("/") and not argument.endswith("/")
    readable = argument.isprintable() and not argument.endswith(" ")
    if readable and (plain or any(form.match(argument) for form in forms)):
        return argument
    if _NAMED.match(f"-l{argument}") and "." not in argument:
        hint = f"did you mean '-l{argument}'?"
    elif argument[:1] not in ("-", "@", "/") and argument.strip():
        hint = f"an absolute path, such as {str(Path(argument).absolute())!r}"
    else:
        hint = LIBRARY_FORMS
    message = f"{argument!r:.200} is not a linker argument that names a library"
    raise UserError(message, code="bad-library", where=where, hint=hint)


def checked_libraries(libraries: object, where: str) -> tuple[str, ...]:
    """Return `libraries` as a tuple, each checked by `checked_library`. UserError (code
    `bad-library`) also for a single string instead of a sequence."""
    if isinstance(libraries, str | bytes) or not isinstance(libraries, Iterable):
        raise UserError(
            f"libraries are a tuple of texts, not {type(libraries).__name__} ({libraries!r:.80})",
            code="bad-library",
            where=where,
            hint=f"libraries=({libraries!r},)" if isinstance(libraries, str) else LIBRARY_FORMS,
        )
    return tuple(checked_library(argument, where) for argument in libraries)


def merge_dependencies(
    declared: Iterable[tuple[str, ExternalDependency]],
) -> tuple[ExternalDependency, ...]:
    """Return each dependency once, sorted by name. `declared` holds pairs (who declares it,
    dependency).

    Raises UserError (code `dependency-clash`), naming both declarers, if two dependencies of one
    name differ.
    """
    found: dict[str, tuple[str, ExternalDependency]] = {}
    for source, dependency in declared:
        first, other = found.setdefault(dependency.short_name, (source, dependency))
        fields = [
            name
            for name in ("url", "url_type", "version_spec")
            if getattr(other, name) != getattr(dependency, name)
        ]
        if fields:
            pairs = "; ".join(
                f"{name} {getattr(other, name)!r} against {getattr(dependency, name)!r}"
                for name in fields
            )
            raise UserError(
                f"{first} and {source} ask for different dependencies "
                f"{dependency.short_name!r}: {pairs}",
                code="dependency-clash",
            )
    return tuple(dependency for _, (_, dependency) in sorted(found.items()))
