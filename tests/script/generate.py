"""Random well-formed modules of both languages, built node by node so that nothing is folded."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Binary,
    Expr,
    IntImm,
    Unary,
    Var,
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
from tensorkiln.ir.stmt import PrimFunc

from .generate_tir import DEPENDENCIES, ELEMENTS, NAMES, TirGen


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
        array = np.asarray(array != 0) if dtype == "bool" else array
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
        if self.draw(st.integers(0, 19)) == 0:
            return self.pick(DEPENDENCIES)
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
        return self.operator()

    def operator(self) -> tuple[Bound, Type]:
        """Any name, any operands: what the text can say, not what an operator takes."""
        op = self.pick(
            ("mine.add", "net.conv2d", "const", "lambda", "weird name", "most", "Tensor")
        )
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
        if not self.known:
            return self.bound_constant()
        rows = self.pick(self.known)
        outs = [TensorType((rows,), b.dtype) for b in f.buffers[len(reads) :]]
        if f.scalars:
            args.append(ShapeValue(tuple(self.number() for _ in f.scalars)))
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
        attrs = (
            Attrs.of(primitive=True, **{"mine.kind": "a b"})
            if self.draw(st.booleans())
            else Attrs()
        )
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
