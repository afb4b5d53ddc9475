"""The picture of memory as SVG text, and the colours of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from tensorkiln.report.memory import MemoryPicture
from tensorkiln.report.numbers import bytes_text

_Scale = Callable[[float], float]
COLOURS = 48  # more are not told apart


def colour(index: int) -> tuple[str, str]:
    """A CSS colour under dark text, and one under light text; hues of successive numbers differ
    much, by the golden angle."""
    hue, tone, step = f"{index * 137.508 % 360:.0f}", index % 3, index % 2
    light = f"hsl({hue} {62 + tone * 8}% {82 - step * 6}%)"
    return light, f"hsl({hue} {36 + tone * 8}% {23 + step * 4}%)"


def colours_css() -> str:
    """A class for each colour, `c0` and so on, which sets the variable --kernel."""
    return "".join(
        f".c{i} {{ --kernel: light-dark({', '.join(colour(i))}); }}\n" for i in range(COLOURS)
    )


_LEFT, _TOP, _WIDE, _TALL, _BELOW = 84.0, 14.0, 1400.0, 340.0, 34.0


def memory_svg(picture: MemoryPicture, colours: Mapping[str, int]) -> str:
    """The workspace as SVG: calls from left to right, bytes upwards, a rectangle for each block in
    the colour of a kernel, by number."""
    calls, total = max(len(picture.calls), 1), max(picture.total, 1)

    def x(call: float) -> float:
        return _LEFT + call * (_WIDE - _LEFT - 10) / calls

    def y(offset: float) -> float:
        return _TOP + _TALL - offset * _TALL / total

    parts = []
    for i in range(5):
        offset = picture.total * i / 4
        parts.append(
            f'<line class="axis" x1="{_LEFT - 5:g}" x2="{_LEFT:g}" y1="{y(offset):.1f}" '
            f'y2="{y(offset):.1f}"/><text x="{_LEFT - 9:g}" y="{y(offset) + 4:.1f}" '
            'text-anchor="end">'
            f"{bytes_text(int(offset))}</text>"
        )
    for b in picture.blocks:
        title = (
            f"{', '.join(b.values)}\n{bytes_text(b.size)} at {b.offset}\n"
            f"calls {b.start + 1} to {b.end + 1}\nwritten by {', '.join(b.kernels)}"
        )
        colour = f" c{colours[b.kernels[-1]]}" if b.kernels[-1] in colours else ""
        parts.append(
            f'<rect class="block{colour}" x="{x(b.start):.1f}" y="{y(b.offset + b.size):.1f}" '
            f'width="{x(b.end + 1) - x(b.start):.1f}" height="{b.size * _TALL / total:.1f}">'
            f"<title>{escape(title)}</title></rect>"
        )
    parts += _lines(picture, x, y)
    size = f"0 0 {_WIDE:g} {_TOP + _TALL + _BELOW:g}"
    return f'<svg viewBox="{size}" role="img" aria-label="memory">{"".join(parts)}</svg>'


def _lines(picture: MemoryPicture, x: _Scale, y: _Scale) -> list[str]:
    """The SVG parts of the axis, the curve of the bytes in use, and the mark of the peak."""
    base, end = _TOP + _TALL, x(max(len(picture.calls), 1))
    parts = [f'<line class="axis" x1="{_LEFT:g}" x2="{end:.1f}" y1="{base:g}" y2="{base:g}"/>']
    if picture.live:
        steps = "".join(
            f"L{x(i):.1f} {y(n):.1f}L{x(i + 1):.1f} {y(n):.1f}" for i, n in enumerate(picture.live)
        )
        parts.append(f'<path class="live" d="M{steps[1:]}"><title>bytes in use</title></path>')
        peak = picture.peak
        middle = x(peak + 0.5)
        side = "end" if middle > _WIDE / 2 else "start"
        text = f"peak: {bytes_text(picture.live[peak])} in use at call {peak + 1}"
        parts.append(
            f'<line class="peak" x1="{middle:.1f}" x2="{middle:.1f}" y1="{_TOP:g}" '
            f'y2="{base + 6:g}"/>'
            f'<text x="{middle:.1f}" y="{base + 19:g}" text-anchor="{side}">'
            f"{escape(text)}: {escape(picture.calls[peak])}</text>"
        )
    parts.append(
        f'<text class="dim" x="{_LEFT:g}" y="{base + 30:g}">kernel calls in order, 1 to '
        f"{len(picture.calls)}; the line is what is in use</text>"
    )
    return parts
