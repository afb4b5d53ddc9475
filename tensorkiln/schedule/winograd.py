"""Winograd convolution on channel blocks: transforms around a product that stays in registers.

Blocks of tiles go through all three steps while their values are in the second-level cache.
Blocks are the tasks of threads; where there are few, panels of output channels are. The program is
in winograd_program.py.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import int_value
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role, made, sink
from tensorkiln.schedule.tile import max_rows
from tensorkiln.schedule.winograd_program import Winograd, winograd_program
from tensorkiln.target import Target

# With fewer blocks than this, threads share the panels of each block instead.
_FEW_BLOCKS = 8
# What a block of tiles may take of the stack, and of the second-level cache.
_STACK, _CACHED = 900 << 10, 0.75


def schedule_winograd(group: Group, target: Target, check: bool = False) -> Schedule:
    """winograd_conv2d and its elementwise epilogue.

    Raises UnsupportedError where its filter was not packed: it is no constant, or not float32.
    """
    _require_packed(group)
    c = Winograd(group)
    s = Schedule(winograd_program(c), check=check)
    rows = max_rows(target, c.vectors)
    size, by_blocks = _block(c, target, rows)
    s.split_even("t", size)
    shared = (int_value(c.ot.shape[0]) or 1) * c.work > PARALLEL_WORK
    if shared and by_blocks:
        s.parallel("t_0")
    tiles = [s.children(loop)[0] for loop in s.loops() if loop in ("t_0", "t_tail_0")]
    for tile in tiles:
        s.fission(tile)
    s.transform_layout("V", "t, x, b, l -> x, b, t, l")
    for loop in [name for name in s.loops() if is_role(name, "c")]:
        # Four steps a basic block: more and LLVM's scheduler hoists loads until it spills.
        s.unroll(made(s.split(loop, 4))[1] if c.lanes > 4 else loop)
    for tile in tiles:
        _steps(s, tile, rows, shared and not by_blocks)
    s.set_scope("part", "register")
    return s


def _require_packed(group: Group) -> None:
    assert group.anchor is not None
    if group.out_type.layout is None or group.anchor.args[1].type.layout is None:  # type: ignore
        raise UnsupportedError(
            "winograd_conv2d needs a constant float32 filter and float32 images of known size",
            where=group.name,
            hint="conv2d takes any; assign_layouts packs constants",
        )


def _block(c: Winograd, target: Target, rows: int) -> tuple[int, bool]:
    """Tiles that go through all steps at once; whether such blocks are the tasks of threads."""
    tile_bytes = c.products * c.lanes * (c.input_blocks + c.vectors) * 4
    weights = c.products * c.channels * c.input_blocks * c.lanes * 4
    largest = max(1, _STACK // tile_bytes)
    # Weights that are not cached are read once a block, during that many times their products.
    cached = target.l2_bytes * _CACHED - weights >= rows * tile_bytes
    most = min(largest, c.tiles // _FEW_BLOCKS, 3 * rows)
    sizes = [n for n in range(1, most + 1) if c.tiles % n == 0 and (cached or n >= rows)]
    if sizes:
        best = max(sizes, key=lambda n: (n / -(-n // rows), -n))
        if 2 * best > rows:
            return best, True
    # Blocks of two sizes are two pieces of code, with a stack each.
    pieces = next(n for n in range(1, c.tiles + 1)
                  if sum({c.tiles // n, -(-c.tiles // n)}) <= largest)  # fmt: skip
    return -(-c.tiles // pieces), False


def _steps(s: Schedule, tile: str, rows: int, parallel: bool) -> None:
    """One block of tiles: all inputs, then for each panel all products and all outputs."""
    inputs, panels = s.children(s.parent(tile))
    (block,), (panel,) = s.children(inputs), s.children(panels)
    s.reorder(block, inputs)
    s.reorder(panel, panels)
    if parallel:
        s.parallel(block)
        s.parallel(panel)
    _vectors(s, inputs)
    products, outputs = panels, made(s.fission(panels))[-1]
    (value,) = s.children(products)
    s.reorder(value, products)
    s.split_even(products, rows)
    for outer in s.children(value):
        sink(s, *s.children(outer))
    _vectors(s, outputs)


def _vectors(s: Schedule, loop: str) -> None:
    """Make every loop over lanes below `loop` a vector."""
    for inside in s.children(loop):
        if is_role(inside, "l"):
            s.vectorize(inside)
        elif inside in s.loops():
            _vectors(s, inside)
