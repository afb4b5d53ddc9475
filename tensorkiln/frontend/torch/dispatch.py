"""Find the importer of an ATen operator, and give it the arguments by torch's schema.

An importer is a function `f(g, *arguments, **options)` whose positional parameters are those of the
operator's schema, in order; the last may be left out. What says where and how a result lies in
memory is not passed on: devices are checked by the importer of the program, and every tensor here
is row-major.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorkiln.base.errors import nearest
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.complex_values import Complex

AtenImporter = Callable[..., "Val | Complex | Sequence[Val | Complex | None]"]
AtenTable = Mapping[str, AtenImporter]

# Arguments about memory, which no result depends on.
_PLACEMENT = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "dense_dim"}
_MISSING = object()


def operator_name(target: Any) -> str:
    """The name of an OpOverload in tables: `add.Tensor`, and `relu` for the overload `default`.
    Operators of other packages have their namespace in front, `quantized::add`."""
    space, _, name = target._schema.name.partition("::")
    overload = target._schema.overload_name
    full = f"{name}.{overload}" if overload else name
    return full if space == "aten" else f"{space}::{full}"


def find(table: AtenTable, reasons: Mapping[str, str], name: str) -> AtenImporter:
    """The importer of an operator; NodeProblem, with a reason where one is known, without one."""
    if name in table:
        return table[name]
    reason = reasons.get(name) or reasons.get(name.partition(".")[0])
    message = "the operator is not supported" + (f": {reason}" if reason else "")
    overloads = [key for key in table if key.partition(".")[0] == name.partition(".")[0]]
    hint = "" if reason else nearest(name, overloads)
    raise unsupported(message, hint, "operator")


def arguments(
    importer: AtenImporter, schema: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and options for the importer, from those of a node.

    NodeProblem for an option that the importer does not know, unless it has its default.
    """
    positional, options = [], {}
    for k, row in enumerate(schema.arguments):
        argument = args[k] if k < len(args) else named.get(row.name, _MISSING)
        if row.kwarg_only:
            if argument is not _MISSING and row.name not in _PLACEMENT:
                options[row.name] = argument
        else:
            positional.append((row, argument))
    while positional and positional[-1][1] is _MISSING:
        positional.pop()
    parameters = inspect.signature(importer).parameters
    any_option = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for row in schema.arguments:
        if row.name in options and row.name not in parameters and not any_option:
            value = options.pop(row.name)
            if value is not None and not (row.has_default_value() and value == row.default_value):
                raise unsupported(f"argument {row.name}={value!r}")
    values = [row.default_value if arg is _MISSING else arg for row, arg in positional]
    return _within(parameters, positional, values), options


def _within(parameters: Mapping[str, Any], rows: Sequence[Any], values: list[Any]) -> list[Any]:
    """The arguments that the importer has parameters for; the others must have their defaults."""
    kinds = [p.kind for p in parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return values
    parameter_count = sum(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds) - 1
    for (row, _), value in zip(rows[parameter_count:], values[parameter_count:], strict=True):
        if (
            row.name not in _PLACEMENT
            and value is not None
            and not (row.has_default_value() and value == row.default_value)
        ):
            raise unsupported(f"argument {row.name}={value!r}")
    return values[:parameter_count]
