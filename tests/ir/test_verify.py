"""Modules that are malformed: the verifier names the path and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    PrimValue,
    RVar,
    ShapeValue,
    Tuple,
    TupleItem,
    Type,
    Value,
    constant,
    tensor,
)
from tensorkiln.ir.stmt import Alloc, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.verify import verify

ZERO, ONE = IntImm(0), IntImm(1)
i, k = Var("i"), Var("k")
X, Y = buffer("X", (4, 16)), buffer("Y", (4, 16))
REG = buffer("acc", (8, 16), scope="register")
F = FloatImm(1.0)
WIDE = Ramp(ZERO, ONE, 16)


def fails(mod: IRModule | AnyFunction, message: str, hint: str, path: str) -> None:
    mod = mod if isinstance(mod, IRModule) else IRModule((mod,))
    with pytest.raises(InternalError) as info:
        verify(mod)
    assert info.value.code == "malformed-ir"
    assert message in info.value.message, info.value.message
    assert hint in info.value.hint and hint, info.value.hint
    assert path and path in info.value.where, info.value.where


def kernel(body: Stmt, *params: Buffer | Var, outputs: int = 1) -> PrimFunc:
    return PrimFunc("f", params or (X, Y), body, outputs)


def stored(value: Expr) -> PrimFunc:
    return kernel(Store(Y, (ZERO, ZERO), value))


def loop(body: Stmt, kind: str = "serial", extent: Expr | None = None) -> For:
    return For(i, ZERO, extent or IntImm(4), kind, body)


STORE = Store(Y, (ZERO, ZERO), F)

EXPRESSIONS: list[tuple[Expr, str, str]] = [
    (i, "i is not bound here", "names bound here: none"),
    (Load(buffer("Z", (4,)), (ZERO,)), "buffer Z is not bound here", "names bound here: X, Y"),
    (Load(X, (ZERO,)), "1 indices for X", "2 dimensions"),
    (Load(X, (F, ZERO)), "indices of float32, int64", "Cast(value, int64)"),
    (Load(X, (WIDE, WIDE)), "indices of int64x16, int64x16", "one index may be a vector"),
    (Binary("add", F, ONE), "add: float32 against int64", "Cast(value, float32)"),
    (Binary("add", F, Broadcast(F, 4)), "add: float32 against float32x4", "Broadcast(value, 4)"),
    (Binary("plus", F, F), "binary operator 'plus'", "add, sub, mul"),
    (Binary("and", F, F), "and of float32", "'ne', value, 0"),
    (Binary("bitand", F, F), "bitand of float32", "bitcast_i32"),
    (Binary("shl", F, F), "shl of float32", "bitcast_i32"),
    (Unary("not", F), "not of float32", "'ne', value, 0"),
    (Unary("sqtr", F), "unary operator 'sqtr'", "'sqrt'"),
    (Select(F, F, F), "select by float32", "'ne', value, 0"),
    (Select(IntImm(1, BOOL), F, ONE), "select: float32 against int64", "Cast(value, float32)"),
    (Select(Broadcast(IntImm(1, BOOL), 4), F, F), "select by boolx4", "VectorReduce(op, value)"),
    (Cast(Broadcast(F, 4), DType("int8")), "cast of float32x4 to int8", "to int8x4"),
    (VectorReduce("add", Ramp(F, F, 4)), "ramp of 4 lanes from float32", "Cast(value, int64)"),
    (VectorReduce("avg", Broadcast(F, 4)), "reduction 'avg'", "sum, max, min, prod, add"),
    (
        VectorReduce("add", Broadcast(Broadcast(F, 4), 4)),
        "broadcast of float32x4",
        "Shuffle repeats",
    ),
    (VectorReduce("add", Shuffle(F, F, (0, 2))), "lanes (0, 2) of two float32", "from 0 to 1"),
    (Intrin("exp", (F, F)), "'exp' with 2 arguments", "takes 1 argument"),
    (Intrin("exp", ()), "'exp' with 0 arguments", "takes 1 argument"),
    (Binary("add", Intrin("expm", (F,)), F), "'expm' with 1 arguments", "exp"),
    (Intrin("fma", (F, F, ONE)), "fma of float32, float32, int64", "Cast(value, float32)"),
    (Intrin("bitcast_f32", (F,)), "bitcast_f32 of float32", "bitcast_i32"),
    (Reduce("avg", ((k, ONE),), F), "reduction 'avg'", "sum, max, min, prod"),
    (
        Binary("mul", Reduce("sum", ((k, ONE),), F), Cast(k, DType("float32"))),
        "k is not bound",
        "names bound here: none",
    ),
    (Cast(IntImm(300, DType("int8")), DType("float32")), "300 as int8", "-128 to 127"),
    (FloatImm(1.0, DType("int8")), "1.0 as int8", "IntImm(value, int8)"),
    (ONE, "int64 stored where float32 belongs", "Cast(value, float32)"),
    (Broadcast(F, 4), "float32x4 stored where float32 belongs", "VectorReduce(op, value)"),
]


@pytest.mark.parametrize(("value", "message", "hint"), EXPRESSIONS)
def test_expressions(value: Expr, message: str, hint: str) -> None:
    fails(stored(value), message, hint, "f.body.store(Y).value")


def test_the_path_leads_to_the_expression_at_fault() -> None:
    bad = Binary("add", F, ONE)
    value = Unary("neg", Intrin("fma", (F, Load(X, (ZERO, ZERO)), bad)))
    fails(stored(value), "float32 against int64", "Cast", "f.body.store(Y).value.a.args[2]")
    nested = loop(Seq((STORE, If(IntImm(1, BOOL), Store(Y, (ZERO, ZERO), bad)))))
    fails(kernel(nested), "float32 against int64", "Cast", "f.body.for(i)[1].then.store(Y).value")


STATEMENTS: list[tuple[PrimFunc, str, str, str]] = [
    (kernel(loop(STORE, "threads")), "loop kind 'threads'", "mean 'thread'", "f.body"),
    (
        kernel(loop(STORE, "vectorized", k), X, Y, k),
        "a loop that is vectorized needs a constant",
        "or make it serial",
        "f.body",
    ),
    (
        kernel(loop(STORE, "serial", IntImm(4, DType("int32")))),
        "int32, but the loop variable",
        "Cast(value, int64) makes int64 of int32",
        "f.body.extent",
    ),
    (
        kernel(loop(loop(STORE))),
        "i is bound again while in scope",
        "a new Var('i'",
        "f.body.for(i)",
    ),
    (kernel(loop(STORE), X, Y, i), "i is bound again while in scope", "a new Var('i'", "f.body"),
    (
        kernel(Seq((loop(STORE), Store(Y, (i, ZERO), F)))),
        "i is not bound here",
        "names bound here: none",
        "f.body[1].store(Y).indices[0]",
    ),
    (kernel(If(ONE, STORE)), "int64 as a condition", "'ne', value, 0", "f.body.cond"),
    (
        kernel(Let(k, F, STORE)),
        "float32, but the variable is int64",
        "Cast(value, int64)",
        "f.body.let(k).value",
    ),
    (
        kernel(Store(X, (ZERO, ZERO), F)),
        "store to a parameter that is not an output",
        "stores go to Y",
        "f.body.store(X)",
    ),
    (kernel(Store(Y, (ZERO,), F)), "1 indices for Y", "2 dimensions", "f.body.store(Y)"),
    (
        kernel(Store(Y, (ZERO, WIDE), F)),
        "float32 stored where float32x16 belongs",
        "Broadcast(value, 16)",
        "f.body.store(Y).value",
    ),
    (
        kernel(Alloc(Y, STORE)),
        "allocated again while in scope",
        "a new Buffer('Y'",
        "f.body.alloc(Y)",
    ),
    (
        kernel(Alloc(buffer("b", (4,), scope="cache"), STORE)),
        "scope 'cache'",
        "global, local, register",
        "f.body.alloc(b)",
    ),
    (
        kernel(Alloc(buffer("b", (k,), scope="register"), STORE), X, Y, k),
        "constant extents",
        "a number for each extent",
        "f.body.alloc(b)",
    ),
    (
        kernel(Prefetch(X, (ZERO, ZERO), 4)),
        "locality 4",
        "0 (used once) to 3",
        "f.body.prefetch(X)",
    ),
    (
        kernel(Prefetch(X, (ZERO, WIDE))),
        "address of one element",
        "2 numbers of one lane",
        "f.body.prefetch(X)",
    ),
    (kernel(STORE, X, Y, outputs=3), "3 outputs of 2 buffers", "0 to 2", "f"),
    (kernel(STORE, Y, Y), "listed twice", "list Y once", "f"),
    (replace(kernel(STORE), inplace=(1,)), "inplace parameter 1 is an output", "are read: 0", "f"),
    (
        kernel(STORE, REG, Y),
        "a parameter cannot be in scope 'register'",
        "in scope 'global'",
        "f.acc",
    ),
    (
        kernel(STORE, buffer("V", (4,), "float32x4"), Y),
        "a buffer's elements are scalars",
        "a last dimension of 4",
        "f.V",
    ),
]


@pytest.mark.parametrize(("f", "message", "hint", "place"), STATEMENTS)
def test_statements(f: PrimFunc, message: str, hint: str, place: str) -> None:
    fails(f, message, hint, place)


IN_ACC = "store(acc)"


def in_registers(body: Stmt) -> PrimFunc:
    return kernel(Alloc(REG, body))


def test_register_buffers_are_indexed_by_numbers() -> None:
    wide = Broadcast(F, 16)
    verify(IRModule((in_registers(loop(Store(REG, (i * 2, WIDE), wide), "unrolled")),)))
    fails(
        in_registers(loop(Store(REG, (i, WIDE), wide))),
        "register buffer acc indexed by i",
        "unrolled",
        IN_ACC,
    )
    load = Store(REG, (Cast(Load(X, (ZERO, ZERO)), DType("int64")), WIDE), wide)
    fails(in_registers(load), "indexed by a load", "scope 'local'", IN_ACC)
    fails(
        in_registers(Store(REG, (IntImm(8), WIDE), wide)),
        "elements 8..8",
        "holds elements 0..7",
        IN_ACC,
    )
    fails(
        in_registers(Store(REG, (ZERO, Ramp(ONE, ONE, 16)), wide)),
        "elements 1..16",
        "holds elements 0..15",
        IN_ACC,
    )
    fails(
        in_registers(Store(REG, (ZERO, Ramp(ZERO, IntImm(2), 16)), wide)),
        "stride",
        "Ramp(start, 1, 16)",
        IN_ACC,
    )


def test_a_variable_may_be_bound_again_beside_its_scope() -> None:
    verify(IRModule((kernel(Seq((loop(STORE), loop(STORE)))),)))
    row = Reduce("sum", ((k, IntImm(4)),), Load(X, (k, ZERO)))
    verify(IRModule((stored(Binary("add", row, row)),)))


# ---- graphs ---------------------------------------------------------------------------------

T4 = tensor((4,), "float32")
x, y, z = RVar("x", T4), RVar("y", T4), RVar("z", tensor((5,), "float32"))
a4, b4 = buffer("A", (4,)), buffer("B", (4,))
ADD = PrimFunc("add_one", (a4, b4), Store(b4, (ZERO,), a4[0]))
SCALE = replace(ADD, name="scaled", params=(a4, b4, Var("v"), Var("w")))


def graph(*bindings: tuple[RVar, Bound], result: Value = x) -> IRModule:
    pairs = tuple(Binding(var, value) for var, value in bindings)
    return IRModule((ADD, SCALE, Function("main", (x,), pairs, result)))


def call(callee: str | GlobalRef, *args: Value, **attrs: object) -> Call:
    return Call(callee, args, Attrs.of(**attrs))  # type: ignore[arg-type]


KERNEL, SCALED = GlobalRef("add_one"), GlobalRef("scaled")
PAIR = RVar("pair", Tuple((x, x)).type)
n, m = Var("n"), Var("m")
FLOATS = np.zeros(4, "float32")

GRAPHS: list[tuple[IRModule, str, str, str]] = [
    (
        graph((y, call("relu", z))),
        "z is not bound here",
        "names bound here: x",
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((y, call("relu", y))),
        "y is not bound here",
        "names bound here: x",
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((y, call("relu", x)), (y, call("relu", x))),
        "bound twice",
        "a new RVar('y'",
        "main.bindings[1](y)",
    ),
    (graph((x, call("relu", x))), "bound twice", "a new RVar('x'", "main.bindings[0](x)"),
    (graph(result=y), "y is not bound here", "names bound here: x", "main.result"),
    (
        graph((z, x)),
        "the variable is float32[5], its value float32[4]",
        "make the variable float32[4]",
        "main.bindings[0](z)",
    ),
    (
        graph((y, TupleItem(x, 0))),
        "item 0 of float32[4]",
        "only a tuple has them",
        "main.bindings[0](y)",
    ),
    (
        graph((PAIR, Tuple((x, x))), (y, TupleItem(PAIR, 2))),
        "item 2 of (float32[4], ",
        "items are 0 to 1",
        "main.bindings[1](y)",
    ),
    (
        graph((PAIR, Tuple((x, x))), (z, TupleItem(PAIR, 1))),
        "float32[5], its value",
        "make the variable float32[4]",
        "main.bindings[1](z)",
    ),
    (
        graph((y, call(GlobalRef("add_on"), x))),
        "no function 'add_on'",
        "mean 'add_one'",
        "main.bindings[0](y)",
    ),
    (
        graph((y, call(KERNEL, x, x))),
        "add_one reads 1 buffers, the call gives 2",
        "one tensor for each of: A",
        "main.bindings[0](y)",
    ),
    (
        graph((z, call(KERNEL, x))),
        "float32[5] holds 5 elements, the buffer 4",
        "as many elements as float32[4]",
        "main.bindings[0](z)",
    ),
    (
        graph((PAIR, call(KERNEL, x))),
        "writes 1 buffers, the call has 2 results",
        "one result for each of: B",
        "main.bindings[0](pair)",
    ),
    (
        graph((y, call(KERNEL, constant(np.zeros(4))))),
        "float64[4] for a buffer of float32",
        'dtype="float32"',
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((y, call("op", x, size=(n, 1)))),
        "dimension n is not known",
        "names bound here: none",
        "attrs.size",
    ),
    (
        graph((y, call("op", ShapeValue((n,))))),
        "dimension n is not known",
        "names bound here: none",
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((y, call("", x))),
        "the call has no callee",
        "a function: add_one, scaled, main",
        "main.bindings[0](y)",
    ),
    (
        graph((y, Constant(FLOATS, tensor((5,), "float32")))),
        "array (4,), type (5,)",
        "an array of shape (5,)",
        "main.bindings[0](y)",
    ),
    (
        graph((y, Constant(FLOATS, tensor((4,), "int8")))),
        "array float32, type int8",
        "a type of float32",
        "main.bindings[0](y)",
    ),
    (
        graph((y, call("op", x))).with_functions((ADD, ADD)),
        "two functions of this name",
        "taken are add_one",
        "add_one",
    ),
    (
        graph((y, call(SCALED, x, ShapeValue((ONE,))))),
        "scaled takes 2 numbers, the call gives 1",
        "R.prim_value(...) passes: v, w",
        "main.bindings[0](y)",
    ),
    (
        graph((y, call(KERNEL, x, PrimValue(ONE)))),
        "add_one takes 0 numbers, the call gives 1",
        "tensors only",
        "main.bindings[0](y)",
    ),
]
TABLES = (EXPRESSIONS, STATEMENTS, GRAPHS)


@pytest.mark.parametrize(("mod", "message", "hint", "path"), GRAPHS)
def test_graphs(mod: IRModule, message: str, hint: str, path: str) -> None:
    fails(mod, message, hint, path)


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        (tensor((-1,), "float32"), "extent", "0 or more"),
        (tensor((4,), "float32x4"), "a tensor of float32x4", "a last dimension of 4"),
        (T4.with_layout(Layout.parse("B A")), "layout B A for 1 dimensions", "'A'"),
        (tensor((F,), "float32"), "extent", "Cast(value, int64)"),
    ],
)
def test_types(kind: Type, message: str, hint: str) -> None:
    fails(Function("main", (RVar("x", kind),), (), ShapeValue(())), message, hint, "main.x")


def test_calls_of_graph_functions() -> None:
    def module(argument: Type, result: Type) -> IRModule:
        p = RVar("p", tensor((n, 4), "float32"))
        callee = Function("relu", (p,), (), p)
        a, b = RVar("a", argument), RVar("b", result)
        main = Function("main", (a,), (Binding(b, Call(GlobalRef("relu"), (a,))),), b)
        return IRModule((callee, main))

    good, other = tensor((m, 4), "float32"), tensor((m, 5), "float32")
    verify(module(good, good))
    verify(module(tensor((7, 4), "float32"), tensor((7, 4), "float32")))
    fails(
        module(other, good),
        "float32[n, 4] expected, float32[m, 5] given",
        "dimension 1 must be 4, it is 5",
        ".args[0]",
    )
    fails(
        module(good, other),
        "float32[m, 4] expected, float32[m, 5] given",
        "the call gives",
        "main.bindings[0](b)",
    )
    fails(
        module(good.with_layout(Layout.parse("B A")), good),
        "given",
        "layout A B needed",
        ".args[0]",
    )


def test_dimensions_come_in_with_types() -> None:
    """A result whose extent only its operator knows brings in a new dimension."""
    rows = RVar("rows", tensor((n, 1), "int64"))
    flat = RVar("flat", tensor((n,), "int64"))
    verify(graph((rows, call("rows_of", x)), (flat, call("reshape", rows, shape=(n,)))))
