"""Both languages as Python text: `print_module`, `print_function`, `print_expr`.

Equal programs print equal text, in every process: names come from the order of appearance, and
constants are printed by name and digest (`R.const("fc.weight", ...)`); their bytes never are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.padded import Padded
from tensorkiln.ir.relax import Function, RVar
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.names import identifier, string
from tensorkiln.ir.text.print_relax import Constants, RelaxPrinter
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.text.syntax import CLASS

Known = Callable[[PrimFunc], str | None]
HEADER = "import tensorkiln as tk\nfrom tensorkiln.script import R, T\n\n\n"


def print_expr(e: Expr) -> str:
    """One expression; free variables under their own names."""
    return TirPrinter().expr(e)


def print_function(f: AnyFunction, canonical: bool = False) -> str:
    """One function. `canonical` drops every name (function, variables, buffers), so that
    programs equal up to renaming print the same text: the key of the kernel cache."""
    return "\n".join(_function_lines(f, Constants(), "", canonical)) + "\n"


def nameless_text(f: Function) -> tuple[str, tuple[str, ...]]:
    """The canonical text of a graph function, and the names that are not in it, in the order in
    which what they name appears."""
    graph = RelaxPrinter(Constants(), CLASS, canonical=True)
    graph.function(f)
    names = tuple(v.name for v in graph.names.given if isinstance(v, RVar | Var | Buffer))
    return "\n".join(graph.lines) + "\n", names


def print_module(mod: IRModule, known: Known = lambda f: None) -> str:
    """The module as a Python file that `from_source` reads back. `known` may give the text of a
    tensor program, as `print_function` has it, without a look at its body."""
    return _module_text(mod, Constants(), known)


def print_any(node: object) -> str:
    """A module or a function."""
    if isinstance(node, IRModule):
        return print_module(node)
    if isinstance(node, PrimFunc | Function):
        return print_function(node)
    raise TypeError(f"{type(node).__name__} has no script")


def constant_table(mod: IRModule) -> dict[str, np.ndarray]:
    """The arrays that the module's text refers to by name: `from_source(text, constants=...)`."""
    constants = Constants()
    _module_text(mod, constants)
    return {key: np.asarray(data) for key, data in constants.table.items()}


def _module_text(mod: IRModule, constants: Constants, known: Known = lambda f: None) -> str:
    option = "" if mod.name == "model" else f"(name={string(mod.name)})"
    lines = [f"@tk.script.ir_module{option}", f"class {CLASS}:"]
    if not mod.functions:
        lines.append("    pass")
    for i, f in enumerate(mod.functions):
        if i:
            lines.append("")
        text = known(f) if isinstance(f, PrimFunc) else None
        if text is not None:
            lines += [f"    {line}" for line in text.splitlines()]
        else:
            lines += _function_lines(f, constants, "    ", canonical=False)
    return HEADER + "\n".join(lines) + "\n"


def _function_lines(f: AnyFunction, constants: Constants, pad: str, canonical: bool) -> list[str]:
    if isinstance(f, PrimFunc):
        printer = TirPrinter(canonical=canonical)
        printer.function(f, pad)
        return printer.lines
    graph = RelaxPrinter(constants, CLASS, canonical=canonical)
    graph.function(f, pad)
    return graph.lines


class _Unread(Constants):
    """Of a text that nobody reads: no weights are hashed for it."""

    def digest(self, array: np.ndarray | Padded) -> str:
        return ""


def printed_names(f: AnyFunction) -> dict[object, str]:
    """What everything that a function binds (an RVar, Var or Buffer) is called in its text.

    These are the names that a product shows: what is compiled and what its text compiles to
    must not differ. They are distinct where both are in scope, and print as themselves.
    """
    printer = TirPrinter() if isinstance(f, PrimFunc) else RelaxPrinter(_Unread(), CLASS)
    printer.function(f)  # type: ignore[arg-type]
    return printer.names.given


__all__ = [
    "constant_table",
    "identifier",
    "nameless_text",
    "print_expr",
    "print_function",
    "print_module",
    "printed_names",
]
