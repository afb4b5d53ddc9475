"""Reading archives in Model Library Format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import (
    Artifact,
    Content,
    FileContent,
    content_size,
    content_view,
)
from tensorkiln.artifact.artifact_set import ArtifactSet, in_place, read_once
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.artifact.manifest import MANIFEST, ArtifactInfo, read_manifest
from tensorkiln.artifact.mlf.archive import archive_files, metadata_member
from tensorkiln.artifact.mlf.earlier import EARLIER, EarlierMetadata, earlier_metadata
from tensorkiln.artifact.mlf.metadata import (
    METADATA,
    VERSION,
    LibraryMetadata,
    Model,
    parsed_metadata,
    version_of,
)
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError, nearest, require
from tensorkiln.base.files import plain_path
from tensorkiln.base.json_text import MAX_BYTES

ARTIFACTS = "artifacts"  # the folder that has one of `ArtifactSet.save` for each model


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """An archive that was opened: what it says of itself, and its files by name.

    `metadata` is None, and `earlier` what an archive of versions 5 to 7 says, for one that another
    compiler wrote.
    """

    path: str
    files: Mapping[str, FileContent]
    metadata: LibraryMetadata | None
    earlier: EarlierMetadata | None = None

    @property
    def version(self) -> int:
        """The format's version."""
        return self.earlier.version if self.earlier is not None else VERSION

    def content(self, name: str) -> Content:
        """The bytes of a file. Raises UserError (code `bad-archive`) if it is not there, or not
        the file that was written."""
        place = f"{self.path}: {name}"
        if name not in self.files:
            raise UserError("it is not in the archive", code="bad-archive", where=place)
        file, metadata = self.files[name], self.metadata
        if metadata is None or name == METADATA:
            return file
        row = metadata.files.get(name)
        content, digest = read_once(file)
        if row is None or (row.size_bytes, row.sha256) != (file.size, digest):
            message = "it is not the file that was written (size or hash differ)"
            raise UserError(message, code="bad-archive", where=place)
        return content

    def models(self) -> Mapping[str, Model]:
        """The models by name. Raises UnsupportedError for an archive of an earlier version, whose
        code is not ours to run."""
        if self.metadata is None:
            raise UnsupportedError(
                f"version {self.version} of Model Library Format, which another compiler wrote, "
                "can be inspected, not loaded",
                where=self.path,
                hint="kiln inspect shows what it says",
            )
        return self.metadata.modules

    def model(self, name: str | None = None) -> Model:
        """A model by name; None: the only one. Raises UserError (code `unknown-model`)."""
        models = self.models()
        if name is not None:
            require(name, str, "model")
        if name is None and len(models) == 1:
            return next(iter(models.values()))
        if name is None or name not in models:
            names = ", ".join(models) or "none"
            problem = "name one of its models" if name is None else f"it has no model {name!r}"
            raise UserError(
                f"{problem}: {names}",
                code="unknown-model",
                where=self.path,
                hint=nearest(name or "", models),
            )
        return models[name]


def is_model_library(path: str | Path) -> bool:
    """Whether a tar file or a folder is meant to be in Model Library Format, damaged or not: its
    metadata.json states a version."""
    try:
        files = _plain_files(plain_path(path))
        data = files[METADATA].part(0, min(files[METADATA].size, MAX_BYTES + 1))
        version_of(parsed_metadata(data, METADATA), METADATA)
    except (UserError, KeyError):
        return False
    return True


def _plain_files(path: Path) -> dict[str, FileContent]:
    """The file METADATA, if there is one, of an archive that may be damaged elsewhere."""
    if path.is_dir():
        file = path / METADATA
        return {METADATA: FileContent(file)} if file.is_file() else {}
    return metadata_member(path, METADATA)


def open_model_library(path: str | Path) -> ModelLibrary:
    """Read what an archive, a tar file or an unpacked folder, says of itself.

    Raises UserError: `missing-file`, `bad-archive`, `bad-metadata` naming the key,
    `dependency-clash`; UnsupportedError for versions other than 5 to 8.
    """
    files = archive_files(path)
    place = f"{path}: {METADATA}"
    if METADATA not in files:
        raise UserError(
            f"it has no {METADATA}, so it is not in Model Library Format",
            code="bad-archive",
            where=str(path),
        )
    file = files[METADATA]
    data = file.part(0, min(file.size, MAX_BYTES + 1))
    parsed = parsed_metadata(data, place)
    version = version_of(parsed, place)
    if version in EARLIER:
        earlier = earlier_metadata(parsed, place)
        _check_dependencies([(m.name, m.dependencies) for m in earlier.models], place)
        return ModelLibrary(str(path), files, None, earlier)
    if version != VERSION:
        raise UnsupportedError(
            f"version {version} of Model Library Format; this version reads "
            f"{EARLIER[0]} to {VERSION}",
            where=place,
        )
    metadata = LibraryMetadata.from_bytes(data, place)
    _check_files(metadata, files, str(path))
    _check_models(metadata, place)
    return ModelLibrary(str(path), files, metadata)


def _check_files(metadata: LibraryMetadata, files: Mapping[str, FileContent], place: str) -> None:
    """Raise UserError (code `bad-archive`) for a file that is missing, has another size than it was
    written with, or, in a tar file, is not listed. A folder may have others: those of a build."""
    for name, row in metadata.files.items():
        if name not in files or files[name].size != row.size_bytes:
            problem = "is not in it" if name not in files else "has another size than was written"
            raise UserError(f"{name!r:.300} {problem}", code="bad-archive", where=place)
    if Path(place).is_dir():
        return
    for name in files:
        if name not in metadata.files and name != METADATA:
            raise UserError(f"{name!r} is in no list", code="bad-archive", where=place)


def _check_dependencies(
    models: Iterable[tuple[str, Sequence[ExternalDependency]]], place: str
) -> None:
    """Raise UserError (code `dependency-clash`) for two dependencies of one name that differ: a
    program has one of them."""
    try:
        merge_dependencies(
            (f"model {name!r:.200}", d) for name, dependencies in models for d in dependencies
        )
    except UserError as error:
        raise UserError(error.message, code=error.code, where=place) from None


def _check_models(metadata: LibraryMetadata, file: str) -> None:
    """Raise UserError (code `bad-metadata`) for a model of another name than its key, or one that
    names a file which is not listed."""
    models = metadata.modules.items()
    _check_dependencies([(name, m.external_dependencies) for name, m in models], file)
    for name, model in metadata.modules.items():
        place = f"{file}.modules.{name:.200}"
        if model.model_name != name:
            message = f"it says that it is {model.model_name!r:.200}"
            raise UserError(message, code="bad-metadata", where=place)
        named = [model.header, *model.sources, *model.objects, model.ir]
        named += [model.constants.path, model.constants.parameters]
        named += [k.path for k in model.kernels] + [p.path for p in model.placed.values()]
        for path in named:
            if path and path not in metadata.files:
                message = f"it names {path!r:.300}, which is not listed"
                raise UserError(message, code="bad-metadata", where=place)
        for path in (b.path for b in model.bundled.values()):
            if not any(name == path or name.startswith(f"{path}/") for name in metadata.files):
                message = f"it names {path!r:.300}, where nothing is"
                raise UserError(message, code="bad-metadata", where=place)


def load_model_library_format(path: str | Path, model: str | None = None) -> ArtifactSet:
    """Return the artifacts that a model in an archive was exported with: `tk.load_artifacts` loads
    them, `tk.export_library` links them. `model` names one of several.

    Every byte is checked against its hash. Raises UserError: `missing-file`, `bad-archive`,
    `bad-metadata`, `unknown-model`, `bad-container` for a damaged list of artifacts;
    UnsupportedError for versions 5 to 7, which another compiler wrote.
    """
    library = open_model_library(path)
    chosen = library.model(model)
    root = f"{ARTIFACTS}/{chosen.model_name}"
    place = f"{path}: {root}/{MANIFEST}"
    manifest = content_view(library.content(f"{root}/{MANIFEST}"))
    rows, imports = read_manifest(manifest, place)
    artifacts = []
    for row in rows:
        content, digest = read_once(_file_of(library, chosen, root, row, place))
        if (content_size(content), digest) != (row.size, row.sha256):
            message = f"{row.name!r} is not the file that was saved (size or hash differ)"
            raise UserError(message, code="bad-archive", where=place)
        names = row.codegen_id, row.loader, row.file_name
        with in_place(place):
            artifacts.append(Artifact(*names, content, row.target_key))
    with in_place(place):
        return ArtifactSet(tuple(artifacts), imports)


def _file_of(
    library: ModelLibrary, model: Model, root: str, row: ArtifactInfo, label: str
) -> FileContent:
    """Where the bytes of an artifact lie. Raises UserError (code `bad-archive`)."""
    place = model.placed.get(row.name)
    path = f"{root}/{row.name}" if place is None else place.path
    file = library.files.get(path)
    if file is None:
        raise UserError(f"{path!r:.300} is not in the archive", code="bad-archive", where=label)
    if place is None:
        return file
    if place.offset + place.size_bytes > file.size:
        raise UserError(f"{row.name!r} ends behind {path!r}", code="bad-archive", where=label)
    return FileContent(file.path, file.offset + place.offset, place.size_bytes)
