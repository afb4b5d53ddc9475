"""Read machine, metadata and artifacts from a library's file, without running its code."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorkiln.artifact import ArtifactSet, FileContent, digest
from tensorkiln.artifact.metadata import FORMAT
from tensorkiln.artifact.sections import ARTIFACTS, METADATA, WEIGHTS, carried_artifacts
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import names_beside, open_plain, plain_path
from tensorkiln.base.json_text import MAX_BYTES, MAX_NAMES, parse_json
from tensorkiln.base.mapped import file_state

_METADATA, _ARTIFACTS = METADATA.encode(), ARTIFACTS.encode()
_OURS = (_METADATA, _ARTIFACTS, WEIGHTS.encode())
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "arm", 3: "i386"}
_MAX_SECTIONS = 4096
_STRINGS, _MAPPED = 3, 2  # SHT_STRTAB, SHF_ALLOC

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """What is known of a library from its file alone."""

    path: Path
    machine: str
    metadata: Metadata
    container: tuple[int, int] | None = None  # offset and size of the section of artifacts
    state: tuple[int, ...] = ()  # of the file (base/mapped.py) when it was read
    sealed: Path | None = None  # what to open in place of `path`: a copy that nobody can change
    descriptor: int | None = None  # the open file that was read, where the caller keeps it open
    # Whether it needs libraries that lie beside it: the dynamic loader takes their folder from the
    # name by which it opens the file.
    needs_name: bool = False

    @property
    def source(self) -> Path:
        """Where the bytes are that were read."""
        return self.sealed or self.path

    @property
    def carries(self) -> bool:
        """Whether the library carries artifacts for loaders."""
        return self.container is not None

    def is_replaced(self) -> bool:
        """Whether the path now holds another file, a modified one, or none."""
        try:
            return file_state(self.source.stat()) != self.state
        except OSError:
            return True

    def artifacts(self) -> ArtifactSet:
        """The artifacts that the library carries, as views of the file; UserError if damaged."""
        if self.container is None:
            return ArtifactSet()
        view = FileContent(self.source, *self.container).view
        return carried_artifacts(view, str(self.path))


_OTHERS = {
    ".tar": "unpack it; tk.load_artifacts(tk.ArtifactSet.load(folder))",
    ".a": "it is linked into a program",
    ".o": "it is linked into a program",
    ".onnx": "a model is compiled: tk.compile",
}


_COPY_AGAIN = "copy it again from where it is whole, or export it again"


def _damaged(path: Path, problem: str) -> UserError:
    message = f"{str(path)!r} is not a Tensorkiln library: {problem}"
    return UserError(message, code="not-a-library", hint=_OTHERS.get(path.suffix, ""))


def _contents(
    path: Path, raw: bytes | mmap.mmap, size: int
) -> tuple[dict[bytes, tuple[int, int]], bytes, bool]:
    """Of a file of `size` bytes, which begins with `raw`: offset and size of the sections of ours
    that take room in it, by name; the text of the metadata; and `LibraryFile.needs_name`.

    Raises UserError if the section table is damaged, or one of these lies outside the file.
    """
    if raw[4] != 2 or raw[5] != 1:
        raise _damaged(path, "not a 64-bit little-endian ELF file")
    table, entry, count, names = struct.unpack_from("<Q10xHHH", raw, 40)
    if entry != 64 or not 0 < count <= _MAX_SECTIONS or table + 64 * count > len(raw):
        raise _damaged(path, "its section table is damaged or cut off")
    if names >= count:
        raise _damaged(path, "its section names are damaged")
    rows = list(struct.iter_unpack("<IIQQQQ24x", raw[table : table + 64 * count]))
    start, length = rows[names][4:]
    texts, extents = raw[start : start + min(length, MAX_BYTES)], dict[bytes, tuple[int, int]]()
    for name, kind, _flags, _address, offset, length in rows:
        if kind == 8 or not texts.startswith(b".kiln.", name):
            continue
        for section in _OURS:
            if texts.startswith(section + b"\0", name):
                if offset + length > size:
                    raise _damaged(path, f"its section {section.decode()} is cut off")
                extents.setdefault(section, (offset, length))
    return extents, _metadata_bytes(path, raw, extents), _names_origin(rows, raw)


def _names_origin(rows: Sequence[tuple[int, ...]], raw: bytes | mmap.mmap) -> bool:
    """Whether a string of the dynamic loader's has the word by which it is told of the file's
    folder."""
    return any(
        kind == _STRINGS and flags & _MAPPED and raw.find(b"ORIGIN", offset, offset + length) >= 0
        for _, kind, flags, _, offset, length in rows
    )


def _metadata_bytes(
    path: Path, raw: bytes | mmap.mmap, sections: Mapping[bytes, tuple[int, int]]
) -> bytes:
    if _METADATA not in sections:
        raise _damaged(path, "it has no section .kiln.meta")
    offset, size = sections[_METADATA]
    return raw[offset : offset + min(size, MAX_BYTES + 1)].rstrip(b"\0")


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """Raise what goes wrong while a file is opened and read as UserError (code `no-file`)."""
    try:
        yield
    except FileNotFoundError:
        hint = nearest(file.name, names_beside(file))
        raise UserError(f"no such file: {str(file)!r}", code="no-file", hint=hint) from None
    except ValueError:  # a path with a zero byte or a lone surrogate
        raise UserError(f"{str(file)!r} is not a valid path", code="no-file") from None
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror}", code="no-file") from error


def read_library_file(
    path: str | Path,
    sealed: Path | None = None,
    *,
    check: bool = True,
    keep: ExitStack | None = None,
) -> LibraryFile:
    """Read machine and metadata of a library, from its copy if there is one, and compare the file
    with its digest if `check`. The file stays open until `keep`, if that is given, closes it.

    Raises UserError: `no-file` if it cannot be read, `not-a-library`, also if it is damaged, or
    `library-version` if its metadata has another format version.
    """
    file = plain_path(path)
    with unreadable(file), ExitStack() as opened:
        stream = opened.enter_context(open_plain(sealed or file))
        info = os.fstat(stream.fileno())
        head = stream.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            raise _damaged(file, "not an ELF shared library")
        covered = digest.read_head(stream.fileno(), info.st_size) if check else b""
        if covered:
            fault = digest.damage(covered, info.st_size)
            if fault:
                text = f"{str(file)!r} is damaged: {fault}"
                raise UserError(text, code="not-a-library", hint=_COPY_AGAIN)
            contents = _contents(file, covered, info.st_size)
        else:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                contents = _contents(file, raw, len(raw))
        descriptor = stream.fileno() if keep is not None else None
        if keep is not None:
            keep.enter_context(opened.pop_all())
    sections, metadata_text, needs_name = contents
    (machine,) = struct.unpack_from("<H", head, 18)
    try:
        metadata = parse_json(metadata_text, unique=True, names=MAX_NAMES)
    except ValueError:
        raise _damaged(file, "its metadata is not JSON") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("functions"), list):
        raise _damaged(file, "its metadata lists no functions")
    version = metadata.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise UserError(
            f"{str(file)!r} has metadata version {version!r}, "
            f"this Tensorkiln reads versions 1 to {FORMAT}",
            code="library-version",
        )
    machine_name = _MACHINES.get(machine, f"ELF machine {machine}")
    state = file_state(info)
    container = sections.get(_ARTIFACTS)
    return LibraryFile(
        file, machine_name, metadata, container, state, sealed, descriptor, needs_name
    )


def read_metadata(path: str | Path) -> Metadata:
    """The metadata of a library, read from its file without loading it or comparing its digest;
    raises UserError as `load_module` does for a file that is not a library."""
    return read_library_file(path, check=False).metadata
