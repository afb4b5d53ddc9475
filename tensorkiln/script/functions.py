"""The functions of T on expressions, for Python functions that scripts call while they are parsed.

With `relu = lambda x: T.max(x, 0.0)` a script may say:

    Y[i] = relu(X[i])    ->    Y[i] = max(X[i], 0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    BINARY,
    DEVICE_INSTRUCTIONS,
    DOTS,
    INTRINSICS,
    TILE_DOTS,
    UNARY,
    Broadcast,
    Expr,
    ExprLike,
    Ramp,
    as_expr,
    binary,
    cast,
    const,
    intrin,
    match_lanes,
    select,
    unary,
)

_F = TypeVar("_F", bound=Callable[..., Any])


class Meta:
    """`T.meta`: a decorator for templates, Python functions that define and return programs."""

    def __call__(self, template: _F) -> _F:
        """Return the function itself: programs defined in it are parsed at each call anyway."""
        return template

    @staticmethod
    def unroll(items: Iterable[Any]) -> Iterable[Any]:
        """Return the items. In a script, a loop over them is unrolled while it is parsed."""
        return items

    def __repr__(self) -> str:
        return "T.meta"


meta = Meta()


def _intrinsic(name: str, *args: ExprLike) -> Expr:
    if name in (*DOTS, *TILE_DOTS) or name in DEVICE_INSTRUCTIONS:
        return intrin(name, *map(as_expr, args))
    like = next(a.dtype for a in args if isinstance(a, Expr))
    items = [a if isinstance(a, Expr) else const(a, like) for a in args]
    first = items[0]
    for operand in items[1:]:
        first, _ = match_lanes(first, operand)
    return intrin(name, *(match_lanes(a, first)[0] for a in items))


def _unary(op: str, a: ExprLike) -> Expr:
    return unary(op, as_expr(a))


def _typed(name: str, a: ExprLike) -> Expr:
    return cast(a, name) if isinstance(a, Expr) else const(a, DType(name))


def _cast(dtype: str | DType, a: ExprLike) -> Expr:
    return cast(as_expr(a), dtype)


def _ramp(base: ExprLike, stride: ExprLike, lanes: int) -> Expr:
    return Ramp(as_expr(base), as_expr(stride), lanes)


def _broadcast(a: ExprLike, lanes: int) -> Expr:
    return Broadcast(as_expr(a), lanes)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{name: partial(binary, name) for name in BINARY},
    **{name: partial(_unary, name) for name in UNARY},
    **{name: partial(_intrinsic, name) for name in (*INTRINSICS, *DEVICE_INSTRUCTIONS)},
    **{name: partial(_typed, name) for name in PROGRAM_TYPES},
    **dict.fromkeys(("select", "if_then_else", "where"), select),
    **dict.fromkeys(("Cast", "cast"), _cast),
    **dict.fromkeys(("Ramp", "ramp"), _ramp),
    **dict.fromkeys(("Broadcast", "broadcast"), _broadcast),
}
