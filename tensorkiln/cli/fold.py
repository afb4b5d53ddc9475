"""Folds text to a width, table by table: nothing is cut, and columns remain columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

_HANG = 4  # columns by which a row's further lines are indented
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_CELL = re.compile(r"\S(?:\S| (?=\S))*")
_BAR = re.compile(r"█*[▏▎▍▌▋▊▉█]")


def fold(text: str, width: int, *, table: bool = False) -> str:
    """`text` in lines of at most `width` (20 or more) characters.

    Lines that are indented and follow each other are the rows of a table, and so is a line with
    columns above them, its head; with `table` all lines are. If a row is too long, the columns that
    have no room stand below the others, in every row; words are wrapped within their column. Bars
    become shorter, all in proportion. Prose is wrapped. The text has the same characters
    otherwise, apart from spaces and line ends.
    """
    lines = text.split("\n")
    if max(map(len, lines)) <= width:
        return text
    out: list[str] = []
    for block, is_table in _blocks(lines, table):
        if max(map(len, block)) <= width:
            out += block
        elif is_table:
            out += _folded_table(block, width)
        else:
            for line in block:
                out += _wrapped(line, width, 2)
    return "\n".join(out)


def _blocks(lines: Sequence[str], table: bool) -> Iterator[tuple[list[str], bool]]:
    """Tables, and single lines that are in none."""
    block: list[str] = []
    for line in lines:
        is_row = bool(line) and (table or line.startswith(" "))
        is_head = re.search(r"\S  +\S", line) is not None
        if not is_row and block:
            yield block, True
            block = []
        if is_row or is_head:
            block.append(line)
        else:
            yield [line], False
    if block:
        yield block, True


def _folded_table(rows: Sequence[str], width: int) -> list[str]:
    columns = _columns(rows)
    rows, columns = _with_short_bars(rows, columns, width)
    if len(columns) == 1 and len(rows) > 1:  # rows of several kinds
        return [line for row in rows for line in _folded_table([row], width)]
    indent = columns[0][0]
    bands = _bands(columns, width, indent + _HANG)
    out: list[str] = []
    for row in rows:
        for i, band in enumerate(bands):
            out += _band_lines(row, band, indent + _HANG if i else indent, width)
    return out


def _columns(rows: Sequence[str]) -> list[tuple[int, int]]:
    """(start, end) of each column: two spaces or more part it from the next one in every row."""
    mask = [" "] * max(map(len, rows))
    for row in rows:
        for cell in _CELL.finditer(row):
            mask[cell.start() : cell.end()] = "x" * (cell.end() - cell.start())
    return [cell.span() for cell in _CELL.finditer("".join(mask))]


def _bands(
    columns: Sequence[tuple[int, int]], width: int, hang: int
) -> list[list[tuple[int, int]]]:
    """The columns that stand beside each other, band by band. The last one of the table may be too
    wide for its band, and so may one that is too wide for any: it is wrapped."""
    smallest_room = max(12, width // 3)  # the room that wrapped words are to have
    bands = [[columns[0]]]
    shift, full = 0, columns[0][1] > width
    for start, end in columns[1:]:
        room = width - (start - shift)
        wraps = end == columns[-1][1] and room >= smallest_room
        if not full and (end - start <= room or wraps):
            bands[-1].append((start, end))
        else:
            bands.append([(start, end)])
            shift = start - hang
            room = width - hang
        full = end - start > room
    return bands


def _band_lines(
    row: str, band: Sequence[tuple[int, int]], indent: int, width: int
) -> Iterator[str]:
    """The lines of one row's cells in a band; none for further bands without text."""
    first, last = band[0][0], band[-1]
    text = row[first : last[1]].rstrip()
    if not text:
        return
    if indent + len(text) <= width:
        yield " " * indent + text
        return
    head = " " * indent + row[first : last[0]]
    cell = row[last[0] : last[1]].strip()
    for i, line in enumerate(_words(cell, width - len(head))):
        yield (head if i == 0 else " " * len(head)) + line


def _wrapped(line: str, width: int, hang: int) -> Iterator[str]:
    """A line of prose, and its further lines indented by `hang` more."""
    if len(line) <= width:
        yield line
        return
    indent = len(line) - len(line.lstrip())
    lines = textwrap.wrap(
        line.strip(),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
    )
    yield from lines


def _words(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_on_hyphens=False)


def _with_short_bars(
    rows: Sequence[str], columns: list[tuple[int, int]], width: int
) -> tuple[Sequence[str], list[tuple[int, int]]]:
    """Rows whose last column, if it has bars, is narrow enough to stand beside the others, or else
    below them."""
    start, end = columns[-1]
    bars = [row[start:].strip() for row in rows]
    if not any(bars) or not all(_BAR.fullmatch(bar) for bar in bars if bar):
        return rows, columns
    room = width - start if width - start >= 12 else width - columns[0][0] - _HANG
    if end - start <= room:
        return rows, columns
    short = []
    for row, bar in zip(rows, bars, strict=True):
        eighths = len(bar) * 8 - (8 - _EIGHTHS.index(bar[-1]) if bar else 0)
        bar_eighths = -(-eighths * room // (end - start))
        short.append(row[:start] + "█" * (bar_eighths // 8) + _EIGHTHS[bar_eighths % 8].strip())
    return short, [*columns[:-1], (start, start + room)]
