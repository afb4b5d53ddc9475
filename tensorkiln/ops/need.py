"""Requirements of operators on the extents of their operands: a kernel has to fit into its image,
an index has to be inside its dimension.

An operator states a requirement once, as a rule beside its type rule. If the extent is a number, a
call that does not meet it is refused with an error. If it is symbolic and the requirement cannot be
proved, it becomes a condition of the function's call, with the model's node as its reason
(`ops/conditions.py`, `ir/conditions.py`). A requirement that a model's operator has beyond those of
the operators that it is imported as becomes an operator `require` in the graph. docs/operators.md
is written from the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.arith import Bounds, prove, simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Binary, Expr, ExprLike, Var, as_expr, binary, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.visit import free_vars
from tensorkiln.ops.rules import mismatch, show_type

NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement: `condition`, over extents, must hold wherever the comparison `premise` does
    (None: always).

    `operand` is the number of the operand that it is about, `expected` what that operand must be,
    and `code` that of the error for extents that are numbers. If it is `of_arguments`, it holds
    only for what a kernel may read from memory of the caller's, where a tensor without elements has
    none.
    """

    condition: Expr
    operand: int
    expected: str
    code: str = "shape-mismatch"
    premise: Expr | None = None
    of_arguments: bool = False

    def open_condition(self, bounds: Bounds) -> Expr | None:
        """The condition that has to be checked when sizes are known, within `bounds`; None if it is
        proved."""
        within = bounds if self.premise is None else bounds.given(self.premise)
        if _plain(self.condition) or prove(self.condition, within):
            return None
        if self.premise is None:
            return shortest(self.condition, bounds)
        assert isinstance(self.premise, Binary)
        unless = binary(NEGATED[self.premise.op], self.premise.a, self.premise.b)
        return simplify(binary("or", unless, self.condition), bounds)


# From the types of operands, attributes and the values of operands that are constants of integers
# (None for others) to what must hold.
NeedRule = Callable[[Sequence[TensorType], Attrs, Sequence[np.ndarray | None]], Iterator[Need]]


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of an operator on extents: as text for people, and as a rule."""

    text: str
    rule: NeedRule


def at_least(
    extent: ExprLike,
    minimum: ExprLike,
    operand: int,
    expected: str,
    code: str = "shape-mismatch",
    premise: Expr | None = None,
    of_arguments: bool = False,
) -> Need:
    """The requirement `extent >= minimum`."""
    holds = binary("ge", as_expr(extent), as_expr(minimum))
    return Need(holds, operand, expected, code, premise, of_arguments)


def shortest(condition: Expr, bounds: Bounds) -> Expr:
    """A condition simplified, except that comparisons of a dimension stay as they are: `n <= 9`
    does not become `n < 10`."""
    simple = simplify(condition, bounds)
    plain = isinstance(condition, Binary) and isinstance(condition.a, Var)
    return condition if plain and int_value(simple) is None else simple


def _plain(condition: Expr) -> bool:
    return int_value(condition) == 1


def require_known(
    op: str,
    names: Sequence[str],
    types: Sequence[TensorType],
    needs: Iterator[Need],
) -> None:
    """Raise UserError for the first of `needs` that cannot hold, whatever the symbolic extents of
    the operands `names` are. Extents of 0 do not count: nobody means tensors that must be empty."""
    for need in needs:
        if _plain(need.condition):
            continue
        bounds = Bounds.dims(free_vars(need.condition), 1)
        unproved = need.open_condition(bounds)
        if unproved is not None and int_value(unproved) == 0:
            t = types[need.operand]
            raise mismatch(op, names[need.operand], need.expected, show_type(t), code=need.code)
