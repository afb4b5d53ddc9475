"""Indices and sizes in 32 bits, for devices that have no longer integers.

    for i in range(n): Y[i * 4] = X[i * 4]       # i, n and i * 4 are int64
    ->                                           # all of them are int32

Loop variables, sizes and what is computed of them are indices. Whoever launches the function must
make sure that sizes fit into 32 bits, as those of tensors below 2 GiB do. Integers that a program
loads are data: an int64 that holds a number of at most 32 bits is allowed, and may be an index, but
a sum of such numbers may not fit, and neither may a float that is converted to an integer or the
product of the lanes of a vector of indices, so these are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import FLOAT64, INT32, INT64, UINT32, UINT64, DType
from tensorkiln.ir.expr import (
    Binary,
    Cast,
    Expr,
    IntImm,
    Intrin,
    Unary,
    Var,
    VectorReduce,
    cast,
    const,
    int_value,
)
from tensorkiln.ir.stmt import Alloc, For, Let, MatchBuffer, Param, Prefetch, PrimFunc, Stmt, Store
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.ir.visit import children, map_children, map_stmt, walk

Rewrite = Callable[[Expr], Expr]

_LONG = (UINT64, FLOAT64)  # besides int64, which may be an index
# What may leave the 32 bits that its operands have.
_GROWS = ("add", "sub", "mul", "div", "shl", "neg", "abs")
# Whose results depend on more than the last 32 bits of their operands.
_DIVIDES = ("div", "floordiv", "floormod", "mod", "shr")
_HINT = "cast to int32 before, or put the operator on another device"


def short_indices(f: PrimFunc) -> PrimFunc:
    """`f` with int32 wherever it has int64.

    Raises UnsupportedError, which names the function, for tensors and numbers of 64 bits: int64
    that are not indices, uint64 and float64.
    """
    return _Shortener(f).function()


class _Shortener:
    """Rewrites one program. `data` are variables whose values are not indices."""

    def __init__(self, f: PrimFunc):
        self.f = f
        self.vars: dict[Var, Var] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.data: set[Var] = set()
        self.memo: dict[tuple[int, bool], tuple[Expr, Expr]] = {}  # of the current statement

    def function(self) -> PrimFunc:
        for v in self.f.scalars:
            self._require(v.dtype, f"parameter {v.name}", _LONG)
        scalars = {v: self._variable(v) for v in self.f.scalars}
        params: list[Param] = []
        for p in self.f.params:
            params.append(self._buffer(p) if isinstance(p, Buffer) else scalars[p])
        return replace(self.f, params=tuple(params), body=self.stmt(self.f.body))

    def _fail(self, problem: str) -> UnsupportedError:
        message = f"{problem}, and the device has no numbers of 64 bits"
        return UnsupportedError(message, where=self.f.name, hint=_HINT)

    def _require(
        self, dtype: DType, label: str, refused: Sequence[DType] = (INT64, *_LONG)
    ) -> None:
        if dtype.element in refused:
            raise self._fail(f"{label} is of type {dtype.name}")

    def _variable(self, v: Var) -> Var:
        """The variable that replaces one where it is bound."""
        if v.dtype.element == INT64:
            self.vars[v] = Var(v.name, _short(v.dtype))
        return self.vars.get(v, v)

    def _buffer(self, b: Buffer) -> Buffer:
        if b not in self.buffers:
            self._require(b.dtype, f"buffer {b.name}")
            constant = all(int_value(d) is not None for d in (*b.shape, *b.strides))
            shape, strides = (tuple(map(self.index, x)) for x in (b.shape, b.strides))
            new = b if constant else replace(b, shape=shape, strides_given=strides)
            self.buffers[b] = new
        return self.buffers[b]

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> Stmt:
        self.memo = {}
        match s:
            case For(var, lo, extent):
                lo, extent = self.value(lo), self.value(extent)
                var = self._variable(var)
                return replace(s, var=var, lo=lo, extent=extent, body=self.stmt(s.body))
            case Let(var, value, body):
                short = self.value(value)
                if _of_data(value, self.data):
                    self.data.add(var)
                return Let(self._variable(var), short, self.stmt(body))
            case Store(buffer, indices, value):
                places = tuple(map(self.index, indices))
                return replace(
                    s, buffer=self._buffer(buffer), indices=places, value=self.value(value)
                )
            case Alloc(buffer, body):
                return Alloc(self._buffer(buffer), self.stmt(body))
            case MatchBuffer(buffer, source, indices):
                places = tuple(map(self.index, indices))
                view, source = self._buffer(buffer), self._buffer(source)
                return replace(
                    s, buffer=view, source=source, indices=places, body=self.stmt(s.body)
                )
            case Prefetch(buffer, indices):
                places = tuple(map(self.index, indices))
                return replace(s, buffer=self._buffer(buffer), indices=places)
        return map_stmt(s, self.value, self.stmt)

    # ---- expressions -------------------------------------------------------------------------

    def value(self, e: Expr) -> Expr:
        """An expression whose value matters whatever it is."""
        return self._once(e, self.value, self._value)

    def _value(self, e: Expr) -> Expr:
        self._check(e)
        return self._short(e, self.value)

    def index(self, e: Expr) -> Expr:
        """An expression that is used only as an index of an element."""
        return self._once(e, self.index, self._index)

    def _index(self, e: Expr) -> Expr:
        if e.dtype.element in _LONG:
            self._check(e)
        divides = isinstance(e, Binary) and e.op in _DIVIDES
        return self._short(e, self.value if divides else self.index)

    def _once(self, e: Expr, kind: Rewrite, rewrite: Rewrite) -> Expr:
        """A shared subexpression is rewritten once."""
        key = id(e), kind == self.value
        if key not in self.memo:
            self.memo[key] = e, rewrite(e)
        return self.memo[key][1]

    def _short(self, e: Expr, rewrite: Rewrite) -> Expr:
        match e:
            case IntImm(value, dtype) if dtype.element == INT64:
                if not -(1 << 31) <= value < 1 << 31:
                    raise self._fail(f"{value} takes more than 32 bits")
                return const(value, _short(dtype))
            case Var():
                return self.vars.get(e, e)
            case Cast(a, dtype) if dtype.element == INT64:
                return cast(rewrite(a), INT32)
            case Load(buffer, indices):
                return Load(self._buffer(buffer), tuple(map(self.index, indices)))
            case AddressOf(buffer, indices):
                return replace(
                    e, buffer=self._buffer(buffer), indices=tuple(map(self.index, indices))
                )
        return map_children(e, rewrite)

    def _check(self, e: Expr) -> None:
        """Refuse an operation on 64 bits whose result in 32 bits could differ."""
        if e.dtype.element in _LONG:
            raise self._fail(f"{_shown(e)} is of type {e.dtype.name}")
        if e.dtype.element != INT64:
            return
        if isinstance(e, VectorReduce) and e.op in ("mul", "prod"):
            raise self._fail(f"{_shown(e)} multiplies {e.a.dtype.lanes} indices")
        if _grows(e) and any(_of_data(x, self.data) for x in children(e)):
            raise self._fail(f"{_shown(e)} is computed of numbers that are no indices, in int64")
        truncates = isinstance(e, Cast) and (e.a.dtype.is_float or e.a.dtype.element == UINT32)
        large = isinstance(e, Cast) and (int_value(e.a) or 0) >= 1 << 31
        if (truncates and _of_data(e, self.data)) or large:
            raise self._fail(f"{_shown(e)} converts to int64")


def _grows(e: Expr) -> bool:
    """Whether a result may leave the 32 bits that its operands have."""
    return isinstance(e, Intrin) or (isinstance(e, Binary | Unary) and e.op in _GROWS)


def _of_data(e: Expr, data: set[Var]) -> bool:
    """Whether an expression depends on numbers that a program loads."""
    return any(isinstance(x, Load) or x in data for x in walk(e) if isinstance(x, Load | Var))


def _short(dtype: DType) -> DType:
    return INT32.with_lanes(dtype.lanes)


def _shown(e: Expr) -> str:
    text = print_expr(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["short_indices"]
