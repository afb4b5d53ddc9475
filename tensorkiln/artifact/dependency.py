"""What a library made with an external code generator needs beside the operating system."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tensorkiln.base.errors import UserError, nearest

URL_TYPES = ("path", "url", "git")
_SHORT_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExternalDependency:
    """A thing to fetch: `short_name` tells it apart, `url` says where it is.

    `url_type` is `path`, `url` or `git`; `version_spec` is a version, or a commit or tag, which
    `git` needs. Raises UserError (code `bad-dependency`).
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
            raise self._bad(f"url {self.url!r} is no place")
        if self.url_type not in URL_TYPES:
            hint = nearest(self.url_type, URL_TYPES) or f"one of {', '.join(URL_TYPES)}"
            raise self._bad(f"unknown url_type {self.url_type!r}", hint)
        if self.url_type == "git" and not self.version_spec:
            raise self._bad("url_type 'git' needs a version_spec", "a commit or a tag")

    def _bad(self, message: str, hint: str = "") -> UserError:
        where = f"dependency {self.short_name!r}"
        return UserError(message, code="bad-dependency", where=where, hint=hint)


def merge_dependencies(
    declared: Iterable[tuple[str, ExternalDependency]],
) -> tuple[ExternalDependency, ...]:
    """Each dependency once, sorted by name; `declared` pairs who declares with what.

    Raises UserError (code `dependency-clash`) when two of one name differ, naming both sources.
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
