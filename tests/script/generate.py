"""Random well-formed modules of both languages, built node by node so that nothing is folded."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, DTYPES, INT64, DType
from tensorkiln.ir.expr import (
    BINARY,
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
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import Alloc, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store

NAMES = ("i", "x", "x_1", "A", "T", "in", "conv.1", "", "9", "lv", "Module", "cls", "é")
ELEMENTS = tuple(DTYPES)
INTS = tuple(n for n, (kind, _, _) in DTYPES.items() if kind in ("int", "uint"))
FLOATS = tuple(n for n, (kind, _, _) in DTYPES.items() if kind == "float")
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
        forms = [self._select, self._cast, self._unary, self._arith]
        if d.is_bool:
            forms = [self._compare, self._logic, self._not, self._select]
        elif d.is_float:
            forms.append(self._intrin)
        if d.lanes == 1:
            forms += [self._vector_reduce, self._reduce]
        else:
            forms.append(self._shuffle)
        if any(b.dtype == d.element for b in self.buffers):
            forms += [self._load, self._load]
        return self.pick(forms)(d, depth - 1)

    def _select(self, d: DType, depth: int) -> Expr:
        cond = BOOL if self.chance(30) else BOOL.with_lanes(d.lanes)
        return Select(self.expr(cond, depth), self.expr(d, depth), self.expr(d, depth))

    def _cast(self, d: DType, depth: int) -> Expr:
        return Cast(self.expr(DType(self.pick(ELEMENTS), d.lanes), depth), d)

    def _unary(self, d: DType, depth: int) -> Expr:
        ops = ("neg", "neg", "abs", "floor", "trunc", *(("sqrt",) if d.is_float else ()))
        return Unary(self.pick(ops), self.expr(d, depth))

    def _arith(self, d: DType, depth: int) -> Expr:
        return Binary(self.pick(ARITHMETIC), self.expr(d, depth), self.expr(d, depth))

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
        forms = [self._store, self._store, self._prefetch]
        if depth:
            forms += [self._for, self._seq, self._let, self._if, self._alloc, self._seq]
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
        body = self.stmt(depth)
        self.vars.pop()
        return For(var, lo, extent, kind, body)

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
        if any(isinstance(d, IntImm) and d.value < 0 for d in b.shape):
            b = Buffer(b.name, b.dtype, (IntImm(4),))
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
            buffers.append(Buffer(self.name(), DType(self.pick(ELEMENTS)), shape))
        outputs = self.draw(st.integers(1, len(buffers)))
        self.vars += scalars
        self.buffers += buffers
        self.outputs += buffers[-outputs:]
        body = self.stmt(3)
        inplace = (0,) if outputs == 1 and len(buffers) > 1 and self.chance(20) else ()
        op_class = self.pick(("loops", "matmul_packed"))
        params = (*buffers, *scalars)
        return PrimFunc(name, params, body, outputs, inplace, op_class, self.chance(30))


class GraphGen:
    """Draws one graph function."""

    def __init__(self, draw: Any, kernels: list[PrimFunc]):
        self.draw, self.kernels = draw, kernels
        self.values: list[RVar] = []
        self.dims: list[Var] = [Var(name) for name in ("n", "x", "n")]
        self.known: list[Var] = []

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def dim(self) -> Expr:
        if self.draw(st.booleans()) or not (self.dims or self.known):
            return IntImm(self.draw(st.integers(0, 20)))
        v = self.pick(self.dims or self.known)
        if v not in self.known:
            self.known.append(v)
        return self.pick((v, Binary("mul", v, IntImm(2)), Binary("floordiv", v, IntImm(16))))

    def tensor(self) -> TensorType:
        shape = tuple(self.dim() for _ in range(self.draw(st.integers(0, 3))))
        layout = Layout.parse("A/16 B+1 A%16") if len(shape) == 2 and self.pick((0, 1)) else None
        return TensorType(shape, DType(self.pick(ELEMENTS)), layout)

    def constant(self) -> Constant:
        shape = self.pick(((), (3,), (0, 2), (2, 2), (5, 7)))
        dtype = self.pick([n for n in ELEMENTS if n != "bfloat16"])
        data = self.draw(st.binary(min_size=8 * 35, max_size=8 * 35))
        count = int(np.prod(shape))
        array = np.frombuffer(data, dtype if dtype != "bool" else "uint8")[:count].reshape(shape)
        array = array != 0 if dtype == "bool" else array
        kind = TensorType(tuple(IntImm(n) for n in shape), DType(dtype))
        if shape == (5, 7) and self.draw(st.booleans()):
            layout = Layout.parse("A/4 B A%4")
            return Constant(layout.pack(array), kind.with_layout(layout), "packed")
        return Constant(array, kind, self.pick(("", "w", "fc.weight", 'a"b')))

    def number(self) -> Expr:
        if not self.known:
            return IntImm(3)
        v = self.pick(self.known)
        return self.pick((v, IntImm(-3), Binary("add", v, IntImm(0)), Unary("neg", v)))

    def attr(self, depth: int = 2) -> Any:
        plain = [None, True, 3, -4, 2.5, float("inf"), float("nan"), "same", 'a "b" c', -0.0]
        kind = self.draw(st.integers(0, 3))
        if kind == 0:
            return self.number()
        if kind == 1 and depth:
            return tuple(self.attr(depth - 1) for _ in range(self.draw(st.integers(0, 3))))
        return self.pick(plain)

    def value(self, depth: int = 2) -> Value:
        kind = self.draw(st.integers(0, 9))
        if kind < 6 and self.values:
            return self.pick(self.values)
        if kind == 9 and depth:
            return Tuple(tuple(self.value(depth - 1) for _ in range(self.draw(st.integers(0, 2)))))
        if kind == 8:
            return ShapeValue(tuple(self.number() for _ in range(self.draw(st.integers(0, 2)))))
        return self.constant()

    def bound(self) -> tuple[Bound, Type]:
        kind = self.draw(st.integers(0, 9))
        tuples = [v for v in self.values if isinstance(v.type, TupleType) and v.type.fields]
        if kind == 0:
            value = self.value()
            return value, value.type
        if kind == 1 and tuples:
            t = self.pick(tuples)
            index = self.draw(st.integers(0, len(t.type.fields) - 1))
            return TupleItem(t, index), t.type.fields[index]
        if kind == 2 and self.kernels:
            return self.kernel_call()
        op = self.pick(("add", "nn.conv2d", "const", "lambda", "weird name", "max", "Tensor"))
        keys = self.draw(st.sets(st.sampled_from(("axis", "span", "in", "a b", "shape"))))
        attrs = Attrs.of(**{k: self.attr() for k in keys})
        args = tuple(self.value() for _ in range(self.draw(st.integers(0, 3))))
        return Call(op, args, attrs, self.pick(("", "node/1", 'q"\n'))), self.result()

    def result(self) -> Type:
        if self.draw(st.integers(0, 4)) == 0:
            return TupleType(tuple(self.tensor() for _ in range(self.draw(st.integers(0, 2)))))
        return self.tensor()

    def kernel_call(self) -> tuple[Bound, Type]:
        f = self.pick(self.kernels)
        reads = f.buffers[: len(f.buffers) - f.outputs]
        args = []
        for b in reads:
            fits = [v for v in self.values if v.type == TensorType(b.shape, b.dtype)]
            if not fits:
                return self.bound_constant()
            args.append(self.pick(fits))
        rows = self.pick(self.known or [IntImm(4)])
        outs = [TensorType((rows,), b.dtype) for b in f.buffers[len(reads) :]]
        call = Call(GlobalRef(f.name), tuple(args))
        return call, outs[0] if len(outs) == 1 else TupleType(tuple(outs))

    def bound_constant(self) -> tuple[Bound, Type]:
        c = self.constant()
        return c, c.type

    def function(self, name: str) -> Function:
        params = tuple(
            RVar(self.pick(NAMES), self.tensor()) for _ in range(self.draw(st.integers(0, 3)))
        )
        self.values += params
        self.dims = []  # what follows uses the dimensions that the parameters brought in
        bindings = []
        for _ in range(self.draw(st.integers(0, 5))):
            value, kind = self.bound()
            var = RVar(self.pick(NAMES), kind)
            bindings.append(Binding(var, value))
            self.values.append(var)
        attrs = Attrs.of(primitive=True, kind="a b") if self.draw(st.booleans()) else Attrs()
        return Function(name, params, tuple(bindings), self.value(), attrs)


@st.composite
def prim_funcs(draw: Any, name: str = "kernel") -> PrimFunc:
    """One tensor program."""
    return TirGen(draw).function(name)


@st.composite
def graphs(draw: Any) -> Function:
    """One graph that calls operators only."""
    return GraphGen(draw, []).function("main")


@st.composite
def modules(draw: Any) -> IRModule:
    """A few functions of both levels."""
    kernels = [draw(prim_funcs(name)) for name in ("k", "fused.1")[: draw(st.integers(0, 2))]]
    graph = GraphGen(draw, kernels).function("main")
    functions = draw(st.permutations([*kernels, graph]))
    return IRModule(tuple(functions), draw(st.sampled_from(("model", "resnet 18"))))
