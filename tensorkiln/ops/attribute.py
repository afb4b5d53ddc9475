"""Which values an attribute of an operator accepts: one table row, which the parser, the builder,
the verifier and the generated docs share.

A row states only what holds for all operands. Constraints that depend on the operands, such as the
range of an axis, are checked by the type rule of the operator, with the helpers of `ops/rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, IntImm
from tensorkiln.ir.layout import Layout

REQUIRED = object()
"""Marks an attribute without a default, which every call must give."""

OPTIONAL = object()
"""Marks an attribute without a default, which a call may leave out."""

_MOST_SHOWN = 60  # characters of a value in an error
# Bytes of address space of a process: no dimension is longer, and no step along one need be.
ADDRESSES = 1 << 47

_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute. `accepts` is the test of a value, and `expected` describes accepted values in
    errors and in docs/operators.md. `default` is REQUIRED or OPTIONAL if there is none.

    `form` turns a rejected value into a hint, e.g. 3 into "a tuple: (3,)"; where it returns "", the
    hint shows `example`.
    """

    expected: str
    accepts: Callable[[object], bool]
    default: Any
    example: object
    form: Callable[[object], str] = lambda value: ""

    @property
    def required(self) -> bool:
        """Whether every call must give this attribute."""
        return self.default is REQUIRED

    @property
    def has_default(self) -> bool:
        """Whether a call that does not give this attribute has a value of it all the same."""
        return self.default is not REQUIRED and self.default is not OPTIONAL

    def or_none(self, default: object = None) -> Attribute:
        """Return this attribute with None accepted as well, and with another default."""
        return replace(
            self,
            expected=f"{self.expected} or None",
            accepts=lambda value: value is None or self.accepts(value),
            default=default,
        )


def shown(value: object) -> str:
    """Return `repr(value)`, shortened to 60 characters, for an error message."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def bad_attribute(op: str, attr: str, expected: str, received: object, hint: str = "") -> UserError:
    """Return the UserError for an attribute value of the wrong kind or outside the valid range;
    `received` goes into the message as it is."""
    return UserError(
        f"operator {op}: attribute {attr!r}: expected {expected}, received {received}",
        code="bad-attribute",
        hint=hint,
    )


def check_one(op: str, table: Mapping[str, Attribute], name: str, value: object) -> None:
    """Check one attribute of a call of `op`. Raise UserError `unknown-attribute`, with the nearest
    name, if `table` has no such attribute, and `bad-attribute` if it does not accept `value`."""
    row = table.get(name)
    if row is None:
        names = ", ".join(table) or "none"
        raise UserError(
            f"operator {op} has no attribute {name!r}",
            code="unknown-attribute",
            hint=nearest(name, table) or f"its attributes: {names}",
        )
    if not row.accepts(value):
        hint = row.form(value) or f"as {name}={row.example!r}"
        raise bad_attribute(op, name, row.expected, shown(value), hint)


def check_all(op: str, table: Mapping[str, Attribute], attrs: Mapping[str, object]) -> None:
    """Check all attributes of a call as `check_one` does, and raise UserError `missing-attribute`
    if a required one is not given."""
    for name, value in attrs.items():
        check_one(op, table, name, value)
    missing = [k for k, row in table.items() if row.required and k not in attrs]
    if missing:
        raise UserError(
            f"operator {op} needs attribute(s) {', '.join(missing)}",
            code="missing-attribute",
            hint=", ".join(f"{k}={table[k].example!r}: {table[k].expected}" for k in missing),
        )


def completed(table: Mapping[str, Attribute], attrs: Mapping[str, Any]) -> Attrs:
    """Return the given attributes and the defaults of all others. Nothing is checked."""
    have = {k for k, _ in attrs.items_} if isinstance(attrs, Attrs) else attrs.keys()
    defaults = {k: row.default for k, row in table.items() if k not in have and row.has_default}
    if isinstance(attrs, Attrs) and not defaults:
        return attrs
    return Attrs.of(**defaults, **attrs)


# ---- kinds of values ----------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    value = value.value if isinstance(value, IntImm) and value.dtype.is_int else value
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_number(value: object) -> bool:
    """A float, or an int that converts to float64 without overflow; bools are refused."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 1 << 1000


def _is_size(value: object, minimum: int = 0) -> bool:
    if isinstance(value, Expr) and not isinstance(value, IntImm):
        return value.dtype.is_int and value.dtype.lanes == 1
    return _is_int(value) and (value.value if isinstance(value, IntImm) else value) >= minimum  # type: ignore[operator]


def _is_term(value: object) -> bool:
    return _is_int(value) or (isinstance(value, Expr) and _is_size(value))


def _each(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(map(accepts, value))


def _in_a_tuple(value: object) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return f"a tuple: ({shown(value)},)" if number else ""


def flag(default: object = REQUIRED) -> Attribute:
    """True or False."""
    return Attribute(
        "True or False",
        lambda value: isinstance(value, bool),
        default,
        True,
        lambda value: f"{bool(value)}" if value in (0, 1) else "",
    )


def number(default: object = REQUIRED) -> Attribute:
    """A finite number."""
    finite = lambda value: _is_number(value) and math.isfinite(value)  # noqa: E731
    return Attribute("a finite number", finite, default, 0.5)


def bound(default: object = REQUIRED) -> Attribute:
    """A limit, such as `min` of `clip`: a number that may be infinite but not NaN."""
    return Attribute("a number", lambda v: _is_number(v) and v == v, default, 0.5)


def element(default: object = REQUIRED) -> Attribute:
    """A value for tensor elements. Whether it fits the dtype is for the type rule to check."""
    return Attribute(
        "a number, True or False", lambda v: isinstance(v, bool) or _is_number(v), default, 0.5
    )


def choice(*values: object, default: object = REQUIRED) -> Attribute:
    """One of `values`, of the same Python type: True is not accepted for 1."""
    quoted = [repr(v) for v in values]
    return Attribute(
        " or ".join([", ".join(quoted[:-1]), quoted[-1]]),
        lambda value: any(type(value) is type(v) and value == v for v in values),
        default,
        values[0],
        lambda value: nearest(value, map(str, values)) if isinstance(value, str) else "",
    )


def axis(default: object = REQUIRED) -> Attribute:
    """The index of a dimension; negative ones count from the end."""
    return Attribute("an axis, a whole number", _is_axis, default, 0)


def _is_axis(value: object) -> bool:
    return isinstance(value, int) and _is_int(value)


def axes(default: object = REQUIRED) -> Attribute:
    """A tuple of dimension indices; negative ones count from the end."""
    return Attribute("a tuple of axes", _each(_is_axis), default, (0,), _in_a_tuple)


def extents(default: object = REQUIRED) -> Attribute:
    """A shape, whose extents may be symbolic."""
    return Attribute(
        "a tuple of extents of 0 or more", _each(_is_size), default, (2, 3), _in_a_tuple
    )


def extent(default: object = REQUIRED) -> Attribute:
    """One extent of 0 or more, which may be symbolic."""
    return Attribute("an extent of 0 or more", _is_size, default, 4)


def places(default: object = REQUIRED) -> Attribute:
    """One integer of any sign per dimension; each may be symbolic."""
    return Attribute("a tuple of whole numbers", _each(_is_term), default, (0, 1), _in_a_tuple)


def scalar(default: object = REQUIRED) -> Attribute:
    """A number, or an integer expression over symbolic dimensions."""
    accepts = lambda value: _is_number(value) or _is_term(value)  # noqa: E731
    return Attribute("a number, or an integer expression of dimensions", accepts, default, 0)


def integers(count: int, minimum: int, default: object = REQUIRED) -> Attribute:
    """A tuple of exactly `count` constant integers, each `minimum` or more and below ADDRESSES."""
    plain = _each(lambda v: isinstance(v, int) and _is_size(v, minimum) and v < ADDRESSES)
    return Attribute(
        f"{count} integer(s) of {minimum} to 2^47",
        lambda value: plain(value) and len(value) == count,  # type: ignore[arg-type]
        default,
        (1,) * count,
        lambda value: f"one per place: {(value,) * count!r}" if _is_int(value) else "",
    )


def integer(minimum: int, default: object = REQUIRED) -> Attribute:
    """One constant integer of `minimum` or more."""
    return Attribute(
        f"an integer of {minimum} or more",
        lambda value: isinstance(value, int) and _is_size(value, minimum),
        default,
        max(minimum, 1),
    )


def counts(default: object = REQUIRED) -> Attribute:
    """A tuple of any length of constant integers of 0 or more."""
    plain = _each(lambda v: isinstance(v, int) and _is_size(v))
    return Attribute("a tuple of integers of 0 or more", plain, default, (4,), _in_a_tuple)


def dtype(default: object = REQUIRED) -> Attribute:
    """The name of an element type."""
    return Attribute(
        f"one of {', '.join(PROGRAM_TYPES)}",
        lambda value: isinstance(value, str) and value in PROGRAM_TYPES,
        default,
        "float32",
        lambda value: nearest(value, PROGRAM_TYPES) if isinstance(value, str) else "",
    )


def layout(default: object = REQUIRED) -> Attribute:
    """A memory layout as text, such as "A B/16 C D B%16" (`ir/layout.py`)."""

    def problem(value: object) -> str:
        try:
            Layout.parse(value) if isinstance(value, str) else None
        except ValueError as error:
            return str(error)
        return ""

    accepts = lambda value: isinstance(value, str) and not problem(value)  # noqa: E731
    return Attribute("a layout", accepts, default, "A B/16 C D B%16", problem)


def condition(default: object = REQUIRED) -> Attribute:
    """A condition over symbolic dimensions, or whether it holds."""

    def accepts(value: object) -> bool:
        whole = isinstance(value, Expr) and value.dtype.is_bool and value.dtype.lanes == 1
        return whole or (isinstance(value, int) and value in (0, 1))  # of sizes that are known

    return Attribute("a condition on dimensions", accepts, default, True)


def text(default: object = REQUIRED) -> Attribute:
    """Words for people."""
    return Attribute("a text", lambda value: isinstance(value, str), default, "3 or more rows")
