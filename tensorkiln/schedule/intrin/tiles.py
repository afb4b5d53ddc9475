"""Moves and products of matrices in tiles (ir/tiles.py), for `tensorize`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    DOTS,
    TILE_DOTS,
    Binary,
    Broadcast,
    IntImm,
    Var,
    cast,
    const,
    intrin,
)
from tensorkiln.ir.stmt import For, Stmt, Store
from tensorkiln.ir.tiles import whole
from tensorkiln.schedule.primitives.instruction import Instruction


def tile_zero(rows: int, columns: int, dtype: str) -> Instruction:
    """c[i, j] = 0."""
    c = buffer("c", (rows, columns), dtype)
    zero = const(0, c.dtype)
    code = Store(c, whole(rows, columns), Broadcast(zero, rows * columns))
    template = _loops((rows, columns), lambda i, j: Store(c, (i, j), zero))
    return Instruction.of(f"tile_zero_{rows}x{columns}_{dtype}", (c,), template, code)


def tile_copy(rows: int, columns: int, dtype: str, step: int = 1) -> Instruction:
    """t[i, j] = m[i * step, j], one of which is in a tile: with a step, the first."""
    t, m = buffer("t", (rows, columns), dtype), buffer("m", (rows * step, columns), dtype)
    down, along = whole(rows, columns)
    name = f"tile_copy_{rows}x{columns}_{dtype}"
    if step == 1:
        template = _loops((rows, columns), lambda i, j: Store(t, (i, j), Load(m, (i, j))))
        return Instruction.of(
            name, (t, m), template, Store(t, (down, along), Load(m, (down, along)))
        )
    template = _loops((rows, columns), lambda i, j: Store(t, (i, j), Load(m, (i * step, j))))
    apart = Binary("mul", down, Broadcast(IntImm(step), rows * columns))
    code = Store(t, (down, along), Load(m, (apart, along)))
    return Instruction.of(f"{name}_{step}", (t, m), template, code)


def tile_windows(rows: int, columns: int, dtype: str, step: int) -> Instruction:
    """t[i, j] = m[i * step + j]: windows of a row in memory, which may overlap."""
    t = buffer("t", (rows, columns), dtype)
    m = buffer("m", ((rows - 1) * step + columns,), dtype)
    down, along = whole(rows, columns)
    template = _loops((rows, columns), lambda i, j: Store(t, (i, j), Load(m, (i * step + j,))))
    apart = Binary("mul", down, Broadcast(IntImm(step), rows * columns))
    code = Store(t, (down, along), Load(m, (Binary("add", apart, along),)))
    name = f"tile_windows_{rows}x{columns}_{dtype}_{step}"
    return Instruction.of(name, (t, m), template, code)


def tile_dot(name: str, rows: int, columns: int, steps: int) -> Instruction:
    """c[i, j] += a[i, count*k + n] * b[k, count*j + n] for k < steps and n < count: one of
    `TILE_DOTS`, whose factors lie as those of its dot product."""
    (sums, _), (left_type, count), (right_type, _) = DOTS[TILE_DOTS[name]]
    a = buffer("a", (rows, count * steps), left_type)
    b = buffer("b", (steps, count * columns), right_type)
    c = buffer("c", (rows, columns), sums)

    def step(i: Var, j: Var, k: Var, n: Var) -> Stmt:
        x, y = Load(a, (i, k * count + n)), Load(b, (k, j * count + n))
        total, wide = Load(c, (i, j)), (cast(x, c.dtype), cast(y, c.dtype))
        value = intrin("fma", *wide, total) if c.dtype.is_float else total + wide[0] * wide[1]
        return Store(c, (i, j), value)

    def all_of(m: Buffer, *shape: int) -> Load:
        return Load(m, whole(*shape))

    factors = all_of(a, rows, count * steps), all_of(b, steps, count * columns)
    value = intrin(name, all_of(c, rows, columns), *factors)
    template = _loops((rows, columns, steps, count), step)
    code = Store(c, whole(rows, columns), value)
    full_name = f"{name}_{rows}x{columns}x{steps}"
    return Instruction.of(full_name, (a, b, c), template, code)


def _loops(extents: tuple[int, ...], body: Callable[..., Stmt]) -> Stmt:
    loop_vars = tuple(map(Var, "ijkn"[: len(extents)]))
    nest = body(*loop_vars)
    for var, extent in zip(reversed(loop_vars), reversed(extents), strict=True):
        nest = For(var, IntImm(0), IntImm(extent), "serial", nest)
    return nest


@cache
def tile_named(name: str) -> Instruction | None:
    """The instruction called `name`, as `tile_zero_16x16_float32`, `tile_copy_16x32_bfloat16`, of
    every second row `tile_copy_16x32_bfloat16_2`, of windows 8 apart
    `tile_windows_16x28_bfloat16_8`, or `tile_dot2_bf16_16x16x16`; None for another form."""
    zero = re.fullmatch(r"tile_zero_(\d+)x(\d+)_(\w+)", name)
    if zero and zero[3] in PROGRAM_TYPES:
        return tile_zero(int(zero[1]), int(zero[2]), zero[3])
    windows = re.fullmatch(r"tile_windows_(\d+)x(\d+)_([a-z]+\d+)_(\d+)", name)
    if windows and windows[3] in PROGRAM_TYPES and int(windows[4]) > 0:
        return tile_windows(int(windows[1]), int(windows[2]), windows[3], int(windows[4]))
    copy = re.fullmatch(r"tile_copy_(\d+)x(\d+)_([a-z]+\d+)(?:_(\d+))?", name)
    if copy and copy[3] in PROGRAM_TYPES and copy[4] not in ("0", "1"):
        return tile_copy(int(copy[1]), int(copy[2]), copy[3], int(copy[4] or 1))
    match = re.fullmatch(rf"({'|'.join(TILE_DOTS)})_(\d+)x(\d+)x(\d+)", name)
    return tile_dot(match[1], *(int(n) for n in match.groups()[1:])) if match else None


def tile_dot_for(dtype: DType) -> str:
    """The product of tiles whose left factor is of this type."""
    return next(n for n, dot in TILE_DOTS.items() if DOTS[dot][1][0] == dtype.name)


__all__ = ["tile_copy", "tile_dot", "tile_dot_for", "tile_named", "tile_windows", "tile_zero"]
