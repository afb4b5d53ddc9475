"""From script text and decorated Python to modules. Scripts are parsed, never executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError, require
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Type
from tensorkiln.ir.text.printer import CLASS
from tensorkiln.script.grammar import GRAMMAR
from tensorkiln.script.graph_state import Infer, ModuleContext
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_graph import parse_graph, parse_header
from tensorkiln.script.parse_program import parse_program
from tensorkiln.script.scope import NameScope
from tensorkiln.script.source import Source

Definition = ast.ClassDef | ast.FunctionDef


def from_source(
    text: str,
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    infer: Infer | None = None,
    namespace: Mapping[str, object] | None = None,
    file: str = "<script>",
) -> IRModule:
    """Parse a script, which has either one `ir_module` class or bare functions, to a module.

    `constants` maps keys to the arrays that `R.const("key", ...)` refers to. `infer` returns the
    result type of a call of an operator that Tensorkiln does not know, where the script does not
    annotate it. `namespace` has the Python values, functions and macros that the script may use by
    name; without it, parsing runs no functions but a few builtins such as `len` and `range`. `file`
    is the name in error locations. Raise UserError, with file, line and column, if the script is
    not valid.
    """
    require(text, str, "text")
    source = Source(text, file)
    tree = source.parse()
    captured: dict[str, object] = dict(namespace or {})
    classes: list[ast.ClassDef] = []
    functions: list[ast.FunctionDef] = []
    for node in tree.body:
        match node:
            case ast.ClassDef():
                classes.append(node)
            case ast.FunctionDef() if _is_macro(node):
                captured[node.name] = Macro(node.name, node, source, captured, trusted=False)
            case ast.FunctionDef():
                functions.append(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                captured[name] = value
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                raise source.error(node, "expected a class or a function", "scripts are not run")
    if len(classes) + bool(functions) != 1:
        surplus = (classes[1:] or functions or [tree])[0]
        raise source.error(surplus, "expected one ir_module class, or functions")
    context = ModuleContext({CLASS}, None, constants or {}, infer or ops.infer)
    with depth_checked(source):
        if classes:
            return parse_module(classes[0], source, captured, context)
        return IRModule(parse_functions(functions, source, captured, context))


@contextmanager
def depth_checked(source: Source) -> Iterator[None]:
    """Turn a RecursionError while parsing into a UserError: the script is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise UserError("nested too deeply", code="script", where=source.file) from None


# ---- modules and functions --------------------------------------------------------------------


def _is_macro(node: ast.FunctionDef) -> bool:
    return [_last_word(d) for d in node.decorator_list] == ["macro"]


def parse_module(
    node: ast.ClassDef,
    source: Source,
    captured: Mapping[str, object],
    context: ModuleContext,
    trusted: bool = False,
) -> IRModule:
    """Parse an `ir_module` class; the parameters are as for `parse_functions`."""
    name = "model"
    call = _decorator(node, "ir_module", source)
    for k in call.keywords if call is not None else []:
        if k.arg == "infer":
            continue
        if k.arg != "name":
            raise source.error(k.value, f"unknown option {k.arg!r} of ir_module", "it takes name=")
        if not isinstance(k.value, ast.Constant) or not isinstance(k.value.value, str):
            raise source.error(k.value, "the name of a module is a string")
        name = k.value.value
    functions: list[ast.FunctionDef] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            functions.append(item)
        elif not _is_nothing(item):
            raise source.error(item, "a module holds functions only")
    context.words |= {node.name, "cls"}
    return IRModule(
        parse_functions(functions, source, captured, context, trusted, whole=True), name
    )


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def parse_functions(
    nodes: list[ast.FunctionDef],
    source: Source,
    captured: Mapping[str, object],
    context: ModuleContext,
    trusted: bool = False,
    whole: bool = False,
) -> tuple[AnyFunction, ...]:
    """Parse functions and return them in their written order.

    Tensor programs are parsed first, because graphs use the types of their outputs. `trusted` is as
    in `NameScope`; `whole` says that `nodes` are all functions of the module.
    """
    kinds = [_kind(n, source) for n in nodes]
    if whole:
        context.names = [_name(n, call) for n, (_, call) in zip(nodes, kinds, strict=True)]
    for node, (is_graph, call) in zip(nodes, kinds, strict=True):
        if is_graph:
            context.headers[_name(node, call)] = partial(_header, node, source, captured)
    parsed: dict[int, AnyFunction] = {}
    for graphs in (False, True):
        for i, (node, (is_graph, call)) in enumerate(zip(nodes, kinds, strict=True)):
            if is_graph is graphs:
                options = call.keywords if call is not None else []
                scope = NameScope(
                    GRAMMAR, source, captured, {}, context.words, context.names, trusted
                )
                f: AnyFunction
                if is_graph:
                    f = parse_graph(scope, context, node, options)
                else:
                    f = parse_program(scope, node, options)
                parsed[i] = context.functions[f.name] = f
    return tuple(parsed[i] for i in range(len(nodes)))


def _header(
    node: ast.FunctionDef, source: Source, captured: Mapping[str, object]
) -> tuple[tuple[Type, ...], Type | None]:
    return parse_header(NameScope(GRAMMAR, source, captured), node)


def _name(node: ast.FunctionDef, call: ast.Call | None) -> str:
    for k in call.keywords if call is not None else []:
        if k.arg == "name" and isinstance(k.value, ast.Constant):
            return str(k.value.value)
    return node.name


def _kind(node: ast.FunctionDef, source: Source) -> tuple[bool, ast.Call | None]:
    """Return whether a function is a graph function, and the call in its decorator, if any."""
    words = [_last_word(d) for d in node.decorator_list]
    if words == ["prim_func"] or words == ["function"]:
        return words == ["function"], _decorator(node, words[0], source)
    raise source.error(
        node, f"{node.name!r} needs one known decorator", "decorate it with @T.prim_func"
    )


def _last_word(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _decorator(node: Definition, word: str, source: Source) -> ast.Call | None:
    """Return the call of the decorator `word`, None if it is written without parentheses; raise
    UserError if `node` is not decorated with it."""
    for d in node.decorator_list:
        if _last_word(d) == word:
            return d if isinstance(d, ast.Call) else None
    raise source.error(node, f"{node.name!r} is not decorated with {word}")
