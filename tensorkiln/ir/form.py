"""The text of a node that is written as a call, `T.select(c, a, b)`: its class says it once.

    class Select(Expr):
        form = CallForm("select", one_type=("a", "b"), like={"cond": BOOL})
        cond: Expr
        a: Expr
        b: Expr

The arguments are the fields of the node, each written as its annotation says: an expression, a
number, a text, a type, a buffer. Fields with a default are keywords, and are printed where they
have another value. Printer (`ir/text/print_expr.py`) and parser (`script/parse_form.py`) read this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_type_hints

from tensorkiln.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class CallForm:
    """`T.word(...)` with the fields of the node, in their order unless `order` says another.

    `one_type`: fields of one type; numbers among them that have no type get that of the others,
    scalars the others' lanes. `like`: by field, the type of a number without one, if it is not
    int64 or float32.
    """

    word: str
    order: tuple[str, ...] = ()
    one_type: tuple[str, ...] = ()
    like: Mapping[str, DType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Argument:
    """A field of a node as an argument. `kind` is its annotation; `default` MISSING if it has no
    default, so that it is written by position."""

    name: str
    kind: Any
    default: Any

    @property
    def is_option(self) -> bool:
        return self.default is not MISSING


class _Arguments(dict[type, tuple[Argument, ...]]):
    def __missing__(self, node: Any) -> tuple[Argument, ...]:
        kinds = get_type_hints(node)
        arguments = {f.name: Argument(f.name, kinds[f.name], f.default) for f in fields(node)}
        return self.setdefault(node, tuple(arguments[n] for n in node.form.order or arguments))


ARGUMENTS = _Arguments()
"""By class of nodes that has a `form`: its arguments in the order of the text."""

__all__ = ["ARGUMENTS", "Argument", "CallForm"]
