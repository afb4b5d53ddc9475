"""Buffers in registers whose elements are accessed in pieces that overlap are put into memory.

    r[0:8] = ...; y = r[3]      ->   the same, of a buffer of scope "local"

A piece, an element or a vector, is one register, so every access of an element must be of the same
piece. Runs after `unroll_function`, when all indices are known. LLVM and compilers of C still find
registers for most of the memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tensorkiln.codegen.expand.offsets import register_key
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import Alloc, PrimFunc, Store
from tensorkiln.ir.visit import distinct_exprs, replace_buffers, walk_stmt

# By dimension: the first index, and how many.
_Piece = tuple[tuple[int, int], ...]


def whole_registers(f: PrimFunc) -> PrimFunc:
    """`f` with buffers in registers whose pieces overlap moved to local memory; the same object if
    there are no such buffers."""
    moved = {b: replace(b, scope="local") for b in _overlapping(f)}
    return replace(f, body=replace_buffers(f.body, moved)) if moved else f


def _overlapping(f: PrimFunc) -> list[Buffer]:
    """The buffers in registers that are accessed in two different pieces with a common element."""
    pieces: dict[Buffer, set[_Piece]] = {}
    for s in walk_stmt(f.body):
        if isinstance(s, Alloc) and s.buffer.scope == "register":
            pieces[s.buffer] = set()
    if not pieces:
        return []
    for s in walk_stmt(f.body):
        if isinstance(s, Store) and s.buffer in pieces:
            pieces[s.buffer].add(_piece(f, s.buffer, s.indices))
    for e in distinct_exprs(f.body):
        if isinstance(e, Load) and e.buffer in pieces:
            pieces[e.buffer].add(_piece(f, e.buffer, e.indices))
    return [b for b, accesses in pieces.items() if _overlap(accesses)]


def _piece(f: PrimFunc, buffer: Buffer, indices: tuple[Expr, ...]) -> _Piece:
    first = register_key(f.name, buffer, indices)
    return tuple((n, i.dtype.lanes) for n, i in zip(first, indices, strict=True))


def _overlap(pieces: set[_Piece]) -> bool:
    if len({tuple(count for _, count in p) for p in pieces}) < 2 and all(
        n % count == 0 for p in pieces for n, count in p
    ):
        return False  # as nearly always: pieces of one size, one after the other
    owners: dict[tuple[int, ...], _Piece] = {}
    return any(
        owners.setdefault(element, p) != p
        for p in pieces
        for element in product(*(range(n, n + count) for n, count in p))
    )
