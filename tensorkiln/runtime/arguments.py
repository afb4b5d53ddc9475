"""Match arguments by position and name with a function's parameters."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.config import MOST_THREADS
from tensorkiln.base.errors import nearest
from tensorkiln.runtime.actual_types import shown
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError


def in_order(info: FunctionInfo, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """All inputs in the order of the parameters.

    Raises ArgumentTypeError: `unknown-input` with the nearest name, `argument-count`.
    """
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
    info: FunctionInfo, count: int, kind: str = "input", missing: Sequence[str] = ()
) -> ArgumentTypeError:
    """The error for a wrong number of inputs or outputs. Hosts in other languages give the same
    message (hosts/kiln_host.h)."""
    params = info.inputs if kind == "input" else info.outputs
    names = ", ".join(map(show, params)) or "none"
    tail = f"; missing {', '.join(missing)}" if missing else ""
    plural = "" if len(params) == 1 else "s"
    return ArgumentTypeError(
        f"{info.name}: expected {len(params)} {kind}{plural} ({names}), received {count}{tail}",
        code="argument-count",
    )


def show(param: ParamInfo) -> str:
    """A parameter as text: `x: float32 [n, 3]`."""
    return f"{param.name}: {param.dtype} {param.shape_text}".rstrip()


def thread_count(threads: object) -> int:
    """Check a number of threads, within the limits of KILN_NUM_THREADS.

    Raises ArgumentTypeError unless it is an integer, ArgumentValueError beyond 0 to MOST_THREADS.
    """
    if isinstance(threads, bool) or not hasattr(threads, "__index__"):
        raise ArgumentTypeError(
            f"threads must be a whole number, received {type(threads).__name__}",
            code="argument-kind",
        )
    count = operator.index(threads)
    if not 0 <= count <= MOST_THREADS:
        raise ArgumentValueError(
            f"threads={shown(count)}: expected a whole number from 0 to {MOST_THREADS}",
            code="out-of-range",
            hint="0 is the default",
        )
    return count
