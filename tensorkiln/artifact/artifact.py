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

from tensorkiln.base.errors import UserError, require
from tensorkiln.base.files import open_plain, plain_path
from tensorkiln.base.mapped import file_state

_CHUNK = 1 << 24
_PIECE = 1 << 18
_RESERVED = frozenset('<>:"|?*')


class Later(ABC):
    """Content that comes into memory when it is looked at, and only as far as that."""

    size: int

    def __len__(self) -> int:
        return self.size

    @abstractmethod
    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces."""

    @cached_property
    def view(self) -> memoryview:
        """The bytes as one."""
        return memoryview(b"".join(self.chunks()))

    def part(self, at: int, size: int) -> memoryview:
        """`size` bytes from byte `at` on."""
        return self.view[at : at + size]

    def write(self, file: int, at: int) -> None:
        """Write all bytes to an open file from byte `at` on."""
        for chunk in self.chunks():
            write_at(file, chunk, at)
            at += len(chunk)


def write_at(file: int, data: memoryview, at: int) -> None:
    """All of `data` to byte `at` of an open file."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)


class FileContent(Later):
    """The bytes of a file (or `size` of them from `offset`), mapped when first looked at.

    For weights: gigabytes that are in one file already are never copied to be an artifact.
    """

    def __init__(self, path: str | Path, offset: int = 0, size: int | None = None):
        self.path = plain_path(path)
        self.offset = offset
        try:
            found = self.path.stat()
        except OSError as error:
            raise UserError(
                f"cannot read {str(path)!r}: {error.strerror}", code="missing-file"
            ) from error
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            raise UserError(f"cannot read {str(path)!r}: it is no plain file", code="missing-file")
        self.state = file_state(found)
        available = found.st_size - offset
        self.size = available if size is None else size
        if offset < 0 or self.size < 0 or self.size > available:
            raise UserError(
                f"{str(path)!r}: bytes {offset}..{offset + self.size} lie outside the file",
                code="truncated",
            )

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The file that it was; another one, or one that was written to, is a UserError."""
        try:
            with open_plain(self.path) as stream:
                if file_state(os.fstat(stream.fileno())) != self.state:
                    raise UserError(
                        f"{str(self.path)!r} was changed since it was first looked at",
                        code="changed-file",
                    )
                yield stream
        except OSError as error:
            raise UserError(
                f"cannot read {str(self.path)!r}: {error.strerror}", code="missing-file"
            ) from error

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces, read rather than mapped: a long look must not fill the memory."""
        with self._open() as stream:
            stream.seek(self.offset)
            left = self.size
            while left:
                piece = stream.read(min(_PIECE, left))
                if not piece:
                    raise UserError(f"{str(self.path)!r} became shorter", code="truncated")
                left -= len(piece)
                yield memoryview(piece)

    def part(self, at: int, size: int) -> memoryview:
        """Bytes, read rather than mapped."""
        with self._open() as stream:
            stream.seek(self.offset + at)
            piece = stream.read(min(size, self.size - at))
        if len(piece) < size:
            raise UserError(f"{str(self.path)!r} became shorter", code="truncated")
        return memoryview(piece)

    def __reduce__(self) -> tuple[type[FileContent], tuple[Path, int, int]]:
        return FileContent, (self.path, self.offset, self.size)

    @cached_property
    def view(self) -> memoryview:
        """The bytes, without a copy."""
        if self.size == 0:
            return memoryview(b"")
        with self._open() as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(mapped)[self.offset : self.offset + self.size]


class CheckedContent(Later):
    """A file's content that must have a hash, each time that all of it is read."""

    def __init__(self, file: FileContent, sha256: str):
        self.file, self.size, self._sha256 = file, file.size, sha256

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces; UserError (code `changed-file`) behind the last of others."""
        digest = hashlib.sha256()
        for chunk in self.file.chunks():
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self._sha256:
            raise UserError(
                f"{str(self.file.path)!r} was changed since it was checked", code="changed-file"
            )

    def part(self, at: int, size: int) -> memoryview:
        """Some of it, of the file that was checked."""
        return self.file.part(at, size)

    def __reduce__(self) -> tuple[type[CheckedContent], tuple[FileContent, str]]:
        return CheckedContent, (self.file, self._sha256)


class TextContent(Later):
    """Text that is made when first looked at."""

    def __init__(self, make: Callable[[], str]):
        self._make = make

    @cached_property
    def view(self) -> memoryview:
        """The text as UTF-8."""
        return memoryview(self._make().encode())

    @property
    def size(self) -> int:  # type: ignore[override]
        """Bytes; makes the text."""
        return len(self.view)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes."""
        yield self.view

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self.view),)


Content = bytes | memoryview | Later


def content_view(content: Content) -> memoryview:
    """`content` as flat bytes, without a copy."""
    view = content.view if isinstance(content, Later) else memoryview(content)
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


def content_part(content: Content, at: int, size: int) -> memoryview:
    """`size` bytes of it from byte `at` on; of a file no more than these are read."""
    if isinstance(content, Later):
        return content.part(at, size)
    return content_view(content)[at : at + size]


def content_size(content: Content) -> int:
    """Bytes of it."""
    return content.nbytes if isinstance(content, memoryview) else len(content)


def content_chunks(content: Content) -> Iterator[memoryview]:
    """The bytes in pieces of at most 16 MiB, for writing and hashing."""
    if isinstance(content, Later):
        yield from content.chunks()
        return
    view = content_view(content)
    for start in range(0, len(view), _CHUNK):
        yield view[start : start + _CHUNK]


def write_content(content: Content, file: int, at: int) -> None:
    """Write all of it to an open file of zeros, from byte `at` on."""
    if isinstance(content, Later):
        content.write(file, at)
    else:
        write_at(file, content_view(content), at)


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """One file of a compile: who made it, who loads it, its name, its bytes.

    `file_name` is unique within `codegen_id` and `target_key`; `producer` says for error messages
    what it was made for. Equal by content. Raises UserError for names that are no plain relative
    path.
    """

    codegen_id: str
    loader: str
    file_name: str
    content: Content
    target_key: str = ""
    producer: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the names: they become paths on somebody's disk. `dso` is `native` as well."""
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
        """Its name, what loads it, and how large it is."""
        late = isinstance(self.content, TextContent)
        size = "made when it is read" if late else f"{self.size} bytes"
        return f"<Artifact {self.name} of loader {self.loader!r}, {size}>"

    @property
    def name(self) -> str:
        """`codegen_id/[target_key/]file_name`, where `ArtifactSet.save` puts it."""
        return _path(self.codegen_id, self.target_key, self.file_name)

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return content_size(self.content)

    @property
    def view(self) -> memoryview:
        """The content as flat bytes, without a copy."""
        return content_view(self.content)

    def chunks(self) -> Iterator[memoryview]:
        """The content in pieces of at most 16 MiB, for writing and hashing."""
        return content_chunks(self.content)

    def text(self) -> str:
        """The content as UTF-8 text; UserError when it is none."""
        try:
            return bytes(self.view).decode()
        except UnicodeDecodeError:
            raise UserError(f"artifact {self.name} is not text", code="not-text") from None

    def export(self) -> bytes:
        """Every field as bytes, with no processing: names and content, each behind its length."""
        names = [name.encode() for name in self._names()]
        lengths = [len(name).to_bytes(8, "little") for name in names]
        head = b"".join(part for pair in zip(lengths, names, strict=True) for part in pair)
        return b"".join((head, self.size.to_bytes(8, "little"), *self.chunks()))

    @classmethod
    def load(cls, data: bytes | memoryview) -> Artifact:
        """Inverse of `export`; the content is a view into `data`. UserError when malformed."""
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
        """Hash of the content alone."""
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
    """What a code generator made that has no form as bytes, such as a Python function.

    `load()` gives the module it stands for; it is its own loader and gets nothing else. A set with
    one of these runs in this process only: `save`, `to_bytes` and `export_library` refuse it by
    name. Equal only to itself.
    """

    codegen_id: str
    file_name: str
    load: Callable[[], object]
    target_key: str = ""
    producer: str = ""

    def __post_init__(self) -> None:
        """The same rules as for other artifacts."""
        _check_name(self.codegen_id, "codegen_id", nested=False)
        _check_name(self.file_name, "file_name", nested=True)
        if self.target_key:
            _check_name(self.target_key, "target_key", nested=False)

    @property
    def loader(self) -> str:
        """Its own: its name."""
        return self.name.replace("/", "-")

    @property
    def name(self) -> str:
        """`codegen_id/[target_key/]file_name`."""
        return _path(self.codegen_id, self.target_key, self.file_name)

    @property
    def size(self) -> int:
        """It takes no bytes."""
        return 0


def _path(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _check_name(text: str, what: str, *, nested: bool) -> None:
    """A plain name, or with `nested` a relative path of plain names with `/` between."""
    require(text, str, what)
    parts = text.split("/") if nested else [text]
    for part in parts:
        odd = any(not c.isprintable() or c in _RESERVED for c in part)
        odd = odd or "\\" in part or "/" in part
        if odd or part in ("", ".", "..") or part.endswith((".", " ")) or len(part.encode()) > 255:
            raise UserError(
                f"{what} {text!r} is not a plain {'relative path' if nested else 'name'}",
                code="bad-artifact",
                hint="letters, digits, '_', '-', '.'",
            )
