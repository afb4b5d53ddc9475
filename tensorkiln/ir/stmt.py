"""Statements of tensor programs.

Stmt = For(var, lo, extent, kind, body, attrs)   kind in FOR_KINDS; runs extent times from lo
     | While(cond, body)
     | Seq(stmts)
     | Store(buffer, indices, value, nontemporal)
     | Let(var, value, body)
     | If(cond, then, orelse)
     | Alloc(buffer, body)                  a local or register buffer; contents undefined
     | MatchBuffer(buffer, source, indices, body)  a view: where `buffer` starts in `source`
     | Prefetch(buffer, indices, locality, write)   locality 0 (none) .. 3 (all levels)
     | Evaluate(value)                      for its effect: a CallExtern
     | CallKernel(name, args)               another function of this module; buffers by address
     | Assert(cond, message)                the call fails with the message when cond is false
     | Block(name, iters, reads, writes, body, init, attrs)

A Block is one named step of a computation, for schedules to move. Each of its iteration variables
takes a value, an expression over the loops around it; "spatial" ones name the element that is
computed, "reduce" ones a term of its sum. `init` runs before the first term: when every reduce
variable is 0. Reads and writes are the regions of one instance, in terms of the iteration
variables. `lower_blocks` (transform/tir) turns blocks into the statements they mean.

PrimFunc(name, params, body, attrs)         params: buffers, then scalar variables
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.text.scripted import Scripted

# parallel: iterations are split over threads and must not depend on each other.
# vectorized: becomes vector lanes. unrolled: repeated in the code.
# thread: bound to an index of a device's grid, named by attrs["thread"] (`blockIdx.x`, ...).
FOR_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread")
ITER_KINDS = ("spatial", "reduce", "opaque")  # opaque: neither reordered nor split


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
    attrs: Attrs = NO_ATTRS  # `bind` sets the thread, `annotate` others


@dataclass(frozen=True, slots=True)
class While(Stmt):
    cond: Expr
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


@dataclass(frozen=True, slots=True)
class MatchBuffer(Stmt):
    """Within `body`, element 0 of `buffer` is `source[indices]`; strides are buffer's own."""

    buffer: Buffer
    source: Buffer
    indices: tuple[Expr, ...]
    body: Stmt


@dataclass(frozen=True, slots=True)
class Evaluate(Stmt):
    value: Expr


@dataclass(frozen=True, slots=True)
class CallKernel(Stmt):
    """A call of the tensor program, or external function, `name` of this module: an address
    (AddressOf, an item of a set of handles) for each of its buffers, a number for each scalar.
    `span` names the node of the source model."""

    name: str
    args: tuple[Expr, ...]
    span: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Assert(Stmt):
    cond: Expr
    message: str


@dataclass(frozen=True, slots=True)
class BlockIter:
    """`var` runs over 0 .. extent - 1; `value` is what it is in terms of the loops outside."""

    var: Var
    extent: Expr
    kind: str  # one of ITER_KINDS
    value: Expr


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: (first, extent) per dimension."""

    buffer: Buffer
    ranges: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class Block(Stmt):
    name: str
    iters: tuple[BlockIter, ...]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    body: Stmt
    init: Stmt | None = None
    attrs: Attrs = NO_ATTRS


Param = Buffer | Var


@dataclass(frozen=True, slots=True)
class PrimFunc(Scripted):
    """A tensor program. `outputs`: how many of the last buffers are written; the rest are read.

    `inplace` lists read parameters whose memory may be the (single) output's, from the same start:
    no byte of it is read after it was written.
    `op_class` names the schedule that made it (`conv2d_direct`, `matmul_packed`, ...).
    """

    name: str
    params: tuple[Param, ...]
    body: Stmt
    outputs: int = 1
    inplace: tuple[int, ...] = ()
    op_class: str = "loops"
    public: bool = False
    attrs: Attrs = NO_ATTRS

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if isinstance(p, Buffer))

    def __repr__(self) -> str:
        """Its name and parameters; `script()` is all of it."""
        return f"<tensor program {self.name}({listed((p.name for p in self.params), 8)})>"

    @property
    def public_name(self) -> str:
        """What a library calls it: attrs["global_symbol"], or its name."""
        return str(self.attrs.get("global_symbol", self.name))

    @property
    def is_host(self) -> bool:
        """Whether it only calls other functions, from the entry file: attrs["host"]."""
        return bool(self.attrs.get("host", False))

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
