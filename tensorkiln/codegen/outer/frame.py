"""The frame of one outer function: its values, its dimensions, the lines of its C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_text.function import CFunction, aligned
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.size_locals import DECLARATION, measured
from tensorkiln.codegen.c_text.sizes import Formula, expression_text, size_of
from tensorkiln.codegen.c_text.text import heading, quote
from tensorkiln.codegen.host.weights import WeightArena
from tensorkiln.codegen.outer.types import Tables
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.relax import (
    Bound,
    Call,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    Tuple,
    TupleItem,
    Value,
)
from tensorkiln.ir.visit import free_vars

_WIDTH = 100
_PLACES = re.compile(r'"(?:[^"\\]|\\.)*"|, ')  # string literals, and where a line may be broken


@dataclass(slots=True)
class OuterLibrary:
    """What the outer functions of one module share. `prim_funcs` are the tensor programs that they
    call; `texts` and `descriptors` are the C of the functions that are finished."""

    mod: IRModule
    arena: WeightArena
    emit_call: Callable[[Any, RVar, Call, str], None]  # calls.py, which imports this file
    tables: Tables = field(default_factory=Tables)
    prim_funcs: dict[str, AnyKernel] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    descriptors: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    spelled: dict[object, str] = field(default_factory=dict)  # variable -> name in the script

    def fresh(self, name: str) -> str:
        """A unique C name for a function: a second `f` becomes `f_2`."""
        unique = unused(c_name(name), self.names)
        self.names.add(unique)
        return unique


class Frame:
    """The base of `OuterWriter`: slots for owned values, names of dimensions, lines of C."""

    def __init__(self, library: OuterLibrary, f: Function, c: str):
        self.library, self.f, self.c = library, f, c
        self.lines: list[str] = []
        self.slots: dict[str, None] = {}
        self.slot_sizes: dict[str, int] = {}
        self.symbols: dict[Var, str] = {}
        self.known: set[Var] = set()
        self._indent = "    "
        self.where = ""  # name of the binding whose steps are emitted, for error messages
        self.dim_names = dict(f.attrs.get("dim_names", ()))
        self._sizes = 0  # number of local variables for sizes that need arithmetic

    # ---- names -------------------------------------------------------------------------------

    def slot(self, name: str, count: int = 0) -> str:
        """Add an owned value (or an array of `count`) to the frame and return its C text, such as
        `v.x`. Names are unique: a second `x` becomes `x_1`."""
        unique = base = c_name(name)
        k = 0
        while unique in self.slots:
            k += 1
            unique = f"{base}_{k}"
        self.slots[unique] = None
        self.slot_sizes[unique] = count
        return f"v.{unique}"

    def symbol(self, v: Var) -> str:
        """The C name of a dimension, chosen at its first use and unique in the function."""
        if v not in self.symbols:
            names = set(self.symbols.values())
            self.symbols[v] = unused(c_name(self.library.spelled[v]), names, first=1)
        return self.symbols[v]

    def size(self, e: Expr) -> str:
        """C text of a size or number. UserError (code `unbound-dimension`) if one of its dimensions
        has no value at this point. A size that needs arithmetic is first computed into a local
        variable, in lines that are added here."""
        for v in free_vars(e):
            if v not in self.known:
                raise UserError(
                    f"{self.where}: dimension {v.name} has no value here",
                    code="unbound-dimension",
                    where=self.f.name,
                    hint=f"a parameter or a match_cast whose type has {v.name} alone as a size",
                )
        size = size_of(e, self.symbols)
        if not isinstance(size, Formula):
            return str(size)
        name, self._sizes = f"size_{self._sizes}", self._sizes + 1
        words = expression_text(e, {v: self.shown(v) for v in free_vars(e)})
        for line in measured(f"const int64_t {name}", size.checked, words).splitlines():
            self.line(line[4:])
        self.step(f"kiln_fits(KILN_ERROR_RANGE, {quote(self.f.name)}, &large)")
        return name

    def name(self, var: RVar) -> str:
        """The name of a variable in the function's script."""
        return self.library.spelled[var]

    # ---- lines -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self.lines += _folded(self._indent + text) if text else [""]

    def step(self, call: str) -> None:
        """Add a call that may fail; on failure the C jumps to the exit of the function, with the
        name of the binding for the error message."""
        self.line(f"KILN_TRY({quote(self.where)}, {call});")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Put the lines that are added inside the `with` statement into braces after `head`."""
        self.line(f"{head} {{".lstrip())
        self._indent += "    "
        yield
        self._indent = self._indent[4:]
        self.line("}")

    # ---- text ----------------------------------------------------------------------------------

    def shown(self, v: Var) -> str:
        """The model's name of a dimension."""
        return str(self.dim_names.get(v, self.library.spelled[v]))

    def summary(self, var: RVar, value: Bound) -> str:
        """A comment of one line that describes a binding."""
        name, short = self.name(var), self._short
        match value:
            case Call(callee, args, _, span):
                callee_text = callee if isinstance(callee, str) else short(callee)
                tail = f"    {span}" if span else ""
                return f"{name} = {callee_text}({', '.join(map(short, args))}){tail}"
            case If(cond):
                return f"{name} = ... if {short(cond)} else ..."
            case Lambda(function):
                return f"{name} = a function ({', '.join(map(short, function.params))})"
            case TupleItem(v, index):
                return f"{name} = {short(v)}[{index}]"
            case MatchCast(v, _):
                return f"{name} = {short(v)}, checked"
            case _:
                return f"{name} = {short(value)}"

    def _short(self, v: Value) -> str:
        if isinstance(v, Tuple):
            return f"({', '.join(map(self._short, v.fields))})"
        if isinstance(v, RVar):
            return self.name(v)
        return v.name if isinstance(v, GlobalRef) else type(v).__name__

    def finish(self, n_params: int) -> None:
        """Add the function's C and its descriptor to the library. Dimensions that the C never reads
        are not declared."""
        name = quote(self.f.name)
        frame = [
            f"        kiln_value {s}{f'[{n}]' if (n := self.slot_sizes[s]) else ''};"
            for s in self.slots
        ]
        text = "\n".join(self.lines)
        declared = [
            f"    int64_t s_{s} = -1;"
            for s in self.symbols.values()
            if re.search(rf"\bs_{s}\b(?! = )", text)
        ]
        dropped = [s for s in self.symbols.values() if f"    int64_t s_{s} = -1;" not in declared]
        for s in dropped:
            text = re.sub(rf"^ *s_{s} = .*;\n?", "", text, flags=re.M)
        parameters = ("const kiln_value *captured", "const kiln_value *args", "kiln_value *result")
        body = [
            "    struct {",
            *(frame or ["        kiln_value none;"]),
            "    } v;",
            *declared,
            *([DECLARATION] if self._sizes else []),
            '    const char *at = "";',
            f"    int code = kiln_enter({name}, (kiln_value *)&v, sizeof v);",
            "    (void)captured;\n    (void)args;",
            f"    if (code != KILN_OK)\n        goto end;\n{text}",
            "end:",
            f"    return kiln_leave({name}, at, code, (kiln_value *)&v, sizeof v);",
        ]
        function = CFunction(aligned(f"static int body_{self.c}(", parameters), body)
        self.library.texts.append(f"{heading(self.f.name)}\n{function.definition}")
        self.library.descriptors.append(
            f"static const kiln_outer outer_{self.c} = {{{name}, {n_params}, body_{self.c}}};"
        )


def _folded(line: str) -> list[str]:
    """A line of C, broken after commas if it is too long."""
    lead = len(line) - len(line.lstrip())
    out = []
    while len(line) > _WIDTH:
        places = [m.end() for m in _PLACES.finditer(line) if m[0] == ", " and m.end() > lead + 12]
        fit = [p for p in places if p <= _WIDTH]
        if not places or places[0] >= len(line):
            break
        place = fit[-1] if fit else places[0]
        out.append(line[:place].rstrip())
        line = " " * (lead + 8) + line[place:]
    return [*out, line]


__all__ = ["Frame", "OuterLibrary"]
