"""`Artifact`: one plain file that a code generator produced."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from tensorkiln.base.dependency import ExternalDependency, checked_dependencies
from tensorkiln.base.errors import UserError, require
from tensorkiln.base.files import open_inside, open_plain, plain_path, write_at
from tensorkiln.base.mapped import file_state

_CHUNK = 1 << 24
_PIECE = 1 << 18
_RESERVED = frozenset('<>:"|?*')


class Later(ABC):
    """Content that is loaded or made lazily, and only the parts that are read."""

    size: int

    def __len__(self) -> int:
        return self.size

    @abstractmethod
    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces, in order."""

    @cached_property
    def view(self) -> memoryview:
        """All bytes in one contiguous view."""
        return memoryview(b"".join(self.chunks()))

    def part(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from byte `offset` on."""
        return self.view[offset : offset + size]

    def write(self, file: int, offset: int) -> None:
        """Write all bytes to an open file descriptor from byte `offset` on."""
        for chunk in self.chunks():
            write_at(file, chunk, offset)
            offset += len(chunk)


class FileContent(Later):
    """The bytes of a file (or `size` of them from `offset`), mapped on the first use of `view`.

    Lets gigabytes of weights be an artifact without a copy. Raises UserError: code `missing-file`
    if `path` is not a readable regular file, `truncated` if it is too short, and on each later read
    `changed-file` if it was replaced or written to.
    """

    def __init__(self, path: str | Path, offset: int = 0, size: int | None = None):
        self.path = plain_path(path)
        self.offset = offset
        try:
            status = self.path.stat()
        except OSError as error:
            raise UserError(
                f"cannot read {str(path)!r}: {error.strerror}", code="missing-file"
            ) from error
        if not stat.S_ISREG(status.st_mode):  # reading a pipe could block for ever
            raise UserError(
                f"cannot read {str(path)!r}: it is not a plain file", code="missing-file"
            )
        self.state = file_state(status)
        available = status.st_size - offset
        self.size = available if size is None else size
        if offset < 0 or self.size < 0 or self.size > available:
            raise UserError(
                f"{str(path)!r}: bytes {offset}..{offset + self.size} lie outside the file",
                code="truncated",
            )

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """Open the file; UserError if it was replaced or written to since this object was made."""
        try:
            with open_plain(self.path) as stream:
                if file_state(os.fstat(stream.fileno())) != self.state:
                    raise UserError(
                        f"{str(self.path)!r} was changed since it was first opened",
                        code="changed-file",
                    )
                yield stream
        except OSError as error:
            raise UserError(
                f"cannot read {str(self.path)!r}: {error.strerror}", code="missing-file"
            ) from error

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces of 256 KiB. They are read rather than mapped: a pass over a
        large map would keep all its pages in memory."""
        with self._open() as stream:
            stream.seek(self.offset)
            remaining = self.size
            while remaining:
                piece = stream.read(min(_PIECE, remaining))
                if not piece:
                    raise UserError(f"{str(self.path)!r} became shorter", code="truncated")
                remaining -= len(piece)
                yield memoryview(piece)

    def part(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from byte `offset` on, read rather than mapped."""
        with self._open() as stream:
            stream.seek(self.offset + offset)
            piece = stream.read(min(size, self.size - offset))
        if len(piece) < size:
            raise UserError(f"{str(self.path)!r} became shorter", code="truncated")
        return memoryview(piece)

    def __reduce__(self) -> tuple[type[FileContent], tuple[Path, int, int]]:
        return FileContent, (self.path, self.offset, self.size)

    @cached_property
    def view(self) -> memoryview:
        """The bytes as a map of the file, without a copy."""
        if self.size == 0:
            return memoryview(b"")
        with self._open() as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(mapped)[self.offset : self.offset + self.size]


def content_inside(root: str | Path, relative: str) -> FileContent:
    """The bytes of a file below `root`, whatever another process exchanges on the way to it: errors
    of `open_inside` and FileContent. Hard links are taken."""
    with open_inside(root, relative, granted=[root]) as stream:
        state = file_state(os.fstat(stream.fileno()))
    content = FileContent(Path(root) / relative)
    if content.state != state:  # and each later read compares it again
        raise UserError(f"{relative!r} was exchanged while it was opened", code="changed-file")
    return content


class CheckedContent(Later):
    """A file's content that is checked against a SHA-256 each time all of it is read."""

    def __init__(self, file: FileContent, sha256: str):
        self.file, self.size, self._sha256 = file, file.size, sha256

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces. Raises UserError (code `changed-file`) after the last piece if
        their hash is not the expected one."""
        digest = hashlib.sha256()
        for chunk in self.file.chunks():
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self._sha256:
            raise UserError(
                f"{str(self.file.path)!r} was changed since it was checked", code="changed-file"
            )

    def part(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from byte `offset` on, without the hash check: only that the file was
        not replaced or written to."""
        return self.file.part(offset, size)

    def __reduce__(self) -> tuple[type[CheckedContent], tuple[FileContent, str]]:
        return CheckedContent, (self.file, self._sha256)


class TextContent(Later):
    """Text that `make` returns when it is first needed; memoised."""

    def __init__(self, make: Callable[[], str]):
        self._make = make

    @cached_property
    def view(self) -> memoryview:
        """The text as UTF-8."""
        return memoryview(self._make().encode())

    @property
    def size(self) -> int:  # type: ignore[override]
        """Bytes of the UTF-8 text, which this makes."""
        return len(self.view)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the whole text as one piece."""
        yield self.view

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self.view),)


Content = bytes | memoryview | Later


def content_view(content: Content) -> memoryview:
    """Return `content` as a one-dimensional view of bytes; bytes in memory are not copied."""
    view = content.view if isinstance(content, Later) else memoryview(content)
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


def content_part(content: Content, offset: int, size: int) -> memoryview:
    """Return `size` bytes of it from byte `offset` on; of a file only these are read."""
    if isinstance(content, Later):
        return content.part(offset, size)
    return content_view(content)[offset : offset + size]


def content_size(content: Content) -> int:
    """Return its size in bytes."""
    return content.nbytes if isinstance(content, memoryview) else len(content)


def content_chunks(content: Content) -> Iterator[memoryview]:
    """Yield the bytes in pieces, for writing and hashing; bytes in memory in pieces of 16 MiB."""
    if isinstance(content, Later):
        yield from content.chunks()
        return
    view = content_view(content)
    for start in range(0, len(view), _CHUNK):
        yield view[start : start + _CHUNK]


def write_content(content: Content, file: int, offset: int) -> None:
    """Write all of it to an open file descriptor, from byte `offset` on; the file must hold zeros
    there."""
    if isinstance(content, Later):
        content.write(file, offset)
    else:
        write_at(file, content_view(content), offset)


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """One file of a compile: the code generator that made it (`codegen_id`), the loader that loads
    it, its name and its bytes.

    `target_key` tells apart artifacts for several targets of one loader, such as two devices.
    `file_name` is unique within `codegen_id` and `target_key`. `producer` says for error messages
    what the artifact was made for. Two artifacts are equal if all names and bytes are, whatever
    their producer. Raises UserError (code `bad-artifact`) for a name that is not a plain relative
    path, or content that is not contiguous bytes.
    """

    codegen_id: str
    loader: str
    file_name: str
    content: Content
    target_key: str = ""
    producer: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the names, which become paths on disk. Loader `dso` is an alias of `native`."""
        require(self.loader, str, "loader")
        if self.loader == "dso":
            object.__setattr__(self, "loader", "native")
        _check_name(self.codegen_id, "codegen_id", nested=False)
        _check_name(self.loader, "loader", nested=False)
        _check_name(self.file_name, "file_name", nested=True)
        if self.target_key:
            _check_name(self.target_key, "target_key", nested=False)
        if isinstance(self.content, memoryview) and not self.content.contiguous:
            raise UserError(f"artifact {self.name}: content is not contiguous", code="bad-artifact")
        if not isinstance(self.content, Content):
            raise UserError(
                f"artifact {self.name}: content is {type(self.content).__name__}, expected bytes",
                code="bad-artifact",
                hint="text.encode()" if isinstance(self.content, str) else "",
            )

    def __repr__(self) -> str:
        """`<Artifact name of loader 'native', 12 bytes>`."""
        late = isinstance(self.content, TextContent)
        size = "made when it is read" if late else f"{self.size} bytes"
        return f"<Artifact {self.name} of loader {self.loader!r}, {size}>"

    @property
    def name(self) -> str:
        """`codegen_id/[target_key/]file_name`, its path in the folder of `ArtifactSet.save`."""
        return _path(self.codegen_id, self.target_key, self.file_name)

    @property
    def size(self) -> int:
        """Size of the content in bytes."""
        return content_size(self.content)

    @property
    def view(self) -> memoryview:
        """The content as a one-dimensional view of bytes; bytes in memory are not copied."""
        return content_view(self.content)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the content in pieces, for writing and hashing."""
        return content_chunks(self.content)

    def text(self) -> str:
        """Return the content as text; UserError (code `not-text`) if it is not valid UTF-8."""
        try:
            return bytes(self.view).decode()
        except UnicodeDecodeError:
            raise UserError(f"artifact {self.name} is not text", code="not-text") from None

    def export(self) -> bytes:
        """Return codegen_id, loader, file_name, target_key and content as bytes, each preceded by
        its length (8 bytes, little-endian). The producer is left out."""
        names = [name.encode() for name in self._names()]
        lengths = [len(name).to_bytes(8, "little") for name in names]
        head = b"".join(part for pair in zip(lengths, names, strict=True) for part in pair)
        return b"".join((head, self.size.to_bytes(8, "little"), *self.chunks()))

    @classmethod
    def load(cls, data: bytes | memoryview) -> Artifact:
        """Inverse of `export`; the content is a view into `data`. UserError (code `bad-container`)
        if `data` is malformed."""
        view, fields = memoryview(data).cast("B"), list[memoryview]()
        for _ in range(5):
            size = int.from_bytes(view[:8], "little")
            if len(view) < 8 or size > len(view) - 8:
                raise UserError("an exported artifact is cut off", code="bad-container")
            fields.append(view[8 : 8 + size])
            view = view[8 + size :]
        if len(view):
            raise UserError(f"{len(view)} bytes behind an artifact", code="bad-container")
        try:
            codegen_id, loader, file_name, target_key = (bytes(f).decode() for f in fields[:4])
        except UnicodeDecodeError:
            raise UserError("a name is not UTF-8", code="bad-container") from None
        return cls(codegen_id, loader, file_name, fields[4], target_key)

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the content, without the names; reads all of it on each access."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Artifact):
            return NotImplemented
        return self._names() == other._names() and self.view == other.view

    def __hash__(self) -> int:
        return hash((self._names(), self.size))

    def _names(self) -> tuple[str, str, str, str]:
        return self.codegen_id, self.loader, self.file_name, self.target_key


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryArtifact:
    """An artifact of a code generator that has no form as bytes, such as a Python function.

    `load()` returns the module it stands for, and `dependencies` are the software that this needs;
    it has a loader of its own, which gets no other artifact. A set that holds one runs in this
    process only: `save`, `to_bytes` and `export_library` raise a UserError that names it. Equal
    only to itself.
    """

    codegen_id: str
    file_name: str
    load: Callable[[], object]
    target_key: str = ""
    producer: str = ""
    dependencies: tuple[ExternalDependency, ...] = ()

    def __post_init__(self) -> None:
        """Check the names by the same rules as those of `Artifact`, and the dependencies."""
        needs = checked_dependencies(self.dependencies, f"artifact {self.name}")
        object.__setattr__(self, "dependencies", needs)
        _check_name(self.codegen_id, "codegen_id", nested=False)
        _check_name(self.file_name, "file_name", nested=True)
        if self.target_key:
            _check_name(self.target_key, "target_key", nested=False)

    @property
    def loader(self) -> str:
        """A loader name of its own: its name with `-` for `/`."""
        return self.name.replace("/", "-")

    @property
    def name(self) -> str:
        """`codegen_id/[target_key/]file_name`."""
        return _path(self.codegen_id, self.target_key, self.file_name)

    @property
    def size(self) -> int:
        """Always 0."""
        return 0


def _path(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _check_name(text: str, label: str, *, nested: bool) -> None:
    """Raise UserError unless `text` is a plain name (printable, without slashes, backslashes and
    characters that Windows reserves), or with `nested` a relative path of plain names."""
    require(text, str, label)
    parts = text.split("/") if nested else [text]
    for part in parts:
        odd = any(not c.isprintable() or c in _RESERVED for c in part)
        odd = odd or "\\" in part or "/" in part
        if odd or part in ("", ".", "..") or part.endswith((".", " ")) or len(part.encode()) > 255:
            raise UserError(
                f"{label} {text!r} is not a plain {'relative path' if nested else 'name'}",
                code="bad-artifact",
                hint="letters, digits, '_', '-', '.'",
            )
