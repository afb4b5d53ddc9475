"""What a library, an archive or a folder of artifacts embeds and needs (artifact/components.py)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.artifact.binary import BinaryFile
from tensorkiln.artifact.components import (
    Component,
    archive_components,
    components,
    set_metadata,
)
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.read_binary import binary_format, binary_of
from tensorkiln.artifact.sections import METADATA
from tensorkiln.artifact.spdx import spdx_document
from tensorkiln.base.errors import UserError
from tensorkiln.base.origin import ModelSource
from tensorkiln.inspectors.library import library_metadata
from tensorkiln.inspectors.subject import Subject, files_of


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file embeds and needs, the model it was made from if it says so, and its SHA-256
    (empty for a folder)."""

    name: str
    components: tuple[Component, ...]
    model: ModelSource | None
    sha256: str

    def spdx(self, created: int = 0) -> dict[str, object]:
        """A document of SPDX 2.3, made at `created` seconds since 1970."""
        return spdx_document(
            self.name, self.components, sha256=self.sha256, model=self.model, created=created
        )


def contents_of(subject: Subject) -> Contents:
    """Read what a subject embeds and needs. Raises UserError (code `no-components`) for a file that
    is nothing of a compile, and those of damaged files."""
    name = subject.path.rstrip("/").rpartition("/")[2]
    digest = "" if subject.itself is None else _sha256(subject.itself)
    if subject.kind == "model":
        library = open_model_library(subject.path)
        if library.metadata is None:
            raise _nothing(subject, "an archive of another compiler")
        license_paths = tuple(
            path
            for row in library.metadata.licenses
            if row.component == "Tensorkiln"
            for path in row.paths
        )
        models, made_by = library.metadata.modules, library.metadata.generator.version
        source = _source(subject.artifacts) if len(models) == 1 else None
        return Contents(name, archive_components(models, license_paths, made_by), source, digest)
    objects = _objects(subject)
    metadata = next((m for m in map(_metadata, objects) if m is not None), None)
    if metadata is None and subject.kind in ("folder", "container", "tar"):
        objects, metadata = [], set_metadata(subject.artifacts)
    if metadata is None:
        raise _nothing(subject, "it has no metadata")
    return Contents(name, components(metadata, objects), metadata.origin.model, digest)


def _objects(subject: Subject) -> list[BinaryFile]:
    """The binaries that a library is: itself, or the members of a static one."""
    if subject.kind in ("library", "file") and subject.itself is not None:
        files = [subject.itself]
    else:
        files = [*files_of(subject.artifacts)] if subject.kind == "archive" else []
    return [binary_of(a.view, a.name) for a in files if binary_format(bytes(a.view[:8]))]


def _metadata(binary: BinaryFile) -> Metadata | None:
    return library_metadata(binary) if binary.section(METADATA) is not None else None


def _source(artifacts: ArtifactSet) -> ModelSource | None:
    try:
        return set_metadata(artifacts).origin.model
    except UserError:
        return None


def _sha256(a: Artifact) -> str:
    return hashlib.sha256(a.view).hexdigest()


def _nothing(subject: Subject, reason: str) -> UserError:
    return UserError(
        f"nothing says what {subject.path!r} embeds and needs: {reason}",
        code="no-components",
        hint="libraries, artifacts and archives that this compiler made do",
    )
