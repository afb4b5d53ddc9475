"""Tensor programs as text: statements and `PrimFunc`."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Binary, Expr, IntImm, Var
from tensorkiln.ir.outputs import inferred_outputs
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Block,
    CallKernel,
    Evaluate,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    Sync,
    While,
)
from tensorkiln.ir.text.names import identifier, reference, string
from tensorkiln.ir.text.print_expr import ExprPrinter
from tensorkiln.ir.text.syntax import CLASS, KIND_WORDS


class TirPrinter(ExprPrinter):
    """Prints statements and tensor programs; appends to `lines`."""

    # ---- statements --------------------------------------------------------------------------

    def block(self, s: Stmt, pad: str) -> None:
        """`s` as the rest of an indented block.

        A Let, Alloc or MatchBuffer whose body ends the block prints as an assignment; what follows
        it is its body.
        """
        block_names: list[Var | Buffer] = []
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
                block_names.append(s.var)
            elif isinstance(s, Alloc | MatchBuffer):
                name, call_text = self._constructor(s)
                self.lines.append(f"{pad}{name} = {call_text}")
                block_names.append(s.buffer)
            else:
                self.stmt(s, pad)
                break
            s = s.body
        for item_bound in reversed(block_names):
            self.names.release(item_bound)

    def stmt(self, s: Stmt, pad: str) -> None:
        """A statement that is not the last of its block; a binder prints as a `with` statement."""
        _STMT[type(s)](self, s, pad)

    def _for(self, s: For, pad: str) -> None:
        lo, extent, var = s.lo, self.expr(s.extent), s.var
        zero = isinstance(lo, IntImm) and lo.value == 0 and lo.dtype == s.extent.dtype
        args = extent if zero else f"{self.expr(lo)}, extent={extent}"
        if var.dtype != s.extent.dtype:
            args += f', dtype="{var.dtype}"'
        attrs = dict(s.attrs.items_)
        if s.kind == "thread":
            args += f", thread={self.attr(attrs.pop('thread'))}"
        if attrs:
            args += f", annotations={self.attrs(attrs.items())}"
        name = self.names.bind(var, var.name)
        self.lines.append(f"{pad}for {name} in T.{KIND_WORDS[s.kind]}({args}):")
        self.block(s.body, pad + "    ")
        self.names.release(var)

    def _seq(self, s: Seq, pad: str) -> None:
        """A sequence nested in another, which the parser would otherwise flatten."""
        self.lines.append(f"{pad}with T.seq():")
        inner = s.stmts[0] if len(s.stmts) == 1 and not isinstance(s.stmts[0], Seq) else s
        if inner is s and len(s.stmts) == 1:
            self.stmt(s.stmts[0], pad + "    ")
        else:
            self.block(inner, pad + "    ")

    def _store(self, s: Store, pad: str) -> None:
        place = f"{self.buffer(s.buffer)}[{self.index(s.indices)}]"
        text = self.call(s) if s.nontemporal else f"{place} = {self.expr(s.value)}"
        self.lines.append(pad + text)

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

    def _constructor(self, s: Alloc | MatchBuffer) -> tuple[str, str]:
        """The name of the new buffer, and the text of the call that makes it."""
        call = f"T.alloc_buffer({self.buffer_args(s.buffer, quoted=False)})"
        if isinstance(s, MatchBuffer):
            args = self.buffer_args(s.buffer, False, s.buffer.dtype.bytes)
            call = f"T.match_buffer({self.buffer(s.source)}[{self.index(s.indices)}], {args})"
        return self.names.bind(s.buffer, s.buffer.name, "b"), call

    def _alloc(self, s: Alloc | MatchBuffer, pad: str) -> None:
        name, call_text = self._constructor(s)
        self.lines.append(f"{pad}with {call_text} as {name}:")
        self.block(s.body, pad + "    ")
        self.names.release(s.buffer)

    def _called(self, s: Stmt, pad: str) -> None:
        self.lines.append(pad + self.call(s))

    def _while(self, s: While, pad: str) -> None:
        self.lines.append(f"{pad}while {self.expr(s.cond)}:")
        self.block(s.body, pad + "    ")

    def _evaluate(self, s: Evaluate, pad: str) -> None:
        self.lines.append(f"{pad}{self.expr(s.value)}")

    def _call_kernel(self, s: CallKernel, pad: str) -> None:
        args = [reference(CLASS, s.name), *map(self._operand, s.args)]
        if s.grid:
            args.append(f"grid={self.tuple_(s.grid)}")
        if s.block:
            args.append(f"block={s.block!r}")
        if s.span and not self.canonical:
            args.append(f"span={string(s.span)}")
        self.lines.append(f"{pad}T.call({', '.join(args)})")

    def _operand(self, e: Expr) -> str:
        """An argument of a call; the name of a buffer alone means the address of its start."""
        if isinstance(e, AddressOf) and all(i == IntImm(0) for i in e.indices):
            return self.buffer(e.buffer)
        return self.expr(e)

    def _assert(self, s: Assert, pad: str) -> None:
        self.lines.append(f"{pad}assert {self.expr(s.cond)}, {string(s.message)}")

    # ---- blocks ------------------------------------------------------------------------------

    def _block(self, s: Block, pad: str) -> None:
        self.lines.append(f"{pad}with T.block({string(s.name)}):")
        inner = pad + "    "
        for i in s.iters:
            head = f"T.axis.{i.kind}({self.exprs((i.extent, i.value))})"
            self.lines.append(f"{inner}{self.names.bind(i.var, i.var.name)} = {head}")
        self.lines.append(f"{inner}T.reads({self._regions(s.reads)})")
        self.lines.append(f"{inner}T.writes({self._regions(s.writes)})")
        if s.attrs:
            self.lines.append(f"{inner}T.block_attr({self.attrs(s.attrs.items_)})")
        if s.init is not None:
            self.lines.append(f"{inner}with T.init():")
            self.block(s.init, inner + "    ")
        self.block(s.body, inner)
        for i in reversed(s.iters):
            self.names.release(i.var)

    def _regions(self, regions: tuple[Region, ...]) -> str:
        out = []
        for r in regions:
            ranges = [self._range(lo, extent) for lo, extent in r.ranges]
            out.append(f"{self.buffer(r.buffer)}[{', '.join(ranges) or '()'}]")
        return ", ".join(out)

    def _range(self, lo: Expr, extent: Expr) -> str:
        """`lo` for an extent of 1, else `lo:end`."""
        start = self.expr(lo)
        if extent == IntImm(1, lo.dtype):
            return start
        if lo == IntImm(0, lo.dtype):
            return f"{start}:{self.expr(extent)}"
        if isinstance(lo, IntImm) and isinstance(extent, IntImm) and lo.dtype == INT64:
            return f"{start}:{self.expr(IntImm(lo.value + extent.value, lo.dtype))}"
        return f"{start}:{self.expr(Binary('add', lo, extent))}"

    # ---- functions ---------------------------------------------------------------------------

    def function(self, f: PrimFunc, pad: str = "") -> None:
        """Append the whole function, decorator first."""
        self.names.reserve(CLASS)
        for p in f.params:
            self.names.bind(p, p.name, "b" if isinstance(p, Buffer) else "v")
        params = [self._param(p) for p in f.params]
        name = "f" if self.canonical else identifier(f.name, "f")
        self.lines.append(f"{pad}@T.prim_func{self._options(f, name)}")
        self.lines.append(f"{pad}def {name}({', '.join(params)}):")
        if f.attrs:
            self.lines.append(f"{pad}    T.func_attr({self.attrs(f.attrs.items_)})")
        self.block(f.body, pad + "    ")

    def _param(self, p: Buffer | Var) -> str:
        if isinstance(p, Var):
            return f"{self.names.of[p]}: T.{p.dtype}"
        return f"{self.names.of[p]}: T.Buffer({self.buffer_args(p, quoted=True)})"

    def _options(self, f: PrimFunc, name: str) -> str:
        """The decorator's arguments: options that differ from what the parser would infer."""
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


_STMT: dict[type, Callable[..., None]] = {
    For: TirPrinter._for,
    Seq: TirPrinter._seq,
    Store: TirPrinter._store,
    Let: TirPrinter._let,
    If: TirPrinter._if,
    Alloc: TirPrinter._alloc,
    Prefetch: TirPrinter._called,
    MatchBuffer: TirPrinter._alloc,
    While: TirPrinter._while,
    Evaluate: TirPrinter._evaluate,
    CallKernel: TirPrinter._call_kernel,
    Sync: TirPrinter._called,
    Assert: TirPrinter._assert,
    Block: TirPrinter._block,
}
