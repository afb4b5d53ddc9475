"""Expressions, attributes and buffer types as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, INT64, DType
from tensorkiln.ir.expr import (
    Binary,
    CallExtern,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Reduce,
    Unary,
    Var,
)
from tensorkiln.ir.form import ARGUMENTS
from tensorkiln.ir.text.names import VariableNames, string
from tensorkiln.ir.text.syntax import COMPARE, INFIX, NEG, NOT
from tensorkiln.ir.visit import free_vars


class ExprPrinter:
    """Prints the expressions of one function. `names` holds the variables already in scope."""

    def __init__(self, names: VariableNames | None = None, *, canonical: bool = False):
        self.canonical = canonical
        self.names = names or VariableNames(canonical=canonical)
        self.lines: list[str] = []

    # ---- expressions -------------------------------------------------------------------------

    def expr(self, e: Expr, outer: int = 0) -> str:
        """The text of `e`, in parentheses if its operator has a lower precedence than `outer`."""
        return _EXPR[type(e)](self, e, outer)

    def exprs(self, items: tuple[Expr, ...]) -> str:
        """The texts of several expressions, separated by commas."""
        return ", ".join([_EXPR[type(e)](self, e, 0) for e in items])

    def tuple_(self, items: tuple[Expr, ...]) -> str:
        """Several expressions as a Python tuple, `(a,)` for one."""
        return f"({self.exprs(items)},)" if len(items) == 1 else f"({self.exprs(items)})"

    def index(self, items: tuple[Expr, ...]) -> str:
        """The text between the brackets of an access, `()` for a buffer without dimensions."""
        return self.exprs(items) or "()"

    def buffer(self, b: Buffer) -> str:
        """The name of a buffer, bound on first use."""
        return self.names.of.get(b) or self.names.bind(b, b.name, "b")

    def _int(self, e: IntImm, outer: int) -> str:
        dtype = e.dtype
        if dtype is INT64 or dtype == INT64:
            return str(e.value)
        if dtype == BOOL and e.value in (0, 1):
            return "True" if e.value else "False"
        return f"T.{dtype}({e.value})"

    def _float(self, e: FloatImm, outer: int) -> str:
        text = repr(e.value)
        if not math.isfinite(e.value):
            sign = "-" if text == "nan" and math.copysign(1.0, e.value) < 0 else ""
            text = f'"{sign}{text}"'
        return f"T.{e.dtype}({text})"

    def _binary(self, e: Binary, outer: int) -> str:
        infix = INFIX.get(e.op)
        a, b = e.a, e.b
        # `/` in the script is float division; an integer division prints as T.div(a, b).
        if infix is None or (e.op == "div" and not a.dtype.is_float):
            return f"T.{e.op}({_EXPR[type(a)](self, a, 0)}, {_EXPR[type(b)](self, b, 0)})"
        symbol, level = infix
        # Comparisons chain in Python, so neither side may be a bare comparison.
        lhs = _EXPR[type(a)](self, a, level + (level == COMPARE))
        text = f"{lhs} {symbol} {_EXPR[type(b)](self, b, level + 1)}"
        return f"({text})" if level < outer else text

    def _unary(self, e: Unary, outer: int) -> str:
        a = e.a
        if e.op == "not":
            text = f"not {self.expr(a, NOT)}"
            return f"({text})" if outer > NOT else text
        if e.op == "neg" and not isinstance(a, IntImm):
            text = f"-{self.expr(a, NEG)}"
            return f"({text})" if outer > NEG else text
        return f"T.{e.op}({self.expr(a)})"

    def call(self, node: Any) -> str:
        """An expression or statement whose class has a `form`: a call with its fields."""
        arguments = []
        for argument in ARGUMENTS[type(node)]:
            value = getattr(node, argument.name)
            if not argument.is_option:
                arguments.append(_WRITERS[argument.kind](self, value))
            elif value != argument.default:
                arguments.append(f"{argument.name}={_WRITERS[argument.kind](self, value)}")
        return f"T.{node.form.word}({', '.join(arguments)})"

    def _reduce(self, e: Reduce, outer: int) -> str:
        axes = []
        for var, extent in e.axes:
            extent_text = self.expr(extent)
            tail = "" if var.dtype == INT64 else f', "{var.dtype}"'
            axes.append(f"({self.names.bind(var, var.name)}, {extent_text}{tail})")
        text = f'T.reduce("{e.op}", [{", ".join(axes)}], {self.expr(e.value)})'
        for var, _ in reversed(e.axes):
            self.names.release(var)
        return text

    def _call_extern(self, e: CallExtern, outer: int) -> str:
        args = [f'"{e.dtype}"', string(e.name), *(self.expr(a) for a in e.args)]
        args += [f"dependencies={self.attr(e.dependencies)}"] if e.dependencies else []
        return f"T.call_extern({', '.join(args)})"

    # ---- attributes --------------------------------------------------------------------------

    def attr(self, v: object) -> str:
        """The value of an attribute. An IntImm prints as T.int64(4), a Python int as 4."""
        if isinstance(v, tuple):
            inner = ", ".join(map(self.attr, v))
            return f"({inner},)" if len(v) == 1 else f"({inner})"
        if isinstance(v, IntImm):
            return f"T.{v.dtype}({v.value})"
        if isinstance(v, Expr):
            return self.expr(v)
        if isinstance(v, str):
            return string(v)
        if isinstance(v, ExternalDependency):
            return f"T.ExternalDependency({self._dependency(v)})"
        if isinstance(v, float) and repr(v) in ("inf", "-inf", "nan"):
            return f'float("{v!r}")'
        return repr(v)

    def _dependency(self, d: ExternalDependency) -> str:
        """The fields that are not defaults, the first two by position."""
        (_, name), (_, url), *options = [(k, self.attr(v)) for k, v in d.given().items()]
        return ", ".join([name, url, *(f"{k}={v}" for k, v in options)])

    def attrs(self, items: Iterable[tuple[str, object]]) -> str:
        """Attributes as a Python dict."""
        return "{" + ", ".join(f"{string(k)}: {self.attr(v)}" for k, v in items) + "}"

    # ---- types -------------------------------------------------------------------------------

    def dim(self, d: Expr, quoted: bool) -> str:
        """An extent; in quotes if `quoted`, or if it uses a name that is not bound yet: `"n"`."""
        if isinstance(d, IntImm):
            return self.expr(d)
        free = [v for v in free_vars(d) if v not in self.names.of]
        if isinstance(d, Var) and d.dtype != INT64 and free:
            return f'T.var("{self.expr(d)}", "{d.dtype}")'
        text = self.expr(d)
        if not (quoted or free):
            return text
        # Texts in it have single quotes then, which is easier to read than escapes, unless they
        # hold quotes or escapes of their own.
        plain = "'" not in text and "\\" not in text
        return '"' + text.replace('"', "'") + '"' if plain else string(text)

    def dims(self, shape: tuple[Expr, ...], quoted: bool) -> str:
        """A shape as a Python tuple."""
        inner = ", ".join([self.dim(d, quoted) for d in shape])
        return f"({inner},)" if len(shape) == 1 else f"({inner})"

    def buffer_args(self, b: Buffer, quoted: bool, align: int = 64) -> str:
        """The arguments of `T.Buffer(...)`; `align` is the alignment that need not be printed."""
        text = f'{self.dims(b.shape, quoted)}, "{b.dtype}"'
        text += "" if b.scope == "global" else f', scope="{b.scope}"'
        text += "" if b.align == align else f", align={b.align}"
        if b.strides_given is not None:
            text += f", strides={self.dims(b.strides_given, quoted)}"
        return text


class _Texts(dict[type, Callable[..., str]]):
    """By class of node, what writes it; those with a `form` are calls."""

    def __missing__(self, cls: type) -> Callable[..., str]:
        return self.setdefault(cls, lambda p, e, outer: p.call(e))


_EXPR = _Texts(
    {
        Var: lambda p, e, outer: p.names.of.get(e) or p.names.bind(e, e.name),
        IntImm: ExprPrinter._int,
        FloatImm: ExprPrinter._float,
        Binary: ExprPrinter._binary,
        Unary: ExprPrinter._unary,
        Load: lambda p, e, outer: f"{p.buffer(e.buffer)}[{p.index(e.indices)}]",
        Intrin: lambda p, e, outer: f"T.{e.name}({p.exprs(e.args)})",
        Reduce: ExprPrinter._reduce,
        AddressOf: lambda p, e, outer: f"T.address_of({p.buffer(e.buffer)}[{p.index(e.indices)}])",
        CallExtern: ExprPrinter._call_extern,
    }
)
# By annotation of a field, what writes it as an argument of a call.
_WRITERS: dict[Any, Callable[[ExprPrinter, Any], str]] = {
    Expr: ExprPrinter.expr,
    tuple[Expr, ...]: ExprPrinter.tuple_,
    Buffer: ExprPrinter.buffer,
    DType: lambda p, dtype: f'"{dtype}"',
    str: lambda p, text: string(text),
    **dict.fromkeys((int, bool, tuple[int, ...]), lambda p, number: repr(number)),
}
