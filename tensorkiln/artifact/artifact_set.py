"""`ArtifactSet`: all artifacts of one compile, in order, and their form on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact import container
from tensorkiln.artifact.artifact import Artifact, FileContent
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import atomic_dir, resolve_inside

MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class ArtifactSet:
    """Artifacts in the order they were made. Equal when names, order and bytes are.

    Raises UserError (code `name-clash`) when two artifacts of one codegen_id and target_key have
    one file_name, naming both producers.
    """

    artifacts: tuple[Artifact, ...] = ()

    def __post_init__(self) -> None:
        """Check that names are unique; case does not count, since some file systems ignore it."""
        object.__setattr__(self, "artifacts", tuple(self.artifacts))
        seen: dict[tuple[str, str], Artifact] = {}
        for artifact in self.artifacts:
            key = (artifact.codegen_id, artifact.name.lower())
            former = seen.setdefault(key, artifact)
            if former is not artifact:
                raise UserError(
                    f"two artifacts are named {artifact.name!r}: one made for "
                    f"{former.producer or former.loader!r}, one for "
                    f"{artifact.producer or artifact.loader!r}",
                    code="name-clash",
                    where=f"code generator {artifact.codegen_id!r}",
                )

    def __iter__(self) -> Iterator[Artifact]:
        return iter(self.artifacts)

    def __len__(self) -> int:
        return len(self.artifacts)

    def __getitem__(self, name: str) -> Artifact:
        """The artifact of that name (`codegen_id/[target_key/]file_name`, or its file_name)."""
        for artifact in self.artifacts:
            if artifact.name == name:
                return artifact
        found = [artifact for artifact in self.artifacts if artifact.file_name == name]
        if len(found) == 1:
            return found[0]
        hint = nearest(name, [artifact.name for artifact in self.artifacts])
        raise UserError(f"no artifact {name!r}", code="unknown-artifact", hint=hint)

    def add(self, artifacts: Iterable[Artifact]) -> ArtifactSet:
        """A new set with `artifacts` at the end."""
        return ArtifactSet((*self.artifacts, *artifacts))

    def by_loader(self) -> dict[str, tuple[Artifact, ...]]:
        """The groups that loaders get: sorted by loader name, within a group in order."""
        names = sorted({artifact.loader for artifact in self.artifacts})
        return {n: tuple(a for a in self.artifacts if a.loader == n) for n in names}

    @property
    def nbytes(self) -> int:
        """Bytes of all contents together."""
        return sum(artifact.size for artifact in self.artifacts)

    @property
    def content_hash(self) -> str:
        """Hash (64 hex digits) of names, order and bytes; the same on every machine."""
        digest = hashlib.sha256()
        for artifact in self.artifacts:
            digest.update(json.dumps([*_names(artifact), artifact.sha256]).encode())
        return digest.hexdigest()

    # -- folder ----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write `<codegen_id>/[<target_key>/]<file_name>` and `manifest.json`, all or nothing.

        `load` gives back an equal set. A folder that is there already is replaced only when it
        is empty or was written by `save`.
        """
        target = Path(folder)
        if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
            raise UserError(
                f"{str(target)!r} holds other files",
                code="cannot-write",
                hint="name a folder that is new, empty, or was written by save()",
            )
        with atomic_dir(target) as temporary:
            rows = [self._save_one(temporary, artifact) for artifact in self.artifacts]
            manifest = {"version": _MANIFEST_VERSION, "artifacts": rows}
            text = json.dumps(manifest, indent=1) + "\n"
            (temporary / MANIFEST).write_text(text, encoding="utf-8")

    @staticmethod
    def _save_one(folder: Path, artifact: Artifact) -> dict[str, object]:
        file = folder / artifact.name
        file.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with file.open("wb") as stream:
            for chunk in artifact.chunks():
                digest.update(chunk)
                stream.write(chunk)
        names = dict(zip(_NAME_FIELDS, _names(artifact), strict=True))
        return {**names, "size": artifact.size, "sha256": digest.hexdigest()}

    @classmethod
    def load(cls, folder: str | Path) -> ArtifactSet:
        """Read what `save` wrote. Contents stay on disk until looked at; hashes are checked.

        Raises UserError (code `bad-container`) for anything missing, changed or leading outside.
        """
        root = Path(folder)
        rows = _read_manifest(root)
        found: list[Artifact] = []
        for index, row in enumerate(rows):
            where = f"{root / MANIFEST}: artifact {index}"
            names = [row.get(name) for name in _NAME_FIELDS]
            if not all(isinstance(name, str) for name in names):
                raise UserError("its names are not text", code="bad-container", where=where)
            codegen_id, loader, file_name, target_key = (str(name) for name in names)
            relative = "/".join(p for p in (codegen_id, target_key, file_name) if p)
            content = FileContent(resolve_inside(root, relative))
            artifact = Artifact(codegen_id, loader, file_name, content, target_key)
            if artifact.size != row.get("size") or artifact.sha256 != row.get("sha256"):
                raise UserError(
                    f"{relative!r} is not the file that was saved (size or hash differ)",
                    code="bad-container",
                    where=where,
                )
            found.append(artifact)
        return cls(tuple(found))

    # -- bytes -----------------------------------------------------------------------------------

    def to_chunks(self) -> Iterator[bytes | memoryview]:
        """The container form piece by piece, so that weights are not copied to write them."""
        nodes = [(_names(artifact), artifact.view) for artifact in self.artifacts]
        return container.pack(nodes)

    def to_bytes(self) -> bytes:
        """The container form as one value."""
        return b"".join(self.to_chunks())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> ArtifactSet:
        """Inverse of `to_bytes`; contents are views into `data`.

        Raises UserError (code `bad-container`) for truncation, trailing bytes, absurd counts, a
        wrong hash, an unknown version.
        """
        found = []
        for names, content in container.unpack(memoryview(data)):
            codegen_id, loader, file_name, target_key = names
            found.append(Artifact(codegen_id, loader, file_name, content, target_key))
        return cls(tuple(found))


_NAME_FIELDS = ("codegen_id", "loader", "file_name", "target_key")


def _names(artifact: Artifact) -> container.Names:
    return artifact.codegen_id, artifact.loader, artifact.file_name, artifact.target_key


def _read_manifest(root: Path) -> list[dict[str, object]]:
    where = str(root / MANIFEST)
    try:
        parsed = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"no artifacts here: {error.strerror}", code="missing-file", where=where
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", code="bad-container", where=where) from None
    if not isinstance(parsed, dict) or parsed.get("version") != _MANIFEST_VERSION:
        version = parsed.get("version") if isinstance(parsed, dict) else None
        raise UserError(
            f"manifest version {version!r}; this version reads {_MANIFEST_VERSION}",
            code="bad-container",
            where=where,
        )
    rows = parsed.get("artifacts")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError("its list of artifacts is malformed", code="bad-container", where=where)
    return rows
