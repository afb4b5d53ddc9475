"""Arguments by position and by name, against a function's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorkiln.base.errors import nearest
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.native import FunctionInfo, ParamInfo


def in_order(info: FunctionInfo, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Positional and named inputs as one row."""
    names = [param.name for param in info.inputs]
    for name in named:
        if name not in names:
            raise ArgumentTypeError(
                f"{info.name} has no input {name!r}; it has {', '.join(names)}",
                code="unknown-input",
                hint=nearest(name, names),
            )
        if name in names[: len(inputs)]:
            raise ArgumentTypeError(
                f"{info.name}: input {name!r} is given twice", code="argument-count"
            )
    missing = [name for name in names[len(inputs) :] if name not in named]
    if missing or len(inputs) + len(named) != len(names):
        raise wrong_count(info, len(inputs) + len(named), missing=missing)
    return inputs + tuple(named[name] for name in names[len(inputs) :])


def wrong_count(
    info: FunctionInfo, count: int, what: str = "input", missing: Sequence[str] = ()
) -> ArgumentTypeError:
    """The error for a wrong number of inputs or outputs; hosts in other languages use the same
    words (hosts/kiln_host.h)."""
    params = info.inputs if what == "input" else info.outputs
    names = ", ".join(map(show, params)) or "none"
    tail = f"; missing {', '.join(missing)}" if missing else ""
    plural = "" if len(params) == 1 else "s"
    return ArgumentTypeError(
        f"{info.name}: expected {len(params)} {what}{plural} ({names}), received {count}{tail}",
        code="argument-count",
    )


def show(param: ParamInfo) -> str:
    """A parameter in a few words."""
    if param.shape is None:
        return f"{param.name}: {param.dtype}"
    return f"{param.name}: {param.dtype} [{', '.join(map(str, param.shape))}]"
