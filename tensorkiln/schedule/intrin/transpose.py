"""Transpose a matrix that is held in vector registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Ramp, Shuffle, Var, const
from tensorkiln.ir.stmt import For, Let, Stmt, Store, seq
from tensorkiln.schedule.group import static
from tensorkiln.schedule.intrin.reduce import NUMBERS
from tensorkiln.schedule.primitives.instruction import Instruction, typed_name


def transpose(rows: int, columns: int, dtype: str = "float32", unit: int = 1) -> Instruction:
    """c[j, i] = a[i, j] for i < rows, j < columns, both powers of two. Each of them is of `unit`
    elements that stay together: c[j, i*unit + e] = a[i, j*unit + e]."""
    a, c = buffer("a", (rows, columns * unit), dtype), buffer("c", (columns, rows * unit), dtype)
    i, j, e, zero = Var("i"), Var("j"), Var("e"), IntImm(0)
    if unit == 1:
        step: Stmt = Store(c, (j, i), Load(a, (i, j)))
    else:
        store = Store(c, (j, i * unit + e), Load(a, (i, j * unit + e)))
        step = For(e, zero, const(unit), "serial", store)
    turned, body = _code(a, lambda vectors, bind: _columns(vectors, columns, unit, bind))
    lanes = Ramp(zero, IntImm(1), rows * unit)
    code = body([Store(c, (const(n), lanes), v) for n, v in enumerate(turned)])
    inner = For(i, zero, const(rows), "serial", step)
    nest = For(j, zero, const(columns), "serial", inner)
    return Instruction.of(transpose_name(rows, columns, dtype, unit), (a, c), nest, code)


def interleave(rows: int, columns: int, dtype: str = "float32") -> Instruction:
    """c[j*rows + i] = a[i, j] for i < rows, j < columns, both powers of two: a transpose whose
    result is one vector."""
    size = rows * columns
    a, c = buffer("a", (rows, columns), dtype), buffer("c", (size,), dtype)
    i, j, zero = Var("i"), Var("j"), IntImm(0)
    (turned,), body = _code(a, lambda vectors, bind: _turned(vectors, size, 1, bind))
    code = body([Store(c, (Ramp(zero, IntImm(1), size),), turned)])
    step = Store(c, (j * rows + i,), Load(a, (i, j)))
    inner = For(i, zero, const(rows), "serial", step)
    nest = For(j, zero, const(columns), "serial", inner)
    return Instruction.of(interleave_name(rows, columns, dtype), (a, c), nest, code)


Bind = Callable[[Expr], Expr]
# Bytes of the parts of a vector within which processors interleave.
_PART = 16


def columns(rows: int, lanes: int) -> Instruction:
    """c[j, 4*l + k] = a[k, j*lanes + l] for k < rows, and 0 for the others of four: columns of four
    bytes, for j < 4 and each of 4, 8 or 16 lanes l."""
    size = 4 * lanes
    a, c = buffer("a", (rows, size), "uint8"), buffer("c", (4, size), "uint8")
    j, lane, zero = Var("j"), Var("l"), IntImm(0)
    stores = [
        Store(
            c,
            (j, lane * 4 + k),
            Load(a, (const(k), j * lanes + lane)) if k < rows else const(0, a.dtype),
        )
        for k in range(4)
    ]
    inner = For(lane, zero, const(lanes), "serial", seq(*stores))
    nest = For(j, zero, const(4), "serial", inner)

    def interleaved(vectors: Sequence[Expr], bind: Bind) -> list[Expr]:
        zeros = Broadcast(const(0, a.dtype), size)
        four = [*vectors, *[zeros] * (4 - rows)]
        pairs = [_by_parts(x, y, 1, bind) for x, y in (four[:2], four[2:])]
        quads = [q for x, y in zip(*pairs, strict=True) for q in _by_parts(x, y, 2, bind)]
        return _parts_together(quads, bind)

    turned, body = _code(a, interleaved)
    all_lanes = Ramp(zero, IntImm(1), size)
    code = body([Store(c, (const(n), all_lanes), v) for n, v in enumerate(turned)])
    return Instruction.of(columns_name(rows, lanes), (a, c), nest, code)


def _by_parts(x: Expr, y: Expr, unit: int, bind: Bind) -> list[Expr]:
    """Units of bytes of two vectors in turn, from the first and from the second half of each part
    of 16 bytes."""
    n = x.dtype.lanes
    if isinstance(x, Broadcast):
        return [x, x]
    orders = [
        [
            source + part + k + e
            for part in range(0, n, _PART)
            for k in range(half, half + _PART // 2, unit)
            for source in (0, n)
            for e in range(unit)
        ]
        for half in (0, _PART // 2)
    ]
    return [bind(Shuffle(x, y, tuple(order))) for order in orders]


def _parts_together(quads: Sequence[Expr], bind: Bind) -> list[Expr]:
    """Four vectors q with the parts of q[0] to q[3] in turn, cut into four again: a transpose of
    parts."""
    n = quads[0].dtype.lanes
    parts = n // _PART

    def parts_of(pair: Sequence[Expr], *numbers: int) -> Expr:
        """A vector of these parts of the first of a pair, and the same ones of the second."""
        order = [s + p * _PART + k for s in (0, n) for p in numbers for k in range(_PART)]
        return bind(Shuffle(pair[0], pair[1], tuple(order)))

    if parts == 1:
        return list(quads)
    pairs = quads[:2], quads[2:]
    if parts == 2:
        return [parts_of(pair, p) for p in range(2) for pair in pairs]
    halves = [[parts_of(pair, *numbers) for pair in pairs] for numbers in ((0, 1), (2, 3))]
    return [parts_of(half, *numbers) for half in halves for numbers in ((0, 2), (1, 3))]


def columns_name(rows: int, lanes: int) -> str:
    """The instruction's name: `columns_3x8_uint8`."""
    return typed_name(f"columns_{rows}x{lanes}", "uint8")


def _code(
    a: Buffer, turn: Callable[[Sequence[Expr], Bind], list[Expr]]
) -> tuple[list[Expr], Callable[[Sequence[Stmt]], Stmt]]:
    """The rows that `turn` computes from those of `a`, and a function that puts statements after
    that computation."""
    lets: list[tuple[Var, Expr]] = []

    def bind(e: Expr) -> Expr:
        lets.append((Var("t", e.dtype), e))
        return lets[-1][0]

    rows, columns = (static(d, "matrix") for d in a.shape)
    lanes = Ramp(IntImm(0), IntImm(1), columns)
    turned = turn([bind(Load(a, (const(n), lanes))) for n in range(rows)], bind)

    def body(after: Sequence[Stmt]) -> Stmt:
        whole = seq(*after)
        for var, value in reversed(lets):
            whole = Let(var, value, whole)
        return whole

    return turned, body


def _turned(rows: Sequence[Expr], lanes: int, unit: int, bind: Bind) -> list[Expr]:
    """The columns of the matrix of `rows`, one after the other, by log2(len(rows)) rounds. Each
    round interleaves every vector of the first half with its counterpart in the second half.

    The interleaved vectors double in length up to `lanes`; longer ones are split in two.
    """
    now = list(rows)
    for _ in range(len(rows).bit_length() - 1):
        half, new = len(now) // 2, []
        for a, b in zip(now[:half], now[half:], strict=True):
            n = a.dtype.lanes
            firsts = [k for i in range(0, n, unit) for k in (i, n + i)]
            order = [k + e for k in firsts for e in range(unit)]
            pieces = [order] if 2 * n <= lanes else [order[:n], order[n:]]
            new += [bind(Shuffle(a, b, tuple(piece))) for piece in pieces]
        now = new
    return now


def _columns(rows: Sequence[Expr], columns: int, unit: int, bind: Bind) -> list[Expr]:
    """A vector for each column of the matrix of `rows`."""
    count = len(rows) * unit
    now = _turned(rows, max(len(rows), columns) * unit, unit, bind)
    n = now[0].dtype.lanes
    if n == count:
        return now
    return [
        bind(Shuffle(v, v, tuple(range(start, start + count))))
        for v in now
        for start in range(0, n, count)
    ]


def transpose_name(rows: int, columns: int, dtype: str, unit: int = 1) -> str:
    """The instruction's name: `transpose_16x16`, `transpose_4x8_int32`, of pairs that stay together
    `transpose_8x8x2_bfloat16`."""
    size = f"transpose_{rows}x{columns}" + f"x{unit}" * (unit > 1)
    return typed_name(size, dtype)


def interleave_name(rows: int, columns: int, dtype: str) -> str:
    """The instruction's name: `interleave_2x16_bfloat16`."""
    size = f"interleave_{rows}x{columns}"
    return typed_name(size, dtype)


def transpose_named(name: str) -> Instruction | None:
    """The instruction called `name`; None for a name of another form, an unknown dtype, sizes that
    are not powers of two from 2 to 64, or units of more than 4."""
    match = re.fullmatch(r"(transpose|interleave)_(\d+)x(\d+)(?:x([24]))?(?:_(\w+))?", name)
    if match is None:
        return None
    rows, columns, unit = int(match[2]), int(match[3]), int(match[4] or 1)
    dtype = match[5] or "float32"
    if dtype not in NUMBERS or not all(1 < n <= 64 and n & (n - 1) == 0 for n in (rows, columns)):
        return None
    if name == transpose_name(rows, columns, dtype, unit):
        return transpose(rows, columns, dtype, unit)
    return (
        interleave(rows, columns, dtype) if name == interleave_name(rows, columns, dtype) else None
    )


COLUMNS = tuple(columns(rows, lanes) for rows in range(1, 5) for lanes in (4, 8, 16))
