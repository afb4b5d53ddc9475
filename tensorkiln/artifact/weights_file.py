"""Weights in a file of their own beside the library: `net.safetensors` for `net.so`.

The format is safetensors: the length of the header (8 bytes), the header (JSON with the dtype,
shape and byte range of each tensor), the data. The header begins with the SHA-256 of the data, by
which a library recognises its weights (crt/weights.c), and is padded with spaces so that the data
begins at a page and can be mapped. A tensor packed for a kernel is listed with one dimension, its
elements in memory order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from tensorkiln.artifact.artifact import Content, FileContent, content_size, write_at, write_content
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import UserError

SUFFIX = ".safetensors"
HEAD = '{"__metadata__":{"sha256":"'  # then 64 hex digits; WEIGHTS_HEAD in crt/weights.c
_PAGE = 1 << 16  # the largest page size of any machine we compile for
_HUGE_PAGE = 2 << 20
_MOST = 100_000_000  # bytes of a header, a limit of the format
_BYTES = PROGRAM_TYPES["uint8"]


def weights_beside(library: str | Path) -> Path:
    """Return the path of the weights that belong to a library: `net.safetensors` for `net.so`."""
    return Path(library).with_suffix(SUFFIX)


def write_weights(
    path: Path, weights: Content, constants: Sequence[ConstantInfo], compact: bool = False
) -> bytes:
    """Write the file and return the SHA-256 (32 bytes) of its data. If `compact`, large data does
    not begin at a huge page.

    `constants` name the tensors in the weights. Bytes between them, such as padding, are listed as
    `uint8` tensors `__bytes__.<offset>`, since the format allows no gaps. Raises UserError (code
    `too-large`) if the header would exceed 100 MB.
    """
    size = content_size(weights)
    tensors = _tensors(size, constants)
    page = _HUGE_PAGE if size >= 2 * _HUGE_PAGE and not compact else _PAGE
    start = -(-(8 + len(_header(bytes(32), tensors))) // page) * page
    if start - 8 > _MOST:
        raise UserError(
            f"the names of {len(tensors)} weights take more than {_MOST} bytes",
            code="too-large",
            hint="embed them in the library",
        )
    with path.open("wb", buffering=0) as stream:
        stream.truncate(start + size)
        write_content(weights, stream.fileno(), start)
        digest = _digest(path, start, size)
        header = _header(digest, tensors).ljust(start - 8)
        head = (start - 8).to_bytes(8, "little") + header
        write_at(stream.fileno(), memoryview(head), 0)
    return digest


def read_weights(path: Path, size: int, name: str = "") -> FileContent:
    """Return the data of a file of weights, which must have `size` bytes and is called `name` in
    errors; its hash is not checked.

    Raises UserError: code `missing-file`, or `bad-weights` for any file that `write_weights` did
    not write with data of this size.
    """
    whole = FileContent(path)
    start = 8 + int.from_bytes(FileContent(path, 0, min(8, whole.size)).view, "little")
    if start > 8 + _MOST or whole.size != start + size or _hash_in(path, start) is None:
        raise UserError(
            f"{(name or str(path))!r} is not an exported file of {size} bytes of weights",
            code="bad-weights",
        )
    return FileContent(path, start, size)


def verify_weights(
    path: Path, size: int, expected: bytes | memoryview | None = None, name: str = ""
) -> None:
    """Read all data and check its hash. The file is called `name` in errors.

    Raises UserError (code `bad-weights`) if the data does not match the hash in the header, or the
    header does not hold `expected`, the hash in the library.
    """
    label = name or str(path)
    content = read_weights(path, size, label)
    stored_hash = _hash_in(path, content.offset)
    if expected is not None and stored_hash != expected.hex():
        raise UserError(
            f"the weights in {label!r} are not those that the library was exported with",
            code="bad-weights",
        )
    if _digest(path, content.offset, size).hex() != stored_hash:
        raise UserError(
            f"{label!r} is damaged: its hash does not match its data", code="bad-weights"
        )


def _hash_in(path: Path, start: int) -> str | None:
    """Return the hash (hex) in the header; None if the header does not begin as `_header` does."""
    begins = len(HEAD) + 64
    if start < 8 + begins:
        return None
    text = bytes(FileContent(path, 8, begins).view).decode("ascii", "replace")
    return text[len(HEAD) :] if text.startswith(HEAD) else None


def _digest(path: Path, start: int, size: int) -> bytes:
    digest = hashlib.sha256()
    for chunk in FileContent(path, start, size).chunks():
        digest.update(chunk)
    return digest.digest()


def _header(digest: bytes, tensors: dict[str, dict[str, object]]) -> bytes:
    text = json.dumps(tensors, separators=(",", ":"))
    return f'{HEAD}{digest.hex()}"}},{text[1:]}'.encode()


def _tensors(size: int, constants: Sequence[ConstantInfo]) -> dict[str, dict[str, object]]:
    """Return the header's entries by name, in the order of the data."""
    # Constants at the same offset get one entry, under the first one's name.
    by_place = {c.offset: c for c in reversed(constants) if 0 <= c.offset < size}
    places = sorted({0, *by_place}) if size else []
    rows: dict[str, dict[str, object]] = {}

    def add(name: str, dtype: str, shape: Sequence[int], start: int, stop: int) -> None:
        unique = name if name not in rows else f"{name}#{start}"
        rows[unique] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}

    for start, stop in zip(places, [*places[1:], size], strict=True):
        constant, end = by_place.get(start), start
        if constant is not None:
            shape: tuple[int, ...]
            row = PROGRAM_TYPES.get(constant.dtype)
            if row is None or not row.safetensors:  # the format has no name for it
                row, shape = _BYTES, (stop - start,)
            elif constant.layout or row.size(math.prod(constant.shape)) > stop - start:
                shape = ((stop - start) * 8 // row.bits,)
            else:
                shape = constant.shape
            end = start + row.size(math.prod(shape))
            add(constant.name, row.safetensors, shape, start, end)
        if end < stop:
            add(f"__bytes__.{end}", _BYTES.safetensors, (stop - end,), end, stop)
    return rows
