"""A small interpreter of tensor programs, independent of the compiler: the judge of schedules.

It is strict where hardware is lenient. Loops whose iterations have no order run in a random one,
and it is an error when one iteration touches what another writes; buffers begin with values that
spoil every result; an index outside its buffer is an error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorkiln.ir import expr as E
from tensorkiln.ir import stmt as S
from tensorkiln.ir.buffer import Buffer

Value = Any
UNORDERED = ("parallel", "vectorized", "thread")
LONGEST_WHILE = 10_000


Cell = tuple[int, Any]


class Pointer:
    """What a C function gets for an AddressOf: a place in an array."""

    def __init__(self, array: np.ndarray, index: tuple[int, ...]):
        self.array, self.index = array, index


def run(
    f: S.PrimFunc,
    arrays: Mapping[str, Any],
    seed: int = 0,
    externs: Mapping[str, Callable[..., Any]] | None = None,
) -> None:
    """Run a function on arrays (and scalars) by parameter name; outputs are written in place."""
    Machine(seed, externs or {}).function(f, arrays)


class Machine:
    def __init__(self, seed: int, externs: Mapping[str, Callable[..., Any]]):
        self.rng = np.random.default_rng(seed)
        self.externs = externs
        self.vars: dict[E.Var, Value] = {}
        self.memory: dict[Buffer, np.ndarray] = {}
        self.copy: dict[Buffer, int] = {}  # which allocation a buffer is
        self.copies = 0
        # for each unordered loop around: what the iteration read, and wrote
        self.watch: list[tuple[set[Cell], set[Cell]]] = []

    def function(self, f: S.PrimFunc, arrays: Mapping[str, Any]) -> None:
        for v in f.scalars:
            self.vars[v] = arrays[v.name]
        for b in f.buffers:
            array = arrays[b.name]
            self.memory[b] = array
            for dim, size in zip(b.shape, array.shape, strict=True):
                if isinstance(dim, E.Var):
                    self.vars.setdefault(dim, size)
        for b in f.buffers:
            assert tuple(self.eval(d) for d in b.shape) == arrays[b.name].shape
        self.stmt(f.body)

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: S.Stmt) -> None:
        STMTS[type(s)](self, s)

    def _for(self, s: S.For) -> None:
        lo, extent = self.eval(s.lo), self.eval(s.extent)
        steps = range(lo, lo + max(extent, 0))
        if s.kind in UNORDERED:
            self.unordered(s, self.rng.permutation(steps).tolist())
            return
        for i in steps:
            self.vars[s.var] = i
            self.stmt(s.body)

    def unordered(self, s: S.For, steps: list[int]) -> None:
        read: dict[Cell, int] = {}
        written: dict[Cell, int] = {}
        for i in steps:
            self.watch.append((set(), set()))
            self.vars[s.var] = i
            self.stmt(s.body)
            reads, writes = self.watch.pop()
            for cell in writes:
                assert read.get(cell, i) == i and written.get(cell, i) == i, f"race in {s.var}"
            for cell in reads:
                assert written.get(cell, i) == i, f"race in {s.var}"
            read.update(dict.fromkeys(reads, i))
            written.update(dict.fromkeys(writes, i))

    def _while(self, s: S.While) -> None:
        for _ in range(LONGEST_WHILE):
            if not self.eval(s.cond):
                return
            self.stmt(s.body)
        raise AssertionError("a while loop does not end")

    def _seq(self, s: S.Seq) -> None:
        for t in s.stmts:
            self.stmt(t)

    def _store(self, s: S.Store) -> None:
        value = self.eval(s.value)
        array, index = self.place(s.buffer, s.indices, write=True)
        array[index] = value

    def _let(self, s: S.Let) -> None:
        self.vars[s.var] = self.eval(s.value)
        self.stmt(s.body)

    def _if(self, s: S.If) -> None:
        if self.eval(s.cond):
            self.stmt(s.then)
        elif s.orelse is not None:
            self.stmt(s.orelse)

    def _alloc(self, s: S.Alloc) -> None:
        shape = tuple(self.eval(d) for d in s.buffer.shape)
        poison = math.nan if s.buffer.dtype.is_float else 99
        self.memory[s.buffer] = np.full(shape, poison, s.buffer.dtype.name)
        self.copies += 1
        self.copy[s.buffer] = self.copies
        self.stmt(s.body)

    def _match(self, s: S.MatchBuffer) -> None:
        array, index = self.place(s.source, s.indices)
        strides = [int(self.eval(e)) * array.itemsize for e in s.buffer.strides]
        shape = [int(self.eval(d)) for d in s.buffer.shape]
        start = array[tuple(slice(i, None) for i in index)]
        self.memory[s.buffer] = np.lib.stride_tricks.as_strided(start, shape, strides)
        self.stmt(s.body)

    def _assert(self, s: S.Assert) -> None:
        assert self.eval(s.cond), s.message

    def _evaluate(self, s: S.Evaluate) -> None:
        self.eval(s.value)

    def _block(self, s: S.Block) -> None:
        values = [self.eval(i.value) for i in s.iters]
        for i, value in zip(s.iters, values, strict=True):
            assert 0 <= value < self.eval(i.extent), f"{s.name}: {i.var} = {value}"
            self.vars[i.var] = value
        starts = [v == 0 for i, v in zip(s.iters, values, strict=True) if i.kind == "reduce"]
        if s.init is not None and all(starts):
            self.stmt(s.init)
        self.stmt(s.body)

    # ---- expressions -------------------------------------------------------------------------

    def eval(self, e: E.Expr) -> Value:
        return EXPRS[type(e)](self, e)

    def place(
        self, b: Buffer, indices: tuple[E.Expr, ...], write: bool = False
    ) -> tuple[np.ndarray, Any]:
        array = self.memory[b]
        index = tuple(self.eval(i) for i in indices)
        for i, size in zip(index, array.shape, strict=True):
            assert np.all(np.asarray(i) >= 0) and np.all(np.asarray(i) < size), (
                f"{b.name}{index} outside {array.shape}"
            )
        if self.watch:
            copy = self.copy.get(b, id(array))
            lanes = np.broadcast_arrays(*index) if index else [np.zeros(1)]
            cells = {(copy, c) for c in zip(*map(np.ravel, lanes), strict=True)}
            for seen in self.watch:
                seen[write].update(cells)
        return array, index

    def _load(self, e: E.Load) -> Value:
        array, index = self.place(e.buffer, e.indices)
        found = array[index]
        return found.item() if np.ndim(found) == 0 else found

    def _select(self, e: E.Select) -> Value:
        cond, a, b = self.eval(e.cond), self.eval(e.a), self.eval(e.b)
        return (a if cond else b) if np.ndim(cond) == 0 else np.where(cond, a, b)

    def _cast(self, e: E.Cast) -> Value:
        value = self.eval(e.a)
        if np.ndim(value):
            return value.astype(e.dtype.name)
        return float(value) if e.dtype.is_float else int(value)

    def _address(self, e: E.AddressOf) -> Pointer:
        return Pointer(*self.place(e.buffer, e.indices))

    def _extern(self, e: E.CallExtern) -> Value:
        return self.externs[e.name](*map(self.eval, e.args))

    def _intrin(self, e: E.Intrin) -> Value:
        args = [self.eval(a) for a in e.args]
        if e.name == "fma":
            return args[0] * args[1] + args[2]
        found = getattr(np, e.name)(*args)
        return found.item() if np.ndim(found) == 0 else found


def _ramp(m: Machine, e: E.Ramp) -> np.ndarray:
    return m.eval(e.base) + m.eval(e.stride) * np.arange(e.lanes)


def _divided(a: Value, b: Value) -> Value:
    with np.errstate(all="ignore"):
        return float(np.float64(a) / b) if np.ndim(a) == np.ndim(b) == 0 else a / b


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": lambda a, b: min(a, b) if np.ndim(a) == 0 else np.minimum(a, b),
    "max": lambda a, b: max(a, b) if np.ndim(a) == 0 else np.maximum(a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b if np.ndim(a) == 0 else a & b,
    "or": lambda a, b: a or b if np.ndim(a) == 0 else a | b,
}
UNARY: dict[str, Callable[[Value], Value]] = {
    "neg": lambda a: -a,
    "not": lambda a: not a if np.ndim(a) == 0 else ~a,
    "abs": abs,
    "sqrt": lambda a: a**0.5,
}
_OF = {op: op for op in BINARY} | E.REDUCE_BINARY
EXPRS: dict[type, Callable[[Machine, Any], Value]] = {
    E.Var: lambda m, e: m.vars[e],
    E.IntImm: lambda m, e: e.value,
    E.FloatImm: lambda m, e: e.value,
    E.Binary: lambda m, e: BINARY[e.op](m.eval(e.a), m.eval(e.b)),
    E.Unary: lambda m, e: UNARY[e.op](m.eval(e.a)),
    E.Select: Machine._select,
    E.Cast: Machine._cast,
    E.Load: Machine._load,
    E.Ramp: _ramp,
    E.Broadcast: lambda m, e: np.full(e.lanes, m.eval(e.a)),
    E.AddressOf: Machine._address,
    E.CallExtern: Machine._extern,
    E.Intrin: Machine._intrin,
    E.Shuffle: lambda m, e: np.concatenate([m.eval(e.a), m.eval(e.b)])[list(e.lanes)],
    E.VectorReduce: lambda m, e: functools.reduce(BINARY[_OF[e.op]], list(m.eval(e.a))),
}
STMTS: dict[type, Callable[[Machine, Any], None]] = {
    S.For: Machine._for,
    S.While: Machine._while,
    S.Seq: Machine._seq,
    S.Store: Machine._store,
    S.Let: Machine._let,
    S.If: Machine._if,
    S.Alloc: Machine._alloc,
    S.MatchBuffer: Machine._match,
    S.Assert: Machine._assert,
    S.Evaluate: Machine._evaluate,
    S.Prefetch: lambda m, s: None,
    S.Block: Machine._block,
}
