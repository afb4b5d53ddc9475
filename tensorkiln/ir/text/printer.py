"""Modules, functions and expressions as Python text.

Equal programs print equal text in every process: variables are named in order of appearance. Large
constants are printed by name and SHA-256 (`R.const("fc.weight", ...)`), small ones by their values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.padded import Padded
from tensorkiln.ir.relax import Function, RVar
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.names import identifier, string
from tensorkiln.ir.text.print_relax import ConstantKeys, RelaxPrinter
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.text.syntax import CLASS

Known = Callable[[KnownKernel], str | None]
HEADER = "import tensorkiln as tk\nfrom tensorkiln.script import R, T\n\n\n"


def print_expr(e: Expr) -> str:
    """The text of an expression; free variables keep their names."""
    return TirPrinter().expr(e)


def print_function(f: AnyFunction, canonical: bool = False) -> str:
    """The text of a function. `canonical` replaces every name (of the function, variables and
    buffers) by a number, so programs equal up to renaming print the same text, which is the key of
    the kernel cache."""
    return "\n".join(_function_lines(f, ConstantKeys(), "", canonical)) + "\n"


def nameless_text(f: Function) -> tuple[str, tuple[str, ...]]:
    """The canonical text of a graph function, and the names that it replaces, in the order in which
    the variables and buffers first appear."""
    graph = RelaxPrinter(ConstantKeys(), CLASS, canonical=True)
    graph.function(f)
    names = tuple(v.name for v in graph.names.all_names if isinstance(v, RVar | Var | Buffer))
    return "\n".join(graph.lines) + "\n", names


def print_module(mod: IRModule, text_of: Known = lambda f: None) -> str:
    """The module as a Python file that `from_source` reads back. `text_of` may return the text of a
    known kernel as `print_function` would, which avoids making its program; else None."""
    return _module_text(mod, ConstantKeys(), text_of)


def print_any(node: object) -> str:
    """The text of a module or a function. Raise TypeError for anything else."""
    if isinstance(node, IRModule):
        return print_module(node)
    if isinstance(node, PrimFunc | KnownKernel | Function):
        return print_function(node)
    raise TypeError(f"{type(node).__name__} has no script")


def constant_table(mod: IRModule) -> dict[str, np.ndarray]:
    """The arrays that the module's text refers to by name: `from_source(text, constants=...)`."""
    constants = ConstantKeys()
    _module_text(mod, constants)
    return {key: np.asarray(data) for key, data in constants.table.items()}


def _module_text(mod: IRModule, constants: ConstantKeys, text_of: Known = lambda f: None) -> str:
    option = "" if mod.name == "model" else f"(name={string(mod.name)})"
    lines = [f"@tk.script.ir_module{option}", f"class {CLASS}:"]
    if not mod.functions:
        lines.append("    pass")
    for i, f in enumerate(mod.functions):
        if i:
            lines.append("")
        text = text_of(f) if isinstance(f, KnownKernel) else None
        if text is not None:
            lines += [f"    {line}" for line in text.splitlines()]
        else:
            lines += _function_lines(f, constants, "    ", canonical=False)
    return HEADER + "\n".join(lines) + "\n"


def _function_lines(
    f: AnyFunction, constants: ConstantKeys, pad: str, canonical: bool
) -> list[str]:
    if isinstance(f, Function):
        graph = RelaxPrinter(constants, CLASS, canonical=canonical)
        graph.function(f, pad)
        return graph.lines
    printer = TirPrinter(canonical=canonical)
    printer.function(f.program() if isinstance(f, KnownKernel) else f, pad)
    return printer.lines


class _Unread(ConstantKeys):
    """The constants of a text that is printed for its names only, so no weights are hashed."""

    def digest(self, array: np.ndarray | Padded) -> str:
        return ""


def printed_names(f: AnyFunction) -> dict[object, str]:
    """The name in its text of each RVar, Var and Buffer that a function binds.

    A library shows these names, never `var.name`, so that a module and its parsed text compile to
    the same bytes. Names of variables in scope together are distinct, and printing a function that
    already has these names leaves them as they are.
    """
    if isinstance(f, Function):
        graph = RelaxPrinter(_Unread(), CLASS)
        graph.function(f)
        return graph.names.all_names
    printer = TirPrinter()
    printer.function(f.program() if isinstance(f, KnownKernel) else f)
    return printer.names.all_names


__all__ = [
    "constant_table",
    "identifier",
    "nameless_text",
    "print_expr",
    "print_function",
    "print_module",
    "printed_names",
]
