"""Compute loop variables and indices in 32 bits where they provably fit.

    for i in range(16): A[i // 4, i % 4] = Cast("float32", i)      # i is an int64
    ->  for i in range(int32(16)): A[i // 4, i % 4] = Cast("float32", i)      # i is an int32

On processors of 32-bit registers an int64 takes two, and its product several instructions. An
expression is narrowed if each of its parts is less than 2^30 in magnitude (`arith/fits.py`), a
loop variable if the limits of its loop are. What depends on symbolic sizes, loaded numbers or
scalar parameters keeps its type, and so does every value that is stored, passed or returned: where
an int64 is needed, a narrow value is converted. Offsets of elements are not part of a tensor
program: code generators choose their type (`codegen/c_like/words.py`).

Needs: lower_blocks and vectorize_loops, whose vectors of indices become narrow too.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import Bounds, bound
from tensorkiln.arith.fits import fits
from tensorkiln.ir.buffer import AddressOf, Load
from tensorkiln.ir.dtype import INT32, INT64
from tensorkiln.ir.expr import (
    BINARY,
    Binary,
    Broadcast,
    Cast,
    Expr,
    IntImm,
    Ramp,
    Select,
    Var,
    binary,
    cast,
    const,
    select,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, For, Let, MatchBuffer, Prefetch, PrimFunc, Stmt, Store
from tensorkiln.ir.visit import bound_vars, free_vars, map_children, map_stmt, walk_stmt


def narrow_indices(mod: IRModule) -> IRModule:
    """Make loop variables and indices int32 where they provably fit."""
    return mod.map_bodies(narrow_function)


def narrow_device_indices(mod: IRModule) -> IRModule:
    """The same in device functions only: registers of devices have 32 bits."""
    return mod.map_bodies(_narrow_device_function)


def _narrow_device_function(f: PrimFunc) -> PrimFunc:
    return narrow_function(f) if f.is_device else f


def narrow_function(f: PrimFunc) -> PrimFunc:
    """Narrow the indices of one tensor program; `f` itself if nothing fits."""
    body = _Narrower(_in_shapes(f.body)).stmt(f.body)
    return f if body is f.body else replace(f, body=body)


def _in_shapes(body: Stmt) -> frozenset[Var]:
    """Variables in the shapes of buffers, which are not rebuilt."""
    buffers = [s.buffer for s in walk_stmt(body) if isinstance(s, Alloc | MatchBuffer)]
    return frozenset(
        v for b in buffers for d in (*b.shape, *(b.strides_given or ())) for v in free_vars(d)
    )


class _Narrower:
    """Rewrites one program. `vars` maps variables to the narrow ones that replace them, `bounds`
    has the ranges of variables of the program as it was."""

    def __init__(self, wide_vars: frozenset[Var]):
        self.wide_vars = wide_vars
        self.vars: dict[Var, Var] = {}
        self.bounds = Bounds()
        self.memo: dict[int, tuple[Expr, Expr]] = {}  # of the current statement

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> Stmt:
        self.memo = {}
        for var in bound_vars(s):  # maybe not for the first time
            self.vars.pop(var, None)
            self.bounds = self.bounds.with_range(var, None, None)
        match s:
            case For():
                return self._loop(s)
            case Let(var, value, body) if self._fits(value) and var not in self.wide_vars:
                self.bounds = self.bounds.with_range(var, *bound(value, self.bounds))
                short = self.vars[var] = Var(var.name, INT32)
                return Let(short, self._short(value), self.stmt(body))
            case Store(_, indices, value):
                new, wide = self._indices(indices), self.wide(value)
                is_unchanged = new is indices and wide is value
                return s if is_unchanged else replace(s, indices=new, value=wide)
            case Prefetch(_, indices):
                new = self._indices(indices)
                return s if new is indices else replace(s, indices=new)
        return map_stmt(s, self.wide, self.stmt)

    def _loop(self, s: For) -> Stmt:
        last = binary("add", s.lo, s.extent)
        if s.var.dtype != INT64 or not all(map(self._proved, (s.lo, s.extent, last))):
            return map_stmt(s, self.wide, self.stmt)
        self.bounds = self.bounds.with_loop(s.var, s.lo, s.extent)
        if s.var in self.wide_vars:
            return map_stmt(s, self.wide, self.stmt)
        lo, extent = self._short(s.lo), self._short(s.extent)
        short = self.vars[s.var] = Var(s.var.name, INT32)
        return For(short, lo, extent, s.kind, self.stmt(s.body), s.attrs)

    # ---- expressions -------------------------------------------------------------------------

    def wide(self, e: Expr) -> Expr:
        """`e` in its own type, with narrow parts. Shared subexpressions stay shared."""
        entry = self.memo.get(id(e))
        if entry is None:
            entry = self.memo[id(e)] = (e, self._wide(e))
        return entry[1]

    def _wide(self, e: Expr) -> Expr:
        if self._fits(e):
            return cast(self._short(e), INT64)
        match e:
            case Load() | AddressOf():
                new = self._indices(e.indices)
                return e if new is e.indices else replace(e, indices=new)
            case Cast(a, dtype) if self._fits(a):
                return cast(self._short(a), dtype)
            case Binary(op, a, b) if BINARY[op][1] and (self._fits(a) or self._fits(b)):
                if self._proved(a) and self._proved(b):
                    return binary(op, self._short(a), self._short(b))
        return map_children(e, self.wide)

    def _indices(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        new = tuple(map(self._index, indices))
        return indices if all(a is b for a, b in zip(indices, new, strict=True)) else new

    def _index(self, e: Expr) -> Expr:
        """An index, whose type may change."""
        match e:
            case Ramp(base, stride, lanes) if self._fits(base) or self._fits(stride):
                ends = (base, stride, base + stride * (lanes - 1))
                if all(map(self._proved, ends)):
                    return Ramp(self._short(base), self._short(stride), lanes)
            case Broadcast(a, lanes) if self._fits(a):
                return Broadcast(self._short(a), lanes)
        return self._short(e) if self._fits(e) else self.wide(e)

    def _fits(self, e: Expr) -> bool:
        """Whether an int64 expression becomes narrow. A literal does only beside others that do."""
        return e.dtype == INT64 and not isinstance(e, IntImm) and self._proved(e)

    def _proved(self, e: Expr) -> bool:
        return e.dtype == INT64 and fits(e, INT32, self.bounds)

    def _short(self, e: Expr) -> Expr:
        """An expression that fits, in 32 bits."""
        match e:
            case IntImm(value):
                return const(value, INT32)
            case Var():
                return self.vars.get(e) or cast(e, INT32)
            case Select(c, a, b):
                return select(self.wide(c), self._short(a), self._short(b))
        return map_children(e, self._short)


__all__ = ["narrow_function", "narrow_indices"]
