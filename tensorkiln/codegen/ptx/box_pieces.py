"""What TMA copies: boxes of tensors, and the pieces of 16 bytes of which a nest of copies consists
(`boxes.py`, `window_boxes.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tensorkiln.arith import simplify
from tensorkiln.codegen.host.tensor_maps import SWIZZLE_BYTES, TensorMap
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.copies import Copy, copy_of
from tensorkiln.ir.expr import Binary, Expr, IntImm, Ramp, Var, int_value
from tensorkiln.ir.stmt import For, If, PrimFunc, Seq, Stmt, Store

SOURCE_ALIGN = 16  # bytes: of the tensor, of its rows and of the pieces of a row
# Rows of a box after which the pattern repeats in which shared memory has their pieces, and bytes.
PATTERN_ROWS = SWIZZLE_BYTES // SOURCE_ALIGN
PATTERN_BYTES = PATTERN_ROWS * SWIZZLE_BYTES


@dataclass(frozen=True, slots=True)
class TensorMapBox:
    """What a nest copies: `count` boxes side by side along the last dimension of a tensor, from
    element `start` of `source` on. They lie one after the other in shared memory, from element
    `place` of `into` on. Of windows, `offsets` are the row and the column of the tap."""

    map: TensorMap
    source: Buffer
    start: tuple[Expr, ...]
    into: Buffer
    place: tuple[Expr, ...]
    count: int
    offsets: tuple[Expr, ...] = ()

    @property
    def box_bytes(self) -> int:
        """Bytes of one of them in shared memory, zeros included."""
        return prod(self.map.box) * self.source.dtype.bytes


class NoBox(Exception):
    """Raised with the reason why a nest is not a box."""


def require(holds: bool, reason: str) -> None:
    """Raise NoBox for the reason if something does not hold."""
    if not holds:
        raise NoBox(reason)


@dataclass(frozen=True, slots=True)
class CopyPiece:
    """One copy of 16 bytes in a nest, with the extents of the loops around it in the nest."""

    copy: Copy
    loops: Mapping[Var, int]

    @property
    def numbers(self) -> Iterator[Mapping[Var, Expr]]:
        """Every assignment of values to the variables of its loops; for each it copies another
        piece."""
        ranges = itertools.product(*(range(n) for n in self.loops.values()))
        for values in ranges:
            yield dict(zip(self.loops, map(IntImm, values), strict=True))


def tensor_pieces(nest: For) -> tuple[list[CopyPiece], Buffer, Buffer]:
    """(the copies of a nest, the tensor that all are of, where all go). Raises NoBox if there are
    none, or several tensors."""
    pieces = list(pieces_of(nest, {}))
    require(bool(pieces), "it copies nothing")
    source, into = pieces[0].copy.load.buffer, pieces[0].copy.store.buffer
    is_uniform = all((p.copy.load.buffer, p.copy.store.buffer) == (source, into) for p in pieces)
    require(is_uniform, "it copies several tensors")
    return pieces, source, into


def pieces_of(s: Stmt, loops: Mapping[Var, int]) -> Iterator[CopyPiece]:
    """The copies in a statement, inside of some loops of a nest. Raises NoBox for anything else."""
    match s:
        case For(var, lo, extent, _, body):
            count = int_value(extent)
            require(bool(count) and int_value(lo) == 0, "its loops have no constant bounds")
            yield from pieces_of(body, {**loops, var: count or 0})
        case Seq(stmts):
            for t in stmts:
                yield from pieces_of(t, loops)
        case Store() | If():
            copy = copy_of(s)
            if copy is None:
                raise NoBox("it does more than copy elements, or zeros in their place")
            yield CopyPiece(copy, loops)
        case _:
            raise NoBox(f"there is a {type(s).__name__} in it")


def param_of(f: PrimFunc, source: Buffer) -> int:
    """The number of the parameter that a tensor is. The kernel must not write to it, since TMA
    reads while threads go on."""
    for i, p in enumerate(f.params):
        if p is source:
            inputs = f.buffers[: len(f.buffers) - f.outputs]
            require(source in inputs and i not in f.inplace, "the kernel writes to it")
            return i
    raise NoBox("it is no parameter of the kernel")


def first_lane(e: Expr) -> Expr:
    """The first lane of an index."""
    return e.base if isinstance(e, Ramp) else e


def is_vector(indices: tuple[Expr, ...], lanes: int) -> bool:
    """Whether the lanes of an access are neighbours along the last dimension."""
    *outer, last = indices
    adjacent = isinstance(last, Ramp) and int_value(last.stride) == 1 and last.dtype.lanes == lanes
    return adjacent and all(i.dtype.lanes == 1 for i in outer)


def require_vectors(pieces: Sequence[CopyPiece], lanes: int) -> None:
    """Raise NoBox unless all pieces are vectors of `lanes` adjacent elements on both sides."""
    for p in pieces:
        vector = p.copy.load.dtype.lanes == lanes and all(
            is_vector(m.indices, lanes) for m in (p.copy.load, p.copy.store)
        )
        require(vector, f"its elements are not adjacent in pieces of {SOURCE_ALIGN} bytes")


def is_zero(e: Expr) -> bool:
    """Whether an expression is provably zero."""
    return int_value(simplify(e)) == 0


def conjuncts(cond: Expr | None) -> Iterator[Expr]:
    """The conditions that all hold where `cond` does."""
    if isinstance(cond, Binary) and cond.op == "and":
        yield from conjuncts(cond.a)
        yield from conjuncts(cond.b)
    elif cond is not None:
        yield cond
