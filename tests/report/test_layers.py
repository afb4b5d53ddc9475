"""Places of a layered graph: edges run down, nothing overlaps, a chain is a straight line."""

from __future__ import annotations

import itertools
import random

import pytest

from tensorkiln.report.layers import place


@pytest.mark.parametrize("seed", range(40))
def test_edges_run_down_and_nodes_keep_their_distance(seed: int) -> None:
    r = random.Random(seed)
    count = r.randint(1, 60)
    widths = [r.uniform(20, 180) for _ in range(count)]
    edges = [(a, b) for b in range(1, count) for a in range(b) if r.random() < 2.5 / count]
    placed = place(widths, edges, row=64, gap=10)
    rows: dict[float, list[tuple[float, float]]] = {}
    for (x, y), w in zip(placed.centre, widths, strict=True):
        rows.setdefault(y, []).append((x - w / 2, x + w / 2))
        assert x - w / 2 >= 0 and x + w / 2 <= placed.width
        assert 0 < y < placed.height
    for spans in rows.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start - end >= 9.8  # coordinates are rounded
    assert set(placed.ways) == set(edges)
    for (a, b), way in placed.ways.items():
        assert way[0] == placed.centre[a] and way[-1] == placed.centre[b]
        assert [y for _, y in way] == [way[0][1] + 64 * i for i in range(len(way))]


def test_a_chain_is_straight_and_a_skip_goes_around() -> None:
    placed = place([100, 60, 140, 100], [(0, 1), (1, 2), (2, 3)])
    assert len({round(x) for x, _ in placed.centre}) == 1
    placed = place([100] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    way = placed.ways[0, 3]
    assert len(way) == 4
    for (x, _), node in zip(way[1:3], placed.centre[1:3], strict=True):
        assert abs(x - node[0]) > 50


def test_a_source_stands_above_its_first_reader() -> None:
    placed = place([50] * 4, [(0, 1), (1, 3), (2, 3)])
    assert placed.centre[2][1] == placed.centre[1][1]


def test_nothing_and_one() -> None:
    assert place([], []).centre == ()
    assert len(place([40], []).centre) == 1
