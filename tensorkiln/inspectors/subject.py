"""What can be inspected: a library, a container, a folder, an archive, or one file.

Nothing is loaded, linked or run, and nothing is unpacked: the content of an artifact is a range of
bytes in the file, which is read when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact import Artifact, ArtifactSet, FileContent, TextContent, sections
from tensorkiln.artifact.artifact_set import in_place
from tensorkiln.artifact.binary import Section
from tensorkiln.artifact.manifest import MANIFEST, ArtifactInfo, read_manifest
from tensorkiln.artifact.metadata import constants_text
from tensorkiln.artifact.mlf.load import (
    ARTIFACTS,
    is_model_library,
    load_model_library_format,
    open_model_library,
)
from tensorkiln.artifact.read_binary import binary_format, binary_of
from tensorkiln.artifact.weights_file import read_weights, weights_beside
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_plain, plain_path
from tensorkiln.inspectors.archive import AR_MAGIC, ar_members, tar_members
from tensorkiln.inspectors.library import kernels_of, library_metadata
from tensorkiln.inspectors.llvm import BITCODE
from tensorkiln.inspectors.objects import LinkedCode

_MOST_FILES = 100_000
_NOT_IN_NAMES = str.maketrans(dict.fromkeys('<>:"|?*\\', "_"))


@dataclass(frozen=True, slots=True)
class Absent:
    """An artifact of a library's compile whose bytes are not available: it was linked, or it is the
    weights and their file cannot be read. `reason` says which."""

    name: str
    size: int
    reason: str


def files_of(artifacts: ArtifactSet) -> tuple[Artifact, ...]:
    """The artifacts that have bytes, without in-memory ones; those read from a file all have."""
    return tuple(a for a in artifacts if isinstance(a, Artifact))


@dataclass(frozen=True, slots=True)
class Subject:
    """A thing to inspect. `kind` is `library`, `container`, `folder`, `model` (an archive in Model
    Library Format, packed or not), `archive`, `tar` or `file`; `itself` is the whole file as an
    artifact, None for folders."""

    path: str
    kind: str
    artifacts: ArtifactSet
    itself: Artifact | None = None
    absent: tuple[Absent, ...] = ()

    @property
    def files(self) -> tuple[Artifact, ...]:
        """The artifacts as a tuple."""
        return files_of(self.artifacts)


def open_subject(path: str | Path) -> Subject:
    """Determine what kind of file or folder `path` is, and the artifacts in it.

    Raises UserError: `missing-file`, `bad-library`, `bad-container`, `bad-archive`, `bad-metadata`,
    `not-inspectable` for a folder that is not the output of a compile.
    """
    place = plain_path(path)
    if place.is_dir():
        return _folder(place)
    if not place.is_file():
        problem = "it is not a plain file" if place.exists() else "no such file"
        raise UserError(f"cannot read {str(path)!r}: {problem}", code="missing-file")
    content = FileContent(place)
    with open_plain(place) as stream:
        head = stream.read(512)
    itself = Artifact("file", "file", _file_name(place, head), content)
    if head.startswith(b"KILNSET"):
        try:
            return Subject(str(path), "container", ArtifactSet.from_bytes(content.view), itself)
        except UserError as error:
            path_text = str(path)
            raise UserError(
                error.message, code=error.code, where=path_text, hint=error.hint
            ) from None
    if binary_format(head) is not None:
        return _binary(place, itself)
    if head.startswith(AR_MAGIC):
        members = ar_members(content.view, str(path))
        return Subject(str(path), "archive", _members(place, "archive", members), itself)
    if head[257:262] == b"ustar":
        if is_model_library(place):
            return Subject(str(path), "model", _model(place), itself)
        return Subject(str(path), "tar", _tar(place), itself)
    return Subject(str(path), "file", ArtifactSet((itself,)), itself)


def _file_name(path: Path, head: bytes) -> str:
    """The file's name made valid for an artifact. If its first bytes are those of a binary or of
    bitcode, it ends in `.o`, `.so` or `.bc`, which is appended if missing."""
    plain = re.sub(r"[\0-\x1f\ud800-\udfff]", "_", path.name.translate(_NOT_IN_NAMES))
    name = plain[-200:].rstrip(". ") or "file"
    suffixes: tuple[str, ...] = ()
    if (form := binary_format(head)) is not None:
        suffixes = (form.shared_suffix, form.object_suffix)
        if form.is_object(head):
            suffixes = suffixes[::-1]
    elif head.startswith(BITCODE):
        suffixes = (".bc",)
    return name if not suffixes or name.lower().endswith(suffixes) else name + suffixes[0]


# -- folders and archives ----------------------------------------------------------------------


def _folder(path: Path) -> Subject:
    if (path / MANIFEST).is_file():
        return Subject(str(path), "folder", ArtifactSet.load(path))
    if is_model_library(path):
        return Subject(str(path), "model", _model(path))
    raise UserError(
        f"{str(path)!r} is not a folder that Tensorkiln wrote",
        code="not-inspectable",
        hint=f"folders that `kiln compile --keep` wrote have {MANIFEST}, those in Model Library "
        "Format metadata.json",
    )


def _model(path: Path) -> ArtifactSet:
    """The files of an archive in Model Library Format. Those of the only model's compile are the
    artifacts that it was exported with."""
    library = open_model_library(path)
    models = [] if library.metadata is None else [*library.models()]
    model_artifacts = load_model_library_format(path).plain if len(models) == 1 else ()
    inside = tuple(f"{ARTIFACTS}/{name}/" for name in models) if model_artifacts else ()
    placed = {
        p.path for name in models for p in library.model(name).placed.values() if model_artifacts
    }
    extra_files = (
        Artifact("model", "native", name, content)
        for name, content in sorted(library.files.items())
        if not name.startswith(inside) and name not in placed
    )
    return ArtifactSet((*model_artifacts, *extra_files))


def _members(path: Path, kind: str, members: Iterable[tuple[str, int, int]]) -> ArtifactSet:
    """The members of an archive as artifacts. Of several that have the same name, all but the first
    get a number: `a.o`, `a.2.o`."""
    artifacts: dict[str, Artifact] = {}
    for member, offset, size in members:
        stem, dot, suffix = member.removeprefix("./").rpartition(".")
        name, k = member.removeprefix("./"), 1
        while name.lower() in artifacts:
            k += 1
            name = f"{stem}.{k}{dot}{suffix}"
        artifacts[name.lower()] = Artifact(kind, "native", name, FileContent(path, offset, size))
        if len(artifacts) > _MOST_FILES:
            raise UserError(f"more than {_MOST_FILES} files", code="bad-archive", where=str(path))
    return ArtifactSet(tuple(artifacts.values()))


def _tar(path: Path) -> ArtifactSet:
    """The artifact set in a tar file, checked by its hashes, if the archive has a manifest; else
    the archive's regular files."""
    members = {name.removeprefix("./"): place for name, *place in tar_members(path)}
    if MANIFEST not in members:
        return _members(
            path, "tar", ((name, offset, size) for name, (offset, size) in members.items())
        )
    label = f"{path}: {MANIFEST}"
    try:
        rows, imports = read_manifest(FileContent(path, *members[MANIFEST]).view, label)
    except UserError as error:
        message = f"cannot be read: {error.message}"
        raise UserError(message, code="bad-archive", where=error.where) from None
    artifacts = []
    for row in rows:
        if row.name not in members:
            raise UserError(f"{row.name!r} is not in the archive", code="bad-archive", where=label)
        content = FileContent(path, *members[row.name])
        artifact = Artifact(row.codegen_id, row.loader, row.file_name, content, row.target_key)
        if artifact.sha256 != row.sha256:
            raise UserError(f"{row.name!r} is not what was saved", code="bad-archive", where=label)
        artifacts.append(artifact)
    with in_place(label):
        return ArtifactSet(tuple(artifacts), imports)


# -- libraries ---------------------------------------------------------------------------------


def _binary(path: Path, itself: Artifact) -> Subject:
    binary = binary_of(itself.view, str(path))
    section = binary.section(sections.METADATA)
    if binary.relocatable or section is None:
        return Subject(str(path), "file", ArtifactSet((itself,)), itself)
    metadata = library_metadata(binary)
    raw = bytes(binary.content(section)).rstrip(b"\0")
    absent_weights: tuple[Absent, ...] = ()
    files = [Artifact("host", "native", "metadata.json", raw)]
    if metadata.weights_bytes:
        weights = binary.section(sections.WEIGHTS)
        if weights is None or weights.size < metadata.weights_bytes or metadata.weights_bytes < 0:
            message = f"section {sections.WEIGHTS} does not hold {metadata.weights_bytes} bytes"
            raise UserError(message, code="bad-library", where=str(path))
        try:
            data = weights_content(path, weights, metadata.weights_bytes)
            files.append(Artifact("host", "native", "weights.bin", data))
        except UserError as error:  # the rest can be inspected without the weights file beside it
            absent_weights = (Absent("host/weights.bin", metadata.weights_bytes, error.message),)
        if metadata.constants:
            text = TextContent(lambda: constants_text(metadata.constants))
            files.append(Artifact("host", "text", "weights.json", text))
    makers = {a.file_name.rpartition(".")[0]: a.codegen_id for a in metadata.artifacts}
    for symbol, functions in kernels_of(binary, metadata).items():
        code = LinkedCode(binary, functions)
        files.append(Artifact(makers.get(symbol, "code"), "native", f"{symbol}.code", code))
    is_embedded = binary.section(sections.ARTIFACTS)
    carried = ArtifactSet()
    if is_embedded is not None:
        place = f"{path}:{sections.ARTIFACTS}"
        carried = sections.carried_artifacts(binary.content(is_embedded), place)
    artifacts = ArtifactSet((*files, *carried), carried.imports)
    entries: tuple[Artifact | Absent, ...] = (*files_of(artifacts), *absent_weights)
    absent = (*absent_weights, *_absent(metadata.artifacts, entries))
    return Subject(str(path), "library", artifacts, itself, absent)


def weights_content(path: Path, section: Section, size: int) -> FileContent:
    """The `size` bytes of a library's weights: of the section, or of the weights file beside the
    library if the section has no bytes in the file. Raises UserError."""
    if section.in_file:
        return FileContent(path, section.offset, size)
    return read_weights(weights_beside(path), size)


def _absent(
    infos: Iterable[ArtifactInfo], artifacts: Iterable[Artifact | Absent]
) -> tuple[Absent, ...]:
    artifact_of_name = {a.name: a for a in artifacts}
    absent = []
    for info in infos:
        name = "/".join(p for p in (info.codegen_id, info.target_key, info.file_name) if p)
        if name not in artifact_of_name:
            code = f"{name.rpartition('.')[0]}.code"
            reason = f"linked; its code is {code}" if code in artifact_of_name else "linked in"
            absent.append(Absent(name, info.size, reason))
    return tuple(absent)
