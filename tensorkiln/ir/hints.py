"""Texts of hints for names and element types: how to correct what an error says is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from tensorkiln.base.errors import nearest
from tensorkiln.base.text import listed
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64, DType


def among(name: str, candidates: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar of the `candidates`, or else a list of them."""
    names = list(candidates)
    return nearest(name, names) or f"there are {listed(names) or 'none'}"


def unbound(name: str, names_in_scope: Iterable[str]) -> str:
    """A hint for a name that is not bound: a similar bound name, or the list of those in scope."""
    names = list(names_in_scope)
    if name in names:
        return f"another {name} is bound: use the same object, not one of the same name"
    return nearest(name, names) or f"names bound here: {listed(names) or 'none'}"


def fresh(kind: str, name: str) -> str:
    """A hint for a variable that is bound twice."""
    return f"bind a new {kind}({name!r}, ...): another object may have the same name"


def plural(count: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def instead(source: DType, target: DType) -> str:
    """A hint: the expression that converts a value of dtype `source` to dtype `target`."""
    if HANDLE in (source.element, target.element):
        return f"expected {target}: an address is not a number, a Load reads the value at it"
    text, lanes = "value", source.lanes
    if target.lanes == 1 < lanes:
        text, lanes = f"VectorReduce(op, {text})", 1
    elif target.lanes != lanes > 1:
        text, lanes = f"Shuffle({text}, {text}, {target.lanes} lanes)", target.lanes
    if target.is_bool and not source.is_bool:
        text = f"Binary('ne', {text}, 0)"
    elif target.name != source.name:
        text = f"Cast({text}, {target.with_lanes(lanes)})"
    if lanes != target.lanes:
        text = f"Broadcast({text}, {target.lanes})"
    return f"{text} makes {target} of {source}"


def agree(x: DType, y: DType) -> str:
    """A hint: how to bring two operands to one dtype.

    The operand with fewer lanes is converted to the other; with equal lanes, the second to the
    first.
    """
    return instead(x, y) if x.lanes < y.lanes else instead(y, x)


def index(source: DType, target: DType = INT64) -> str:
    """A hint: how to make a scalar integer, such as an extent or a loop bound, from `source`."""
    if not target.is_int or target.lanes != 1:
        return f"{target} is not a scalar integer: use a variable of {INT64}"
    return instead(source, target)


def extent(dtype: DType) -> str:
    """A hint for an illegal extent: not an integer, or negative."""
    return index(dtype) if not dtype.is_int else "an extent is 0 or more"


def condition(dtype: DType) -> str:
    """A hint: how to make a condition, one bool, from `dtype`."""
    return instead(dtype, BOOL)
