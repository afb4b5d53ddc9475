"""The functions of T on expressions, for Python functions that scripts call while they are parsed.

With `relu = lambda x: T.max(x, 0.0)` a script may say:

    Y[i] = relu(X[i])    ->    Y[i] = max(X[i], 0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    BINARY,
    CALLED,
    INTRINSIC_ROWS,
    UNARY,
    Expr,
    ExprLike,
    Intrinsic,
    as_expr,
    binary,
    cast,
    const,
    intrin,
    match_lanes,
    unary,
)
from tensorkiln.ir.form import ARGUMENTS
from tensorkiln.script.spellings import ALIASES

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


def _expr(a: ExprLike, like: DType | None = None) -> Expr:
    return as_expr(a) if like is None else as_expr(a, like.element)


def _unified(args: Sequence[ExprLike]) -> list[Expr]:
    """Operands of one type and as many lanes: numbers take them from the expressions."""
    like = next((a.dtype for a in args if isinstance(a, Expr)), None)
    operands = [_expr(a, like) for a in args]
    widest = max(operands, key=lambda a: a.dtype.lanes)
    return [match_lanes(a, widest)[0] for a in operands]


def _intrinsic(name: str, *args: ExprLike) -> Expr:
    of_one_type = isinstance(INTRINSIC_ROWS[name], Intrinsic)
    return intrin(name, *(_unified(args) if of_one_type else map(as_expr, args)))


def _node(node: type[Expr], *args: Any, **options: Any) -> Expr:
    """The node with these fields, folded where its class folds constants."""
    fields, form = ARGUMENTS[node], node.form
    assert form is not None
    values = dict(zip([f.name for f in fields], args, strict=False)) | options
    if form.one_type:
        values.update(
            zip(form.one_type, _unified([values[name] for name in form.one_type]), strict=True)
        )
    for f in fields:
        if f.kind is Expr:
            values[f.name] = _expr(values[f.name], form.like.get(f.name))
        elif f.kind is DType:
            values[f.name] = DType.parse(values[f.name])
    folded: Expr = getattr(node, "folded", node)(**values)
    return folded


def _unary(op: str, a: ExprLike) -> Expr:
    return unary(op, as_expr(a))


def _typed(name: str, a: ExprLike) -> Expr:
    return cast(a, name) if isinstance(a, Expr) else const(a, DType(name))


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{name: partial(binary, name) for name in BINARY},
    **{name: partial(_unary, name) for name in UNARY},
    **{name: partial(_intrinsic, name) for name in INTRINSIC_ROWS},
    **{name: partial(_typed, name) for name in PROGRAM_TYPES},
    **{name: partial(_node, node) for name, node in CALLED.items()},
    **{name: partial(_node, CALLED[word]) for name, word in ALIASES.items() if word in CALLED},
}
