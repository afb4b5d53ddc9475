"""Evaluate the second operand of `and` and `or` only where the first one leaves it open.

    if i > 0 and A[i - 1] > 0: S   ->   if i > 0:
                                            if A[i - 1] > 0: S

    B[i] = f(i > 0 and A[i - 1] > 0)
    ->  holds = T.alloc_buffer((1,), "bool", scope="local")
        holds[0] = i > 0
        if holds[0]: holds[0] = A[i - 1] > 0
        B[i] = f(holds[0])

Code generators compute both operands, which is right for all but accesses that the first operand
keeps within a buffer, and calls of C functions. Operands whose accesses are proved to be within
their buffers stay as they are, and so do vectors, whose lanes are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensorkiln.arith import Bounds
from tensorkiln.arith.simplify import bound
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Binary, CallExtern, Expr, IntImm, Unary, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, For, If, PrimFunc, Seq, Stmt, Store, While
from tensorkiln.ir.visit import free_vars, map_children, map_stmt, walk


def guard_conditions(mod: IRModule) -> IRModule:
    """Guard the conditions of every tensor program; `mod` itself if there are none to guard."""
    return mod.map_bodies(guarded)


def guarded(f: PrimFunc) -> PrimFunc:
    """A tensor program whose conditions are guarded; `f` itself if there are none to guard."""
    sizes = dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d))
    body = _stmt(f.body, Bounds.dims(sizes))
    return f if body is f.body else replace(f, body=body)


@dataclass(slots=True)
class _Flags:
    """Conditions that are computed before a statement: each a flag and what computes it."""

    bounds: Bounds
    rows: list[tuple[Buffer, list[Stmt]]] = field(default_factory=list)

    def value(self, e: Expr) -> Expr:
        """The expression with flags in the place of conditions to guard."""
        if not _is_open(e, self.bounds):
            return map_children(e, self.value) if _has_conditions(e) else e
        assert isinstance(e, Binary)
        flag = Buffer("holds", BOOL, (IntImm(1),), "local")
        first = self.value(e.a)
        inner = _Flags(self.bounds)
        second = _store(flag, inner.value(e.b))
        self.rows.append((flag, [_store(flag, first), If(_asks(e, flag), inner.around(second))]))
        return _load(flag)

    def around(self, s: Stmt) -> Stmt:
        """The statement after what computes its flags."""
        for flag, steps in reversed(self.rows):
            s = Alloc(flag, Seq((*steps, s)))
        return s


def _stmt(s: Stmt, bounds: Bounds) -> Stmt:
    if isinstance(s, If) and s.orelse is None and _is_open(s.cond, bounds):
        cond = s.cond
        if isinstance(cond, Binary) and cond.op == "and":
            return _stmt(If(cond.a, If(cond.b, s.then)), bounds)
    if isinstance(s, While) and _has_open(s.cond, bounds):
        return _while(s, bounds)
    below = bounds.with_loop(s.var, s.lo, s.extent) if isinstance(s, For) else bounds
    flags = _Flags(bounds)
    new_stmt = map_stmt(s, flags.value, lambda t: _stmt(t, below))
    return flags.around(new_stmt)


def _while(s: While, bounds: Bounds) -> Stmt:
    """The condition is computed before the first round and at the end of each."""
    flag = Buffer("holds", BOOL, (IntImm(1),), "local")

    def computed() -> Stmt:
        flags = _Flags(bounds)
        store = _store(flag, flags.value(s.cond))
        return flags.around(store)

    body = Seq((_stmt(s.body, bounds), computed()))
    return Alloc(flag, Seq((computed(), While(_load(flag), body))))


def _asks(e: Binary, flag: Buffer) -> Expr:
    """The condition that the first operand, in `flag`, leaves the result to the second."""
    return _load(flag) if e.op == "and" else Unary("not", _load(flag))


def _load(flag: Buffer) -> Expr:
    return Load(flag, (IntImm(0),))


def _store(flag: Buffer, value: Expr) -> Stmt:
    return Store(flag, (IntImm(0),), value)


def _has_conditions(e: Expr) -> bool:
    return any(isinstance(x, Binary) and x.op in ("and", "or") for x in walk(e))


def _has_open(e: Expr, bounds: Bounds) -> bool:
    return any(_is_open(x, bounds) for x in walk(e))


def _is_open(e: Expr, bounds: Bounds) -> bool:
    """Whether an expression is an `and` or `or` of single bools whose second operand may be wrong
    to compute where the first one decides."""
    if not isinstance(e, Binary) or e.op not in ("and", "or") or e.dtype != BOOL:
        return False
    return any(isinstance(x, CallExtern) or _may_be_outside(x, bounds) for x in walk(e.b))


def _may_be_outside(e: Expr, bounds: Bounds) -> bool:
    if not isinstance(e, Load):
        return False
    return not all(map(lambda i, n: _is_inside(i, n, bounds), e.indices, e.buffer.shape))


def _is_inside(index: Expr, extent: Expr, bounds: Bounds) -> bool:
    if index.dtype.lanes != 1 or any(isinstance(x, Load) for x in walk(index)):
        return False
    if any(isinstance(x, Var) and x not in bounds for x in walk(index)):
        return False
    if index.dtype != extent.dtype:
        return False
    low = bound(index, bounds)[0]
    high = bound(Binary("sub", index, extent), bounds)[1]
    return low is not None and low >= 0 and high is not None and high < 0


__all__ = ["guard_conditions", "guarded"]
