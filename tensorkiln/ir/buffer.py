"""Buffers: typed, shaped memory that tensor programs read and write."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Load, as_expr, int_value

# Where a buffer lives: parameters and workspace; the stack of one thread; or registers, where
# every index but the last must be a constant after unrolling and the last spans one vector.
SCOPES = ("global", "local", "register")


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of `shape` elements, row-major unless `strides_given` (in elements) says otherwise.
    `align` is the byte alignment its start is known to have. Identity is its meaning, as for a
    variable."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    scope: str = "global"
    align: int = 64
    strides_given: tuple[Expr, ...] | None = None

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_expr(i) for i in items))

    @property
    def strides(self) -> tuple[Expr, ...]:
        """Element strides: those given, else row-major ones."""
        if self.strides_given is not None:
            return self.strides_given
        out: list[Expr] = []
        step: Expr = IntImm(1)
        for extent in reversed(self.shape):
            out.append(step)
            step = extent * step
        return tuple(reversed(out))

    def __repr__(self) -> str:
        dims = ", ".join(str(int_value(d) if int_value(d) is not None else d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


def buffer(
    name: str,
    shape: tuple[ExprLike, ...],
    dtype: str | DType = "float32",
    scope: str = "global",
    align: int = 64,
) -> Buffer:
    """A buffer from Python numbers and dtype names."""
    return Buffer(name, DType.parse(dtype), tuple(as_expr(s) for s in shape), scope, align)
