"""What softmax and layer norm compute, row by row: the plain programs that `schedule.py` schedules.

Roles of loops: "row"; "term", over the terms of a reduction; "element", over those of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    Unary,
    binary,
    cast,
    const,
    intrin,
    neutral,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import loop, nest, within
from tensorkiln.schedule.group import Group

Element = Callable[[Expr], Expr]
_ZERO = (IntImm(0),)


class RowProgram:
    """The statements of one row of a group's anchor; `lead` are the row's logical indices, all but
    the last."""

    def __init__(self, group: Group, lead: tuple[Expr, ...]):
        assert group.anchor is not None
        self.group, self.lead, self.call = group, lead, group.anchor
        self.columns = group.out_type.shape[-1]
        self.dtype = group.out_type.dtype.sums
        self.x = group.element(self.call.args[0])
        self.made: list[Buffer] = []

    def at(self, j: Expr) -> Expr:
        """The operand's element in column j, in the type of the sums."""
        return cast(simplify_value(self.x(*self.lead, j), {}), self.dtype)

    def saved(self, j: Expr) -> Expr:
        """Load column j of the result, which `write` stored."""
        return cast(Load(self.group.out, self.group.store_index((*self.lead, j))), self.dtype)

    def write(self, value: Element) -> Stmt:
        """out[j] = value(j) for all columns."""
        return loop("j", self.columns, lambda j: self.store(j, value(j)), "element")

    def hold(self, value: Element) -> tuple[Stmt, Element]:
        """(the statement that computes value(j) for all columns, the loads of its results), which
        are in the output until it is written."""
        return self.write(value), self.saved

    def store(self, j: Expr, value: Expr) -> Store:
        """out[j] = value, rounded to the type of the output."""
        out = self.group.out
        return Store(out, self.group.store_index((*self.lead, j)), cast(value, out.dtype))

    def number(self, name: str, value: Expr) -> tuple[Stmt, Expr]:
        """(the statement name = value, the load of name); `name` is a one-element register."""
        cell = buffer(name, (1,), self.dtype, "register")
        self.made.append(cell)
        return Store(cell, _ZERO, value), Load(cell, _ZERO)

    def reduce(self, name: str, op: str, value: Element) -> tuple[Stmt, Expr]:
        """(the statement name = op over all columns of value(j), the load of name)."""
        start, total = self.number(name, neutral(op, self.dtype))
        assert isinstance(start, Store)
        terms = loop(
            "k",
            self.columns,
            lambda j: Store(start.buffer, _ZERO, binary(REDUCE_BINARY[op], total, value(j))),
            "term",
        )
        return seq(start, terms), total

    def stmt(self, *steps: Stmt) -> Stmt:
        """The steps in order, inside the allocations of the registers that they use."""
        return within(self.made, *steps)


def rows_program(group: Group, row: Callable[[RowProgram], Stmt]) -> PrimFunc:
    """for each row: the statement that `row` makes of it."""
    lead = group.out_type.shape[:-1]
    names = [f"i{d}" for d in range(len(lead))]
    body = nest(names, lead, lambda *i: row(RowProgram(group, i)), ["row"] * len(lead))
    return PrimFunc(group.name, group.params, body)


def softmax(r: RowProgram) -> Stmt:
    """top = max x; out = exp(x - top); out = out * (1 / sum out).

    Exponentials are stored first and scaled in place, so that each is computed once.
    """
    find, top = r.reduce("top", "max", r.at)
    exponentials, power = r.hold(lambda j: intrin("exp_nonpositive", r.at(j) - top))
    add, total = r.reduce("total", "sum", power)
    invert, scale = r.number("scale", const(1, r.dtype) / total)
    return r.stmt(find, exponentials, add, invert, r.write(lambda j: power(j) * scale))


def log_softmax(r: RowProgram) -> Stmt:
    """top = max x; out = x - top - log(sum exp(x - top))."""
    find, top = r.reduce("top", "max", r.at)
    add, total = r.reduce("total", "sum", lambda j: intrin("exp_nonpositive", r.at(j) - top))
    keep, log = r.number("log", intrin("log", total))
    return r.stmt(find, add, keep, r.write(lambda j: r.at(j) - top - log))


def layer_norm(r: RowProgram) -> Stmt:
    """(x - mean) / sqrt(var + eps) * gamma + beta, with var = mean((x - mean)^2) in a pass of its
    own."""
    group, count = r.group, cast(r.columns, r.dtype)
    scales = [_cast_to(r.dtype, group.element(a)) for a in r.call.args[1:]]
    eps = const(float(r.call.attrs.eps), r.dtype)
    assert group.anchor_var is not None
    var = group.anchor_var

    def deviation(j: Expr) -> Expr:
        return r.at(j) - mean

    def normal(j: Expr) -> Expr:
        y = deviation(j) * inv
        y = y * simplify_value(scales[0](j), {}) if scales else y
        return y + simplify_value(scales[1](j), {}) if len(scales) > 1 else y

    def out(j: Expr) -> Expr:
        normalised = _cast_to(var.tensor.dtype, lambda *i: normal(i[-1]))
        element = group.element(group.out_var, {var: normalised})
        return simplify_value(element(*r.lead, j), {})

    add, total = r.reduce("sum", "sum", r.at)
    divide, mean = r.number("mean", total / count)
    squares, square = r.reduce("squares", "sum", lambda j: deviation(j) * deviation(j))
    invert, inv = r.number("inv", const(1, r.dtype) / Unary("sqrt", square / count + eps))
    return r.stmt(add, divide, squares, invert, r.write(out))


def _cast_to(dtype: DType, element: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda *index: cast(element(*index), dtype)


# The statements of a row, by operator.
FORMULAS: Mapping[str, Callable[[RowProgram], Stmt]] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
}
