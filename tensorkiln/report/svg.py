"""The two pictures of a report as SVG text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from tensorkiln.report.graph import GraphPicture, PictureNode
from tensorkiln.report.layers import PlacedGraph
from tensorkiln.report.memory import MemoryPicture
from tensorkiln.report.numbers import bytes_text

_Scale = Callable[[float], float]
_HIGH = 36.0  # height of a node, in SVG units
_FIRST_VIEW = 760.0  # least height of the graph that is visible before zooming


def colour(index: int) -> str:
    """A light CSS colour; colours of successive numbers differ much, by the golden angle."""
    return f"hsl({index * 137.508 % 360:.0f} {62 + index % 3 * 8}% {82 - index % 2 * 6}%)"


def graph_svg(picture: GraphPicture, colours: Mapping[str, str], anchors: Mapping[str, str]) -> str:
    """The graph as SVG: a box for each node, in the colour of its kernel, with a link to the
    kernel's anchor. The picture must be placed."""
    placed = picture.placed
    assert placed is not None
    parts = [_edge(points) for _, points in sorted(placed.ways.items())]
    for node, (x, y) in zip(picture.nodes, placed.centre, strict=True):
        parts.append(_node(node, x, y, colours, anchors))
    box = _first_view(placed)
    size = f'data-width="{placed.width:g}" data-height="{placed.height:g}"'
    return f'<svg viewBox="{box}" {size} role="img" aria-label="graph">{"".join(parts)}</svg>'


def _first_view(placed: PlacedGraph) -> str:
    """The initial view box: the whole width, and the upper part of the height that fits with it."""
    high = min(placed.height, max(_FIRST_VIEW, placed.width / 2))
    return f"0 0 {placed.width:g} {high:g}"


def _edge(points: tuple[tuple[float, float], ...]) -> str:
    x, y = points[0]
    path = [f"M{x:g} {y + _HIGH / 2:g}"]
    y += _HIGH / 2
    for i, (to_x, to_y) in enumerate(points[1:]):
        end = to_y - _HIGH / 2 if i == len(points) - 2 else to_y
        middle = (y + end) / 2
        path.append(f"C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {end:g}")
        x, y = to_x, end
    return f'<path class="edge" d="{"".join(path)}"/>'


def _node(
    node: PictureNode, x: float, y: float, colours: Mapping[str, str], anchors: Mapping[str, str]
) -> str:
    width = 18 + 6.6 * max(len(node.label), len(node.note) * 0.85)
    plain = "#eef1f6" if node.kind == "op" else "#fff"
    fill = colours.get(node.kernel, plain)
    radius = 5 if node.kind == "op" else 16
    where = f"kernel {node.kernel}" if node.kernel else "no kernel of its own"
    told = [node.span, node.label, node.note, where if node.kind == "op" else node.kind]
    lift = 4 if node.note else -4
    shape = (
        f"<title>{escape(chr(10).join(filter(None, told)))}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - _HIGH / 2:g}" width="{width:.1f}" '
        f'height="{_HIGH:g}" rx="{radius}" fill="{fill}"/>'
        f'<text x="{x:g}" y="{y - lift + 2:g}" text-anchor="middle">{escape(node.label)}</text>'
    )
    if node.note:
        shape += (
            f'<text class="dim" x="{x:g}" y="{y + 12:g}" text-anchor="middle">'
            f"{escape(node.note)}</text>"
        )
    anchor = anchors.get(node.kernel)
    inside = f'<a href="#{anchor}">{shape}</a>' if anchor else shape
    return f'<g class="node {node.kind}">{inside}</g>'


_LEFT, _TOP, _WIDE, _TALL, _BELOW = 84.0, 14.0, 1400.0, 340.0, 34.0


def memory_svg(picture: MemoryPicture, colours: Mapping[str, str]) -> str:
    """The workspace as SVG: calls from left to right, bytes upwards, a rectangle for each block."""
    calls, most = max(len(picture.calls), 1), max(picture.total, 1)

    def x(call: float) -> float:
        return _LEFT + call * (_WIDE - _LEFT - 10) / calls

    def y(at: float) -> float:
        return _TOP + _TALL - at * _TALL / most

    parts = []
    for i in range(5):
        at = picture.total * i / 4
        parts.append(
            f'<line class="axis" x1="{_LEFT - 5:g}" x2="{_LEFT:g}" y1="{y(at):.1f}" '
            f'y2="{y(at):.1f}"/><text x="{_LEFT - 9:g}" y="{y(at) + 4:.1f}" text-anchor="end">'
            f"{bytes_text(int(at))}</text>"
        )
    for b in picture.blocks:
        told = (
            f"{', '.join(b.values)}\n{bytes_text(b.size)} at {b.offset}\n"
            f"calls {b.start + 1} to {b.end + 1}\nwritten by {', '.join(b.kernels)}"
        )
        parts.append(
            f'<rect class="block" x="{x(b.start):.1f}" y="{y(b.offset + b.size):.1f}" '
            f'width="{x(b.end + 1) - x(b.start):.1f}" height="{b.size * _TALL / most:.1f}" '
            f'fill="{colours.get(b.kernels[-1], "#eef1f6")}" stroke="#00000048">'
            f"<title>{escape(told)}</title></rect>"
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
        at = x(peak + 0.5)
        side = "end" if at > _WIDE / 2 else "start"
        text = f"peak: {bytes_text(picture.live[peak])} in use at call {peak + 1}"
        parts.append(
            f'<line class="peak" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP:g}" y2="{base + 6:g}"/>'
            f'<text x="{at:.1f}" y="{base + 19:g}" text-anchor="{side}">'
            f"{escape(text)}: {escape(picture.calls[peak])}</text>"
        )
    parts.append(
        f'<text class="dim" x="{_LEFT:g}" y="{base + 30:g}">kernel calls in order, 1 to '
        f"{len(picture.calls)}; the line is what is in use</text>"
    )
    return parts
