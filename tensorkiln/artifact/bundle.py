"""The sources of external dependencies, put into an archive of artifacts.

`external/<short_name>/...` are the files, from a folder or one file (a tar, say) on this machine.
The row of `host/external_dependencies.json` gets a key `bundled` with that path and a hash. Of a
file it is the SHA-256; of a folder that of what `sha256sum` prints for its files, sorted by path:

    cd external/halve
    find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import Artifact, FileContent
from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.artifact.dependency import DEPENDENCIES, dependencies_of, rows_text
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import plain_path

_FOLDER = "external"
_LEFT_OUT = (".git", ".hg", ".svn")  # the history of a checkout is not its source


@dataclass(frozen=True, slots=True)
class BundledSource:
    """The source of a dependency as artifacts, its path in the archive, and its hash (hex)."""

    short_name: str
    path: str
    sha256: str
    artifacts: tuple[Artifact, ...]


def bundled_sources(
    dependencies: Sequence[ExternalDependency], bundle: object
) -> tuple[BundledSource, ...]:
    """Read the sources of some dependencies; `bundle` maps a `short_name` to a folder or a file.

    Raises UserError: `bad-bundle` for anything else, `unknown-dependency` with the nearest name,
    `missing-file`, and `wrong-hash` for a file with another hash than the dependency's `sha256`.
    """
    if not isinstance(bundle, Mapping):
        message = f"bundle is {bundle!r:.80}, expected a path by name of a dependency"
        raise UserError(message, code="bad-bundle", hint='bundle={"halve": "/src/halve"}')
    by_name = {d.short_name: d for d in dependencies}
    for name in bundle:
        if name not in by_name:
            hint = nearest(str(name), by_name) or f"there are {', '.join(by_name) or 'none'}"
            message = f"bundle: nothing here needs a dependency {name!r}"
            raise UserError(message, code="unknown-dependency", hint=hint)
    return tuple(_source(by_name[name], plain_path(bundle[name])) for name in sorted(bundle))


def with_sources(artifacts: ArtifactSet, sources: Sequence[BundledSource]) -> ArtifactSet:
    """The artifacts of a compile and sources of what they need, from `bundled_sources`."""
    if not sources:
        return artifacts
    rows = {d.short_name: d.to_json() for d in dependencies_of(artifacts)}
    for source in sources:
        rows[source.short_name]["bundled"] = {"path": source.path, "sha256": source.sha256}
    text = rows_text(rows.values()).encode()
    return artifacts.replace(DEPENDENCIES, text).add(a for s in sources for a in s.artifacts)


def _source(d: ExternalDependency, place: Path) -> BundledSource:
    folder = d.short_name
    if not place.is_dir():
        file = Artifact(_FOLDER, "text", f"{folder}/{place.name}", FileContent(place))
        file_digest = file.sha256
        if d.sha256 and file_digest != d.sha256:
            raise UserError(
                f"{str(place)!r} has SHA-256 {file_digest}, dependency "
                f"{d.short_name!r} is {d.sha256}",
                code="wrong-hash",
                where="bundle",
            )
        return BundledSource(d.short_name, file.name, file_digest, (file,))
    if d.sha256:
        raise UserError(
            f"dependency {d.short_name!r} is a file with SHA-256 {d.sha256}, {str(place)!r} is a "
            "folder",
            code="wrong-hash",
            where="bundle",
            hint="bundle the file",
        )
    files = sorted(_files(place, place), key=lambda pair: pair[0].encode())
    if not files:
        raise UserError(f"bundle: {str(place)!r} has no files", code="bad-bundle")
    artifacts = [Artifact(_FOLDER, "text", f"{folder}/{n}", FileContent(p)) for n, p in files]
    lines = [f"{a.sha256}  {n}\n" for a, (n, _) in zip(artifacts, files, strict=True)]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return BundledSource(d.short_name, f"{_FOLDER}/{folder}", digest, tuple(artifacts))


def _files(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Path from `root` on and place of every file; UserError for what is not a plain file or
    folder, as a link, which may lead anywhere."""
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _LEFT_OUT:
                yield from _files(path, root)
        elif entry.is_file(follow_symlinks=False):
            yield path.relative_to(root).as_posix(), path
        else:
            message = f"bundle: {entry.path!r} is neither a plain file nor a folder"
            raise UserError(message, code="bad-bundle", hint="replace it by what it leads to")
