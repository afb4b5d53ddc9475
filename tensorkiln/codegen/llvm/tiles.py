"""Tiles of x86-64 (AMX): how many rows and bytes each has, moves and products.

LLVM could assign registers to tiles by itself (its type `x86_amx`), but would then spill tiles or
configure them again where it sees fit. So each instruction names its tiles, by the intrinsics that
take register numbers, as the program has assigned them: what is in a tile stays there until the
program stores it.

The outermost allocation of tiles configures them for the code inside it and releases them at its
end, in the thread that runs it: each thread has a configuration of its own. The code inside must
not call a function, which could use tiles itself.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.offsets import register_key
from tensorkiln.codegen.llvm.addresses import address, index
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, Intrin, const, int_value
from tensorkiln.ir.stmt import Alloc, Store
from tensorkiln.ir.tiles import (
    TILES,
    is_tile,
    matrix_of,
    place_in_memory,
    tile_buffers,
    tile_index,
    tiles_of,
)

# The product of two tiles -> the instruction.
INSTRUCTIONS = {"tile_dot4": "tdpbusd", "tile_dot2_bf16": "tdpbf16ps"}
_PALETTE = 1


def allocate(w: KernelWriter, s: Alloc) -> None:
    """Emit an allocation of tiles; the outermost one assigns registers to all that are inside."""
    if s.buffer in w.state.tiles:
        w.statement(s.body)
        return
    first = 0
    for b in tile_buffers(s):
        w.state.tiles[b] = first
        first += tiles_of(b)
    name = f"@{w.func.name}.tiles{len(w.messages)}"
    data = "".join(f"\\{byte:02X}" for byte in _configuration(w.state.tiles))
    size = len(data) // 3
    w.messages.append(f'{name} = private unnamed_addr constant [{size} x i8] c"{data}", align 64')
    _call(w, "ldtilecfg", f"ptr {name}")
    w.statement(s.body)
    _call(w, "tilerelease")
    w.state.tiles.clear()


def _configuration(tiles: dict[Buffer, int]) -> bytes:
    """The operand of ldtilecfg: the palette; from byte 16 on, the bytes of a row of each tile, two
    bytes each; from byte 48 on, its rows."""
    config = bytearray(64)
    config[0] = _PALETTE
    for b, first in tiles.items():
        rows, columns = matrix_of(b)
        for n in range(first, first + tiles_of(b)):
            config[16 + 2 * n : 18 + 2 * n] = (columns * b.dtype.bytes).to_bytes(2, "little")
            config[48 + n] = rows
    assert all(n < TILES for n in tiles.values())
    return bytes(config)


def store(w: KernelWriter, s: Store) -> None:
    """Emit a store that moves or multiplies whole tiles."""
    value = s.value
    if not is_tile(s.buffer):
        assert isinstance(value, Load)
        number, (ptr, stride) = _number(w, value), _memory(w, s.buffer, s.indices, value.buffer)
        w.state.written(None if w.aliases else s.buffer)
        _call(w, "tilestored64", f"i8 {number}, ptr {ptr}, i64 {stride}")
    elif isinstance(value, Intrin):
        numbers = [_number(w, a) for a in value.args if isinstance(a, Load)]
        _call(w, INSTRUCTIONS[value.name], ", ".join(f"i8 {n}" for n in numbers))
    elif isinstance(value, Load):
        ptr, stride = _memory(w, value.buffer, value.indices, s.buffer)
        number = _number(w, Load(s.buffer, s.indices))
        _call(w, "tileloadd64", f"i8 {number}, ptr {ptr}, i64 {stride}")
    else:
        _call(w, "tilezero", f"i8 {_number(w, Load(s.buffer, s.indices))}")


def _number(w: KernelWriter, e: Load) -> int:
    """The register of a tile."""
    tile = tile_index(e.buffer, e.indices)
    if tile is None:
        raise InternalError(f"{w.func.name}: part of a tile of {e.buffer.name}")
    number = 0
    key = register_key(w.func.name, e.buffer, tile)
    for n, extent in zip(key, e.buffer.shape, strict=False):
        number = number * (int_value(extent) or 0) + n
    return w.state.tiles[e.buffer] + number


def _memory(w: KernelWriter, b: Buffer, indices: tuple[Expr, ...], tile: Buffer) -> tuple[str, str]:
    """Where a matrix of a tile's size begins in memory, and the bytes from row to row."""
    place = place_in_memory(indices, *matrix_of(tile))
    if place is None:
        raise InternalError(f"{w.func.name}: no matrix of a tile's size in {b.name}")
    start, down, step = place
    ptr, _ = address(w, b, start)
    return ptr, index(w, b.strides[down] * const(b.dtype.bytes * step))


def _call(w: KernelWriter, name: str, operands: str = "") -> None:
    types = ", ".join(
        "i8 immarg" if x.startswith("i8") else x.split()[0] for x in operands.split(", ") if x
    )
    w.declares.add(f"declare void @llvm.x86.{name}({types})")
    w.emit(f"  call void @llvm.x86.{name}({operands})")


__all__ = ["INSTRUCTIONS", "allocate", "store"]
