"""Places of a layered graph: edges run down, nothing overlaps, a chain is a straight line."""

from __future__ import annotations

import itertools
import random

import pytest

from tensorkiln.report.layers import cell_count, place


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
    for (a, b), points in placed.ways.items():
        assert points[0] == placed.centre[a] and points[-1] == placed.centre[b]
        assert [y for _, y in points] == [points[0][1] + 64 * i for i in range(len(points))]


def test_a_chain_is_straight_and_a_skip_goes_around() -> None:
    placed = place([100, 60, 140, 100], [(0, 1), (1, 2), (2, 3)])
    assert len({round(x) for x, _ in placed.centre}) == 1
    placed = place([100] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    points = placed.ways[0, 3]
    assert len(points) == 4
    for (x, _), node in zip(points[1:3], placed.centre[1:3], strict=True):
        assert abs(x - node[0]) > 50


def test_edges_of_one_source_share_their_waypoints() -> None:
    """A value that is read in many layers is one line down, however many read it."""
    chain = [(i, i + 1) for i in range(9)]
    skips = [(0, i) for i in range(2, 10)]
    placed = place([100] * 10, chain + skips)
    longest = placed.ways[0, 9]
    for _, b in skips:
        assert placed.ways[0, b][:-1] == longest[:b]
    assert cell_count(10, chain) == 10
    assert cell_count(10, chain + skips) == cell_count(10, [*chain, (0, 9)]) == 10 + 8
    assert cell_count(10, [*chain, (0, 9), (1, 9)]) == 10 + 8 + 7
    assert cell_count(0, []) == 0


def test_touching_nodes_stand_around_where_each_would_be() -> None:
    """Readers of one source are centred below it, `gap` apart."""
    widths = [60, 40, 100, 80]
    placed = place(widths, [(0, 1), (0, 2), (0, 3)], gap=10)
    spans = sorted(
        (x - w / 2, x + w / 2) for (x, _), w in zip(placed.centre[1:], widths[1:], strict=True)
    )
    assert [round(b[0] - a[1], 1) for a, b in itertools.pairwise(spans)] == [10, 10]
    centres = [x for x, _ in placed.centre[1:]]
    assert sum(centres) / 3 == pytest.approx(placed.centre[0][0], abs=0.2)


def test_a_source_stands_above_its_first_reader() -> None:
    placed = place([50] * 4, [(0, 1), (1, 3), (2, 3)])
    assert placed.centre[2][1] == placed.centre[1][1]


def test_nothing_and_one() -> None:
    assert place([], []).centre == ()
    assert len(place([40], []).centre) == 1
