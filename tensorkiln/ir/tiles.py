"""Tiles (Intel AMX): registers of a CPU that each hold a small matrix, and products of two of them.

A buffer of scope "tile" has matrices of its last two dimensions, each in a register of its own. A
program moves and multiplies whole matrices only, each with one store:

    a[i, whole] = x[m + rows, k + columns]                  from memory
    c[i, whole] = 0.0
    c[i, whole] = T.tile_dot2_bf16(c[i, whole], a[j, whole], b[l, whole])
    y[m + rows, n + columns] = c[i, whole]                  to memory

Rows and columns are two vectors with a lane for each element (`whole`), row by row; a place in
memory adds a scalar to each. The rows of a matrix may be every n-th of a dimension, `rows * n`, or
windows of one that overlap, `rows * n + columns`.

Schedules put these stores in place of loops by `tensorize` (`schedule/intrin/tiles.py`,
`schedule/tile_sums.py`); `codegen/llvm/tiles.py` assigns the registers. Linux gives a process leave
to use tiles when it asks once (`crt/cpu.c`). Where a processor has none, tests trap each
instruction and do what Intel's manual says of it (`tests/codegen/tiles/emulator.c`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    CallExtern,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    int_value,
)
from tensorkiln.ir.operators import DOTS, TILE_DOTS
from tensorkiln.ir.stmt import Alloc, Assert, CallKernel, For, Stmt, Store
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt

TILES, TILE_ROWS, TILE_ROW_BYTES = 8, 16, 64
"""How many tiles there are, and the most rows, and bytes of a row, of each."""

Place = tuple[tuple[Expr, ...], int, int]
"""The first element of a matrix in memory, the dimension along which its rows follow, and the step
from row to row in it."""


def whole(rows: int, columns: int) -> tuple[Expr, Expr]:
    """The row and the column of every element of a matrix, row by row."""
    count = rows * columns
    lanes, size = Ramp(IntImm(0), IntImm(1), count), Broadcast(IntImm(columns), count)
    return Binary("floordiv", lanes, size), Binary("floormod", lanes, size)


def matrix_of(b: Buffer) -> tuple[int, int]:
    """(rows, columns) of each tile of a buffer, where 0 is an extent that is missing or not
    constant."""
    if len(b.shape) < 2:
        return 0, 0
    rows, columns = (int_value(d) or 0 for d in b.shape[-2:])
    return rows, columns


def tiles_of(b: Buffer) -> int:
    """How many tiles a buffer takes."""
    count = 1
    for d in b.shape[:-2]:
        count *= int_value(d) or 0
    return count


def is_tile(b: Buffer) -> bool:
    """Whether a buffer is in tiles."""
    return b.scope == "tile"


def works_on_tiles(s: Store) -> bool:
    """Whether a store moves or multiplies tiles."""
    return is_tile(s.buffer) or (isinstance(s.value, Load) and is_tile(s.value.buffer))


def tile_buffers(s: Stmt) -> Iterator[Buffer]:
    """The buffers in tiles that are allocated in a statement."""
    for t in walk_stmt(s):
        if isinstance(t, Alloc) and is_tile(t.buffer):
            yield t.buffer


def fault_of_region(s: Alloc) -> str:
    """Why the outermost allocation of tiles cannot configure all tiles inside; empty if it can."""
    count = 0
    for b in tile_buffers(s):
        rows, columns = matrix_of(b)
        size = columns * b.dtype.bytes
        fits = 0 < rows <= TILE_ROWS and 0 < size <= TILE_ROW_BYTES and size % 4 == 0
        if not fits or b.strides_given is not None:
            return f"{b!r} is no tile: at most {TILE_ROWS} rows of {TILE_ROW_BYTES} bytes"
        count += tiles_of(b)
    if count > TILES:
        return f"{count} tiles at once, of {TILES}"
    for t in walk_stmt(s.body):
        parallel = isinstance(t, For) and t.kind == "parallel"
        calls = any(isinstance(x, CallExtern) for e in stmt_exprs(t) for x in walk(e))
        if parallel or calls or isinstance(t, Assert | CallKernel):
            return "tiles are not kept over parallel loops, calls and assertions"
    return ""


def tile_index(b: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """Which tile of `b` is accessed as a whole: all indices but the last two; None if it is not."""
    *tile, row, column = indices
    parts = [_split(e) for e in (row, column)]
    alone = all(int_value(first) == 0 for _, first in parts)
    return tuple(tile) if alone and tuple(e for e, _ in parts) == whole(*matrix_of(b)) else None


def place_in_memory(indices: tuple[Expr, ...], rows: int, columns: int) -> Place | None:
    """Where in memory a whole matrix is accessed; None if the indices are not those of one."""
    down, along = whole(rows, columns)
    start: list[Expr] = []
    dims: dict[Expr, int] = {}
    step = 1
    for d, e in enumerate(indices):
        lanes, first = _split(e)
        start.append(first)
        if isinstance(lanes, Binary) and lanes.op == "add" and lanes.b == along:
            lanes, dims[along] = lanes.a, d
        if isinstance(lanes, Binary) and lanes.op == "mul" and lanes.a == down:
            number = int_value(lanes.b.a) if isinstance(lanes.b, Broadcast) else None
            lanes, step = down if number else lanes, number or 1
        if lanes is None:
            continue
        if lanes not in (down, along) or lanes in dims:
            return None
        dims[lanes] = d
    return (tuple(start), dims[down], step) if len(dims) == 2 else None


def _split(e: Expr) -> tuple[Expr | None, Expr]:
    """A vector of indices, and the scalar that is added to it; no vector for a scalar."""
    if e.dtype.lanes == 1:
        return None, e
    if isinstance(e, Binary) and e.op == "add" and isinstance(e.b, Broadcast):
        return e.a, e.b.a
    return e, IntImm(0)


def fault_of(s: Store) -> str:
    """Why a store that works on tiles is invalid, apart from the types of its values and the bounds
    of its indices; empty if it is valid."""
    value = s.value
    if is_tile(s.buffer):
        if tile_index(s.buffer, s.indices) is None:
            return f"part of a tile of {s.buffer.name} is stored to"
        match value:
            case Broadcast(FloatImm(0.0) | IntImm(0)):
                return ""
            case Intrin(name) if name in TILE_DOTS:
                return _fault_of_product(s, value)
            case Load(b, indices) if not is_tile(b):
                fits = place_in_memory(indices, *matrix_of(s.buffer))
                return "" if fits else f"what is loaded from {b.name} is no matrix of a tile's size"
        return f"a tile of {s.buffer.name} is neither zero, loaded from memory, nor a product"
    assert isinstance(value, Load)
    if tile_index(value.buffer, value.indices) is None:
        return f"part of a tile of {value.buffer.name} is loaded"
    fits = place_in_memory(s.indices, *matrix_of(value.buffer))
    return "" if fits else f"what is stored to {s.buffer.name} is no matrix of the tile's size"


def _fault_of_product(s: Store, value: Intrin) -> str:
    loads = [a for a in value.args if isinstance(a, Load) and is_tile(a.buffer)]
    if len(loads) < 3 or any(tile_index(x.buffer, x.indices) is None for x in loads):
        return f"{value.name} takes three whole tiles"
    total = loads[0]
    if total.buffer is not s.buffer or total.indices != s.indices:
        return f"{value.name} adds to the tile of {s.buffer.name} that it is stored to"
    count = DOTS[TILE_DOTS[value.name]][1][1]
    (rows, columns), (m, terms), (steps, n) = (matrix_of(x.buffer) for x in loads)
    types = tuple(x.buffer.dtype.name for x in loads)
    operand_types = tuple(name for name, _ in DOTS[TILE_DOTS[value.name]])
    if types != operand_types:
        return f"{value.name} of {', '.join(types)}, it takes {', '.join(operand_types)}"
    if (m, terms, n) != (rows, steps * count, columns * count):
        sizes = f"{rows} x {steps * count} and {steps} x {columns * count}"
        return f"{value.name} into {rows} x {columns} sums takes matrices of {sizes}"
    return ""


__all__ = [
    "TILES",
    "TILE_ROWS",
    "TILE_ROW_BYTES",
    "Place",
    "fault_of",
    "fault_of_region",
    "is_tile",
    "matrix_of",
    "place_in_memory",
    "tile_buffers",
    "tile_index",
    "tiles_of",
    "whole",
    "works_on_tiles",
]
