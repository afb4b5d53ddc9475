"""Winograd convolution on channel blocks: input transform, products in registers, output transform.

Blocks of tiles go through all three steps while their values are in the second-level cache. If the
weights fit into the cache as well, threads share the blocks; else there are few blocks, and threads
share the panels of output channels of each. The program is in program.py.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.families.winograd.program import Winograd, winograd_program
from tensorkiln.ir.expr import int_value
from tensorkiln.ops.winograd import tiles_at_once
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import fetch_ahead, sink
from tensorkiln.target import Target

# The least number of products per term in a unit of tiles: fewer take as long.
_BUSY = 6
# Blocks of an image of unknown size are cut so that at least this many threads have work.
_THREADS = 2


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """winograd_conv2d and its elementwise epilogue.

    Raises UnsupportedError if the filter is not packed, as it is not constant or not float32.
    """
    _require_packed(group)
    c = Winograd(group)
    rows, blocks, by_blocks = (group.knob(name) for name in ("rows", "blocks", "by_blocks"))
    if c.is_open:
        return _of_unknown_size(c, target, rows, blocks, by_blocks, check)
    size = c.cut(blocks)
    s = Schedule(winograd_program(c), check=check)
    (tiles_of_image,) = s.loops(role="tile")
    block = s.split(tiles_of_image, size).outer
    shared = (int_value(c.ot.shape[0]) or 1) * c.work > PARALLEL_WORK
    if shared and by_blocks:
        s.parallel(block)
    (tile,) = s.children(block)
    s.fission(tile)
    s.transform_layout("V", "t, x, b, l -> x, b, t, l")
    _terms(s, c)
    product = _steps(s, tile, rows, shared and not by_blocks)
    s.set_scope("part", "register")
    fetch_ahead(s, c.u, group.knob("fetch"), c.sum_role, panels=[product])
    return s


def _of_unknown_size(
    c: Winograd, target: Target, rows: int, blocks: int, by_blocks: int, check: bool
) -> Schedule:
    """The schedule for an unknown number of tiles. `blocks` and `by_blocks` are the choices for the
    expected number."""
    c.unit = _unit(c.vectors, rows)
    together = rows // c.unit
    largest = tiles_at_once(c.products, c.input_blocks, c.lanes, c.vectors)
    size = max(rows, -(-c.tiles // blocks))
    c.most = max(1, min(-(-size // c.unit), largest // c.unit)) * c.unit
    if by_blocks and target.has_threads:
        c.fewest, c.alone = _THREADS, rows
    s = Schedule(winograd_program(c), check=check)
    (block,), (panel,) = s.loops(role="block"), s.loops(role="panel")
    (inputs,), (units,), (outputs,) = (s.loops(role=r) for r in ("input", "unit", "output"))
    shared = (int_value(c.ot.shape[0]) or 1) * c.work > PARALLEL_WORK and target.has_threads
    if shared and by_blocks:
        s.parallel(block)
    s.transform_layout("V", "t, x, b, l -> x, b, t, l")
    _terms(s, c)
    (channels,) = s.children(inputs)
    s.reorder(channels, inputs)
    for tasks, count in ((channels, c.input_blocks), (panel, c.panels)):
        if shared and not by_blocks and min(count, c.panels) > 1:
            s.parallel(tasks)
    _vectors(s, inputs)
    (tile,) = s.children(units)
    (value,) = s.children(tile)
    s.reorder(value, units, tile)
    parts = (units,)
    if len(s.children(tile)) > 1:
        s.fission(tile)
        parts = s.fission(units).parts
    for part in parts:
        (tile,) = s.children(part)
        (piece,) = s.children(tile)
        # The piece of the sum goes outside the tiles: its weights stay in the first-level cache.
        s.reorder(piece, part, tile)
        if together > 1 and s.reaches(part, together):
            pieces = s.split(part, together, tail="peel")
            sink(s, pieces.inner, *s.children(pieces.inner))
            tail = pieces.tail
        else:
            tail = part
        if tail is not None:
            sink(s, *s.children(tail))
    _vectors(s, outputs)
    s.set_scope("part", "register")
    fetch_ahead(s, c.u, c.group.knob("fetch"), c.sum_role, panels=[value])
    return s


def _terms(s: Schedule, c: Winograd) -> None:
    """Unroll the sums over the channels of a block."""
    terms = c.group.knob("terms")
    steps = c.lanes // (1 + c.in_pairs)
    for loop in s.loops(role="channel"):
        s.unroll(s.split(loop, terms).inner if steps > terms else loop)
    for loop in s.loops(role="granule") if c.in_pairs and steps < terms else ():
        if s.reaches(loop, terms // steps):
            s.unroll(s.split(loop, terms // steps, tail="peel").inner)


def _unit(vectors: int, rows: int) -> int:
    """How many tiles are multiplied at least: few, but enough to keep a processor busy."""
    fine = [n for n in range(1, rows + 1) if n * vectors >= _BUSY and rows // n * n * 5 >= rows * 4]
    return min(fine, default=rows)


def _require_packed(group: Group) -> None:
    assert group.anchor is not None
    if group.out_type.layout is None or group.anchor.args[1].type.layout is None:  # type: ignore[union-attr]
        raise UnsupportedError(
            "winograd_conv2d needs a constant float32 filter and float32 images of known size",
            where=group.name,
            hint="conv2d takes any operands; assign_layouts packs constants",
        )


def _steps(s: Schedule, tile: str, rows: int, parallel: bool) -> str:
    """Order the loops of one block of tiles: all inputs, then for each panel all products and all
    outputs. With `parallel`, threads share the blocks of input channels, then the panels. The loop
    over products of a panel is returned."""
    inputs, panels = s.children(s.parent(tile))
    (block,), (panel,) = s.children(inputs), s.children(panels)
    s.reorder(block, inputs)
    s.reorder(panel, panels)
    for tasks in (block, panel):
        if parallel and int_value(s.loop(panel).extent) != 1:
            s.parallel(tasks)
    _vectors(s, inputs)
    products, outputs = s.fission(panels).parts
    value: str = s.children(products)[0]
    s.reorder(value, products)
    parts = s.fission(products).parts if len(s.children(products)) > 1 else (products,)
    for part in parts:
        # The piece of the sum goes outside the tiles: its weights stay in the first-level cache.
        (piece,) = s.children(part)
        s.reorder(piece, part)
        s.split_even(part, rows)
        for outer in s.children(piece):
            sink(s, *s.children(outer))
    _vectors(s, outputs)
    return value


def _vectors(s: Schedule, loop: str) -> None:
    """Vectorize every loop over lanes below `loop`."""
    for inside in s.children(loop):
        if s.role(inside) == "lane":
            s.vectorize(inside)
        elif inside in s.loops():
            _vectors(s, inside)
