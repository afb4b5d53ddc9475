"""Match a piece of a program with the template of an instruction.

    for l in range(16):                 for l in range(16):
        acc[l] += a[0] * b[l]     =         C[i, j0*16 + l] += A[i, k] * B[k, j0*16 + l]

with acc = C from [i, j0*16] on, a = A from [i, k] on, b = B from [k, j0*16] on. Operands of
commutative operations may be exchanged, and `fma(a, b, c)` matches `a * b + c`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from tensorkiln.arith import Bounds, simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, Expr, FloatImm, IntImm, Intrin, Unary, Var, binary, int_value
from tensorkiln.ir.stmt import Block, For, If, Let, Seq, Stmt, Store
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import children, free_vars, map_stmt, substitute, substitute_stmt, walk

_SWAP = ("add", "mul", "min", "max")


class Mismatch(Exception):
    """Where template and program differ, and how."""

    def __init__(self, path: str, template_text: str, program_text: str):
        self.at, self.wanted, self.found = path, template_text, program_text
        super().__init__(f"at {path}: the template has {template_text}, the program {program_text}")


@dataclass(frozen=True, slots=True)
class Bound:
    """What a parameter of the template is bound to: `buffer`, from index `base` on, with the
    parameter's dimension d as dimension `dims[d]`."""

    buffer: Buffer
    dims: tuple[int, ...]
    base: tuple[Expr, ...]


@dataclass(slots=True)
class TemplateMatch:
    """The bindings found so far; `loops` maps variables of the template to the program's."""

    known: Bounds
    loops: dict[Var, Expr] = field(default_factory=dict)
    buffers: dict[Buffer, Bound] = field(default_factory=dict)
    scalars: dict[Var, Expr] = field(default_factory=dict)
    outer: tuple[Var, ...] = ()  # scalar parameters of the template

    def copy(self) -> TemplateMatch:
        """A copy of the bindings, to backtrack to."""
        return TemplateMatch(
            self.known, dict(self.loops), dict(self.buffers), dict(self.scalars), self.outer
        )

    def take(self, snapshot: TemplateMatch) -> None:
        """Restore the bindings of `snapshot`."""
        self.loops, self.buffers, self.scalars = snapshot.loops, snapshot.buffers, snapshot.scalars

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, t: Stmt, s: Stmt, path: str) -> None:
        """Match statement `s` of the program with `t` of the template, at the place `path` of it.
        Raises Mismatch."""
        if type(t) is not type(s):
            raise Mismatch(path, _kind(t), _kind(s))
        match t, s:
            case For(), For():
                self.loop(t, s, path)
            case Seq(a), Seq(b):
                if len(a) != len(b):
                    raise Mismatch(path, f"{len(a)} statements", str(len(b)))
                for n, (x, y) in enumerate(zip(a, b, strict=True)):
                    self.stmt(x, y, f"{path}[{n}]")
            case Store(), Store():
                store_path = f"{path}.store({s.buffer.name})"
                self.access(t.buffer, t.indices, s.buffer, s.indices, store_path)
                self.expr(t.value, s.value, f"{store_path}.value")
            case If(cond, then_body, None), If(cond2, body, None):
                self.expr(cond, cond2, f"{path}.cond")
                self.stmt(then_body, body, f"{path}.then")
            case Let(var, value, body), Let(var2, value2, body2):
                self.expr(value, value2, f"{path}.let({var2.name})")
                self.loops[var] = var2
                self.stmt(body, body2, path)
            case _:
                raise Mismatch(path, "no such statement", _kind(s))

    def loop(self, t: For, s: For, path: str) -> None:
        """Match two loops of equal extent. Raises Mismatch."""
        loop_path = f"{path}.for({s.var.name})"
        if int_value(t.extent) != int_value(simplify(s.extent, self.known)):
            raise Mismatch(loop_path, f"{_text(t.extent)} iterations", _text(s.extent))
        if s.kind not in ("serial", "unrolled", t.kind):
            raise Mismatch(loop_path, f"a {t.kind} loop", f"a {s.kind} one")
        self.known = self.known.with_loop(s.var, s.lo, s.extent)
        # both loops may begin at different numbers
        self.loops[t.var] = simplify(s.var - s.lo + t.lo)
        self.stmt(t.body, s.body, loop_path)

    # ---- expressions -------------------------------------------------------------------------

    def expr(self, t: Expr, s: Expr, path: str) -> None:
        """Match expression `s` of the program with `t` of the template. Raises Mismatch."""
        t, s = _plain(t), _plain(s)
        if isinstance(t, Var) and t in self.outer:
            self.scalar(t, s, path)
            return
        if t.dtype.is_int and not any(isinstance(x, Load) for e in (t, s) for x in walk(e)):
            mine = simplify(substitute(t, self.loops), self.known)
            if t.dtype == s.dtype and mine == simplify(s, self.known):
                return
        if isinstance(t, Load) and isinstance(s, Load):
            self.access(t.buffer, t.indices, s.buffer, s.indices, f"{path}.load({s.buffer.name})")
            return
        if isinstance(t, Binary) and isinstance(s, Binary) and t.op == s.op and t.op in _SWAP:
            self.either_way(t, s, path)
            return
        if _head(t) != _head(s):
            raise Mismatch(path, _text(t), _text(s))
        for n, (a, b) in enumerate(zip(children(t), children(s), strict=True)):
            self.expr(a, b, f"{path}.{_field(t, n)}")

    def either_way(self, t: Binary, s: Binary, path: str) -> None:
        """Match the operands of a commutative operation, in order or exchanged."""
        saved = self.copy()
        try:
            self.expr(t.a, s.a, f"{path}.a")
            self.expr(t.b, s.b, f"{path}.b")
            return
        except Mismatch as straight:
            first = straight
        self.take(saved)
        try:
            self.expr(t.a, s.b, f"{path}.a")
            self.expr(t.b, s.a, f"{path}.b")
        except Mismatch as second:
            # the attempt that got further is the better explanation
            raise max(first, second, key=lambda m: len(m.at)) from None

    def scalar(self, t: Var, s: Expr, path: str) -> None:
        """Bind a scalar parameter to a value that is invariant in the matched loops."""
        if t.dtype != s.dtype:
            raise Mismatch(path, f"a {t.dtype}", f"a {s.dtype}")
        self._free(s, path)
        if self.scalars.setdefault(t, s) != s:
            raise Mismatch(path, f"{t.name}, which is {_text(self.scalars[t])}", _text(s))

    def _free(self, e: Expr, path: str) -> None:
        mine = {v for x in self.loops.values() for v in free_vars(x)}
        moving = [v for v in free_vars(e) if v in mine]
        if moving:
            raise Mismatch(
                path, "the same in every iteration", f"{_text(e)}, with {moving[0].name}"
            )

    def access(
        self, t: Buffer, want: tuple[Expr, ...], s: Buffer, have: tuple[Expr, ...], path: str
    ) -> None:
        """Match accesses: bind the template's buffer `t` to `s` if the indices `want` and `have`
        differ by terms that are invariant in the matched loops."""
        if t.dtype != s.dtype:
            raise Mismatch(path, f"elements of {t.dtype}", str(s.dtype))
        binding = self.buffers.get(t)
        if binding is not None and binding.buffer is not s:
            raise Mismatch(path, f"{t.name}, which is {binding.buffer.name}", s.name)
        choices = (
            [binding.dims] if binding else list(combinations(range(len(have)), len(want)))[::-1]
        )
        if not choices:
            raise Mismatch(path, f"{len(want)} dimensions", str(len(have)))
        failure: Mismatch | None = None
        for dims in choices:
            try:
                base = self._base(want, have, dims, path)
            except Mismatch as e:
                failure = failure or e
                continue
            if binding is not None and binding.base != base:
                raise Mismatch(path, f"{t.name} at {_texts(binding.base)}", _texts(base))
            self.buffers[t] = Bound(s, dims, base)
            return
        assert failure is not None
        raise failure

    def _base(
        self, want: tuple[Expr, ...], have: tuple[Expr, ...], dims: tuple[int, ...], path: str
    ) -> tuple[Expr, ...]:
        base = []
        place = dict(zip(dims, want, strict=True))
        for d, e in enumerate(have):
            if e.dtype.lanes > 1:
                raise Mismatch(path, "one element", "a vector")
            if d in place:
                e = e - substitute(place[d], self.loops)
            e = simplify(e, self.known)
            self._free(e, f"{path}.index[{d}]")
            base.append(e)
        return tuple(base)


def plain(s: Stmt) -> Stmt:
    """`s` with blocks replaced by their bodies. ValueError, with its name, for a block with an
    init."""
    if isinstance(s, Block):
        if s.init is not None:
            raise ValueError(s.name)
        return plain(substitute_stmt(s.body, {i.var: i.value for i in s.iters}))
    return map_stmt(s, lambda e: e, plain)


def _plain(e: Expr) -> Expr:
    if isinstance(e, Intrin) and e.name == "fma":
        a, b, c = e.args
        return binary("add", c, binary("mul", a, b))
    return e


def _head(e: Expr) -> object:
    """What two nodes must have in common besides their children."""
    match e:
        case Binary(op) | Unary(op):
            return type(e), op
        case IntImm() | FloatImm() | Var():
            return e
        case Intrin(name):
            return type(e), name
    return type(e), e.dtype, len(children(e))


def _field(e: Expr, n: int) -> str:
    return "ab"[n] if isinstance(e, Binary | Unary) else f"arg{n}"


def _kind(s: Stmt) -> str:
    if isinstance(s, Store):
        return f"a store to {s.buffer.name}"
    return {For: "a loop", If: "a condition", Seq: "a sequence"}.get(
        type(s), type(s).__name__.lower()
    )


def _text(e: Expr) -> str:
    return TirPrinter().expr(e)


def _texts(items: tuple[Expr, ...]) -> str:
    return f"[{', '.join(map(_text, items))}]"
