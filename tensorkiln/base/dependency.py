"""`ExternalDependency`: software that a compiled model needs and that is not part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.licenses import UNSTATED, checked_license
from tensorkiln.base.record import JsonRecord

URL_TYPES = ("path", "url", "git")
_SHORT_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}\Z")


@dataclass(frozen=True, slots=True)
class ExternalDependency(JsonRecord):
    """Something a library needs that is not part of it: `short_name` identifies it, `url` says
    where to fetch it.

    `url_type` is `path`, `url` or `git`; `version_spec` is a version, or a commit or tag, which
    `git` requires. `license` is an SPDX expression, NOASSERTION if nobody stated it. `sha256` (hex)
    is that of the file at a `path` or `url`. `libraries` are the file names of shared libraries
    that come with it and that must be there to load a library (`libdnnl.so.3`). With `build_time`
    it is needed to build, and not to run. Raises UserError (codes `bad-dependency`,
    `bad-license`) for an invalid field.
    """

    short_name: str
    url: str
    url_type: str = "url"
    version_spec: str = ""
    license: str = UNSTATED
    sha256: str = ""
    libraries: tuple[str, ...] = ()
    build_time: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in FIELDS:
            self._require_type(name, getattr(self, name))
        if not _SHORT_NAME.match(self.short_name):
            raise self._bad("a short_name is letters, digits, '_', '-', '+', '.'")
        for name in ("url", "version_spec"):
            text = getattr(self, name)
            if any(ord(c) < 32 or "\ud800" <= c <= "\udfff" for c in text):
                raise self._bad(f"{name} {text!r} is empty or holds a control character")
        if not self.url.strip():
            raise self._bad(f"url {self.url!r} is empty or holds a control character")
        if self.url_type not in URL_TYPES:
            hint = nearest(self.url_type, URL_TYPES) or f"one of {', '.join(URL_TYPES)}"
            raise self._bad(f"unknown url_type {self.url_type!r}", hint)
        if self.url_type == "git" and not self.version_spec:
            raise self._bad("url_type 'git' needs a version_spec", "a commit or a tag")
        if self.sha256 and self.url_type == "git":
            raise self._bad("sha256 is of one file", "of url_type 'git' the commit is the hash")
        if self.sha256 and not _SHA256.match(self.sha256):
            raise self._bad(f"sha256 {self.sha256!r:.80} is not 64 digits of lower-case hex")
        for file in self.libraries:
            if not _FILE.match(file):
                raise self._bad(f"{file!r:.80} is not the file name of a library", "'libx.so.1'")
        if self.libraries and self.build_time:
            raise self._bad("it is needed only to build, and has libraries that must be there")
        object.__setattr__(self, "license", checked_license(self.license, self._where))

    def _require_type(self, name: str, value: object) -> None:
        if name == "build_time":
            if not isinstance(value, bool):
                raise self._bad(f"build_time is {value!r:.80}, expected True or False")
        elif name == "libraries":
            if isinstance(value, list):
                object.__setattr__(self, "libraries", tuple(value))
                value = self.libraries
            if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
                raise self._bad(f"libraries are {value!r:.80}, expected file names", "['libx.so']")
        elif name != "license" and not isinstance(value, str):
            raise self._bad(f"{name} is {value!r:.80}, expected text")

    @property
    def _where(self) -> str:
        return f"dependency {self.short_name!r:.200}"

    def _bad(self, message: str, hint: str = "") -> UserError:
        return UserError(message, code="bad-dependency", where=self._where, hint=hint)

    def __str__(self) -> str:
        """`'oneDNN' v3.4 (Apache-2.0) from https://...`, for messages."""
        version = f" {self.version_spec}" if self.version_spec else ""
        terms = "" if self.license == UNSTATED else f" ({self.license})"
        return f"{self.short_name!r}{version}{terms} from {self.url}"

    def given(self) -> dict[str, object]:
        """The fields that differ from their defaults, in order; both names of it always."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


FIELDS = tuple(f.name for f in fields(ExternalDependency))


def checked_dependencies(
    dependencies: object, subject: str, code: str = "bad-dependency"
) -> tuple[ExternalDependency, ...]:
    """Return what a user gave as dependencies, a list or tuple, as a tuple. Raises UserError (with
    `code`), which names `subject`, for anything else."""
    wrong: object = dependencies
    if isinstance(dependencies, list | tuple):
        wrong = next((d for d in dependencies if not isinstance(d, ExternalDependency)), None)
        if wrong is None:
            return tuple(dependencies)
    message = f"{subject}: expected a list of ExternalDependency, received {wrong!r:.80}"
    raise UserError(message, code=code, hint="[ExternalDependency(short_name, url, ...)]")
