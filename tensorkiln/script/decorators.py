"""Decorators that convert Python functions and classes to IR.

The source text is parsed, never executed. Names of the surrounding Python code have the values that
they have when the decorator is applied.
"""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any

from tensorkiln import ops
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.text.printer import CLASS
from tensorkiln.script.definition_text import text_around
from tensorkiln.script.graph_state import Infer, ModuleContext
from tensorkiln.script.macro import Macro
from tensorkiln.script.parser import Definition, depth_checked, parse_functions, parse_module


def ir_module(cls: type | None = None, *, infer: Infer | None = None, **options: object) -> Any:
    """Decorator: convert a class of `T.prim_func`s and `R.function`s to an IRModule.

    Python values, functions and macros of the surrounding scope may be used by name. `infer`
    returns the result type of a call of an operator that Tensorkiln does not know, where the script
    does not annotate it. Raise UserError with the place of the first error.
    """
    frame = _caller()

    def convert(c: type) -> IRModule:
        return _from_class(c, frame, infer)

    return convert if cls is None else convert(cls)


def prim_func(f: Callable[..., Any] | None = None, **options: object) -> Any:
    """Decorator: convert a Python function to a PrimFunc; raise UserError with the place of the
    first error. Inside an `ir_module` class it only marks the function."""
    frame = _caller()

    def convert(g: Callable[..., Any]) -> Any:
        return _from_function(g, frame, None)

    return convert if f is None else convert(f)


def function(
    f: Callable[..., Any] | None = None, *, infer: Infer | None = None, **options: object
) -> Any:
    """Decorator: convert a Python function to a graph Function; `infer` and errors are as for
    `ir_module`. Inside an `ir_module` class it only marks the function."""
    frame = _caller()

    def convert(g: Callable[..., Any]) -> Any:
        return _from_function(g, frame, infer)

    return convert if f is None else convert(f)


def macro(f: Callable[..., Any] | None = None, *, hygienic: bool = True) -> Any:
    """Decorator: make a macro, whose statements are inlined wherever a tensor program calls it.

    Arguments may be expressions, buffers and Python values. All other names in the macro are looked
    up where it is defined, not where it is called; UnsupportedError for `hygienic=False`, which
    would look them up there.
    """
    frame = _caller()
    if hygienic is not True:
        raise UnsupportedError(
            "T.macro(hygienic=False): names in a macro are those of the place where it is defined",
            where="T.macro",
            hint="pass what the caller has as an argument",
        )
    return _macro(f, frame) if f is not None else lambda g: _macro(g, frame)


def _macro(f: Callable[..., Any], frame: FrameType) -> Macro:
    _require_function(f, "T.macro")
    source, line = text_around(frame), f.__code__.co_firstlineno
    for node in ast.walk(source.parse()):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
            captured = _captured(frame, f)
            macro = Macro(f.__name__, node, source, captured, trusted=True)
            captured[f.__name__] = macro  # for recursion
            return macro
    raise UserError(f"{f.__name__} is not in its file", where=f"{source.file}:{line}")


def _caller() -> FrameType:
    """Return the frame of the code that applies the decorator: the caller of our caller."""
    return sys._getframe(2)


def _captured(frame: FrameType, f: Callable[..., Any] | None = None) -> ChainMap[str, object]:
    """Return the names visible at a definition: the closure of `f`, then locals, then globals."""
    cells: dict[str, object] = {}
    if f is not None and f.__closure__:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__, strict=True):
            with suppress(ValueError):  # the variable has no value yet
                cells[name] = cell.cell_contents
    return ChainMap(cells, dict(frame.f_locals), frame.f_globals)


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _require_function(f: object, decorator: str) -> None:
    if not isinstance(f, FunctionType):
        raise UserError(
            f"{decorator} decorates a function, received {type(f).__name__}",
            code="script",
            where=decorator,
            hint="its options have names",
        )


def _from_class(cls: type, frame: FrameType, infer: Infer | None) -> IRModule:
    if not isinstance(cls, type):
        raise UserError(
            f"ir_module decorates a class, received {type(cls).__name__}",
            code="script",
            where="ir_module",
            hint="its options have names",
        )
    source, line = text_around(frame), frame.f_lineno
    for node in ast.walk(source.parse()):
        if not isinstance(node, ast.ClassDef) or node.name != cls.__name__:
            continue
        if _first_line(node) <= line <= (node.end_lineno or node.lineno):
            context = ModuleContext({CLASS}, None, {}, infer or ops.infer)
            with depth_checked(source):
                return parse_module(node, source, _captured(frame), context, trusted=True)
    raise UserError(f"class {cls.__name__} is not in its file", where=f"{source.file}:{line}")


def _from_function(f: Callable[..., Any], frame: FrameType, infer: Infer | None) -> Any:
    _require_function(f, "T.prim_func, R.function")
    outer = f.__qualname__.split(".")[:-1]
    if outer and outer[-1] != "<locals>":
        return f
    source, line = text_around(frame), f.__code__.co_firstlineno
    for node in ast.walk(source.parse()):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
            context = ModuleContext({CLASS}, None, {}, infer or ops.infer)
            with depth_checked(source):
                return parse_functions([node], source, _captured(frame, f), context, True)[0]
    raise UserError(f"{f.__name__} is not in its file", where=f"{source.file}:{line}")


__all__ = ["function", "ir_module", "macro", "prim_func"]
