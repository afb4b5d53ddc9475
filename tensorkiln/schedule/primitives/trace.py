"""Schedule: primitives as methods, recorded in a trace that can be printed and replayed."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from tensorkiln.base.errors import nearest
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.primitives.instruction import Instruction
from tensorkiln.schedule.primitives.results import Primitive
from tensorkiln.schedule.primitives.table import PRIMITIVES
from tensorkiln.schedule.tree import navigate
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.index_map import map_text
from tensorkiln.schedule.tree.normalise import normal

Literal = Any  # int, float, str, bool, None, or tuples of them


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One call of a primitive: its name and the arguments after the function."""

    primitive: str
    args: tuple[Literal, ...] = ()
    options: tuple[tuple[str, Literal], ...] = ()

    def __str__(self) -> str:
        parts = ["f", *map(_text, self.args), *(f"{k}={_text(v)}" for k, v in self.options)]
        return f"f = {self.primitive}({', '.join(parts)})"

    def apply(self, f: PrimFunc, **extra_options: Any) -> tuple[PrimFunc, Any]:
        """(`f` after this step, what the primitive made); `extra_options` are further ones. Raises
        ScheduleError."""
        options = {**dict(self.options), **extra_options}
        self._bind(options)
        primitive = PRIMITIVES[self.primitive]
        if isinstance(primitive, Primitive):
            return primitive.run(f, *self.args, **options)
        return primitive(f, *self.args, **options), None

    def _bind(self, options: Mapping[str, Literal]) -> None:
        """Raise ScheduleError for arguments that the primitive does not take."""
        signature = _signature(self.primitive)
        try:
            signature.bind(None, *self.args, **options)
        except TypeError as e:
            names = [n for n in signature.parameters if n != "f"]
            text = f"{self.primitive}: {e}"
            near = ""
            for name in options:
                if name not in names:
                    text = f"{self.primitive} has no argument {name!r}"
                    near = nearest(name, names)
            hint = near or f"{self.primitive}(f, {', '.join(names)})"
            raise ScheduleError(text, where=self.primitive, hint=hint) from None


class Trace(list[TraceStep]):
    """Steps in order. Its text is Python that `replay` reads."""

    def __str__(self) -> str:
        return "".join(f"{step}\n" for step in self)


class Schedule:
    """A function being scheduled: every primitive is a method. One that makes loops or blocks
    returns their names, in the type of `results.py` that belongs to it or, if there is only one, as
    a string; the others return None.

        s = Schedule(f)
        i = s.split("i", 64)
        s.parallel(i.outer)
        s.func, str(s.trace)

    `check=False` skips the proofs that dependences are kept, for schedules known to be right.
    """

    def __init__(self, func: PrimFunc, check: bool = True):
        self.func, self.check = normal(func), check
        self.trace = Trace()

    def apply(self, step: TraceStep) -> Any:
        """Apply one step, append it to the trace, and return what the primitive made."""
        option = {} if self.check or not _checks(PRIMITIVES[step.primitive]) else {"check": False}
        self.func, new_names = step.apply(self.func, **option)
        self.trace.append(step)
        return new_names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _LOOKS:
            look = _LOOKS[name]
            return lambda *args, **options: look(self.func, *args, **options)
        if name not in PRIMITIVES:
            hint = nearest(name, (*PRIMITIVES, *_LOOKS))
            raise AttributeError(f"no primitive {name!r}; {hint}")
        return self._method(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *PRIMITIVES, *_LOOKS})

    def _method(self, name: str) -> Callable[..., Any]:
        function = PRIMITIVES[name]

        def method(*args: Literal, **options: Literal) -> Any:
            args = tuple(map(_said, args))
            options = {k: _said(v) for k, v in options.items()}
            for value in (*args, *options.values()):
                _text(value)
            return self.apply(TraceStep(name, _frozen(args), _frozen(tuple(options.items()))))

        method.__signature__ = _method_signature(function)  # type: ignore[attr-defined]
        method.__name__, method.__doc__ = name, function.__doc__
        return method


def replay(text: str, f: PrimFunc, check: bool = True) -> PrimFunc:
    """The function after the steps of a printed trace. The text is parsed, never run. Raises
    ScheduleError for malformed text and for a step that cannot be applied."""
    s = Schedule(f, check)
    for step in parse(text):
        s.apply(step)
    return s.func


def parse(text: str) -> Trace:
    """The steps of a printed trace. ScheduleError for text that is not one."""
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise ScheduleError(f"not Python: {e.msg}", where=f"trace, line {e.lineno}") from e
    return Trace(map(_step, tree.body))


def _step(node: ast.stmt) -> TraceStep:
    match node:
        case ast.Assign(
            targets=[ast.Name("f")],
            value=ast.Call(ast.Name(name), [ast.Name("f"), *args], keywords),
        ):
            if name not in PRIMITIVES:
                hint = nearest(name, PRIMITIVES)
                raise _malformed(node, f"no primitive {name!r}", hint)
            values = tuple(_literal(node, a) for a in args)
            options = tuple((str(k.arg), _literal(node, k.value)) for k in keywords)
            return TraceStep(name, values, options)
    raise _malformed(node, "not a step", 'as f = split(f, "i", 64)')


def _literal(node: ast.stmt, value: ast.expr) -> Literal:
    try:
        return _frozen(ast.literal_eval(value))
    except ValueError:
        raise _malformed(node, f"not a literal: {ast.unparse(value)}") from None


def _malformed(node: ast.stmt, message: str, hint: str = "") -> ScheduleError:
    return ScheduleError(message, where=f"trace, line {node.lineno}", hint=hint)


def _said(value: Any) -> Any:
    """An argument as it is recorded: an index map as text, an Instruction as its name."""
    if isinstance(value, Instruction):
        return value.name
    return map_text(value) if callable(value) else value


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _text(value: Literal) -> str:
    """A literal as Python text. ScheduleError for a value that `parse` would not read back."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    raise ScheduleError(
        f"{type(value).__name__} cannot stand in a trace",
        where="Schedule",
        hint="numbers, strings, None and tuples can; else call the primitive as a function",
    )


@cache
def _method_signature(function: Callable[..., PrimFunc]) -> inspect.Signature:
    """A primitive's signature, as a method that returns what was made."""
    signature, return_type = inspect.signature(function), None
    if isinstance(function, Primitive):
        return_type = get_args(get_type_hints(function.run)["return"])[1]
    parameters = [p for k, p in signature.parameters.items() if k != "f"]
    return signature.replace(parameters=parameters, return_annotation=return_type)


@cache
def _signature(primitive: str) -> inspect.Signature:
    return inspect.signature(PRIMITIVES[primitive])


@cache
def _checks(function: Callable[..., PrimFunc]) -> bool:
    return "check" in inspect.signature(function).parameters


# Queries of a Schedule: methods that return something and record no step.
_NAMES = "loops role blocks loops_of parent children loop reaches block"
_LOOKS: dict[str, Callable[..., Any]] = {n: getattr(navigate, n) for n in _NAMES.split()}
