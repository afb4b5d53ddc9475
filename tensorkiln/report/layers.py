"""Places the nodes of a directed acyclic graph in layers, with few crossings and straight edges.

The usual three steps (Sugiyama, Tagawa and Toda, 1981): the layer of a node is the length of the
longest path to it from a source; an edge over several layers gets a waypoint in each layer between,
which the edges of one source share; order and positions in a layer follow the average of the
neighbours, in alternating sweeps down and up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

Edge = tuple[int, int]
_SWEEPS = 8
_WAY = 18.0  # width of a waypoint


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A layout: the `centre` (x, y) of each node, for each edge the points that it runs through,
    ends included, and the size of the picture."""

    centre: tuple[tuple[float, float], ...]
    ways: Mapping[Edge, tuple[tuple[float, float], ...]]
    width: float
    height: float


@dataclass(slots=True)
class _Cell:
    """A node, or a waypoint of a long edge."""

    width: float
    above: list[int]
    below: list[int]
    x: float = 0.0


def place(
    widths: Sequence[float], edges: Sequence[Edge], row: float = 64.0, gap: float = 16.0
) -> PlacedGraph:
    """The layout of nodes with these widths. Edges (a, b) are pairs of node numbers, a < b. Layers
    are `row` apart, nodes in a layer at least `gap`."""
    count = len(widths)
    edges = sorted(set(edges))
    layer = _layers(count, edges)
    cells = [_Cell(w, [], []) for w in widths]
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in range(count):
        layers[layer[node]].append(node)
    trunks: dict[tuple[int, int], int] = {}  # (source, depth) -> its waypoint there
    chains: dict[Edge, list[int]] = {}
    for a, b in edges:
        chain = [a]
        for depth in range(layer[a] + 1, layer[b]):
            if (a, depth) not in trunks:
                trunks[a, depth] = len(cells)
                layers[depth].append(len(cells))
                cells.append(_Cell(_WAY, [], []))
                _join(cells, chain[-1], len(cells) - 1)
            chain.append(trunks[a, depth])
        _join(cells, chain[-1], b)
        chains[a, b] = [*chain, b]
    _order(cells, layers)
    _positions(cells, layers, gap)
    depth_of = {cell: depth for depth, cells_of in enumerate(layers) for cell in cells_of}
    low = min((c.x - c.width / 2 for c in cells), default=0.0) - gap
    high = max((c.x + c.width / 2 for c in cells), default=0.0) + gap
    positions = [(round(c.x - low, 1), (depth_of[i] + 0.5) * row) for i, c in enumerate(cells)]
    ways = {edge: tuple(positions[cell] for cell in chain) for edge, chain in chains.items()}
    return PlacedGraph(tuple(positions[:count]), ways, round(high - low, 1), len(layers) * row)


def cell_count(count: int, edges: Sequence[Edge]) -> int:
    """Nodes and waypoints of a layout of `count` nodes: what its time grows with."""
    layer = _layers(count, sorted(set(edges)))
    longest: dict[int, int] = {}
    for a, b in edges:
        longest[a] = max(longest.get(a, 1), layer[b] - layer[a])
    return count + sum(n - 1 for n in longest.values())


def _join(cells: list[_Cell], upper: int, lower: int) -> None:
    cells[upper].below.append(lower)
    cells[lower].above.append(upper)


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """The layer of each node. Edges are sorted by source: the layer of a node is final before any
    edge that starts at it."""
    layer = [0] * count
    for a, b in edges:
        layer[b] = max(layer[b], layer[a] + 1)
    return _settle(layer, edges, count)


def _settle(layer: list[int], edges: Sequence[Edge], count: int) -> list[int]:
    """The layers, with each node without incoming edges moved down to the layer above its first
    reader."""
    first: dict[int, int] = {}
    for a, b in edges:
        first[a] = min(layer[b], first.get(a, layer[b]))
    fed = {b for _, b in edges}
    return [layer[n] if n in fed else max(first.get(n, 1) - 1, 0) for n in range(count)]


def _order(cells: list[_Cell], layers: list[list[int]]) -> None:
    """Order each layer by the average position of the neighbours in the layer ordered before it."""
    place = {cell: float(i) for cells_of in layers for i, cell in enumerate(cells_of)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for cells_of in layers if down else reversed(layers):
            keys = {}
            for cell in cells_of:
                near = cells[cell].above if down else cells[cell].below
                keys[cell] = sum(place[n] for n in near) / len(near) if near else place[cell]
            cells_of.sort(key=lambda cell: (keys[cell], place[cell]))
            for i, cell in enumerate(cells_of):
                place[cell] = float(i)


def _positions(cells: list[_Cell], layers: list[list[int]], gap: float) -> None:
    """Set x coordinates: at the average of the neighbours, as far as order and gaps allow."""
    for cells_of in layers:
        _pack(cells, cells_of, gap)
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        for cells_of in layers if down else reversed(layers):
            for cell in cells_of:
                near = cells[cell].above if down else cells[cell].below
                if near:
                    cells[cell].x = sum(cells[n].x for n in near) / len(near)
            _pack(cells, cells_of, gap)


def _pack(cells: list[_Cell], cells_of: list[int], gap: float) -> None:
    """Move cells apart that are too close: touching cells are joined to a block, which is placed at
    the average of the positions that its cells had (pool adjacent violators)."""
    packed, places = 0.0, []  # of each cell's centre, if all of them touched
    blocks: list[tuple[float, int]] = []  # sum of the distances from `places`, number of cells
    for cell in cells_of:
        width = cells[cell].width
        places.append(packed + width / 2)
        packed += width + gap
        total, count = cells[cell].x - places[-1], 1
        while blocks and blocks[-1][0] * count > total * blocks[-1][1]:
            before, many = blocks.pop()
            total, count = total + before, count + many
        blocks.append((total, count))
    cell_places = iter(zip(cells_of, places, strict=True))
    for total, count in blocks:
        for cell, place in islice(cell_places, count):
            cells[cell].x = place + total / count
