"""Attributes of functions: those that mean something, at which level, and what they may be.

A name with a dot in it (`"mine.note"`) is its author's own: passes and texts keep it, and nothing
of the compiler reads it. Every other name is one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorkiln.base.errors import nearest
from tensorkiln.ir.expr import Expr

_Accepts = Callable[[object], bool]
# name -> what the attribute is, in words, and whether a value is one
Table = Mapping[str, tuple[str, _Accepts]]


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _tuple(value: object) -> bool:
    return isinstance(value, tuple)


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_text, value))


def _number(value: object) -> bool:
    return isinstance(value, int | Expr) and not isinstance(value, bool)


def _dependencies(value: object) -> bool:
    return isinstance(value, tuple) and all(_texts(row) and 2 <= len(row) <= 4 for row in value)


_FLAG, _TEXT = ("True or False", _flag), ("a text", _text)
_BOTH: dict[str, tuple[str, _Accepts]] = {
    "global_symbol": ("the name that a library has for the function", _text),
    "target": ("a target's text, as 'llvm' or its JSON", _text),
    "kExternalDependency": (
        "a tuple of (short_name, url, url_type, version_spec), all texts",
        _dependencies,
    ),
}
GRAPH_ATTRS: Table = {
    **_BOTH,
    "assumes": ("a tuple of conditions", _tuple),
    "by_rule": _FLAG,
    "dim_names": ("a tuple of pairs of a dimension and its name", _tuple),
    "external": _TEXT,
    "homes": ("a tuple of places", _tuple),
    "input_names": ("a tuple of texts", _texts),
    "outer": _FLAG,
    "output_names": ("a tuple of texts", _texts),
    "planned": _FLAG,
    "primitive": _FLAG,
    "private": _FLAG,
    "storages": _FLAG,
    "workspace_bytes": ("a number of bytes", _number),
}
PROGRAM_ATTRS: Table = {
    **_BOTH,
    "host": _FLAG,
    "sizes": ("a number of parameters", _number),
}


def problem_of(table: Table, function: str, name: str, value: object) -> tuple[str, str] | None:
    """What is wrong with an attribute of a function, and a hint; None for nothing."""
    if "." in name:
        return None
    if name not in table:
        own = f"one of your own has a dot in its name: 'mine.{name}'"
        hint = " ".join(filter(None, (nearest(name, table), own)))
        return f"functions have no attribute {name!r}", hint
    expected, accepts = table[name]
    if not accepts(value):
        return f"attribute {name!r} is {expected}, not {value!r}", f"write {expected}"
    if name == "global_symbol" and value != function and table is GRAPH_ATTRS:
        hint = f"rename the function: name={value!r} in its decorator"
        return f"global_symbol {value!r} of a graph function called {function!r}", hint
    return None
