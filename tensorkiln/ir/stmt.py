"""Statements of tensor programs.

Stmt = For(var, lo, extent, kind, body, attrs)   kind in FOR_KINDS; var is lo .. lo + extent - 1
     | While(cond, body)
     | Seq(stmts)
     | Store(buffer, indices, value, nontemporal)
     | Let(var, value, body)
     | If(cond, then, orelse)
     | Alloc(buffer, body)                  a buffer that exists in body; contents undefined
     | MatchBuffer(buffer, source, indices, body)   a view that starts at source[indices]
     | Prefetch(buffer, indices, locality, write)   locality 0 (used once) .. 3 (all cache levels)
     | Evaluate(value)                      a CallExtern, evaluated for its effect
     | CallKernel(name, args)               calls another function of this module; buffers are
                                            passed by address. With grid and block, it launches a
                                            device function
     | Sync(scope)                          no thread of the block goes on before all have come,
                                            and all see what each has written; with scope "copies"
                                            also what it has begun to copy (ir/copies.py)
     | Assert(cond, message)                the call fails with the message when cond is false
     | Block(name, iters, reads, writes, body, init, attrs)

A Block is one named step of a computation, the unit that schedules move. Each of its iteration
variables is bound to an expression over the enclosing loops. The "spatial" variables select the
element that is computed, the "reduce" variables one term of its reduction: in
C[i, j] += A[i, k] * B[k, j], i and j are spatial and k is reduce. `init` runs before the first
term, that is when every reduce variable is 0. `reads` and `writes` are the regions that one
instance of the block accesses, as expressions of its iteration variables. `lower_blocks`
(transform/tir) replaces blocks by plain statements.

PrimFunc(name, params, body, attrs)         params: buffers and scalar variables, in any order
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.fields import RUNS_FIRST, Inner, bound_in
from tensorkiln.ir.form import CallForm
from tensorkiln.ir.text.scripted import Scripted

# parallel: iterations are split over threads and must not depend on each other.
# vectorized: becomes vector lanes. unrolled: its body is repeated in the code.
# thread: bound to an index of a device's grid, named by attrs["thread"] (`blockIdx.x`, ...).
FOR_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread")
BLOCK_INDICES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_INDICES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
THREADS = (*BLOCK_INDICES, *THREAD_INDICES)
# "block": all threads of a block wait for each other; "copies": and for what they began to copy.
SYNC_SCOPES = ("block", "copies")
ITER_KINDS = ("spatial", "reduce", "opaque")  # schedules neither reorder nor split opaque ones


class Stmt:
    """Base of all statements. `form`: the text of one that may be written as a call."""

    __slots__ = ()
    form: ClassVar[CallForm | None] = None


@dataclass(frozen=True, slots=True)
class For(Stmt):
    var: Var = field(metadata=bound_in("body"))
    lo: Expr
    extent: Expr
    kind: str
    body: Stmt
    attrs: Attrs = NO_ATTRS  # the primitive `bind` sets "thread", `annotate` any other


@dataclass(frozen=True, slots=True)
class While(Stmt):
    cond: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]

    @staticmethod
    def folded(stmts: tuple[Stmt, ...]) -> Stmt:
        return seq(*stmts)


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    form = CallForm("store")  # one that is not nontemporal is an assignment
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    nontemporal: bool = False


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    var: Var = field(metadata=bound_in("body"))
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    buffer: Buffer = field(metadata=bound_in("body"))
    body: Stmt


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    form = CallForm("prefetch")
    buffer: Buffer
    indices: tuple[Expr, ...]
    locality: int = 3
    write: bool = False


@dataclass(frozen=True, slots=True)
class MatchBuffer(Stmt):
    """Within `body`, `buffer` is a view of `source`: its first element is `source[indices]`.

    Its shape and strides are its own; dtype and scope are those of `source`.
    """

    buffer: Buffer = field(metadata=bound_in("body"))
    source: Buffer
    indices: tuple[Expr, ...]
    body: Stmt


@dataclass(frozen=True, slots=True)
class Evaluate(Stmt):
    value: Expr


@dataclass(frozen=True, slots=True)
class CallKernel(Stmt):
    """A call of `name`, a tensor program or external function of this module.

    `args` has one entry per parameter: for a buffer an address (AddressOf, or a Load from a buffer
    of handles, with or without a byte offset), for a scalar a number. `span` names the node of the
    source model.

    A call of a device function is a launch: `grid` is the number of blocks along x, y and z, and
    `block` the number of threads of each block. Both are empty for other calls.
    """

    name: str
    args: tuple[Expr, ...]
    span: str = field(default="", compare=False)
    grid: tuple[Expr, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sync(Stmt):
    """A barrier of all threads of a block, which all reach it: it stands inside of blockIdx loops
    and outside of threadIdx loops. `insert_barriers` (transform/tir) writes it. At one of scope
    "copies" threads wait for all but their last `pending` batches of copies (`ir/copies.py`)."""

    form = CallForm("sync")
    scope: str
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Assert(Stmt):
    cond: Expr
    message: str


@dataclass(frozen=True, slots=True)
class BlockIter(Inner):
    """`var` takes values from 0 to extent - 1; `value` binds it to the enclosing loops' variables.

    For example, after a loop `i` was split by 8, `value` is `i_0 * 8 + i_1`.
    """

    var: Var = field(metadata=bound_in())
    extent: Expr
    kind: str  # one of ITER_KINDS
    value: Expr


@dataclass(frozen=True, slots=True)
class Region(Inner):
    """A rectangular part of a buffer: (first index, extent) per dimension."""

    buffer: Buffer
    ranges: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class Block(Stmt):
    name: str
    iters: tuple[BlockIter, ...] = field(metadata=bound_in("reads", "writes", "init", "body"))
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    body: Stmt
    init: Stmt | None = field(default=None, metadata=RUNS_FIRST)
    attrs: Attrs = NO_ATTRS


Param = Buffer | Var


class TensorProgram(Scripted):
    """What callers of a tensor program see of it, whether its body is there (PrimFunc) or not
    (`KnownKernel` in ir/known_kernel.py).

    The last `outputs` buffers are written, the other buffers are only read. `inplace` lists, by
    position in `params`, the inputs that may share the memory of the (single) output, both starting
    at the same address: the program reads no byte after writing it. `op_class` names the schedule
    that made the program (`conv2d_direct`, `matmul_packed`, ...). `public` says that a library
    exports it.
    """

    __slots__ = ()

    name: str
    params: tuple[Param, ...]
    outputs: int
    inplace: tuple[int, ...]
    op_class: str
    public: bool
    attrs: Attrs

    def __repr__(self) -> str:
        """Name and parameters; `script()` gives the whole text."""
        return f"<tensor program {self.name}({listed((p.name for p in self.params), 8)})>"

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def scalars(self) -> tuple[Var, ...]:
        return tuple(p for p in self.params if isinstance(p, Var))

    @property
    def public_name(self) -> str:
        """The name under which a library exports it: attrs["global_symbol"], else `name`."""
        return str(self.attrs.get("global_symbol", self.name))

    @property
    def is_device(self) -> bool:
        """Whether attrs["device_function"] is set: it is one launch nest, loops over blockIdx with
        loops over threadIdx inside, and a CallKernel with grid and block launches it."""
        return bool(self.attrs.get("device_function", False))

    @property
    def copies(self) -> tuple[str, str] | None:
        """attrs["copy"]: the devices that it copies a tensor from and to, its body being what that
        means. It is emitted as a copy in the entry file rather than compiled as a kernel."""
        pair: tuple[str, str] | None = self.attrs.get("copy")
        return pair

    @property
    def is_host(self) -> bool:
        """Whether attrs["host"] is set: it only calls other functions, and is emitted as C in the
        entry file rather than compiled as a kernel."""
        return bool(self.attrs.get("host", False))


@dataclass(frozen=True, slots=True, repr=False)
class PrimFunc(TensorProgram):
    """A tensor program with its body."""

    name: str
    params: tuple[Param, ...]
    body: Stmt
    outputs: int = 1
    inplace: tuple[int, ...] = ()
    op_class: str = "loops"
    public: bool = False
    attrs: Attrs = NO_ATTRS


def seq(*stmts: Stmt | None) -> Stmt:
    """`stmts` as one statement; nested sequences are flattened and None is dropped."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Seq):
            flat.extend(s.stmts)
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
