"""What a terminal would show of a program's output, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
_WIDE, _HIGH, _MARGIN = 8.4, 18, 14  # of a letter, of a line, around all
_INK = "#d7dce2"
# Colours of terminals, by the number that selects them.
_COLOURS = {
    30: "#5c6370",
    31: "#e06c75",
    32: "#98c379",
    33: "#e5c07b",
    34: "#61afef",
    35: "#c678dd",
    36: "#56b6c2",
    37: "#abb2bf",
    90: "#7f848e",
    91: "#e88388",
    92: "#a8cc8c",
    93: "#dbab79",
    94: "#71bef2",
    95: "#d290e4",
    96: "#66c2cd",
    97: "#ffffff",
}


def letters(text: str) -> str:
    """The text without its escape sequences."""
    return _ESCAPE.sub("", text)


def screenshot(command: str, output: str) -> str:
    """The picture of a terminal in which `command` wrote `output`."""
    lines = [f"\x1b[92m$\x1b[0m {command}", *output.rstrip("\n").split("\n")]
    columns = max(len(letters(line)) for line in lines)
    width, height = columns * _WIDE + 2 * _MARGIN, len(lines) * _HIGH + 2 * _MARGIN
    rows = []
    for i, line in enumerate(lines):
        y = _MARGIN + i * _HIGH + 13
        spans = "".join(_span(*run) for run in _runs(line))
        if spans:
            rows.append(f'<text y="{y}" xml:space="preserve">{spans}</text>\n')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}">\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#1e2228"/>\n'
        f'<g fill="{_INK}" font-size="14" '
        'font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace">\n'
        f"{''.join(rows)}</g>\n</svg>\n"
    )


def _runs(line: str) -> Iterator[tuple[int, str, bool, str]]:
    """Letters of one look: the column they start at, themselves, bold, colour."""
    bold, colour, column = False, "", 0
    # What is between two sequences is at even places.
    for i, part in enumerate(_ESCAPE.split(line)):
        if i % 2 == 0:
            if part.strip():
                yield column, part, bold, colour
            column += len(part)
            continue
        for number in (int(n or 0) for n in part.split(";")):
            if number == 0:
                bold, colour = False, ""
            elif number in (1, 22):
                bold = number == 1
            elif number in _COLOURS or number == 39:
                colour = _COLOURS.get(number, "")
            elif number not in (4, 24, 49):  # underlines, and grounds, which nobody sets
                raise ValueError(f"no look for {number}")


def _span(column: int, text: str, bold: bool, colour: str) -> str:
    look = ' font-weight="bold"' if bold else ""
    look += f' fill="{colour}"' if colour else ""
    wide = f"{len(text) * _WIDE:.1f}"
    # The length keeps columns in line whatever font is there.
    placement = f'x="{_MARGIN + column * _WIDE:.1f}" textLength="{wide}"'
    return f"<tspan {placement}{look}>{escape(text)}</tspan>"
