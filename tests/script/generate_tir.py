"""Random well-formed tensor programs, built node by node so that nothing is folded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, INT64, DType
from tensorkiln.ir.expr import (
    BINARY,
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
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from tensorkiln.ir.operators import ON_BITS
from tensorkiln.ir.stmt import (
    BLOCK_INDICES,
    THREAD_INDICES,
    THREADS,
    Alloc,
    Assert,
    Block,
    BlockIter,
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
from tests.ir.drawn import OF_EXPRESSIONS, operand_types

NAMES = ("i", "x", "x_1", "A", "T", "in", "conv.1", "", "9", "lv", "Module", "cls", "é")
# Every field of a dependency in every form, and texts that need quotes.
DEPENDENCIES = (
    ExternalDependency("cmsis-nn", "http://example.org/cmsis", "git", "5.8.0", "Apache-2.0"),
    ExternalDependency(
        "a_1", 'the "u\\r\'l" é', sha256="0" * 64, libraries=("libx.so.1", "liby.so")
    ),
    ExternalDependency(
        "tool", "/opt/x y", "path", license="MIT OR (ISC AND Zlib)", build_time=True
    ),
)
ELEMENTS = tuple(PROGRAM_TYPES)
INTS = tuple(n for n, row in PROGRAM_TYPES.items() if row.is_integer)
FLOATS = tuple(n for n, row in PROGRAM_TYPES.items() if row.is_float)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ARITHMETIC = tuple(op for op, (_, is_bool) in BINARY.items() if not is_bool)
FLOAT_INTRINSICS = {"exp": 1, "erf": 1, "fma": 3, "pow": 2, "tanh": 1, "fmod": 2}
FLOAT_VALUES = st.floats(allow_nan=True, allow_infinity=True)


class TirGen:
    """Draws one tensor program; what is in scope decides what can be drawn."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.vars: list[Var] = []
        self.buffers: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self.threads: list[str] = []  # indices of a device that loops around are bound to
        self.spread = 0  # loops around that are parallel or vectorized

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    def name(self) -> str:
        return self.pick(NAMES)

    # ---- expressions

    def literal(self, d: DType) -> Expr:
        if d.is_float:
            return FloatImm(self.draw(FLOAT_VALUES), d)
        low = 0 if d.is_unsigned else -(1 << (d.bits - 1))
        high = 1 if d.is_bool else low + (1 << d.bits) - 1
        return IntImm(self.draw(st.integers(low, high) | st.sampled_from((0, 1))), d)

    def leaf(self, d: DType) -> Expr:
        known = [v for v in self.vars if v.dtype == d]
        if known and self.chance(70):
            return self.pick(known)
        if d.lanes == 1:
            return self.literal(d)
        if d.is_int and self.chance(30):
            return Ramp(self.leaf(d.element), self.leaf(d.element), d.lanes)
        return Broadcast(self.leaf(d.element), d.lanes)

    def expr(self, d: DType, depth: int = 3) -> Expr:
        if depth == 0 or self.chance(25):
            return self.leaf(d)
        forms = [self._declared, self._cast, self._unary, self._arith]
        if d.is_bool:
            forms = [self._compare, self._logic, self._not, self._declared]
        elif d.is_float:
            forms.append(self._intrin)
        if d.lanes == 1:
            forms += [self._vector_reduce, self._reduce]
            forms += [self.call_extern] if self.buffers else []
        else:
            forms.append(self._shuffle)
        if any(b.dtype == d.element for b in self.buffers):
            forms += [self._load, self._load]
        return self.pick(forms)(d, depth - 1)

    def _declared(self, d: DType, depth: int) -> Expr:
        node = self.pick(OF_EXPRESSIONS)
        types = operand_types(node, d, lambda: self.chance(30))
        e: Expr = node(*(self.expr(t, depth) for t in types))
        return e if e.fault(*types) is None else self.leaf(d)

    def _cast(self, d: DType, depth: int) -> Expr:
        return Cast(self.expr(DType(self.pick(ELEMENTS), d.lanes), depth), d)

    def _unary(self, d: DType, depth: int) -> Expr:
        ops = ("neg", "neg", "abs", "floor", "trunc", *(("sqrt",) if d.is_float else ()))
        return Unary(self.pick(ops), self.expr(d, depth))

    def _arith(self, d: DType, depth: int) -> Expr:
        ops = [op for op in ARITHMETIC if not (d.is_float and op in ON_BITS)]
        return Binary(self.pick(ops), self.expr(d, depth), self.expr(d, depth))

    def _compare(self, d: DType, depth: int) -> Expr:
        of = DType(self.pick(ELEMENTS), d.lanes)
        return Binary(self.pick(COMPARISONS), self.expr(of, depth), self.expr(of, depth))

    def _logic(self, d: DType, depth: int) -> Expr:
        return Binary(self.pick(("and", "or")), self.expr(d, depth), self.expr(d, depth))

    def _not(self, d: DType, depth: int) -> Expr:
        return Unary("not", self.expr(d, depth))

    def _intrin(self, d: DType, depth: int) -> Expr:
        if d.name == "float32" and self.chance(20):
            return Intrin("bitcast_f32", (self.expr(DType("int32", d.lanes), depth),))
        name = self.pick(tuple(FLOAT_INTRINSICS))
        args = tuple(self.expr(d, depth) for _ in range(FLOAT_INTRINSICS[name]))
        return Intrin(name, args)

    def _vector_reduce(self, d: DType, depth: int) -> Expr:
        if d.is_bool:
            return self.leaf(d)
        return VectorReduce(self.pick(("add", "max")), self.expr(d.with_lanes(4), depth))

    def _shuffle(self, d: DType, depth: int) -> Expr:
        lanes = tuple(self.draw(st.integers(0, 2 * d.lanes - 1)) for _ in range(d.lanes))
        return Shuffle(self.expr(d, depth), self.expr(d, depth), lanes)

    def _reduce(self, d: DType, depth: int) -> Expr:
        axes = []
        count = self.draw(st.integers(1, 2))
        for _ in range(count):
            dtype = DType(self.pick(("int64", "int32")))
            axes.append((Var(self.name(), dtype), self.expr(dtype, 1)))
            self.vars.append(axes[-1][0])
        value = self.expr(d, depth)
        del self.vars[-count:]
        return Reduce(self.pick(("sum", "max", "prod")), tuple(axes), value)

    def indices(self, b: Buffer, lanes: int, depth: int = 1) -> tuple[Expr, ...]:
        wide = self.draw(st.integers(0, len(b.shape) - 1)) if lanes > 1 else -1
        dtype = DType(self.pick(("int64", "int32")))
        return tuple(
            self.expr(dtype.with_lanes(lanes if i == wide else 1), depth)
            for i in range(len(b.shape))
        )

    def _load(self, d: DType, depth: int) -> Expr:
        fits = [b for b in self.buffers if b.dtype == d.element and (d.lanes == 1 or b.shape)]
        if not fits:
            return self.leaf(d)
        b = self.pick(fits)
        return Load(b, self.indices(b, d.lanes, min(depth, 1)))

    # ---- statements

    def stmt(self, depth: int) -> Stmt:
        forms = [self._store, self._store, self._prefetch, self._evaluate, self._assert]
        if depth:
            forms += [self._for, self._seq, self._let, self._if, self._alloc, self._seq]
            forms += [self._while, self._match, self._block, self._block, self._for]
            forms += [self._device]
        if self.whole_block():
            forms += [self._sync]
        return self.pick(forms)(depth - 1)

    def _store(self, depth: int) -> Stmt:
        b = self.pick(self.outputs)
        lanes = self.pick((1, 4)) if b.shape else 1
        value = self.expr(b.dtype.with_lanes(lanes))
        return Store(b, self.indices(b, lanes), value, self.chance(20))

    def _prefetch(self, depth: int) -> Stmt:
        b = self.pick(self.buffers)
        return Prefetch(b, self.indices(b, 1), self.draw(st.integers(0, 3)), self.chance(50))

    def _for(self, depth: int) -> Stmt:
        dtype = DType(self.pick(("int64", "int64", "int32")))
        kind = self.pick(("serial", "parallel", "vectorized", "unrolled"))
        fixed = kind in ("vectorized", "unrolled")
        extent = self.literal(dtype) if fixed else self.expr(dtype, 1)
        lo = IntImm(0, dtype) if self.chance(60) else self.expr(dtype, 1)
        var = Var(self.name(), dtype)
        self.vars.append(var)
        self.spread += kind in ("parallel", "vectorized")
        body = self.stmt(depth)
        self.spread -= kind in ("parallel", "vectorized")
        self.vars.pop()
        return For(var, lo, extent, kind, body, self.attrs())

    def whole_block(self) -> bool:
        """Whether all threads of a block of a device are here together."""
        return bool(self.threads) and not self.spread and self.threads[-1] in BLOCK_INDICES

    def _device(self, depth: int) -> Stmt:
        """A loop that is bound to an index of a device, where one can be."""
        inner = any(t in THREAD_INDICES for t in self.threads)
        free = [t for t in (THREAD_INDICES if inner else THREADS) if t not in self.threads]
        if not free or self.spread:
            return self._for(depth)
        thread = self.pick(free)
        dtype = DType(self.pick(("int64", "int64", "int32")))
        fixed = thread in THREAD_INDICES
        extent = IntImm(self.pick((1, 32)), dtype) if fixed else self.expr(dtype, 1)
        lo = IntImm(0, dtype) if self.chance(60) else self.expr(dtype, 1)
        var = Var(self.name(), dtype)
        self.vars.append(var)
        self.threads.append(thread)
        body = self.stmt(depth)
        self.threads.pop()
        self.vars.pop()
        attrs = Attrs.of(**{**self.attrs(), "thread": thread})
        return For(var, lo, extent, "thread", body, attrs)

    def _sync(self, depth: int) -> Stmt:
        return Sync("block")

    def attrs(self) -> Attrs:
        values = (3, -1, 2.5, True, None, 'a "b"', (1, "x"), IntImm(4), float("inf"), DEPENDENCIES)
        keys = [k for k in ("my.depth", "my.a b", "my.in") if self.chance(15)]
        return Attrs.of(**{k: self.pick(values) for k in keys})

    def function_attrs(self) -> Attrs:
        needs = {"kExternalDependency": DEPENDENCIES} if self.chance(15) else {}
        return Attrs.of(**{**self.attrs(), **needs})

    def _while(self, depth: int) -> Stmt:
        return While(self.expr(BOOL), self.stmt(depth))

    def _assert(self, depth: int) -> Stmt:
        return Assert(self.expr(BOOL), self.pick(("", "n is odd", 'say "no"\n')))

    def _evaluate(self, depth: int) -> Stmt:
        dtype = self.pick((DType("void"), DType("int32"), DType("float64")))
        return Evaluate(self.call_extern(dtype, 1))

    def element(self) -> str:
        """The type of an argument of a C function."""
        return self.pick(ELEMENTS)

    def call_extern(self, d: DType, depth: int) -> Expr:
        args: list[Expr] = []
        for _ in range(self.draw(st.integers(0, 3))):
            if self.chance(40):
                b = self.pick(self.buffers)
                args.append(AddressOf(b, self.indices(b, 1)))
            else:
                args.append(self.expr(DType(self.element()), depth))
        needs = tuple(DEPENDENCIES[: self.draw(st.integers(0, 2))] if self.chance(15) else ())
        return CallExtern(self.pick(("f", "hypot", "_x1")), tuple(args), d, needs)

    def _match(self, depth: int) -> Stmt:
        source = self.pick(self.buffers)
        rank = self.draw(st.integers(0, 2))
        shape = tuple(self.expr(INT64, 1) for _ in range(rank))
        if any(isinstance(d, IntImm) and d.value < 0 for d in shape):
            shape = (IntImm(4),)
        strides = tuple(self.expr(INT64, 1) for _ in shape) if self.chance(50) else None
        align = self.pick((64, 4))
        b = Buffer(self.name(), source.dtype, shape, source.scope, align, strides)
        indices = self.indices(source, 1)
        stored = source in self.outputs
        self.buffers.append(b)
        self.outputs += [b] * stored
        body = self.stmt(depth)
        self.buffers.pop()
        del self.outputs[len(self.outputs) - stored :]
        return MatchBuffer(b, source, indices, body)

    def _block(self, depth: int) -> Stmt:
        iters = []
        for _ in range(self.draw(st.integers(0, 3))):
            dtype = DType(self.pick(("int64", "int64", "int32")))
            kind = self.pick(("spatial", "reduce", "opaque"))
            var = Var(self.name(), dtype)
            iters.append(BlockIter(var, self.expr(dtype, 1), kind, self.expr(dtype, 1)))
        self.vars += [i.var for i in iters]
        reads = tuple(self.region(self.buffers) for _ in range(self.draw(st.integers(0, 2))))
        writes = tuple(self.region(self.outputs) for _ in range(self.draw(st.integers(0, 2))))
        init = self.stmt(0) if self.chance(40) else None
        body = self.stmt(depth)
        del self.vars[len(self.vars) - len(iters) :]
        name = self.pick(("C", "C_1", "a b", 'q"'))
        return Block(name, tuple(iters), reads, writes, body, init, self.attrs())

    def region(self, buffers: list[Buffer]) -> Region:
        b = self.pick(buffers)
        ranges = []
        for _ in b.shape:
            dtype = DType(self.pick(("int64", "int64", "int32")))
            extent = IntImm(1, dtype) if self.chance(30) else self.expr(dtype, 1)
            ranges.append((self.expr(dtype, 1), extent))
        return Region(b, tuple(ranges))

    def _seq(self, depth: int) -> Stmt:
        return Seq(tuple(self.stmt(depth) for _ in range(self.draw(st.integers(0, 3)))))

    def _let(self, depth: int) -> Stmt:
        dtype = DType(self.pick(ELEMENTS), self.pick((1, 4)))
        value, var = self.expr(dtype), Var(self.name(), dtype)
        self.vars.append(var)
        body = self.stmt(depth)
        self.vars.pop()
        return Let(var, value, body)

    def _if(self, depth: int) -> Stmt:
        orelse = self.stmt(depth) if self.chance(50) else None
        return If(self.expr(BOOL), self.stmt(depth), orelse)

    def _alloc(self, depth: int) -> Stmt:
        b = Buffer(
            self.name(),
            DType(self.pick(ELEMENTS)),
            tuple(self.expr(INT64, 1) for _ in range(self.draw(st.integers(0, 2)))),
            "local",
            self.pick((64, 16)),
        )
        if self.chance(30):
            b = replace(b, strides_given=tuple(self.expr(INT64, 1) for _ in b.shape))
        if any(isinstance(d, IntImm) and d.value < 0 for d in b.shape):
            b = Buffer(b.name, b.dtype, (IntImm(4),))
        if self.whole_block() and self.chance(50):
            b = Buffer(b.name, b.dtype, (IntImm(32), IntImm(4)), "shared")
        self.buffers.append(b)
        self.outputs.append(b)
        body = self.stmt(depth)
        self.buffers.pop()
        self.outputs.pop()
        return Alloc(b, body)

    def function(self, name: str) -> PrimFunc:
        n = Var(self.name(), INT64)
        scalars = (n, Var(self.name(), DType(self.pick(ELEMENTS))))[: self.draw(st.integers(0, 2))]
        dims: list[Expr] = [IntImm(4), IntImm(16), n, Binary("mul", n, IntImm(2))]
        buffers = []
        for _ in range(self.draw(st.integers(1, 3))):
            shape = tuple(self.pick(dims) for _ in range(self.draw(st.integers(0, 3))))
            b = Buffer(self.name(), DType(self.pick(ELEMENTS)), shape)
            if self.chance(20):
                b = replace(b, strides_given=tuple(self.pick(dims) for _ in shape))
            buffers.append(b)
        outputs = self.draw(st.integers(1, len(buffers)))
        self.vars += scalars
        self.buffers += buffers
        self.outputs += buffers[-outputs:]
        body = self.stmt(3)
        inplace = (0,) if outputs == 1 and len(buffers) > 1 and self.chance(20) else ()
        op_class = self.pick(("loops", "matmul_packed"))
        params = (*buffers, *scalars)
        public = self.chance(30)
        return PrimFunc(
            name, params, body, outputs, inplace, op_class, public, self.function_attrs()
        )
