"""Inspectors of text, of JSON, and of any bytes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator

from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.base.errors import UserError

_MOST_JSON = 1 << 28  # bytes
_WIDTH = 16
_JSON_WIDTH = 88  # characters, not counting indentation
_LINES = 4096  # lines of a hexdump in one piece


def show_json(artifact: Artifact) -> str:
    """JSON, indented, with keys in their order; an object or list that fits into a line is on one
    line. UserError (code `bad-json`) if it is malformed, or larger than _MOST_JSON."""
    if artifact.size > _MOST_JSON:
        raise UserError(
            f"{artifact.size} bytes of JSON are too many to be laid out",
            code="bad-json",
            where=artifact.name,
            hint="--as source shows them as they are",
        )
    try:
        parsed = json.loads(bytes(artifact.view).rstrip(b"\0").decode())
        return "\n".join(_json_lines(parsed)) + "\n"
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"not valid JSON: {error}",
            code="bad-json",
            where=artifact.name,
            hint="--as hexdump shows any bytes",
        ) from None


def _json_lines(value: object) -> list[str]:
    if not isinstance(value, dict | list) or not value:
        return [json.dumps(value, ensure_ascii=False)]
    parts: list[list[str]] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        lines = _json_lines(item)
        if isinstance(value, dict):
            lines[0] = f"{json.dumps(key, ensure_ascii=False)}: {lines[0]}"
        parts.append(lines)
    first, last = "{}" if isinstance(value, dict) else "[]"
    if all(len(lines) == 1 for lines in parts):
        room = _JSON_WIDTH - sum(len(lines[0]) + 2 for lines in parts)
        if room >= 0:
            return [first + ", ".join(lines[0] for lines in parts) + last]
    for lines in parts[:-1]:
        lines[-1] += ","
    return [first, *(f"  {line}" for lines in parts for line in lines), last]


def show_repr(artifact: InMemoryArtifact) -> str:
    """The name of an in-memory artifact and the `repr` of its `load` function, which is not
    called."""
    return f"{artifact.name}: {artifact.load!r}\n"


def show_source(artifact: Artifact) -> Iterator[str]:
    """Yield UTF-8 text as it is. UserError (code `not-text`) at the first byte that is not
    UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    last = ""
    try:
        for chunk in artifact.chunks():
            piece = decoder.decode(bytes(chunk))
            last = piece or last
            yield piece
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(
            f"it is not text: {error.reason}",
            code="not-text",
            where=artifact.name,
            hint="--as hexdump shows any bytes",
        ) from None
    if not last.endswith("\n"):
        yield "\n"


def show_bytes(artifact: Artifact) -> Iterator[str]:
    """Yield a hexdump, sixteen bytes per line: offset, hexadecimal, ASCII. After the first of
    several equal lines, the others are replaced by a single `*`."""
    offset, tail, former, starred = 0, b"", b"", False
    piece: list[str] = []
    for chunk in artifact.chunks():
        data = tail + bytes(chunk)
        whole = len(data) // _WIDTH * _WIDTH
        for start in range(0, whole, _WIDTH):
            row = data[start : start + _WIDTH]
            if row != former:
                piece.append(_bytes_line(offset, row))
            elif not starred:
                piece.append("*\n")
            starred = row == former
            former = row
            offset += _WIDTH
            if len(piece) >= _LINES:
                yield "".join(piece)
                piece = []
        tail = data[whole:]
    if tail:
        piece.append(_bytes_line(offset, tail))
    piece.append(f"{offset + len(tail):08x}\n")
    yield "".join(piece)


def _bytes_line(offset: int, row: bytes) -> str:
    first, second = row[:8].hex(" "), row[8:].hex(" ")
    letters = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
    return f"{offset:08x}  {first:<23}  {second:<23}  |{letters}|\n"
