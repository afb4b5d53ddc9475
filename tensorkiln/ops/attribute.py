"""What an attribute of an operator may be: one table row for parser, builder, verifier and docs.

Rows say what holds for any operands. What depends on them, such as the range of an axis, the type
rule of the operator checks with the helpers of `ops/rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DTYPES
from tensorkiln.ir.expr import Expr, IntImm
from tensorkiln.ir.layout import Layout

REQUIRED = object()
"""Marks an attribute without a default."""

_MOST_SHOWN = 60  # characters of a value in an error
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Attribute:
    """`expected` is the phrase of errors and of docs/operators.md; `default` is REQUIRED where a
    call must give the attribute. `form` says how a wrong value may be written instead; without
    one, errors show the `example`."""

    expected: str
    accepts: Callable[[object], bool]
    default: Any
    example: object
    form: Callable[[object], str] = lambda value: ""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is REQUIRED

    def or_none(self, default: object = None) -> Attribute:
        """The same, or None."""
        return replace(
            self,
            expected=f"{self.expected} or None",
            accepts=lambda value: value is None or self.accepts(value),
            default=default,
        )


def shown(value: object) -> str:
    """A value as an error quotes it: one short line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def bad_attribute(op: str, attr: str, expected: str, received: object, hint: str = "") -> UserError:
    """The sentence for an attribute of the wrong kind or value."""
    return UserError(
        f"operator {op}: attribute {attr!r}: expected {expected}, received {received}",
        code="bad-attribute",
        hint=hint,
    )


def check_one(op: str, table: Mapping[str, Attribute], name: str, value: object) -> None:
    """UserError `unknown-attribute` with the nearest name, or `bad-attribute`."""
    row = table.get(name)
    if row is None:
        known = ", ".join(table) or "it has none"
        raise UserError(
            f"operator {op} has no attribute {name!r}",
            code="unknown-attribute",
            hint=nearest(name, table) or f"its attributes: {known}",
        )
    if not row.accepts(value):
        hint = row.form(value) or f"as {name}={row.example!r}"
        raise bad_attribute(op, name, row.expected, shown(value), hint)


def check_all(op: str, table: Mapping[str, Attribute], given: Mapping[str, object]) -> None:
    """Each attribute of a call, and UserError `missing-attribute` for those that must be there."""
    for name, value in given.items():
        check_one(op, table, name, value)
    missing = [k for k, row in table.items() if row.required and k not in given]
    if missing:
        raise UserError(
            f"operator {op} needs attribute(s) {', '.join(missing)}",
            code="missing-attribute",
            hint=", ".join(f"{k}={table[k].example!r}: {table[k].expected}" for k in missing),
        )


def completed(table: Mapping[str, Attribute], given: Mapping[str, Any]) -> Attrs:
    """What a call gives, and the defaults of what it leaves out."""
    defaults = {k: row.default for k, row in table.items() if not row.required}
    return Attrs.of(**{**defaults, **given})


# ---- kinds of values ----------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    value = value.value if isinstance(value, IntImm) and value.dtype.is_int else value
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_number(value: object) -> bool:
    """What a float64 can hold; no bool."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 1 << 1000


def _is_size(value: object, least: int = 0) -> bool:
    if isinstance(value, Expr) and not isinstance(value, IntImm):
        return value.dtype.is_int and value.dtype.lanes == 1
    return _is_int(value) and (value.value if isinstance(value, IntImm) else value) >= least  # type: ignore[operator]


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
    """A number that others are compared with: infinite maybe, but not NaN."""
    return Attribute("a number", lambda v: _is_number(v) and v == v, default, 0.5)


def element(default: object = REQUIRED) -> Attribute:
    """An element of a tensor; which numbers fit, its element type says."""
    return Attribute(
        "a number, True or False", lambda v: isinstance(v, bool) or _is_number(v), default, 0.5
    )


def choice(*values: object, default: object = REQUIRED) -> Attribute:
    """One of some words or numbers."""
    quoted = [repr(v) for v in values]
    return Attribute(
        " or ".join([", ".join(quoted[:-1]), quoted[-1]]),
        lambda value: any(type(value) is type(v) and value == v for v in values),
        default,
        values[0],
        lambda value: nearest(value, map(str, values)) if isinstance(value, str) else "",
    )


def axis(default: object = REQUIRED) -> Attribute:
    """A dimension; from the end where negative."""
    return Attribute("an axis, a whole number", _is_axis, default, 0)


def _is_axis(value: object) -> bool:
    return isinstance(value, int) and _is_int(value)


def axes(default: object = REQUIRED) -> Attribute:
    """Several dimensions."""
    return Attribute("a tuple of axes", _each(_is_axis), default, (0,), _in_a_tuple)


def extents(default: object = REQUIRED) -> Attribute:
    """A shape, whose extents may be symbolic."""
    return Attribute(
        "a tuple of extents of 0 or more", _each(_is_size), default, (2, 3), _in_a_tuple
    )


def extent(default: object = REQUIRED) -> Attribute:
    """How many, symbolic or not."""
    return Attribute("an extent of 0 or more", _is_size, default, 4)


def places(default: object = REQUIRED) -> Attribute:
    """A whole number of any sign for each dimension, symbolic or not."""
    return Attribute("a tuple of whole numbers", _each(_is_term), default, (0, 1), _in_a_tuple)


def scalar(default: object = REQUIRED) -> Attribute:
    """A number, or a symbolic whole number."""
    accepts = lambda value: _is_number(value) or _is_term(value)  # noqa: E731
    return Attribute("a number, or one of dimensions", accepts, default, 0)


def integers(count: int, least: int, default: object = REQUIRED) -> Attribute:
    """So many whole numbers that are known."""
    plain = _each(lambda v: isinstance(v, int) and _is_size(v, least))
    return Attribute(
        f"{count} integer(s) of {least} or more",
        lambda value: plain(value) and len(value) == count,  # type: ignore[arg-type]
        default,
        (1,) * count,
        lambda value: f"one per place: {(value,) * count!r}" if _is_int(value) else "",
    )


def integer(least: int, default: object = REQUIRED) -> Attribute:
    """One whole number that is known."""
    return Attribute(
        f"an integer of {least} or more",
        lambda value: isinstance(value, int) and _is_size(value, least),
        default,
        max(least, 1),
    )


def counts(default: object = REQUIRED) -> Attribute:
    """Whole numbers of 0 or more that are known."""
    plain = _each(lambda v: isinstance(v, int) and _is_size(v))
    return Attribute("a tuple of integers of 0 or more", plain, default, (4,), _in_a_tuple)


def dtype(default: object = REQUIRED) -> Attribute:
    """The name of an element type."""
    return Attribute(
        f"one of {', '.join(DTYPES)}",
        lambda value: isinstance(value, str) and value in DTYPES,
        default,
        "float32",
        lambda value: nearest(value, DTYPES) if isinstance(value, str) else "",
    )


def layout(default: object = REQUIRED) -> Attribute:
    """A layout's text."""

    def problem(value: object) -> str:
        try:
            Layout.parse(value) if isinstance(value, str) else None
        except ValueError as error:
            return str(error)
        return ""

    accepts = lambda value: isinstance(value, str) and not problem(value)  # noqa: E731
    return Attribute("a layout", accepts, default, "A B/16 C D B%16", problem)
