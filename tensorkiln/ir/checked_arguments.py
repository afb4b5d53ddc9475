"""The attribute `checked_arguments` of graph functions: which parameters are indices that the host
checks before the first kernel runs.

A row has the number of a parameter, the extent that its elements index, whether negative ones count
from its end, and the model's node that reads there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensorkiln.ir.expr import Expr
from tensorkiln.ir.malformed import Malformed
from tensorkiln.ir.relax import Function, TensorType

CHECKED_ARGUMENTS = "checked_arguments"


class CheckedArgument(NamedTuple):
    """Parameter number `param` holds indices into a dimension of `extent`."""

    param: int
    extent: Expr | int
    negative: bool
    span: str


def checked_arguments(attrs: Mapping[str, Any]) -> tuple[CheckedArgument, ...]:
    """The rows of a function's attribute; none without it."""
    return tuple(CheckedArgument(*row) for row in attrs.get(CHECKED_ARGUMENTS, ()))


def check_checked_arguments(f: Function) -> None:
    """Raise Malformed for a row of another parameter than a tensor of integers."""
    for row in checked_arguments(f.attrs):
        t = f.params[row.param].type if 0 <= row.param < len(f.params) else None
        if not isinstance(t, TensorType) or not t.dtype.is_int:
            message = f"{CHECKED_ARGUMENTS}: parameter {row.param} is no tensor of integers"
            raise Malformed(message, f"{f.name} has {len(f.params)} parameters, counted from 0")
