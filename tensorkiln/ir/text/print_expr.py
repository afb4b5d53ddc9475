"""Expressions, attributes and buffer types as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, INT64
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from tensorkiln.ir.text.names import Names, string
from tensorkiln.ir.text.syntax import COMPARE, INFIX, NEG, NOT
from tensorkiln.ir.visit import free_vars


class ExprPrinter:
    """Prints the expressions of one function. `names` holds the variables already in scope."""

    def __init__(self, names: Names | None = None, *, canonical: bool = False):
        self.canonical = canonical
        self.names = names or Names(canonical=canonical)
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

    def _var(self, e: Var, outer: int) -> str:
        return self.names.of.get(e) or self.names.bind(e, e.name)

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
        found = INFIX.get(e.op)
        a, b = e.a, e.b
        # `/` in the script is float division; an integer division prints as T.div(a, b).
        if found is None or (e.op == "div" and not a.dtype.is_float):
            return f"T.{e.op}({_EXPR[type(a)](self, a, 0)}, {_EXPR[type(b)](self, b, 0)})"
        symbol, level = found
        # Comparisons chain in Python, so neither side may be a bare comparison.
        left = _EXPR[type(a)](self, a, level + (level == COMPARE))
        text = f"{left} {symbol} {_EXPR[type(b)](self, b, level + 1)}"
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

    def _select(self, e: Select, outer: int) -> str:
        return f"T.select({self.exprs((e.cond, e.a, e.b))})"

    def _cast(self, e: Cast, outer: int) -> str:
        return f'T.Cast("{e.dtype}", {self.expr(e.a)})'

    def _load(self, e: Load, outer: int) -> str:
        return f"{self.buffer(e.buffer)}[{self.index(e.indices)}]"

    def _ramp(self, e: Ramp, outer: int) -> str:
        return f"T.Ramp({self.expr(e.base)}, {self.expr(e.stride)}, {e.lanes})"

    def _broadcast(self, e: Broadcast, outer: int) -> str:
        return f"T.Broadcast({self.expr(e.a)}, {e.lanes})"

    def _shuffle(self, e: Shuffle, outer: int) -> str:
        return f"T.shuffle({self.expr(e.a)}, {self.expr(e.b)}, {e.lanes!r})"

    def _vector_reduce(self, e: VectorReduce, outer: int) -> str:
        return f'T.vector_reduce("{e.op}", {self.expr(e.a)})'

    def _intrin(self, e: Intrin, outer: int) -> str:
        return f"T.{e.name}({self.exprs(e.args)})"

    def _reduce(self, e: Reduce, outer: int) -> str:
        axes = []
        for var, extent in e.axes:
            bound = self.expr(extent)
            tail = "" if var.dtype == INT64 else f', "{var.dtype}"'
            axes.append(f"({self.names.bind(var, var.name)}, {bound}{tail})")
        text = f'T.reduce("{e.op}", [{", ".join(axes)}], {self.expr(e.value)})'
        for var, _ in reversed(e.axes):
            self.names.release(var)
        return text

    def _address_of(self, e: AddressOf, outer: int) -> str:
        return f"T.address_of({self.buffer(e.buffer)}[{self.index(e.indices)}])"

    def _call_extern(self, e: CallExtern, outer: int) -> str:
        args = [f'"{e.dtype}"', string(e.name), *(self.expr(a) for a in e.args)]
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
        if isinstance(v, float) and repr(v) in ("inf", "-inf", "nan"):
            return f'float("{v!r}")'
        return repr(v)

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
        return '"' + text.replace('"', "'") + '"' if quoted or free else text

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


_EXPR: dict[type, Callable[..., str]] = {
    Var: ExprPrinter._var,
    IntImm: ExprPrinter._int,
    FloatImm: ExprPrinter._float,
    Binary: ExprPrinter._binary,
    Unary: ExprPrinter._unary,
    Select: ExprPrinter._select,
    Cast: ExprPrinter._cast,
    Load: ExprPrinter._load,
    Ramp: ExprPrinter._ramp,
    Broadcast: ExprPrinter._broadcast,
    Shuffle: ExprPrinter._shuffle,
    VectorReduce: ExprPrinter._vector_reduce,
    Intrin: ExprPrinter._intrin,
    Reduce: ExprPrinter._reduce,
    AddressOf: ExprPrinter._address_of,
    CallExtern: ExprPrinter._call_extern,
}
