"""Transpose a matrix that is held in vector registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Ramp, Shuffle, Var, const
from tensorkiln.ir.stmt import For, Let, Stmt, Store, seq
from tensorkiln.schedule.intrin.reduce import NUMBERS
from tensorkiln.schedule.primitives.instruction import Instruction


def transpose(rows: int, columns: int, dtype: str = "float32") -> Instruction:
    """c[j, i] = a[i, j] for i < rows, j < columns, both powers of two."""
    a, c = buffer("a", (rows, columns), dtype), buffer("c", (columns, rows), dtype)
    i, j, zero = Var("i"), Var("j"), IntImm(0)
    step = Store(c, (j, i), Load(a, (i, j)))
    inner = For(i, zero, const(rows), "serial", step)
    lets: list[tuple[Var, Expr]] = []

    def bind(e: Expr) -> Expr:
        lets.append((Var("t", e.dtype), e))
        return lets[-1][0]

    vectors = [bind(Load(a, (const(n), Ramp(zero, IntImm(1), columns)))) for n in range(rows)]
    turned = _turned(vectors, max(rows, columns), bind)
    lanes = Ramp(zero, IntImm(1), rows)
    body: Stmt = seq(*(Store(c, (const(n), lanes), v) for n, v in enumerate(turned)))
    for var, value in reversed(lets):
        body = Let(var, value, body)
    nest = For(j, zero, const(columns), "serial", inner)
    return Instruction.of(transpose_name(rows, columns, dtype), (a, c), nest, body)


def _turned(rows: Sequence[Expr], lanes: int, bind: Callable[[Expr], Expr]) -> list[Expr]:
    """The columns of the matrix of `rows`, by log2(len(rows)) rounds. Each round interleaves every
    vector of the first half with its counterpart in the second half.

    The interleaved vectors double in length up to `lanes`; longer ones are split in two.
    """
    count, now = len(rows), list(rows)
    for _ in range(count.bit_length() - 1):
        half, new = len(now) // 2, []
        for a, b in zip(now[:half], now[half:], strict=True):
            n = a.dtype.lanes
            order = [k for i in range(n) for k in (i, n + i)]
            pieces = [order] if 2 * n <= lanes else [order[:n], order[n:]]
            new += [bind(Shuffle(a, b, tuple(piece))) for piece in pieces]
        now = new
    n = now[0].dtype.lanes
    if n == count:
        return now
    return [
        bind(Shuffle(v, v, tuple(range(start, start + count))))
        for v in now
        for start in range(0, n, count)
    ]


def transpose_name(rows: int, columns: int, dtype: str) -> str:
    """The instruction's name: `transpose_16x16`, `transpose_4x8_int32`."""
    size = f"transpose_{rows}x{columns}"
    return size if dtype == "float32" else f"{size}_{dtype}"


def transpose_named(name: str) -> Instruction | None:
    """The instruction called `name`; None for a name of another form, an unknown dtype, or sizes
    that are not powers of two from 2 to 64."""
    found = re.fullmatch(r"transpose_(\d+)x(\d+)(?:_(\w+))?", name)
    if found is None:
        return None
    rows, columns, dtype = int(found[1]), int(found[2]), found[3] or "float32"
    whole = all(1 < n <= 64 and n & (n - 1) == 0 for n in (rows, columns))
    known = whole and dtype in NUMBERS and name == transpose_name(rows, columns, dtype)
    return transpose(rows, columns, dtype) if known else None
