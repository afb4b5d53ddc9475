"""The cache of whole results: the files of a farm's row, found by the hash of what the row is made
from.

The shared cache is at a place that the caller names: `results/ab/<key>.json` lists files by hash,
and `blobs/ab/<sha256>` has their contents. In front of it is the user's local cache
(base/cache.py). A content is used only if it has the hash that the list says; whoever can write to
the shared place decides what the lists say, and so has to be trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_write, read_plain
from tensorkiln.base.folders import file_hash
from tensorkiln.base.record import JsonRecord, plain, word
from tensorkiln.base.schema import Reader
from tensorkiln.scale.storage import Storage

_VERSION = 1
_MARK = "kiln-cache.json"
# A result that takes more than this part of the local cache stays out of it: the kernels there,
# which all models share, are worth more.
_LOCAL_SHARE = 64


@dataclass(frozen=True, slots=True)
class BuiltFile(JsonRecord):
    """A built file: its name below the output, its hash (SHA-256, hex) and size."""

    name: str
    sha256: Annotated[str, word("[0-9a-f]{64}", "64 hex digits")]
    bytes: int

    @staticmethod
    def of(name: str, path: Path) -> BuiltFile:
        """The file of this name, whose content is at a path at the moment."""
        return BuiltFile(name, file_hash(path), path.stat().st_size)

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        name = self.name
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise reader.wrong("expected a relative name", "name")


@dataclass(frozen=True, slots=True)
class Results:
    """A cache of results by key: `local`, of this user alone, and `shared`. A row never fails
    because the shared cache does; errors become `notes`."""

    shared: Storage | None = None
    local: Cache | None = None
    notes: list[str] = field(default_factory=list, compare=False)

    def require(self) -> None:
        """Raise UserError if the shared cache cannot be read, or cannot be created, or has another
        version (code `bad-cache`)."""
        if self.shared is None:
            return
        text = json.dumps({"version": _VERSION}).encode()
        mark = self.shared.read(_MARK)
        if mark is None:
            self.shared.put(_MARK, text)
        elif mark != text:
            raise UserError(
                f"it is no cache of this version: {_MARK} has {mark[:80]!r}",
                code="bad-cache",
                where=self.shared.url,
                hint="name another",
            )

    def look(self) -> None:
        """Check that this worker sees the cache that the farm started with, and note it if not: a
        folder may be local to a machine, and `memory://` is local to a process."""
        if self.shared is not None and self._shared(_MARK) is None:
            self._note(f"the cache {self.shared.url!r} is another one on this worker")

    def find(self, key: str) -> tuple[BuiltFile, ...] | None:
        """The files of a result; None if it is not cached, or cannot be read."""
        for text in (self._local(_result(key)), self._shared(f"results/{key[:2]}/{key}.json")):
            files = _parsed(text) if text is not None else None
            if files:
                return files
        return None

    def fetch(self, file: BuiltFile, to: Path) -> bool:
        """Write the content of a file to a path; False if it is missing or damaged."""
        content = self._local(_blob(file.sha256))
        if content is not None:
            atomic_write(to, content)
            return file_hash(to) == file.sha256
        try:
            if self.shared is None or not self.shared.fetch(_blob_name(file.sha256), to):
                return False
        except UserError as error:
            self._note(f"not looked up in the cache: {error}")
            return False
        if file_hash(to) != file.sha256:
            return False
        self._keep(_blob(file.sha256), to)
        return True

    def keep(self, key: str, files: Sequence[BuiltFile], paths: Mapping[str, Path]) -> None:
        """Store a result, whose contents are at `paths` by name. Its list of files is written last,
        so that all files of a listed result exist."""
        text = json.dumps({"version": _VERSION, "files": plain(files)}).encode()
        for file in files:
            self._keep(_blob(file.sha256), paths[file.name])
        if self.local is not None:
            self.local.put(key_of(_result(key)), text, _result(key))
        # In the place of blobs that are damaged, too.
        if all(self._stored(_blob_name(file.sha256), paths[file.name]) for file in files):
            self._stored(f"results/{key[:2]}/{key}.json", text)

    def _stored(self, name: str, content: Path | bytes) -> bool:
        """Write a file to the shared cache; False, with a note, if that fails."""
        try:
            if self.shared is not None:
                self.shared.put(name, content)
        except UserError as error:
            self._note(f"not kept in the cache: {error}")
            return False
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def share(self, sha256: str, path: Path) -> None:
        """Upload a content to the shared cache, unless it is there already."""
        if self.shared is not None and self.shared.stamp(_blob_name(sha256)) is None:
            self.shared.put(_blob_name(sha256), path)

    def _keep(self, components: dict[str, str], path: Path) -> None:
        if self.local is not None and path.stat().st_size <= self.local.limit // _LOCAL_SHARE:
            content = read_plain(path, self.local.limit)
            self.local.put(key_of(components), content, components)

    def _local(self, components: dict[str, str]) -> bytes | None:
        return self.local.get(key_of(components)) if self.local is not None else None

    def _shared(self, name: str) -> bytes | None:
        try:
            return self.shared.read(name) if self.shared is not None else None
        except UserError as error:
            self._note(f"not looked up in the cache: {error}")
            return None


def _result(key: str) -> dict[str, str]:
    return {"kind": "farm result", "row": key}


def _blob(sha256: str) -> dict[str, str]:
    return {"kind": "farm file", "sha256": sha256}


def _blob_name(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _parsed(text: bytes) -> tuple[BuiltFile, ...] | None:
    """The files in a list; None if it is damaged. A new result then replaces it."""
    try:
        reader = Reader.of_text(text, "result", "bad-result")
        if reader.get("version", int) != _VERSION:
            return None
        return tuple(BuiltFile.read(row) for row in reader.rows("files"))
    except UserError:
        return None


def total_bytes(files: Iterable[BuiltFile]) -> int:
    """The bytes of all files."""
    return sum(file.bytes for file in files)
