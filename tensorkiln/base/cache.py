"""A store of bytes on disk with a size cap, safe for many processes at once.

The key of an entry is the hash of its components: what its content was computed from. An entry is
one file: magic, length of the components (4 bytes), components (JSON), SHA-256 of the content,
content. A damaged entry is noticed on read and counts as a miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_write, open_plain, read_plain
from tensorkiln.base.trust import distrust, distrust_inside, make_private

# Seconds after which a temporary file is taken for one that a killed process left.
_ABANDONED = 3600.0
_MAGIC = b"KILNCAS1"
_LONG = 200  # characters; of longer components an entry holds the hash
_HASH = "sha256:"
_FOLDERS = 256  # one for each first byte of a key
_RECENT = 400  # entries that `explain` compares with, newest first


def key_of(components: Mapping[str, str]) -> str:
    """Return the key (64 hex digits) of an entry that depends on `components`, by name: e.g. tir,
    target, compiler."""
    text = json.dumps(components, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a look-up missed: the key of the nearest entry (empty where there is none), and the
    components that differ from it, as (name, value asked for, the entry's value)."""

    nearest: str
    differs: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        """`nearest entry 0123456789ab; target: cached 'a', asked 'b'; tir differs`, in one line: of
        long values there are only hashes, which tell a reader nothing."""
        if not self.nearest:
            return "the cache holds nothing of this kind"
        lines = [
            f"{name} differs" if _HASH in new + old else f"{name}: cached {old!r}, asked {new!r}"
            for name, new, old in self.differs
        ]
        return f"nearest entry {self.nearest[:12]}; " + "; ".join(lines)


class Cache:
    """A folder of entries. `limit` is in bytes; the least recently used entries are removed first.

    Entries are spread over 256 folders by the first byte of their key. The first `put` of a process
    estimates the size of the cache from one folder; how much may be put until the next estimate
    follows from that, so the limit is applied a little late where several processes put entries.
    A cache never fails a compile: `put` returns False if the folder cannot be written. Entries that
    another user could have written are never used (base/trust.py), with one warning per folder.
    """

    def __init__(self, root: str | Path, limit: int = 2 << 30):
        self.root = Path(root)
        self.limit = limit
        self._reason: str | None = None  # why the folder is not trusted; None: not checked yet

    def _file(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise UserError(f"cache key {key!r}: expected 64 lower-case hex digits")
        return self.root / "objects" / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """Return the content stored under `key`, or None. A damaged entry is removed and counts as
        a miss. Marks the entry as recently used."""
        file = self._file(key)
        try:
            if not self._is_ours("objects", key[:2], key[2:]):
                return None
            raw = read_plain(file, self.limit)
        except OSError:
            return None
        parsed = _parse(raw)
        if parsed is None:
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            os.utime(file)  # `prune` orders by the time of last use
        return parsed

    def put(self, key: str, content: bytes, components: Mapping[str, str] | None = None) -> bool:
        """Store `content`, and prune if the cache has outgrown its limit. Returns False if the
        folder cannot be written or is not trusted, or the entry is larger than the limit."""
        file = self._file(key)
        short = {name: _short(text) for name, text in (components or {}).items()}
        header = json.dumps(short, sort_keys=True).encode()
        size = len(_MAGIC) + 4 + len(header) + 32 + len(content)
        if size > self.limit:
            return False
        head = _MAGIC + len(header).to_bytes(4, "little") + header
        try:
            if not self._make("objects", key[:2]):
                return False
            atomic_write(file, [head, hashlib.sha256(content).digest(), content], mode=0o600)
        except (OSError, UserError):
            return False
        room_key = (self.root, self.limit)
        _rooms[room_key] = _rooms.get(room_key, 0) - size
        if _rooms[room_key] <= 0:
            # To list the whole cache takes seconds when it holds 100,000 entries.
            room = self.limit - self.size(file.parent.name) * _FOLDERS
            if room <= 0:
                room = self.limit - self._prune(self.limit * 15 // 16)[1]
            _rooms[room_key] = min(room, self.limit // 4)
        return True

    def refusal(self) -> str:
        """Return a sentence on why this cache is not used; empty if it is trusted or does not exist
        yet."""
        with suppress(OSError):
            if self._reason is None:
                self._reason = distrust(self.root)
            if self._reason:
                return _refused(self.root, self._reason)
        return ""

    def folder(self, name: str) -> Path | None:
        """Return a subfolder for a tool's own cache, made if missing; None if it cannot be made or
        written, or another user could have written to it."""
        folder = self.root / name
        try:
            trusted = self._make(name) and all(
                self._is_ours(name, part.name) for part in folder.iterdir() if part.is_dir()
            )
        except OSError:
            return None
        return folder if trusted and os.access(folder, os.W_OK) else None

    def _make(self, *names: str) -> bool:
        """Make a subfolder unless it exists; False if another user could write to it."""
        if self.root.exists() and not self._is_ours():
            return False
        make_private(self.root.joinpath(*names))
        return self._is_ours(*names)

    def _is_ours(self, *names: str) -> bool:
        """Whether only this user and root could have written the file or folder `names`, since its
        content becomes code. If not, warn once per cache. OSError if it does not exist."""
        if self._reason is None:
            self._reason = distrust(self.root)
        reason = self._reason or distrust_inside(self.root, names)
        if reason and self.root not in _told:
            _told.add(self.root)
            subject = "the cache" if self._reason else "some of the cache"
            warnings.warn(_refused(self.root, reason, subject), stacklevel=2)
        return not reason

    def _entries(self, folders: str = "??") -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use, bytes, file) of every entry, in no particular order."""
        if self.refusal():
            return
        for folder in (self.root / "objects").glob(folders):
            for file in folder.glob("?*"):
                with suppress(OSError):
                    info = file.stat()
                    # A recent temporary file is an entry that another process is writing.
                    if file.suffix != ".tmp" or time.time() - info.st_mtime > _ABANDONED:
                        yield info.st_mtime, info.st_size, file

    def size(self, folders: str = "??") -> int:
        """Return the bytes on disk, in all folders or those that match a glob pattern."""
        return sum(size for _, size, _ in self._entries(folders))

    def usage(self) -> tuple[int, int]:
        """Return how many entries there are, and their bytes on disk."""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def prune(self, limit: int | None = None) -> int:
        """If the entries exceed the limit, remove the least recently used down to nine tenths of
        it; return the bytes freed."""
        return self._prune(self.limit if limit is None else limit)[0]

    def _prune(self, cap: int) -> tuple[int, int]:
        """`prune`; the bytes freed, and those left."""
        entries = sorted(self._entries(), key=lambda entry: (entry[0], entry[2].name))
        total = sum(size for _, size, _ in entries)
        freed = 0
        if total > cap:
            for _, size, file in entries:
                if total - freed <= cap * 9 // 10:
                    break
                with suppress(OSError):
                    file.unlink()
                    freed += size
        return freed, total - freed

    def explain(self, components: Mapping[str, str]) -> Miss:
        """Explain why there is no entry of these components: compare them with the recent entry of
        the same names of components that has most of them in common."""
        short_texts = {name: _short(text) for name, text in components.items()}
        best: tuple[int, str, dict[str, str]] | None = None
        newest = sorted(self._entries(), key=lambda entry: entry[0], reverse=True)[:_RECENT]
        for _, _, file in newest:
            entry_texts = _read_components(file)
            if entry_texts.keys() != short_texts.keys():
                continue  # an entry of another kind
            matches = sum(entry_texts.get(name) == text for name, text in short_texts.items())
            if best is None or matches > best[0]:
                best = (matches, file.parent.name + file.name, entry_texts)
        if best is None:
            return Miss("", ())
        _, key, entry_texts = best
        pairs = ((name, short_texts[name], entry_texts[name]) for name in sorted(short_texts))
        return Miss(key, tuple(pair for pair in pairs if pair[1] != pair[2]))


def user_cache() -> Cache | None:
    """Return the cache that KILN_CACHE_DIR and KILN_CACHE_LIMIT configure; None if KILN_CACHE
    turns it off."""
    config = read_config()
    return Cache(config.cache_dir, config.cache_limit) if config.cache else None


# For each folder and limit, the bytes that this process may put before it looks at sizes again.
_rooms: dict[tuple[Path, int], int] = {}
_told: set[Path] = set()  # cache folders for which a refusal was already reported


def untold_refusal() -> str:
    """Return why the configured cache is not used, once: empty if it is used or the reason was
    reported before. For callers that report it themselves instead of by a warning."""
    cache = user_cache()
    if cache is None or cache.root in _told:
        return ""
    sentence = cache.refusal()
    if sentence:
        _told.add(cache.root)
    return sentence


def _refused(root: Path, reason: str, subject: str = "the cache") -> str:
    return f"{subject} {str(root)!r} is not used: {reason}; KILN_CACHE_DIR names another"


def _short(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{_HASH}{hashlib.sha256(text.encode()).hexdigest()}"


def _parse(raw: bytes) -> bytes | None:
    """Return the content of an entry file, or None if the file is damaged."""
    start = len(_MAGIC) + 4
    if not raw.startswith(_MAGIC) or len(raw) < start:
        return None
    start += int.from_bytes(raw[start - 4 : start], "little")
    digest, content = raw[start : start + 32], raw[start + 32 :]
    return content if hashlib.sha256(content).digest() == digest else None


def _read_components(file: Path) -> dict[str, str]:
    """Return the components of an entry file; empty if it cannot be read."""
    try:
        with open_plain(file) as stream:
            head = stream.read(len(_MAGIC) + 4)
            if not head.startswith(_MAGIC):
                return {}
            parsed = json.loads(stream.read(int.from_bytes(head[len(_MAGIC) :], "little")))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in parsed.items()} if isinstance(parsed, dict) else {}
