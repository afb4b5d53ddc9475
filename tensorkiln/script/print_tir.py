"""Tensor programs as text: expressions, statements and `PrimFunc`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, INT64
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from tensorkiln.ir.stmt import Alloc, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import free_vars
from tensorkiln.script.names import Names, identifier, string
from tensorkiln.script.syntax import (
    COMPARE,
    INFIX,
    KIND_WORDS,
    NEG,
    NOT,
    inferred_outputs,
)


class TirPrinter:
    """One function's text. `names` may come filled with the variables already in scope."""

    def __init__(self, names: Names | None = None, *, canonical: bool = False):
        self.canonical = canonical
        self.names = names or Names(canonical=canonical)
        self.lines: list[str] = []

    # ---- expressions -------------------------------------------------------------------------

    def expr(self, e: Expr, outer: int = 0) -> str:
        """`e`, in parentheses when it binds looser than `outer`."""
        return _EXPR[type(e)](self, e, outer)

    def exprs(self, items: tuple[Expr, ...]) -> str:
        """Several, separated by commas."""
        return ", ".join([_EXPR[type(e)](self, e, 0) for e in items])

    def tuple_(self, items: tuple[Expr, ...]) -> str:
        """Several as a Python tuple."""
        return f"({self.exprs(items)},)" if len(items) == 1 else f"({self.exprs(items)})"

    def index(self, items: tuple[Expr, ...]) -> str:
        """What stands between the brackets of an access."""
        return self.exprs(items) or "()"

    def buffer(self, b: Buffer) -> str:
        """The buffer's name."""
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
        if found is None:
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

    # ---- types -------------------------------------------------------------------------------

    def dim(self, d: Expr, quoted: bool) -> str:
        """An extent: quoted where it uses names that the text around it does not bind yet."""
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

    def _buffer_args(self, b: Buffer, quoted: bool) -> str:
        text = f'{self.dims(b.shape, quoted)}, "{b.dtype}"'
        text += "" if b.scope == "global" else f', scope="{b.scope}"'
        return text if b.align == 64 else f"{text}, align={b.align}"

    # ---- statements --------------------------------------------------------------------------

    def block(self, s: Stmt, pad: str) -> None:
        """`s` as the rest of an indented block: binders scope over what follows them."""
        bound: list[Var | Buffer] = []
        while True:
            if isinstance(s, Seq) and len(s.stmts) != 1:
                for item in s.stmts[:-1]:
                    self.stmt(item, pad)
                if not s.stmts:
                    self.lines.append(f"{pad}pass")
                    break
                s = s.stmts[-1]
                if isinstance(s, Seq):
                    self.stmt(s, pad)
                    break
            if isinstance(s, Let):
                value = self.expr(s.value)
                name = self.names.bind(s.var, s.var.name)
                self.lines.append(f"{pad}{name}: T.{s.var.dtype} = {value}")
                bound.append(s.var)
            elif isinstance(s, Alloc):
                args = self._buffer_args(s.buffer, quoted=False)
                name = self.names.bind(s.buffer, s.buffer.name, "b")
                self.lines.append(f"{pad}{name} = T.alloc_buffer({args})")
                bound.append(s.buffer)
            else:
                self.stmt(s, pad)
                break
            s = s.body
        for item_bound in reversed(bound):
            self.names.release(item_bound)

    def stmt(self, s: Stmt, pad: str) -> None:
        """One statement among others."""
        _STMT[type(s)](self, s, pad)

    def _for(self, s: For, pad: str) -> None:
        lo, extent, var = s.lo, self.expr(s.extent), s.var
        zero = isinstance(lo, IntImm) and lo.value == 0 and lo.dtype == s.extent.dtype
        args = extent if zero else f"{self.expr(lo)}, extent={extent}"
        if var.dtype != s.extent.dtype:
            args += f', dtype="{var.dtype}"'
        name = self.names.bind(var, var.name)
        self.lines.append(f"{pad}for {name} in T.{KIND_WORDS[s.kind]}({args}):")
        self.block(s.body, pad + "    ")
        self.names.release(var)

    def _seq(self, s: Seq, pad: str) -> None:
        """A sequence where the script would not make one by itself."""
        self.lines.append(f"{pad}with T.seq():")
        inner = s.stmts[0] if len(s.stmts) == 1 and not isinstance(s.stmts[0], Seq) else s
        if inner is s and len(s.stmts) == 1:
            self.stmt(s.stmts[0], pad + "    ")
        else:
            self.block(inner, pad + "    ")

    def _store(self, s: Store, pad: str) -> None:
        name = self.buffer(s.buffer)
        if s.nontemporal:
            text = f"T.store({name}, {self.tuple_(s.indices)}, {self.expr(s.value)}"
            self.lines.append(f"{pad}{text}, nontemporal=True)")
        else:
            self.lines.append(f"{pad}{name}[{self.index(s.indices)}] = {self.expr(s.value)}")

    def _let(self, s: Let, pad: str) -> None:
        value = self.expr(s.value)
        name = self.names.bind(s.var, s.var.name)
        self.lines.append(f'{pad}with T.let({value}, "{s.var.dtype}") as {name}:')
        self.block(s.body, pad + "    ")
        self.names.release(s.var)

    def _if(self, s: If, pad: str) -> None:
        self.lines.append(f"{pad}if {self.expr(s.cond)}:")
        self.block(s.then, pad + "    ")
        if s.orelse is not None:
            self.lines.append(f"{pad}else:")
            self.block(s.orelse, pad + "    ")

    def _alloc(self, s: Alloc, pad: str) -> None:
        args = self._buffer_args(s.buffer, quoted=False)
        name = self.names.bind(s.buffer, s.buffer.name, "b")
        self.lines.append(f"{pad}with T.alloc_buffer({args}) as {name}:")
        self.block(s.body, pad + "    ")
        self.names.release(s.buffer)

    def _prefetch(self, s: Prefetch, pad: str) -> None:
        text = f"T.prefetch({self.buffer(s.buffer)}, {self.tuple_(s.indices)}"
        text += "" if s.locality == 3 else f", locality={s.locality}"
        self.lines.append(f"{pad}{text}, write=True)" if s.write else f"{pad}{text})")

    # ---- functions ---------------------------------------------------------------------------

    def function(self, f: PrimFunc, pad: str = "") -> None:
        """Append the whole function, decorator first."""
        for p in f.params:
            self.names.bind(p, p.name, "b" if isinstance(p, Buffer) else "v")
        params = [self._param(p) for p in f.params]
        name = "f" if self.canonical else identifier(f.name, "f")
        self.lines.append(f"{pad}@T.prim_func{self._options(f, name)}")
        self.lines.append(f"{pad}def {name}({', '.join(params)}):")
        self.block(f.body, pad + "    ")

    def _param(self, p: Buffer | Var) -> str:
        if isinstance(p, Var):
            return f"{self.names.of[p]}: T.{p.dtype}"
        return f"{self.names.of[p]}: T.Buffer({self._buffer_args(p, quoted=True)})"

    def _options(self, f: PrimFunc, name: str) -> str:
        """What the decorator must say because the parser would assume otherwise."""
        items = []
        if not self.canonical and name != f.name:
            items.append(f"name={string(f.name)}")
        if f.outputs != inferred_outputs(f.params, f.body):
            items.append(f"outputs={f.outputs}")
        if f.inplace:
            items.append(f"inplace={f.inplace!r}")
        if f.op_class != "loops":
            items.append(f"op_class={string(f.op_class)}")
        if not f.public:
            items.append("private=True")
        return f"({', '.join(items)})" if items else ""


_EXPR: dict[type, Callable[..., str]] = {
    Var: TirPrinter._var,
    IntImm: TirPrinter._int,
    FloatImm: TirPrinter._float,
    Binary: TirPrinter._binary,
    Unary: TirPrinter._unary,
    Select: TirPrinter._select,
    Cast: TirPrinter._cast,
    Load: TirPrinter._load,
    Ramp: TirPrinter._ramp,
    Broadcast: TirPrinter._broadcast,
    Shuffle: TirPrinter._shuffle,
    VectorReduce: TirPrinter._vector_reduce,
    Intrin: TirPrinter._intrin,
    Reduce: TirPrinter._reduce,
}
_STMT: dict[type, Callable[..., None]] = {
    For: TirPrinter._for,
    Seq: TirPrinter._seq,
    Store: TirPrinter._store,
    Let: TirPrinter._let,
    If: TirPrinter._if,
    Alloc: TirPrinter._alloc,
    Prefetch: TirPrinter._prefetch,
}
