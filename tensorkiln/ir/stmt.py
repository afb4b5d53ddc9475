"""Statements of tensor programs.

Stmt = For(var, lo, extent, kind, body)     kind in FOR_KINDS; runs extent times from lo
     | Seq(stmts)
     | Store(buffer, indices, value, nontemporal)
     | Let(var, value, body)
     | If(cond, then, orelse)
     | Alloc(buffer, body)                  a local or register buffer; contents undefined
     | Prefetch(buffer, indices, locality, write)   locality 0 (none) .. 3 (all levels)

PrimFunc(name, params, body, attrs)         params: buffers, then scalar variables
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var

# parallel: iterations are split over threads and must not depend on each other.
# vectorized: becomes vector lanes. unrolled: repeated in the code.
FOR_KINDS = ("serial", "parallel", "vectorized", "unrolled")


class Stmt:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class For(Stmt):
    var: Var
    lo: Expr
    extent: Expr
    kind: str
    body: Stmt


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    nontemporal: bool = False


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    buffer: Buffer
    indices: tuple[Expr, ...]
    locality: int = 3
    write: bool = False


Param = Buffer | Var


@dataclass(frozen=True, slots=True)
class PrimFunc:
    """A tensor program. `outputs`: how many of the last buffers are written; the rest are read.

    `inplace` lists read parameters whose memory may be the (single) output's: every element is
    read before the same element is written, and never after.
    `op_class` names the schedule that made it (`conv2d_direct`, `matmul_packed`, ...).
    """

    name: str
    params: tuple[Param, ...]
    body: Stmt
    outputs: int = 1
    inplace: tuple[int, ...] = ()
    op_class: str = "loops"
    public: bool = False

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def scalars(self) -> tuple[Var, ...]:
        return tuple(p for p in self.params if isinstance(p, Var))


def seq(*stmts: Stmt | None) -> Stmt:
    """One statement of several; nested sequences are flattened, None is dropped."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Seq):
            flat.extend(s.stmts)
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
