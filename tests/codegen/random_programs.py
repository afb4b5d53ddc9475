"""Random tensor programs with one answer, for code generation and callers to agree on.

A program has several buffers of any dtypes, numbers of all types as parameters, all statements,
calls of C functions and of other programs. Its indices are within their buffers, its unordered
loops have no races, its products and sums are exact wherever contraction could change them: the
evaluator finds the few for which this is not so, and those are drawn again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir import expr as E
from tensorkiln.ir import stmt as S
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, INT64, VOID, DType
from tensorkiln.ir.visit import has_load
from tests.ir import evaluate, numbers
from tests.ir.drawn import OF_EXPRESSIONS, operand_types
from tests.ir.numbers import Ambiguous

INTS = tuple(n for n, row in PROGRAM_TYPES.items() if row.is_integer)
FLOATS = tuple(n for n, row in PROGRAM_TYPES.items() if row.is_float)
ELEMENTS = (*INTS, *FLOATS, "bool")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
DIVIDE = ("div", "floordiv", "floormod", "shl", "shr")
LANES = (2, 4, 8)

DOUBLE, SINGLE = DType("float64"), DType("float32")


def _copysign(x: float, of: float) -> float:
    if math.isnan(of):
        raise Ambiguous("the sign of a NaN")
    return math.copysign(x, of)


# C functions that give one answer everywhere: name -> result, parameters, what they are
CFUNCTIONS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "floor": ("float64", ("float64",), lambda x: numbers.unary("floor", x, DOUBLE)),
    "fabs": ("float64", ("float64",), abs),
    "copysign": ("float64", ("float64", "float64"), _copysign),
    "fabsf": ("float32", ("float32",), abs),
    "truncf": ("float32", ("float32",), lambda x: numbers.unary("trunc", x, SINGLE)),
    "toupper": ("int32", ("int32",), lambda c: c - 32 if 97 <= c <= 122 else c),
}


def _memcpy(to: evaluate.Pointer, of: evaluate.Pointer, count: int) -> None:
    n = count // to.array.itemsize
    to.rest[:n] = of.rest[:n].copy()


EXTERNS = {name: row[2] for name, row in CFUNCTIONS.items()} | {"memcpy": _memcpy}


@dataclass(frozen=True)
class Program:
    """A function with what to call it with, and what is in its arrays afterwards."""

    f: S.PrimFunc
    helpers: tuple[S.PrimFunc, ...]
    inputs: dict[str, Any]
    results: dict[str, Any]
    failed: str | None  # the assertion that does not hold


class Generator:
    """Draws statements and expressions; what is in scope decides what can be drawn."""

    def __init__(self, rng: Random, scalars: tuple[str, ...]):
        self.rng, self.scalar_types = rng, scalars
        self.vars: list[E.Var] = []
        self.loops: dict[E.Var, int] = {}  # loop variable -> one more than its last value
        self.reads: list[Buffer] = []
        self.writes: list[Buffer] = []
        self.helpers: list[S.PrimFunc] = []
        self.count = 0
        self.within = 0  # how many indices are around what is drawn
        self.parallel = False
        self.vector = False

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}{self.count}"

    def element(self) -> str:
        """A dtype, mostly one that there are elements or variables of."""
        near = [b.dtype.name for b in self.reads] + [v.dtype.name for v in self.vars]
        return self.rng.choice(near) if near and self.chance(75) else self.rng.choice(ELEMENTS)

    # ---- expressions -------------------------------------------------------------------------

    def literal(self, d: DType) -> E.Expr:
        r = self.rng
        if d.is_bool:
            return E.IntImm(r.randrange(2), d)
        if d.is_float:
            far = (math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, 65504.0)
            value = r.choice(far) if self.chance(6) else r.randrange(-16, 17) / 4
            return E.FloatImm(numbers.rounded(value, d), d)
        low = 0 if d.is_unsigned else -(1 << d.bits - 1)
        high = low + (1 << d.bits) - 1
        near = r.randrange(max(low, -9), 10)
        return E.IntImm(r.choice((near, near, near, low, high, r.randint(low, high))), d)

    def leaf(self, d: DType) -> E.Expr:
        fits = [v for v in self.vars if v.dtype == d]
        if fits and self.chance(60):
            return self.rng.choice(fits)
        if self.chance(80) and self.within < 2:
            load = self.load(d)
            if load is not None:
                return load
        if d.lanes == 1:
            return self.literal(d)
        if d.is_int and self.chance(25):
            return E.Ramp(self.literal(d.element), self.literal(d.element), d.lanes)
        return E.Broadcast(self.leaf(d.element), d.lanes)

    def expr(self, d: DType, depth: int = 3) -> E.Expr:
        if depth <= 0 or self.chance(20):
            return self.leaf(d)
        forms = [self._declared, self._cast, self._unary, self._arith, self._arith, self._other]
        if d.is_bool:
            forms = [self._compare, self._compare, self._logic, self._not, self._declared]
        elif d.is_float:
            forms += [self._product, self._intrin]
        if d.lanes > 1:
            forms.append(self._shuffle)
        elif not self.vector and not d.is_bool:
            called = d.name in ("float64", "float32", "int32")
            forms += [self._vector_reduce] + [self._extern] * called
        return self.rng.choice(forms)(d, depth - 1)

    def _declared(self, d: DType, depth: int) -> E.Expr:
        node = self.rng.choice(OF_EXPRESSIONS)
        types = operand_types(node, d, lambda: self.chance(30) or self.vector)
        e: E.Expr = node(*(self.expr(t, depth) for t in types))
        return e if e.fault(*types) is None else self.leaf(d)

    def _cast(self, d: DType, depth: int) -> E.Expr:
        return E.Cast(self.expr(DType(self.element(), d.lanes), depth), d)

    def _unary(self, d: DType, depth: int) -> E.Expr:
        ops = ["neg", "abs", "floor", "trunc", "ceil", "round"] + ["sqrt"] * d.is_float
        return E.Unary(self.rng.choice(ops), self.expr(d, depth))

    def _arith(self, d: DType, depth: int) -> E.Expr:
        ops = (
            ("add", "sub", "min", "max")
            if d.is_float
            else ("add", "sub", "mul", "min", "max", "bitand", "bitor", "bitxor")
        )
        return E.Binary(self.rng.choice(ops), self.expr(d, depth), self.expr(d, depth))

    def _other(self, d: DType, depth: int) -> E.Expr:
        """Divisions and shifts: by anything, by small numbers, by constants."""
        ops = ("div", "div", "floordiv", "floormod") if d.is_float else DIVIDE
        by = self.expr(d, depth) if self.chance(50) else self.literal(d.element)
        if by.dtype.lanes != d.lanes:
            by = E.Broadcast(by, d.lanes)
        return E.Binary(self.rng.choice(ops), self.expr(d, depth), by)

    def _product(self, d: DType, depth: int) -> E.Expr:
        """Of anything where no sum can take it up; else of what is mostly exact."""
        if self.chance(50):
            product = E.Binary("mul", self.expr(d, depth), self.expr(d, depth))
            return E.Unary(self.rng.choice(("abs", "floor")), product)
        return E.Binary("mul", self.leaf(d), self.leaf(d))

    def _compare(self, d: DType, depth: int) -> E.Expr:
        of = DType(self.element(), d.lanes)
        return E.Binary(self.rng.choice(COMPARE), self.expr(of, depth), self.expr(of, depth))

    def _logic(self, d: DType, depth: int) -> E.Expr:
        op, first, second = self.rng.choice(("and", "or")), self.expr(d, depth), self.expr(d, depth)
        if self.vector and d.lanes == 1 and has_load(second):
            second = self.literal(d)  # vectorized loops refuse accesses that a condition guards
        return E.Binary(op, first, second)

    def _not(self, d: DType, depth: int) -> E.Expr:
        return E.Unary("not", self.expr(d, depth))

    def _intrin(self, d: DType, depth: int) -> E.Expr:
        name = self.rng.choice(("fma", "fmod", "isnan", "bits"))
        if name == "isnan":
            return E.Cast(E.Intrin("isnan", (self.expr(d, depth),)), d)
        if name == "bits" and d.name in ("float32", "float64"):
            width = d.bits
            return E.Intrin(f"bitcast_f{width}", (self.leaf(DType(f"int{width}", d.lanes)),))
        if name == "fmod" and d.bits > 16:
            return E.Intrin("fmod", (self.leaf(d), self.leaf(d)))
        return E.Intrin("fma", (self.leaf(d), self.leaf(d), self.expr(d, depth)))

    def _vector_reduce(self, d: DType, depth: int) -> E.Expr:
        ops = ("add", "mul", "max", "min", "sum", "prod")
        lanes = self.rng.choice(LANES)
        return E.VectorReduce(self.rng.choice(ops), self.expr(d.with_lanes(lanes), min(depth, 1)))

    def _shuffle(self, d: DType, depth: int) -> E.Expr:
        lanes = tuple(self.rng.randrange(2 * d.lanes) for _ in range(d.lanes))
        return E.Shuffle(self.expr(d, depth), self.expr(d, depth), lanes)

    def _extern(self, d: DType, depth: int) -> E.Expr:
        fits = [(n, row[1]) for n, row in CFUNCTIONS.items() if row[0] == d.name]
        name, types = self.rng.choice(fits)
        args = tuple(self.expr(DType(t), depth) for t in types)
        if name == "toupper":  # of a character
            args = (E.Binary("bitand", args[0], E.IntImm(127, args[0].dtype)),)
        return E.CallExtern(name, args, d)

    def load(self, d: DType) -> E.Expr | None:
        fits = [b for b in self.reads if b.dtype == d.element]
        if d.lanes > 1:
            fits = [b for b in fits if b.shape and E.int_value(b.shape[-1])]
        if not fits:
            return None
        b = self.rng.choice(fits)
        self.within += 1
        indices = self.indices(b, d.lanes)
        self.within -= 1
        return None if indices is None else Load(b, indices)

    # ---- indices -----------------------------------------------------------------------------

    def index(self, extent: E.Expr) -> E.Expr:
        """An element of a dimension."""
        size = E.int_value(extent)
        dtype = INT64 if self.chance(80) else DType(self.rng.choice(("int32", "int16", "uint32")))
        inside = [v for v, n in self.loops.items() if size is not None and n <= size]
        if inside and self.chance(60):
            return self.rng.choice(inside)
        if size is None:
            dtype = INT64
        elif self.chance(40):
            return E.IntImm(self.rng.randrange(size), dtype)
        if self.vector and self.chance(70):
            return E.IntImm(self.rng.randrange(size or 1), dtype)
        e = self.expr(dtype, 1 if self.within < 2 else 0)
        by = extent if size is None else E.IntImm(size, dtype)
        return E.Binary("floormod", e, by)

    def indices(self, b: Buffer, lanes: int) -> tuple[E.Expr, ...] | None:
        if self.vector and b.shape:  # lanes in one index only
            extents = [E.int_value(d) for d in b.shape[:-1]]
            if None in extents:
                return None
            return (
                *(E.IntImm(self.rng.randrange(n or 1)) for n in extents),
                self.index(b.shape[-1]),
            )
        if lanes == 1:
            return tuple(map(self.index, b.shape))
        last = E.int_value(b.shape[-1])
        assert last is not None
        head = tuple(map(self.index, b.shape[:-1]))
        if b.scope != "register" and not self.vector and self.chance(30):
            dtype = INT64 if self.chance(60) else DType("int32")
            wide = self.expr(dtype.with_lanes(lanes), 1)
            return (*head, E.Binary("floormod", wide, E.Broadcast(E.IntImm(last, dtype), lanes)))
        strides = [s for s in (1, 1, 1, 2, 3) if s * (lanes - 1) < last]
        if not strides:
            return None
        stride = self.rng.choice(strides)
        start = self.rng.randrange(last - stride * (lanes - 1))
        return (*head, E.Ramp(E.IntImm(start), E.IntImm(stride), lanes))

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, depth: int) -> S.Stmt:
        forms = [self._store, self._store, self._store, self._prefetch, self._assert]
        if not self.parallel:
            forms += [self._memcpy]
        if depth:
            forms += [self._for, self._for, self._seq, self._seq, self._let, self._if, self._alloc]
            forms += [self._match, self._block, self._vectorized]
            forms += [] if self.parallel else [self._parallel, self._while, self._call]
        return self.rng.choice(forms)(depth - 1)

    def _store(self, depth: int) -> S.Stmt:
        b = self.rng.choice(self.writes)
        lanes = self.rng.choice((1, 1, *LANES))
        if lanes > 1 and (not b.shape or not E.int_value(b.shape[-1])):
            lanes = 1
        indices = self.indices(b, lanes)
        if indices is None:
            lanes, indices = 1, self.indices(b, 1)
        assert indices is not None
        return S.Store(b, indices, self.expr(b.dtype.with_lanes(lanes)), self.chance(5))

    def _prefetch(self, depth: int) -> S.Stmt:
        fits = [b for b in self.reads if b.scope != "register"]
        if not fits:
            return self._store(depth)
        b = self.rng.choice(fits)
        indices = self.indices(b, 1)
        assert indices is not None
        return S.Prefetch(b, indices, self.rng.randrange(4), self.chance(50))

    def _assert(self, depth: int) -> S.Stmt:
        if self.chance(8):
            return S.Assert(self.expr(BOOL, 2), self.name("message "))
        b = self.expr(INT64, 1)
        return S.Assert(E.Binary("ge", E.Binary("bitand", b, E.IntImm(7)), E.IntImm(0)), "never")

    def _memcpy(self, depth: int) -> S.Stmt:
        pairs = [
            (a, b)
            for a in filter(_plain, self.writes)
            for b in filter(_plain, self.reads)
            if a.scope == "global" and b.dtype == a.dtype and b is not a
        ]
        if not pairs:
            return self._store(depth)
        to, of = self.rng.choice(pairs)
        count = self.rng.randint(0, min(_size(to), _size(of)))
        start = tuple(E.IntImm(0) for _ in to.shape)
        size = E.IntImm(count * to.dtype.bytes, DType("uint64"))
        if count == 0 or of in self.writes:  # views of one buffer may overlap
            return self._store(depth)
        args = (AddressOf(to, start), AddressOf(of, tuple(E.IntImm(0) for _ in of.shape)), size)
        return S.Evaluate(E.CallExtern("memcpy", args, VOID))

    def _for(self, depth: int) -> S.Stmt:
        dtype = INT64 if self.chance(75) else DType(self.rng.choice(("int32", "int16", "uint8")))
        kind = "serial" if self.chance(75) else "unrolled"
        lo, extent = self.rng.choice((0, 0, 1, 3)), self.rng.choice((1, 2, 3, 4))
        var = E.Var(self.name("i"), dtype)
        counts: E.Expr = E.IntImm(extent, dtype)
        if kind == "serial" and self.chance(30):  # not known before it runs, and maybe 0
            counts = E.Binary("bitand", self.expr(dtype, 1), E.IntImm(3, dtype))
        self.loops[var] = lo + max(extent, 3 if not isinstance(counts, E.IntImm) else 0)
        self.vars.append(var)
        body = self.stmt(depth)
        self.vars.remove(var)
        del self.loops[var]
        return S.For(var, E.IntImm(lo, dtype), counts, kind, body)

    def _vectorized(self, depth: int) -> S.Stmt:
        """Each lane writes an element of its own."""
        lanes = self.rng.choice(LANES)
        fits = [
            b
            for b in self.writes
            if b.shape and (E.int_value(b.shape[-1]) or 0) >= lanes and b.scope != "register"
        ]
        if not fits or self.vector:
            return self._store(depth)
        b = self.rng.choice(fits)
        head = tuple(map(self.index, b.shape[:-1]))
        return self._each(b, lanes, head, "vectorized")

    def _parallel(self, depth: int) -> S.Stmt:
        """Each iteration writes elements of its own, in a loop inside or not."""
        fits = [
            b
            for b in self.writes
            if b.shape and (E.int_value(b.shape[0]) or 0) > 1 and b.scope != "register"
        ]
        if not fits:
            return self._store(depth)
        b = self.rng.choice(fits)
        first = E.int_value(b.shape[0])
        assert first is not None
        self.parallel = True
        var = E.Var(self.name("p"), INT64)
        outer_writes, reads = self.writes, self.reads
        mine = Buffer(self.name("row"), b.dtype, b.shape[1:], b.scope, b.dtype.bytes, b.strides[1:])
        self.reads = [r for r in reads if r not in outer_writes] + [mine]
        self.writes = [mine]
        self.vars.append(var)
        self.loops[var] = first
        body = self.stmt(depth)
        self.vars.remove(var)
        del self.loops[var]
        self.parallel, self.writes, self.reads = False, outer_writes, reads
        row = S.MatchBuffer(mine, b, (var, *(E.IntImm(0) for _ in b.shape[1:])), body)
        return S.For(var, E.IntImm(0), E.IntImm(first), "parallel", row)

    def _each(self, b: Buffer, lanes: int, head: tuple[E.Expr, ...], kind: str) -> S.Stmt:
        last = E.int_value(b.shape[-1])
        assert last is not None
        var = E.Var(self.name("v"), INT64)
        lo = self.rng.randrange(last - lanes + 1)
        reads, self.vector = self.reads, True
        self.reads = [r for r in reads if r not in self.writes and r.scope != "register"]
        self.vars.append(var)
        self.loops[var] = lo + lanes
        value = self.expr(b.dtype, 2)
        if self.chance(30):
            let = E.Var(self.name("x"), DType(self.element()))
            made = self.expr(let.dtype, 2)
            self.vars.append(let)
            body: S.Stmt = S.Let(let, made, S.Store(b, (*head, var), self.expr(b.dtype, 2)))
            self.vars.remove(let)
        else:
            body = S.Store(b, (*head, var), value)
        self.vars.remove(var)
        del self.loops[var]
        self.vector, self.reads = False, reads
        return S.For(var, E.IntImm(lo), E.IntImm(lanes), kind, body)

    def _while(self, depth: int) -> S.Stmt:
        """Counts down in a buffer of its own."""
        counter = Buffer(self.name("c"), INT64, (E.IntImm(1),), "local")
        counter_value = Load(counter, (E.IntImm(0),))
        start = E.Binary("bitand", self.expr(INT64, 1), E.IntImm(3))
        self.reads.append(counter)
        cond: E.Expr = E.Binary("gt", counter_value, E.IntImm(0))
        if self.chance(50):
            cond = E.Binary("and", cond, self.expr(BOOL, 1))
        body = self.stmt(depth)
        self.reads.remove(counter)
        step = S.Store(counter, (E.IntImm(0),), E.Binary("sub", counter_value, E.IntImm(1)))
        return S.Alloc(
            counter,
            S.Seq(
                (
                    S.Store(counter, (E.IntImm(0),), start),
                    S.While(cond, S.Seq((body, step))),
                )
            ),
        )

    def _seq(self, depth: int) -> S.Stmt:
        return S.Seq(tuple(self.stmt(depth) for _ in range(self.rng.randint(1, 3))))

    def _let(self, depth: int) -> S.Stmt:
        var = E.Var(self.name("x"), DType(self.element(), self.rng.choice((1, 1, 4))))
        value = self.expr(var.dtype)
        self.vars.append(var)
        body = self.stmt(depth)
        self.vars.remove(var)
        return S.Let(var, value, body)

    def _if(self, depth: int) -> S.Stmt:
        orelse = self.stmt(depth) if self.chance(50) else None
        return S.If(self.expr(BOOL), self.stmt(depth), orelse)

    def _alloc(self, depth: int) -> S.Stmt:
        """Memory, filled before it is read; in registers it is filled whole, by vectors."""
        scope = self.rng.choice(("local", "local", "register"))
        shape = tuple(self.rng.choice((1, 2, 4, 8)) for _ in range(self.rng.randint(0, 2)))
        if scope == "register":
            shape = (self.rng.choice((1, 4)),)
        b = Buffer(self.name("t"), DType(self.element()), tuple(map(E.IntImm, shape)), scope)
        if scope == "register":
            return self._registers(b, shape[0], depth)
        fill: S.Stmt
        loops = [E.Var(self.name("f"), INT64) for _ in shape]
        fill = S.Store(b, tuple(loops), self.leaf(b.dtype))
        for v, n in reversed(list(zip(loops, shape, strict=True))):
            fill = S.For(v, E.IntImm(0), E.IntImm(n), "serial", fill)
        self.reads.append(b)
        self.writes.append(b)
        body = self.stmt(depth)
        self.reads.remove(b)
        self.writes.remove(b)
        return S.Alloc(b, S.Seq((fill, body)))

    def _registers(self, b: Buffer, lanes: int, depth: int) -> S.Stmt:
        """A vector that is summed up, as schedules write them."""
        indices = (E.Ramp(E.IntImm(0), E.IntImm(1), lanes),) if lanes > 1 else (E.IntImm(0),)
        wide = b.dtype.with_lanes(lanes)
        register_value = Load(b, indices)
        stmts: list[S.Stmt] = [S.Store(b, indices, self.expr(wide, 2))]
        for _ in range(self.rng.randint(1, 3)):
            op = self.rng.choice(("and", "or") if b.dtype.is_bool else ("add", "max", "min"))
            stmts.append(S.Store(b, indices, E.Binary(op, register_value, self.expr(wide, 2))))
        var = E.Var(self.name("x"), wide)
        self.vars.append(var)
        body = self.stmt(depth)
        self.vars.remove(var)
        return S.Alloc(b, S.Seq((*stmts, S.Let(var, register_value, body))))

    def _match(self, depth: int) -> S.Stmt:
        """A row, a column, or every other element of a buffer."""
        fits = [b for b in self.writes if b.scope != "register" and b.shape and _known(b)]
        if not fits:
            return self._store(depth)
        source = self.rng.choice(fits)
        k = self.rng.randrange(len(source.shape))
        size = E.int_value(source.shape[k])
        assert size is not None
        step = self.rng.choice([s for s in (1, 2, 3) if s <= size])
        count = self.rng.randint(1, size // step)
        first = self.rng.randrange(size - step * (count - 1))
        stride = source.strides[k] * step
        view = Buffer(
            self.name("w"),
            source.dtype,
            (E.IntImm(count),),
            source.scope,
            source.dtype.bytes,
            (stride,),
        )
        start = tuple(
            E.IntImm(first) if d == k else self.index(extent)
            for d, extent in enumerate(source.shape)
        )
        self.reads.append(view)
        self.writes.append(view)
        body = self.stmt(depth)
        self.reads.remove(view)
        self.writes.remove(view)
        return S.MatchBuffer(view, source, start, body)

    def _block(self, depth: int) -> S.Stmt:
        """A named step in loops of its own, with or without a start."""
        iters, loops = [], []
        for _ in range(self.rng.randint(1, 2)):
            extent, kind = self.rng.choice((1, 2, 4)), self.rng.choice(("spatial", "reduce"))
            loop, var = E.Var(self.name("i"), INT64), E.Var(self.name("b"), INT64)
            loops.append((loop, extent))
            iters.append(S.BlockIter(var, E.IntImm(extent), kind, loop))
            self.vars.append(var)
            self.loops[var] = extent
        body = self._store(0) if self.chance(60) else self.stmt(0)
        init = self._store(0) if self.chance(40) else None
        for i in iters:
            self.vars.remove(i.var)
            del self.loops[i.var]
        statement: S.Stmt = S.Block(self.name("B"), tuple(iters), (), (), body, init)
        for loop, extent in reversed(loops):
            statement = S.For(loop, E.IntImm(0), E.IntImm(extent), "serial", statement)
        return statement

    def _call(self, depth: int) -> S.Stmt:
        """Another program on rows of the buffers here."""
        fits = [
            (f, arguments) for f in self.helpers if (arguments := self._arguments(f)) is not None
        ]
        if not fits:
            return self._store(depth)
        f, buffers = self.rng.choice(fits)
        args: list[E.Expr] = [AddressOf(b, tuple(E.IntImm(0) for _ in b.shape)) for b in buffers]
        args += [self.expr(v.dtype, 1) for v in f.scalars]
        return S.CallKernel(f.name, tuple(args))

    def _arguments(self, f: S.PrimFunc) -> list[Buffer] | None:
        """Different buffers of the dtypes and of at least the sizes that a helper takes."""
        chosen: list[Buffer] = []
        for p in f.buffers:
            written = p in f.buffers[len(f.buffers) - f.outputs :]
            among = self.writes if written else [r for r in self.reads if r not in self.writes]
            new = (b for b in among if b.dtype == p.dtype and b not in chosen)
            fits = [b for b in new if _plain(b) and b.scope == "global" and _size(b) >= _size(p)]
            if not fits:
                return None
            chosen.append(self.rng.choice(fits))
        return chosen

    # ---- functions ---------------------------------------------------------------------------

    def function(self, name: str, public: bool, depth: int) -> S.PrimFunc:
        r = self.rng
        n = E.Var("n", INT64)
        buffers = []
        # What reads comes first; of few dtypes, so that loads and calls find what they want.
        few = [r.choice(ELEMENTS) for _ in range(2)] + [r.choice(("float32", "int32"))]
        reads, writes = r.randint(0, 3), r.randint(1, 3)
        for k in range(reads + writes):
            rank = r.choice((0, 1, 1, 1, 2, 2, 3))
            shape: tuple[E.Expr, ...] = tuple(
                E.IntImm(r.choice((1, 2, 3, 4, 8, 16))) for _ in range(rank)
            )
            if public and r.randrange(100) < 12:
                shape = (n, *shape[1:])
            dtype = DType(r.choice(few))
            buffers.append(Buffer(f"p{k}", dtype, shape, align=r.choice((64, 64, dtype.bytes))))
        scalars = [
            E.Var(f"s{k}", DType(r.choice(self.scalar_types))) for k in range(r.randint(0, 3))
        ]
        self.vars = [*scalars, *([n] if any(n in b.shape for b in buffers) else [])]
        self.reads, self.writes = list(buffers), buffers[reads:]
        body = S.Seq(tuple(self.stmt(depth) for _ in range(r.randint(1, 3))))
        params: list[S.Param] = list(buffers)
        for v in scalars:  # anywhere
            params.insert(r.randint(0, len(params)), v) if public else params.append(v)
        return S.PrimFunc(name, tuple(params), body, writes, public=public)


def _known(b: Buffer) -> bool:
    return all(E.int_value(d) is not None for d in b.shape)


def _plain(b: Buffer) -> bool:
    """Whether it is one piece of memory, of known size."""
    return b.scope != "register" and _known(b) and not b.strides_given


def _size(b: Buffer) -> int:
    return math.prod(E.int_value(d) or 0 for d in b.shape)


def number(rng: Random, d: DType) -> Any:
    """An argument for a scalar parameter, which every caller can hold."""
    if d.is_bool:
        return rng.random() < 0.5
    if d.is_float:
        return rng.randrange(-64, 65) / 8
    low = 0 if d.is_unsigned else -(1 << d.bits - 1)
    high = min(low + (1 << d.bits) - 1, (1 << 63) - 1)
    return rng.choice((rng.randrange(max(low, -9), 10), rng.randrange(0, 8), low, high))


def array(rng: np.random.Generator, shape: tuple[int, ...], d: DType) -> np.ndarray:
    """Elements: small ones, with the ends of the range and what is no number among them."""
    if d.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    if d.is_float:
        x = np.asarray(rng.integers(-32, 33, shape) / 8)
        odd = rng.random(shape) < 0.05
        special = rng.choice([np.inf, -np.inf, np.nan, -0.0, 1e30, 3e-41], shape)
        with np.errstate(all="ignore"):
            return np.asarray(np.where(odd, special, x), d.name)
    info = np.iinfo(d.name)
    near = rng.integers(max(info.min, -9), 10, shape, d.name)
    far = rng.integers(info.min, info.max, shape, d.name, endpoint=True)
    return np.asarray(np.where(rng.random(shape) < 0.25, far, near), d.name)


def draw(seed: str, name: str, scalars: tuple[str, ...]) -> Program:
    """The program of a seed, evaluated; what has no one answer is drawn again."""
    for attempt in range(1000):
        rng = Random(f"{seed} {attempt}")
        helpers: list[S.PrimFunc] = []
        if rng.random() < 0.3:
            helpers.append(Generator(rng, scalars).function(f"{name}_h", False, 1))
        g = Generator(rng, scalars)
        g.helpers = helpers
        f = g.function(name, True, 3)
        generator = np.random.default_rng(rng.randrange(1 << 32))
        size = rng.choice((1, 2, 4, 8))
        inputs: dict[str, Any] = {}
        for p in f.params:
            if isinstance(p, Buffer):
                shape = tuple(E.int_value(d) or size for d in p.shape)
                inputs[p.name] = array(generator, shape, p.dtype)
            else:
                inputs[p.name] = number(rng, p.dtype)
        results = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
        failed = None
        try:
            evaluate.run(f, results, 0, EXTERNS, {h.name: h for h in helpers}, exact=True)
        except evaluate.Failed as e:
            failed = str(e)
        except (AssertionError, Ambiguous):
            continue
        return Program(f, tuple(helpers), inputs, results, failed)
    raise AssertionError(f"no program for seed {seed!r}")
