"""Decorators: Python functions and classes become programs, read from their source.

The values of Python around them are those of the moment of the decoration.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.text.printer import CLASS
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_relax import Infer, ModuleContext
from tensorkiln.script.parser import Definition, depth_checked, parse_functions, parse_module
from tensorkiln.script.source import Source


def ir_module(cls: type | None = None, *, infer: Infer | None = None, **options: object) -> Any:
    """Decorator: the IRModule that a class of `T.prim_func`s and `R.function`s describes.

    Numbers, strings, tuples and arrays of the surrounding scope may be used by name. `infer`
    gives the types of operator calls that the script does not annotate.
    """
    frame = _caller()

    def convert(c: type) -> IRModule:
        return _from_class(c, frame, infer)

    return convert if cls is None else convert(cls)


def prim_func(f: Callable[..., Any] | None = None, **options: object) -> Any:
    """Decorator: the PrimFunc a Python function describes (inside an `ir_module`, a mark)."""
    frame = _caller()

    def convert(g: Callable[..., Any]) -> Any:
        return _from_function(g, frame, None)

    return convert if f is None else convert(f)


def function(
    f: Callable[..., Any] | None = None, *, infer: Infer | None = None, **options: object
) -> Any:
    """Decorator: the graph Function a Python function describes (in an `ir_module`, a mark)."""
    frame = _caller()

    def convert(g: Callable[..., Any]) -> Any:
        return _from_function(g, frame, infer)

    return convert if f is None else convert(f)


def macro(f: Callable[..., Any]) -> Macro:
    """Decorator: statements with parameters, for scripts to call.

    A parameter may be given an expression, a buffer or a Python value. Other names mean what they
    mean where the macro is defined.
    """
    frame = _caller()
    source, line = _file_of(frame), f.__code__.co_firstlineno
    for node in ast.walk(source.parse()):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
            captured = _captured(frame, f)
            made = Macro(f.__name__, node, source, captured, trusted=True)
            captured[f.__name__] = made  # it may call itself
            return made
    raise UserError(f"{f.__name__} is not in its file", where=f"{source.file}:{line}")


def _caller() -> FrameType:
    """The frame that applies the decorator."""
    return sys._getframe(2)


def _captured(frame: FrameType, f: Callable[..., Any] | None = None) -> ChainMap[str, object]:
    """What names mean around a definition: what the function closes over, locals, globals."""
    cells: dict[str, object] = {}
    if f is not None and f.__closure__:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__, strict=True):
            with suppress(ValueError):  # a cell that is not filled yet
                cells[name] = cell.cell_contents
    return ChainMap(cells, dict(frame.f_locals), frame.f_globals)


def _file_of(frame: FrameType) -> Source:
    file = frame.f_code.co_filename
    lines = linecache.getlines(file, frame.f_globals)
    if not lines:
        message = "the source text is not available"
        raise UserError(message, code="script", where=file, hint="use from_source(text)")
    return Source("".join(lines), file)


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _from_class(cls: type, frame: FrameType, infer: Infer | None) -> IRModule:
    source, line = _file_of(frame), frame.f_lineno
    for node in ast.walk(source.parse()):
        if not isinstance(node, ast.ClassDef) or node.name != cls.__name__:
            continue
        if _first_line(node) <= line <= (node.end_lineno or node.lineno):
            context = ModuleContext({CLASS}, None, {}, infer or ops.infer)
            with depth_checked(source):
                return parse_module(node, source, _captured(frame), context, trusted=True)
    raise UserError(f"class {cls.__name__} is not in its file", where=f"{source.file}:{line}")


def _from_function(f: Callable[..., Any], frame: FrameType, infer: Infer | None) -> Any:
    outer = f.__qualname__.split(".")[:-1]
    if outer and outer[-1] != "<locals>":
        return f
    source, line = _file_of(frame), f.__code__.co_firstlineno
    for node in ast.walk(source.parse()):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
            context = ModuleContext({CLASS}, None, {}, infer or ops.infer)
            with depth_checked(source):
                return parse_functions([node], source, _captured(frame, f), context, True)[0]
    raise UserError(f"{f.__name__} is not in its file", where=f"{source.file}:{line}")


__all__ = ["function", "ir_module", "macro", "prim_func"]
