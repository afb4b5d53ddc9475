"""Buffers: typed, shaped memory that tensor programs read and write; Load and AddressOf."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorkiln.ir.dtype import HANDLE, DType
from tensorkiln.ir.expr import Broadcast, Expr, ExprLike, IntImm, Ramp, as_expr, int_value

# Where a buffer lives. global: parameters and workspace. local: the stack of one thread.
# register: vector registers; every index but the last must be a constant after unrolling, and the
# last one ranges over the lanes of one vector; if vectors overlap, the buffer is made local when
# code is generated. shared: memory that the threads of one block of a device have in common, one
# buffer per block; allocated inside blockIdx loops, outside threadIdx.
# tile: registers of a CPU that each hold a matrix of the last two dimensions (ir/tiles.py).
SCOPES = ("global", "local", "register", "shared", "tile")


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of `shape` elements, row-major unless `strides_given` (in elements) says otherwise.
    `align` is the known alignment of its start, in bytes. Compared by identity, not by name."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    scope: str = "global"
    align: int = 64
    strides_given: tuple[Expr, ...] | None = None
    # `strides`, once it was asked for: every address in an unrolled program asks.
    _strides: tuple[Expr, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_expr(i) for i in items))

    @property
    def strides(self) -> tuple[Expr, ...]:
        """Strides in elements: `strides_given`, or the row-major ones where that is None."""
        strides = self._strides
        if strides is None:
            strides = self.strides_given
            if strides is None:
                strides = _row_major(self.shape)
            object.__setattr__(self, "_strides", strides)
        return strides

    def __repr__(self) -> str:
        dims = ", ".join(str(int_value(d) if int_value(d) is not None else d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


def _row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    out: list[Expr] = []
    step: Expr = IntImm(1)
    for extent in reversed(shape):
        out.append(step)
        step = extent * step
    return tuple(reversed(out))


@dataclass(frozen=True, slots=True)
class Load(Expr):
    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        lanes = 1
        for i in self.indices:
            # Of a vector of indices, without the type of what it begins with.
            n = i.lanes if isinstance(i, (Ramp, Broadcast)) else i.dtype.lanes
            if n > lanes:
                lanes = n
        return self.buffer.dtype.with_lanes(lanes)


@dataclass(frozen=True, slots=True)
class AddressOf(Expr):
    """The address of the element `buffer[indices]`; legal only as an argument of a call."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return HANDLE


def buffer(
    name: str,
    shape: tuple[ExprLike, ...],
    dtype: str | DType = "float32",
    scope: str = "global",
    align: int = 64,
) -> Buffer:
    """A row-major buffer; `shape` may mix Python integers and expressions."""
    return Buffer(name, DType.parse(dtype), tuple(as_expr(s) for s in shape), scope, align)
