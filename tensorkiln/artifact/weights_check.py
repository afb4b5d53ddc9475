"""Checking the weights of a library against the hash stored in the library.

Weights inside the library have a SHA-256 over the SHA-256s of their 2 MiB pieces, which several
threads can compute; weights beside it have the plain SHA-256 of the data in their file. The hash
follows the library's pointer to the weights (docs/formats/library.md).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.binary import BinaryFile
from tensorkiln.artifact.digest import damage
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import METADATA, WEIGHTS
from tensorkiln.artifact.weights_file import verify_weights, weights_beside
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_plain
from tensorkiln.base.threads import in_threads

NOTE = ".note.kiln.weights"
_PIECE = 2 << 20  # PIECE in crt/weights.c
_NOTE_HEAD = 24


def hash_of_pieces(file: int, offset: int, size: int) -> bytes:
    """Return the SHA-256 over the SHA-256s of 2 MiB pieces, of `size` bytes of an open file
    descriptor from byte `offset` on."""
    hashes: dict[int, bytes] = {}
    zeros = bytes(_PIECE)
    of_zeros = hashlib.sha256(zeros).digest()

    def one(start: int) -> None:
        data = os.pread(file, min(_PIECE, size - start), offset + start)
        # Comparing is much faster than hashing, and a sparse file has gigabytes of zeros.
        hashes[start] = of_zeros if data == zeros else hashlib.sha256(data).digest()

    in_threads(one, range(0, size, _PIECE))
    return hashlib.sha256(b"".join(hashes[start] for start in range(0, size, _PIECE))).digest()


@dataclass(frozen=True, slots=True)
class CheckedWeights:
    """Weights that match their hash: size in bytes, and the file that holds them."""

    size: int
    path: Path


@dataclass(frozen=True, slots=True)
class WeightsPlace:
    """Where the weights of a library are, and what their hash must be. `offset` is that in the file
    `path`, of weights inside it."""

    path: Path
    name: str
    size: int
    is_beside: bool
    sha256: bytes
    offset: int

    def verify(self) -> None:
        """Read weights inside the library and check their hash: errors of `verify_library`."""
        if not any(self.sha256):
            raise UserError(
                f"{self.name!r} has no hash of its weights",
                code="no-hash",
                hint="it was exported by an older version: export it again",
            )
        with open_plain(self.path) as stream:
            digest = hash_of_pieces(stream.fileno(), self.offset, self.size)
        if digest != self.sha256:
            raise UserError(
                f"{self.name!r} is damaged: the hash of its weights does not match",
                code="bad-weights",
            )

    def verify_beside(self, path: Path, name: str = "") -> None:
        """The same of weights beside it, which are read from `path` and called `name`."""
        verify_weights(path, self.size, self.sha256, name)


def weights_place(path: str | Path, name: str = "") -> WeightsPlace:
    """Where a library has its weights, which are not read; it is called `name` in errors, which are
    those of `verify_library`."""
    label = name or str(path)
    binary = binary_of(FileContent(path).view, label)
    section = binary.section(METADATA)
    if section is None:
        raise UserError(f"{label!r} is not a Tensorkiln library", code="not-a-library")
    size = Metadata.from_bytes(binary.content(section), f"{label}:{METADATA}").weights_bytes
    place, weights = _place(binary), binary.section(WEIGHTS)
    if size == 0:
        return WeightsPlace(Path(path), label, 0, False, b"", 0)
    if place is None or weights is None or weights.size < size:
        raise UserError(f"{label!r}: its weights are missing or truncated", code="bad-weights")
    is_beside = int.from_bytes(place[8:16], "little") != 0
    digest = bytes(place[16:48])
    return WeightsPlace(Path(path), label, size, is_beside, digest, weights.offset)


def verify_library(path: str | Path) -> CheckedWeights:
    """Check the digest of a library's file, if it has one; read all its weights, inside or beside
    it, and check their hash.

    Raises UserError: code `bad-weights` if they are not those that were exported, `no-hash` for a
    library of an older version, which has no hash, and the errors of reading a library
    (`bad-library`, also if the digest is wrong, `not-a-library`, `bad-metadata`, `missing-file`).
    """
    data = FileContent(path).view
    fault = damage(data, len(data))
    if fault:
        raise UserError(f"{str(path)!r} is damaged: {fault}", code="bad-library")
    weights = weights_place(path)
    if weights.size and weights.is_beside:
        beside = weights_beside(Path(path).resolve())
        weights.verify_beside(beside)
        return CheckedWeights(weights.size, beside)
    if weights.size:
        weights.verify()
    return CheckedWeights(weights.size, Path(path))


def _place(binary: BinaryFile) -> memoryview | None:
    """Return the 48 bytes of `weights_place` in crt/weights.c: the pointer to the weights, whether
    they are beside the library (8 bytes), their hash. None if the library has no weights.

    The value of the note `.note.kiln.weights` is the distance in bytes from itself to the pointer.
    """
    note = binary.section(NOTE)
    if note is None or not note.in_file or note.size < _NOTE_HEAD + 8:
        return None
    distance = int.from_bytes(
        binary.content(note)[_NOTE_HEAD : _NOTE_HEAD + 8], "little", signed=True
    )
    address = note.address + _NOTE_HEAD + distance
    for section in binary.sections:
        start = address - section.address
        if section.allocated and section.in_file and 0 <= start <= section.size - 48:
            return binary.content(section)[start : start + 48]
    return None


__all__ = ["CheckedWeights", "WeightsPlace", "hash_of_pieces", "verify_library", "weights_place"]
