"""The manifest of a saved artifact set: names, sizes and hashes of its files, and its imports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import read_plain
from tensorkiln.base.folders import Listed, listed_files
from tensorkiln.base.json_text import MAX_BYTES
from tensorkiln.base.record import JsonRecord
from tensorkiln.base.schema import Reader, parsed_text

MANIFEST = "manifest.json"
_VERSION = 2
_FIRST = 1  # the former version, which has no hash of the manifest itself
_BAD = "bad-container"


class LoaderGroup(NamedTuple):
    """The artifacts of one loader and target key: what one call of the loader gets."""

    loader: str
    target_key: str = ""

    def __str__(self) -> str:
        """`'npu'`, or `'npu' for 'npu0'`."""
        return f"{self.loader!r} for {self.target_key!r}" if self.target_key else repr(self.loader)


Imports = tuple[tuple[LoaderGroup, LoaderGroup], ...]


@dataclass(frozen=True, slots=True)
class ArtifactInfo(JsonRecord):
    """An artifact as a manifest, or the metadata of a library, records it: names, size in bytes,
    SHA-256 (hex). Metadata has no hash of lazy contents such as weights, which are not read again
    only to be hashed, nor of artifacts without a form as bytes."""

    codegen_id: str
    loader: str
    file_name: str
    target_key: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Its path in the folder, `codegen_id/[target_key/]file_name`."""
        return "/".join(p for p in (self.codegen_id, self.target_key, self.file_name) if p)


def manifest_text(rows: Iterable[ArtifactInfo], imports: Imports) -> str:
    """Return the manifest as JSON text. It ends with its own SHA-256, so that edits are noticed."""
    plain = {"version": _VERSION, "artifacts": [row.to_json() for row in rows], "imports": imports}
    return json.dumps({**plain, "sha256": _hash(plain)}, indent=1) + "\n"


def read_manifest(
    data: bytes | memoryview, place: str, *, edited: bool = False
) -> tuple[list[ArtifactInfo], Imports]:
    """Inverse of `manifest_text`. Raises UserError (code `bad-container`) for a malformed manifest
    and, unless `edited`, for one that does not match its hash."""
    parsed = parsed_text(data, place, _BAD)
    version = parsed.get("version") if isinstance(parsed, dict) else None
    is_known = type(version) is int and version in (_FIRST, _VERSION)
    if not isinstance(parsed, dict) or not is_known:
        message = f"manifest version {version!r:.200}; this version reads {_FIRST} and {_VERSION}"
        raise UserError(message, code=_BAD, where=place)
    digest = parsed.pop("sha256", None)
    if digest not in (None, _hash(parsed)) and not edited:
        hint = "load(folder, edited=True) takes files as they are"
        raise UserError("it was changed since it was saved", code=_BAD, where=place, hint=hint)
    reader = Reader(parsed, place, _BAD)
    reader.get("artifacts", list)
    rows = [ArtifactInfo.read(row) for row in reader.rows("artifacts")]
    return rows, _imports(reader.get("imports", list, []), place)


def listed_artifacts(folder: Path) -> Listed:
    """Return the files that `ArtifactSet.save` wrote into `folder`, and those in the list of
    `base/folders.py`; empty if there is no valid manifest."""
    try:
        rows, _ = read_manifest(read_plain(folder / MANIFEST, MAX_BYTES), "")
    except (OSError, UserError):
        return {}
    return {**listed_files(folder), **{row.name: [row.sha256] for row in rows}, MANIFEST: None}


def _hash(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _imports(pairs: Sequence[object], place: str) -> Imports:
    def group(value: object) -> LoaderGroup:
        if not isinstance(value, list) or list(map(type, value)) != [str, str]:
            raise UserError("its list of imports is malformed", code=_BAD, where=place)
        return LoaderGroup(*value)

    two = [pair if isinstance(pair, list) and len(pair) == 2 else [None, None] for pair in pairs]
    return tuple((group(above), group(below)) for above, below in two)
