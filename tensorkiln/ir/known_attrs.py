"""The attributes of functions, loops and blocks that the compiler knows, and their legal values.

A name with a dot in it (`"mine.note"`) belongs to the user: passes and printed text keep it, and
the compiler never reads it. Any other name must be in one of the tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import nearest
from tensorkiln.ir.expr import Expr

_Accepts = Callable[[object], bool]
# name -> (description of the legal values, for messages; predicate for a legal value)
_Names = Mapping[str, tuple[str, _Accepts]]


@dataclass(frozen=True, slots=True)
class Table:
    """The attributes of one kind of node; `owner` is its plural in messages."""

    owner: str
    names: _Names


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _tuple(value: object) -> bool:
    return isinstance(value, tuple)


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_text, value))


def _pair(value: object) -> bool:
    return _texts(value) and isinstance(value, tuple) and len(value) == 2


def _pairs(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_pair, value))


def _number(value: object) -> bool:
    return isinstance(value, int | Expr) and not isinstance(value, bool)


def _rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _several(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _dependencies(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(row, ExternalDependency) for row in value)


def _rows(value: object) -> bool:
    return isinstance(value, tuple) and all(_texts(row) and len(row) == 3 for row in value)


def _kept(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and all(
            isinstance(row, tuple)
            and len(row) > 2
            and type(row[0]) is int
            and isinstance(row[1], str)  # empty: a step of the host
            and all(map(_text, row[2:]))
            for row in value
        )
    )


def _checked(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(row, tuple)
        and len(row) == 4
        and type(row[0]) is int
        and _number(row[1])
        and _flag(row[2])
        and isinstance(row[3], str)
        for row in value
    )


def _knobs(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(row, tuple) and len(row) == 3 and _texts(row[:2]) and type(row[2]) is int
        for row in value
    )


def _pools(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(row, tuple) and len(row) == 3 and _text(row[0]) and all(map(_number, row[1:]))
        for row in value
    )


DEPENDENCIES = "kExternalDependency"
# Of a program whose result are indices, with their rank: its last numbers are the extent that they
# index, 1 if negative ones count from its end, how many indices there are, and their own extents.
# The host checks the result of each call, which fails if an index is outside.
CHECKED_INDICES = "checked_indices"
_DEPENDENCIES = ("a list of T.ExternalDependency(short_name, url, ...)", _dependencies)
_FLAG, _TEXT = ("True or False", _flag), ("a text", _text)
_BOTH: _Names = {
    "global_symbol": ("the name that a library has for the function", _text),
    "target": ("a target's text, as 'llvm' or its JSON", _text),
    DEPENDENCIES: _DEPENDENCIES,
}
CALL_ATTRS = Table("calls", {DEPENDENCIES: _DEPENDENCIES})  # of those that every call may have
GRAPH_ATTRS = Table(
    "functions",
    {
        **_BOTH,
        "array_types": ("a tuple of pairs of an input's or output's name and a type", _pairs),
        "assumes": ("a tuple of conditions", _tuple),
        "by_rule": _FLAG,
        "decomposed": ("a tuple of (node, reason), all texts", _pairs),
        "checked_arguments": (
            "a tuple of (number of a parameter, extent, whether negative indices are legal, node)",
            _checked,
        ),
        "dim_names": ("a tuple of pairs of a dimension and its name", _tuple),
        "texts": ("a tuple of a result's name and the strings that its numbers stand for", _tuple),
        "external": _TEXT,
        "homes": ("a tuple of places", _tuple),
        "input_names": ("a tuple of texts", _texts),
        "kept": ("a tuple of (number of a result, kernel, names of the value)", _kept),
        "knobs": ("a tuple of (kernel family, knob, value)", _knobs),
        "outer": _FLAG,
        "output_names": ("a tuple of texts", _texts),
        "param_devices": ("a tuple of the keys of devices", _texts),
        "part": _FLAG,
        "placed": ("a tuple of (node, device, reason), all texts", _rows),
        "planned": _FLAG,
        "pools": ("a tuple of (name, bytes, alignment)", _pools),
        "primitive": _FLAG,
        "private": _FLAG,
        "refused": ("a tuple of (external, node, reason), all texts", _rows),
        "result_devices": ("a tuple of the keys of devices", _texts),
        "storages": _FLAG,
        "tuned": ("a tuple of (kernel, kernel family, knobs), all texts", _rows),
        "workspace_bytes": ("a number of bytes", _number),
    },
)
PROGRAM_ATTRS = Table(
    "functions",
    {
        **_BOTH,
        CHECKED_INDICES: ("a number of dimensions", _rank),
        "copy": ("a pair of devices, from and to", _pair),
        "device_function": _FLAG,
        "host": _FLAG,
        "sizes": ("a number of parameters", _number),
    },
)
LOOP_ATTRS = Table(
    "loops",
    {
        "asynchronous": _FLAG,
        "parts": ("a number of parts of shared buffers, 2 or more", _several),
        "producers": ("a number of threads, 2 or more", _several),
        "role": ("what the loop is for, a text by which schedules find it", _text),
        "tensor_maps": _FLAG,
        "thread": ("the index of a device's grid, a text", _text),
    },
)
BLOCK_ATTRS = Table(
    "blocks",
    {
        "instruction": ("the name of the instruction that it is", _text),
        "origin": ("the name of the block that it is a copy of", _text),
    },
)


def problem_of(table: Table, node: str, name: str, value: object) -> tuple[str, str] | None:
    """(message, hint) if the attribute of the function, loop or block called `node` is not legal,
    else None."""
    if "." in name:
        return None
    if name not in table.names:
        user_hint = f"one of your own has a dot in its name: 'mine.{name}'"
        hint = " ".join(filter(None, (nearest(name, table.names), user_hint)))
        return f"{table.owner} have no attribute {name!r}", hint
    expected, accepts = table.names[name]
    if not accepts(value):
        return f"attribute {name!r} is {expected}, not {value!r}", f"write {expected}"
    if name == "global_symbol" and value != node and table is GRAPH_ATTRS:
        hint = f"rename the function: name={value!r} in its decorator"
        return f"global_symbol {value!r} of a graph function called {node!r}", hint
    return None
