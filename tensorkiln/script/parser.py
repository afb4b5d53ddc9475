"""Script text, and decorated Python, to modules. The script is read, never executed."""

from __future__ import annotations

import ast
import linecache
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.text.printer import CLASS
from tensorkiln.script.parse_relax import Infer, ModuleContext, RelaxParser, header
from tensorkiln.script.parse_tir import TirParser
from tensorkiln.script.scope import Scope
from tensorkiln.script.source import Source

Definition = ast.ClassDef | ast.FunctionDef


def from_source(
    text: str,
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    infer: Infer | None = None,
    file: str = "<script>",
) -> IRModule:
    """The module a script describes: one `ir_module` class, or bare functions.

    `constants` are the arrays that `R.const("key", ...)` refers to. `infer` gives the type of an
    operator call whose result the script does not annotate. Raises UserError with the line.
    """
    source = Source(text, file)
    tree = source.parse()
    captured: dict[str, object] = {}
    classes: list[ast.ClassDef] = []
    functions: list[ast.FunctionDef] = []
    for node in tree.body:
        match node:
            case ast.ClassDef():
                classes.append(node)
            case ast.FunctionDef():
                functions.append(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                captured[name] = value
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                raise source.error(node, "expected a class or a function", "scripts are not run")
    if len(classes) + bool(functions) != 1:
        where = (classes[1:] or functions or [tree])[0]
        raise source.error(where, "expected one ir_module class, or functions")
    context = ModuleContext({CLASS}, None, constants or {}, infer)
    with _depth_checked(source):
        if classes:
            return _module(classes[0], source, captured, context)
        return IRModule(_functions(functions, source, captured, context))


@contextmanager
def _depth_checked(source: Source) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise UserError("nested too deeply", code="script", where=source.file) from None


# ---- modules and functions --------------------------------------------------------------------


def _module(
    node: ast.ClassDef, source: Source, captured: Mapping[str, object], context: ModuleContext
) -> IRModule:
    name = "model"
    call = _decorator(node, "ir_module", source)
    for k in call.keywords if call is not None else []:
        if k.arg == "infer":
            continue
        if k.arg != "name" or not isinstance(k.value, ast.Constant):
            raise source.error(k.value, f"unknown option {k.arg!r} of ir_module")
        name = str(k.value.value)
    functions: list[ast.FunctionDef] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            functions.append(item)
        elif not _is_nothing(item):
            raise source.error(item, "a module holds functions only")
    context.words |= {node.name, "cls"}
    return IRModule(_functions(functions, source, captured, context, whole=True), name)


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _functions(
    nodes: list[ast.FunctionDef],
    source: Source,
    captured: Mapping[str, object],
    context: ModuleContext,
    whole: bool = False,
) -> tuple[AnyFunction, ...]:
    """Parse tensor programs first: graphs ask for the types of their outputs."""
    kinds = [_kind(n, source) for n in nodes]
    if whole:
        context.names = [_name(n, call) for n, (_, call) in zip(nodes, kinds, strict=True)]
    for node, (is_graph, call) in zip(nodes, kinds, strict=True):
        if is_graph:
            context.headers[_name(node, call)] = partial(header, node, source, captured)
    parsed: dict[int, AnyFunction] = {}
    for graphs in (False, True):
        for i, (node, (is_graph, call)) in enumerate(zip(nodes, kinds, strict=True)):
            if is_graph is graphs:
                options = call.keywords if call is not None else []
                scope = Scope(source, captured, {}, context.words, context.names)
                f: AnyFunction
                if is_graph:
                    f = RelaxParser(scope, context).function(node, options)
                else:
                    f = TirParser(scope).function(node, options)
                parsed[i] = context.functions[f.name] = f
    return tuple(parsed[i] for i in range(len(nodes)))


def _name(node: ast.FunctionDef, call: ast.Call | None) -> str:
    for k in call.keywords if call is not None else []:
        if k.arg == "name" and isinstance(k.value, ast.Constant):
            return str(k.value.value)
    return node.name


def _kind(node: ast.FunctionDef, source: Source) -> tuple[bool, ast.Call | None]:
    """Whether it is a graph function, and its decorator's call."""
    words = [_last_word(d) for d in node.decorator_list]
    if words == ["prim_func"] or words == ["function"]:
        return words == ["function"], _decorator(node, words[0], source)
    raise source.error(node, f"{node.name!r} has no level", "decorate it with @T.prim_func")


def _last_word(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _decorator(node: Definition, word: str, source: Source) -> ast.Call | None:
    """The call of the decorator `word`; None when it is written without parentheses."""
    for d in node.decorator_list:
        if _last_word(d) == word:
            return d if isinstance(d, ast.Call) else None
    raise source.error(node, f"{node.name!r} is not decorated with {word}")


# ---- decorators -------------------------------------------------------------------------------


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


def _caller() -> FrameType:
    """The frame that applies the decorator."""
    return sys._getframe(2)


def _captured(frame: FrameType) -> Mapping[str, object]:
    return ChainMap(frame.f_locals, frame.f_globals)


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
            context = ModuleContext({CLASS}, None, {}, infer)
            with _depth_checked(source):
                return _module(node, source, _captured(frame), context)
    raise UserError(f"class {cls.__name__} is not in its file", where=f"{source.file}:{line}")


def _from_function(f: Callable[..., Any], frame: FrameType, infer: Infer | None) -> Any:
    outer = f.__qualname__.split(".")[:-1]
    if outer and outer[-1] != "<locals>":
        return f
    source, line = _file_of(frame), f.__code__.co_firstlineno
    for node in ast.walk(source.parse()):
        if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
            context = ModuleContext({CLASS}, None, {}, infer)
            with _depth_checked(source):
                return _functions([node], source, _captured(frame), context)[0]
    raise UserError(f"{f.__name__} is not in its file", where=f"{source.file}:{line}")


__all__ = ["from_source", "function", "ir_module", "prim_func"]
