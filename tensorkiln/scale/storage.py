"""Storage for artifacts: a folder, or an object store that fsspec knows by URL (s3, gs, memory,
...).

A file is replaced atomically. Object stores do that themselves; elsewhere it is written under
another name first, then renamed. fsspec is imported only for URLs.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.base.files import (
    atomic_path,
    atomic_write,
    made_folder,
    open_plain,
    plain_path,
    read_plain,
)
from tensorkiln.base.folders import file_hash
from tensorkiln.base.packages import require_package

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.I)
_ESCAPED = re.compile(rb"%([0-9a-fA-F]{2})")
# Stores in which an object appears when all of it is there.
_ATOMIC = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}
_PIECE = 1 << 20
MOST_TEXT = 1 << 26  # bytes of a report, or of a record, that are read


def is_url(text: str) -> bool:
    """Whether a place is a URL rather than a path."""
    return _URL.match(text) is not None


def local_path(text: str) -> str:
    """The path of a `file://` URL, and a path itself; empty for other URLs."""
    scheme = _URL.match(text)
    if scheme is None:
        return text
    if scheme[1].lower() not in ("file", "local"):
        return ""
    path = os.fsencode(text[scheme.end() :])
    return os.fsdecode(_ESCAPED.sub(lambda m: bytes([int(m[1], 16)]), path))


class Storage(Protocol):
    """A place with files that have relative names with `/`. All methods raise UserError (code
    `storage` or `cannot-write`) if the operation fails."""

    @property
    def url(self) -> str:
        """The place, for people and for other processes."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        ...

    def fetch(self, name: str, to: Path) -> bool:
        """Copy a file to a local path; False if it does not exist."""
        ...

    def put(self, name: str, source: Path | bytes) -> None:
        """Write a file atomically, replacing one of that name."""
        ...

    def sha256(self, name: str) -> str | None:
        """The hash (hex) of a file's content; None if the file does not exist."""
        ...

    def stamp(self, name: str) -> str | None:
        """Text that changes whenever the file does, such as a version or ETag; empty if the place
        offers nothing of that kind; None if the file does not exist."""
        ...


def storage_of(place: str | os.PathLike[str]) -> Storage:
    """The folder or object store of a path or URL; it need not exist.

    Raises UserError: `missing-package` where fsspec or the package of a protocol is not installed,
    `bad-url` for an unknown protocol.
    """
    text = os.fspath(place) if isinstance(place, os.PathLike) else place
    if isinstance(text, str) and is_url(text) and not local_path(text):
        _filesystem(text)  # to raise now what would fail later
        return UrlStorage(text.rstrip("/"))
    path = plain_path(local_path(text) if isinstance(text, str) else text)
    return Folder(str(path.absolute()))


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine, or one on a network file system."""

    url: str

    def _path(self, name: str) -> Path:
        return Path(self.url, _inside(name))

    def read(self, name: str) -> bytes | None:
        """As `Storage.read`."""
        with _explained(self.url, name):
            try:
                return read_plain(self._path(name), MOST_TEXT)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def fetch(self, name: str, to: Path) -> bool:
        """As `Storage.fetch`."""
        with _explained(self.url, name):
            try:
                with open_plain(self._path(name)) as source, to.open("wb") as target:
                    shutil.copyfileobj(source, target, _PIECE)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def put(self, name: str, source: Path | bytes) -> None:
        """As `Storage.put`."""
        path = self._path(name)
        made_folder(path.parent)
        mode = 0o777 if path.suffix == ".so" else 0o666
        if isinstance(source, bytes):
            atomic_write(path, source, mode=mode)
            return
        with atomic_path(path, mode) as temporary:
            shutil.copyfile(source, temporary)

    def sha256(self, name: str) -> str | None:
        """As `Storage.sha256`."""
        with _explained(self.url, name):
            try:
                return file_hash(self._path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def stamp(self, name: str) -> str | None:
        """As `Storage.stamp`."""
        with _explained(self.url, name):
            try:
                self._path(name).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return ""  # not its times: damage may leave them as they were


@dataclass(frozen=True, slots=True)
class UrlStorage:
    """A URL that fsspec knows. Credentials and endpoints are in fsspec's own configuration."""

    url: str

    def _at(self, name: str) -> str:
        return f"{self.url}/{_inside(name)}"

    def read(self, name: str) -> bytes | None:
        """As `Storage.read`."""
        with _explained(self.url, name):
            try:
                with _filesystem(self.url).open(self._at(name), "rb") as stream:
                    content: bytes = stream.read(MOST_TEXT + 1)
            except FileNotFoundError:
                return None
            if len(content) > MOST_TEXT:
                raise OSError(f"it has more than {MOST_TEXT} bytes")
            return content

    def fetch(self, name: str, to: Path) -> bool:
        """As `Storage.fetch`."""
        with _explained(self.url, name):
            try:
                _filesystem(self.url).get_file(self._at(name), str(to))
            except FileNotFoundError:
                return False
            return True

    def put(self, name: str, source: Path | bytes) -> None:
        """As `Storage.put`."""
        path, fs = self._at(name), _filesystem(self.url)
        parent, _, last = path.rpartition("/")
        atomic = self.url.partition(":")[0].lower() in _ATOMIC
        temporary = path if atomic else f"{parent}/.{last[:80]}.{secrets.token_hex(8)}.tmp"
        with _explained(self.url, name):
            if not atomic:
                fs.makedirs(parent, exist_ok=True)
            try:
                if isinstance(source, bytes):
                    fs.pipe_file(temporary, source)
                else:
                    fs.put_file(str(source), temporary)
                if not atomic:
                    fs.mv(temporary, path)
            finally:
                if not atomic:
                    with suppress(Exception):
                        fs.rm_file(temporary)

    def sha256(self, name: str) -> str | None:
        """As `Storage.sha256`."""
        digest = hashlib.sha256()
        with _explained(self.url, name):
            try:
                with _filesystem(self.url).open(self._at(name), "rb") as stream:
                    while piece := stream.read(_PIECE):
                        digest.update(piece)
            except FileNotFoundError:
                return None
        return digest.hexdigest()

    def stamp(self, name: str) -> str | None:
        """As `Storage.stamp`."""
        with _explained(self.url, name):
            fs = _filesystem(self.url)
            try:
                fs.invalidate_cache(self._at(name).rpartition("/")[0])
                return str(fs.ukey(self._at(name)))
            except FileNotFoundError:
                return None


def matches_of(pattern: str) -> list[str]:
    """The files that match a pattern of absolute paths or URLs, sorted; `**` stands for any number
    of folders."""
    local = local_path(pattern)
    if local:
        paths = glob(local, recursive=True)  # noqa: PTH207  # leaves out hidden files
        return sorted(name for name in paths if Path(name).is_file())
    with _explained(pattern, ""):
        fs = _filesystem(pattern)
        return sorted(fs.unstrip_protocol(name) for name in fs.glob(pattern) if fs.isfile(name))


def download(url: str, to: Path) -> bool:
    """Copy the file at a URL to a local path; False if it does not exist."""
    parent, _, name = url.rpartition("/")
    return storage_of(parent).fetch(name, to)


def _inside(name: str) -> str:
    parts = PurePosixPath(name).parts
    assert parts and ".." not in parts and not name.startswith("/"), name
    return name


def _filesystem(url: str) -> Any:
    """fsspec's file system for a URL."""
    require_package("fsspec", f"the place {url!r}", "name a folder")
    import fsspec

    protocol = url.partition(":")[0].lower()
    try:
        # Others write to the place, too, which would make cached listings wrong.
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        raise UserError(
            f"{protocol}:// needs another package: {error}",
            code="missing-package",
            where=url,
        ) from None
    except ValueError:
        from fsspec.registry import known_implementations

        raise UserError(
            f"{protocol}:// is no protocol of fsspec",
            code="bad-url",
            where=url,
            hint=nearest(protocol, known_implementations) or "s3, gs, abfs, file, memory, ...",
        ) from None


@contextmanager
def _explained(url: str, name: str) -> Iterator[None]:
    """Convert exceptions of a place to UserError (code `storage`) with the location."""
    try:
        yield
    except (TensorkilnError, MemoryError, AssertionError):
        raise
    except Exception as error:  # stores have exceptions of their own
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        place = f"{url}/{name}" if name else url
        raise UserError(f"{reason}", code="storage", where=place) from error
