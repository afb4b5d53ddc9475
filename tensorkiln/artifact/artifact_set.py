"""`ArtifactSet`: all artifacts of one compile, their imports, and their form as a folder and as
bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact import container
from tensorkiln.artifact.artifact import (
    Artifact,
    CheckedContent,
    Content,
    FileContent,
    InMemoryArtifact,
    content_inside,
    content_size,
)
from tensorkiln.artifact.manifest import (
    MANIFEST,
    ArtifactInfo,
    LoaderGroup,
    listed_artifacts,
    manifest_text,
    read_manifest,
)
from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.base.files import plain_path
from tensorkiln.base.folders import atomic_dir
from tensorkiln.base.text import listed

# A loader name that is refused. In an early design an artifact of this loader was the root of a
# load; now the library is the root, and its metadata is in its entry file.
RESERVED_LOADER = "metadata"
_IN_MEMORY = 1 << 20  # bytes of a file that `load` keeps in memory; larger files stay on disk
_ALL_IN_MEMORY = 64 << 20  # the same for all files together


@dataclass(frozen=True, slots=True)
class ArtifactSet:
    """Artifacts in the order they were made, and which group of them imports which.

    `imports` holds pairs (group, group that it imports); a group that no other group imports is
    imported by the library. Two sets are equal if names, order, bytes and imports are. Raises
    UserError: code `name-clash` if two artifacts of one codegen_id and target_key have the same
    file_name (ignoring case), naming both producers; `bad-imports` if imports name a group without
    artifacts or the native one, or have a cycle.
    """

    artifacts: tuple[Artifact | InMemoryArtifact, ...] = ()
    imports: tuple[tuple[LoaderGroup, LoaderGroup], ...] = ()

    def __post_init__(self) -> None:
        """Check that names are unique, ignoring case as some file systems do, and the imports."""
        require(self.artifacts, Iterable, "artifacts")
        object.__setattr__(self, "artifacts", tuple(self.artifacts))
        artifact_of_name: dict[tuple[str, str], Artifact | InMemoryArtifact] = {}
        for index, artifact in enumerate(self.artifacts):
            require(artifact, (Artifact, InMemoryArtifact), f"artifacts[{index}]")
            key = (artifact.codegen_id, artifact.name.lower())
            former = artifact_of_name.setdefault(key, artifact)
            if former is not artifact:
                raise UserError(
                    f"two artifacts are named {artifact.name!r}: one made for "
                    f"{former.producer or former.loader!r}, one for "
                    f"{artifact.producer or artifact.loader!r}",
                    code="name-clash",
                    where=f"code generator {artifact.codegen_id!r}",
                )
        pairs = ((LoaderGroup(*above), LoaderGroup(*below)) for above, below in self.imports)
        object.__setattr__(self, "imports", tuple(sorted(set(pairs))))
        _check_imports(self)

    def __iter__(self) -> Iterator[Artifact | InMemoryArtifact]:
        return iter(self.artifacts)

    def __len__(self) -> int:
        return len(self.artifacts)

    def __getitem__(self, name: str) -> Artifact:
        """Return the artifact whose name is `codegen_id/[target_key/]file_name`, or whose file_name
        alone is `name` if only one has it.

        UserError if there is no such artifact (code `unknown-artifact`), or it has no form as bytes
        (`in-memory-artifact`).
        """
        for artifact in self.artifacts:
            if artifact.name == name:
                return _plain(artifact)
        matches = [artifact for artifact in self.artifacts if artifact.file_name == name]
        if len(matches) == 1:
            return _plain(matches[0])
        hint = nearest(name, [artifact.name for artifact in self.artifacts])
        raise UserError(f"no artifact {name!r}", code="unknown-artifact", hint=hint)

    @property
    def plain(self) -> tuple[Artifact, ...]:
        """All artifacts, if each has a form as bytes; else a UserError that names the first one
        without."""
        return tuple(map(_plain, self.artifacts))

    def add(self, artifacts: Iterable[Artifact | InMemoryArtifact]) -> ArtifactSet:
        """Return a new set with `artifacts` at the end."""
        return ArtifactSet((*self.artifacts, *artifacts), self.imports)

    def replace(self, name: str, content: Content) -> ArtifactSet:
        """Return a new set in which the artifact `name` (as in `[]`) has another content."""
        old = self[name]
        new = Artifact(old.codegen_id, old.loader, old.file_name, content, old.target_key)
        return ArtifactSet(tuple(new if a is old else a for a in self.artifacts), self.imports)

    def importing(self, above: LoaderGroup | str, *below: LoaderGroup | str) -> ArtifactSet:
        """Return a new set in which group `above` imports the groups `below`: functions that it
        lacks are looked up in them. A string is the group of that loader without a target key."""
        pairs = [(_group(above), _group(b)) for b in below]
        return ArtifactSet(self.artifacts, (*self.imports, *pairs))

    def __repr__(self) -> str:
        """`<ArtifactSet of 2: host/lib.c, npu/add.cmd>`, with at most eight names."""
        names = listed((a.name for a in self.artifacts), 8)
        return f"<ArtifactSet of {len(self.artifacts)}: {names}>"

    def require_loaders(self) -> None:
        """Raise UserError (code `bad-loader`) if an artifact has the reserved loader `metadata`."""
        for a in self.artifacts:
            if a.loader == RESERVED_LOADER:
                raise UserError(
                    f"{a.name} is of loader {a.loader!r}, and there is no such loader: the root of "
                    "a load is the library, which has its metadata in it",
                    code="bad-loader",
                    hint="loader 'text' for what people read, or a name of your own",
                )

    def groups(self) -> dict[LoaderGroup, tuple[Artifact | InMemoryArtifact, ...]]:
        """Return the artifacts by group, what one call of a loader gets: groups sorted by loader
        name and target key, artifacts in set order."""
        names = sorted({LoaderGroup(a.loader, a.target_key) for a in self.artifacts})
        return {g: tuple(a for a in self.artifacts if (a.loader, a.target_key) == g) for g in names}

    @property
    def nbytes(self) -> int:
        """Total size of all contents in bytes."""
        return sum(artifact.size for artifact in self.artifacts)

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) over names, order, imports and bytes; the same on every machine."""
        digest = hashlib.sha256()
        for artifact in self.plain:
            digest.update(json.dumps([*_names(artifact), artifact.sha256]).encode())
        if self.imports:
            digest.update(json.dumps(self.imports).encode())
        return digest.hexdigest()

    # -- folder ----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write `<codegen_id>/[<target_key>/]<file_name>` and `manifest.json`, all or nothing.

        `load` returns an equal set. An existing folder is replaced as a whole, and only if it is
        empty or holds nothing but files that `save` wrote and nobody changed since. Raises
        UserError: code `cannot-write` naming the file or reason that prevents it, `bad-path`, or
        `in-memory-artifact` if an artifact has no form as bytes.
        """
        artifacts = self.plain
        with atomic_dir(folder, listed_artifacts) as temporary:
            rows = [self._save_one(temporary, artifact) for artifact in artifacts]
            (temporary / MANIFEST).write_text(manifest_text(rows, self.imports), encoding="utf-8")

    @staticmethod
    def _save_one(folder: Path, artifact: Artifact) -> ArtifactInfo:
        file = folder / artifact.name
        file.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with file.open("wb") as stream:
            for chunk in artifact.chunks():
                digest.update(chunk)
                stream.write(chunk)
        return ArtifactInfo(*_names(artifact), artifact.size, digest.hexdigest())

    @classmethod
    def load(cls, folder: str | Path, *, edited: bool = False) -> ArtifactSet:
        """Read what `save` wrote.

        Sizes and hashes are checked, unless the caller says that the folder was `edited`: then
        files are taken as they are. Files larger than 1 MiB, or beyond 64 MiB in total, stay on
        disk, and are checked again each time they are read.

        Raises UserError for a changed file (code `bad-container`), a missing one (`missing-file`),
        a link out of the folder (`unsafe-path`), or an invalid name (`bad-artifact`).
        """
        root = plain_path(folder)
        place = str(root / MANIFEST)
        try:
            data = FileContent(root / MANIFEST).view
        except UserError as error:
            message = f"no artifacts here: {error.message}"
            raise UserError(message, code=error.code, where=place) from error
        rows, imports = read_manifest(data, place, edited=edited)
        artifacts, room = list[Artifact](), _ALL_IN_MEMORY
        for index, row in enumerate(rows):
            file = content_inside(root, row.name)
            content, digest = read_once(file, min(_IN_MEMORY, room))
            room -= len(content) if isinstance(content, bytes) else 0
            if not edited and (digest, content_size(content)) != (row.sha256, row.size):
                raise UserError(
                    f"{row.name!r} is not the file that was saved (size or hash differ)",
                    code="bad-container",
                    where=f"{place}: artifact {index}",
                    hint="load(folder, edited=True) takes files as they are",
                )
            names = row.codegen_id, row.loader, row.file_name
            artifacts.append(Artifact(*names, content, row.target_key))
        with in_place(place):
            return cls(tuple(artifacts), imports)

    # -- bytes -----------------------------------------------------------------------------------

    def nodes(
        self, *, leave_out: Collection[str] = (), in_memory: bool = False
    ) -> list[container.Node]:
        """Return the nodes of the container, the library first; without groups of the loaders
        `leave_out`.

        An artifact without a form as bytes is a UserError; with `in_memory` it becomes a node
        without artifacts.
        """
        places = {id(artifact): i for i, artifact in enumerate(self.artifacts)}
        groups = {g: a for g, a in self.groups().items() if g.loader not in leave_out}
        numbers = {group: i for i, group in enumerate(groups, 1)}
        below = [(a, b) for a, b in self.imports if a in groups and b in groups]
        imported = {b for _, b in below}
        nodes = [
            container.Node(
                container.LIB,
                children=tuple(n for group, n in numbers.items() if group not in imported),
            )
        ]
        for group, artifacts in groups.items():
            files = tuple(
                container.ContainerFile(
                    places[id(a)], a.codegen_id, a.file_name, a.target_key, a.content
                )
                for a in artifacts
                if not in_memory or isinstance(a, Artifact)
                for a in [_plain(a)]
            )
            children = tuple(sorted(numbers[b] for a, b in below if a == group))
            nodes.append(container.Node(group.loader, files, children))
        return nodes

    def to_chunks(
        self, *, leave_out: Collection[str] = (), in_memory: bool = False
    ) -> Iterator[bytes | memoryview]:
        """Yield the container form in pieces, so that weights can be written without a copy."""
        return container.pack(self.nodes(leave_out=leave_out, in_memory=in_memory))

    def to_bytes(self) -> bytes:
        """Return the container form (docs/formats/container.md). Raises UserError if an artifact
        has no form as bytes."""
        return b"".join(self.to_chunks())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> ArtifactSet:
        """Inverse of `to_bytes`; contents are views into `data`.

        Raises UserError: code `bad-container` for truncation, trailing bytes, counts that cannot
        fit, a wrong hash or an invalid import tree; `container-version` for another major version.
        """
        nodes = container.unpack(memoryview(data))
        with in_place("artifact container"):
            return cls.from_nodes(nodes)

    @classmethod
    def from_nodes(cls, nodes: Sequence[container.Node]) -> ArtifactSet:
        """Inverse of `nodes`. Nodes without artifacts, which stood for artifacts without a form as
        bytes, are dropped together with their imports."""
        if nodes[0].key != container.LIB:
            raise UserError(f"its root is {nodes[0].key!r}, expected '_lib'", code="bad-container")
        placed: dict[int, Artifact] = {}
        groups: list[LoaderGroup] = []
        for node in nodes:
            groups.append(LoaderGroup(node.key, *{f.target_key for f in node.files}))
            for f in node.files:
                artifact = Artifact(f.codegen_id, node.key, f.file_name, f.content, f.target_key)
                if placed.setdefault(f.position, artifact) is not artifact:
                    raise UserError(f"two artifacts at place {f.position}", code="bad-container")
        if len(set(groups)) != len(groups):
            raise UserError("two nodes of one loader and target key", code="bad-container")
        empty_groups = {g for g, n in zip(groups, nodes, strict=True) if not n.files}
        pairs = [(groups[i], groups[c]) for i, n in enumerate(nodes) if i for c in n.children]
        pairs = [(a, b) for a, b in pairs if a not in empty_groups and b not in empty_groups]
        return cls(tuple(placed[i] for i in sorted(placed)), tuple(pairs))


def read_once(content: FileContent, room: int = _IN_MEMORY) -> tuple[Content, str]:
    """Return the content of a file and its SHA-256. A file of at most `room` bytes is read into
    memory, so the bytes used are those that were checked; a larger one is checked again whenever it
    is read."""
    if content.size <= room:
        data = b"".join(content.chunks())
        return data, hashlib.sha256(data).hexdigest()
    digest = hashlib.sha256()
    for chunk in content.chunks():
        digest.update(chunk)
    return CheckedContent(content, digest.hexdigest()), digest.hexdigest()


def _names(artifact: Artifact) -> tuple[str, str, str, str]:
    return artifact.codegen_id, artifact.loader, artifact.file_name, artifact.target_key


def _plain(artifact: Artifact | InMemoryArtifact) -> Artifact:
    if isinstance(artifact, Artifact):
        return artifact
    raise UserError(
        f"artifact {artifact.name!r} exists in memory only: it cannot be written",
        code="in-memory-artifact",
        hint="jit() runs it in this process",
    )


def _group(group: LoaderGroup | str) -> LoaderGroup:
    return LoaderGroup(group) if isinstance(group, str) else LoaderGroup(*group)


@contextmanager
def in_place(place: str) -> Iterator[None]:
    """Turn a UserError about a set that was just read into one (code `bad-container`) that names
    the `place` that it was read from."""
    try:
        yield
    except UserError as error:
        if error.where and error.code in ("bad-container", "container-version"):
            raise
        raise UserError(error.message, code="bad-container", where=place) from error


def _check_imports(artifacts: ArtifactSet) -> None:
    """Raise UserError (code `bad-imports`) unless imports are between groups of the set, none of
    them native, and have no cycle."""
    groups = {LoaderGroup(a.loader, a.target_key) for a in artifacts.artifacts}
    below: dict[LoaderGroup, list[LoaderGroup]] = {}
    for above, imported in artifacts.imports:
        for group in (above, imported):
            if group not in groups or group.loader == "native":
                near = nearest(group.loader, {g.loader for g in groups})
                raise UserError(
                    f"imports name the group {group}, which does not exist"
                    if group not in groups
                    else "the library imports every group that no other one imports",
                    code="bad-imports",
                    hint=near,
                )
        below.setdefault(above, []).append(imported)
    checked_groups: set[LoaderGroup] = set()
    for start in below:
        _walk_imports(start, below, checked_groups)


def _walk_imports(
    start: LoaderGroup,
    below: Mapping[LoaderGroup, Sequence[LoaderGroup]],
    checked_groups: set[LoaderGroup],
) -> None:
    """Search for a cycle below `start`, depth first with an explicit stack: a file may hold a chain
    of imports longer than Python's recursion limit."""
    open_groups, stack = {start}, [(start, iter(below.get(start, ())))]
    while stack:
        group, successors = stack[-1]
        following = next(successors, None)
        if following is None:
            open_groups.discard(group)
            checked_groups.add(group)
            stack.pop()
        elif following in open_groups:
            raise UserError(f"the imports of group {following} lead back to it", code="bad-imports")
        elif following not in checked_groups:
            open_groups.add(following)
            stack.append((following, iter(below.get(following, ()))))
