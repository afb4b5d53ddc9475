"""Tensor programs that are malformed in blocks, memory, addresses and calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorkiln.ir.buffer import AddressOf, Buffer, buffer
from tensorkiln.ir.dtype import FLOAT32, HANDLE
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    CallExtern,
    Expr,
    IntImm,
    Intrin,
    Reduce,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, RVar, tensor
from tensorkiln.ir.stmt import (
    Alloc,
    Block,
    BlockIter,
    CallKernel,
    Evaluate,
    MatchBuffer,
    PrimFunc,
    Region,
    Seq,
    Stmt,
)
from tests.ir.test_verify import (
    ONE,
    REG,
    STORE,
    WIDE,
    ZERO,
    F,
    X,
    Y,
    fails,
    i,
    k,
    kernel,
    loop,
    stored,
)

FOUR = IntImm(4)


def calls(*args: Expr, name: str = "f") -> PrimFunc:
    return kernel(Evaluate(CallExtern(name, args)))


def holds(shape: tuple[Expr, ...], strides: tuple[Expr, ...] | None = None) -> PrimFunc:
    return kernel(Alloc(Buffer("b", FLOAT32, shape, "local", 64, strides), STORE))


def view(b: Buffer, *indices: Expr) -> PrimFunc:
    return kernel(MatchBuffer(b, X, indices, STORE))


def block(
    *iters: BlockIter,
    reads: tuple[Region, ...] = (),
    writes: tuple[Region, ...] = (),
    name: str = "b",
) -> PrimFunc:
    return kernel(Block(name, iters, reads, writes, STORE))


def region(b: Buffer, *ranges: tuple[Expr, Expr]) -> Region:
    return Region(b, ranges)


ALL = ((ZERO, FOUR), (ZERO, IntImm(16)))
SET = buffer("set", (2,), HANDLE)

# a program, what is wrong with it, what would be right, and where
WRONG: list[tuple[PrimFunc, str, str, str]] = [
    # values
    (stored(AddressOf(X, (ZERO, ZERO))), "an argument of a function only", "Load(X", ".value"),
    (stored(STORE), "Store is not an expression", "Load", ".value"),  # type: ignore[arg-type]
    (stored(CallExtern("f", ())), "f returns nothing", "Evaluate(call)", ".value"),
    (stored(IntImm(1, FLOAT32)), "1 as float32", "FloatImm", ".value"),
    (stored(Intrin("dot4", (F, F, F))), "dot4 of float32", "takes int32, uint8x4", ".value"),
    (stored(Reduce("sum", ((k, F),), F)), "its extent is float32", "Cast(value, int64)", ".value"),
    (
        stored(Reduce("sum", ((k, FOUR), (k, FOUR)), F)),
        "k is bound again",
        "a new Var('k'",
        ".value",
    ),
    # C functions and addresses
    (calls(name="no-name"), "'no-name' is not the name", "such as 'no_name'", "f.body.evaluate"),
    (calls(name="9"), "'9' is not the name", "such as 'f9'", "f.body.evaluate"),
    (
        kernel(Evaluate(CallExtern("f", (), HANDLE))),
        "a C function that returns handle",
        "such as int64, or void",
        "f.body.evaluate",
    ),
    (calls(Broadcast(F, 4)), "float32x4 as an argument", "VectorReduce", "evaluate.args[0]"),
    (calls(AddressOf(X, (ZERO, WIDE))), "one element in memory", "2 numbers", "evaluate.args[0]"),
    (
        kernel(Alloc(REG, Evaluate(CallExtern("f", (AddressOf(REG, (ZERO, ZERO)),))))),
        "one element in memory",
        "registers have no address",
        "evaluate.args[0]",
    ),
    (
        calls(Binary("add", AddressOf(X, (ZERO, ZERO)), F)),
        "an address plus float32",
        "Cast(value, int64)",
        "evaluate.args[0]",
    ),
    (kernel(Evaluate(F)), "FloatImm has no effect", "Let binds a value", "f.body.evaluate"),
    # calls of tensor programs
    (kernel(CallKernel("nobody", ())), "no function 'nobody'", "there are f", "f.body.call(nobody"),
    (
        kernel(CallKernel("f", (Broadcast(F, 4), ZERO))),
        "float32x4 as an argument of a function",
        "VectorReduce",
        "f.body.call(f).args[0]",
    ),
    # memory
    (holds((Broadcast(FOUR, 2),)), "2 lanes where one value", "VectorReduce", "f.body.alloc(b)"),
    (holds((IntImm(-1),)), "extent", "an extent is 0 or more", "f.body.alloc(b)"),
    (holds((F,)), "extent", "Cast(value, int64)", "f.body.alloc(b)"),
    (holds((FOUR, FOUR), (ONE,)), "1 strides for 2 dimensions", "2 strides", "f.body.alloc(b)"),
    (holds((FOUR,), (F,)), "strides are integers", "Cast(value, int64)", "f.body.alloc(b)"),
    (view(buffer("v", (4,)), ZERO, WIDE), "starts at one element", "2 numbers", "f.body.match(v)"),
    (
        view(buffer("v", (4,), "int8"), ZERO, ZERO),
        "a view as int8 in global of float32 in global",
        "make v float32 in global, as X is",
        "f.body.match(v)",
    ),
    (kernel(STORE, Y, SET), "a set of handles is read only", "list set before", "f.set"),
    # parameters
    (replace(kernel(STORE), inplace=(5,)), "parameter 5 is not a buffer", "are read: 0", "f"),
    (
        replace(kernel(STORE, buffer("Z", (4,)), X, Y, outputs=2), inplace=(0,)),
        "a program of 2 outputs",
        "give it one output",
        "f",
    ),
    # statements and blocks
    (kernel(Seq((STORE, F))), "FloatImm is not a statement", "there are For", "f.body[1]"),  # type: ignore[arg-type]
    (kernel(loop(STORE, "thread")), "and no other, has attrs", "blockIdx.x", "f.body"),
    (block(name="", writes=(region(Y, *ALL),)), "needs a name", "such as 'Y'", "f.body.block()"),
    (
        block(BlockIter(i, FOUR, "parallel", ZERO)),
        "iteration kind 'parallel'",
        "spatial",
        "f.body.block(b).i",
    ),
    (
        block(BlockIter(i, F, "spatial", ZERO)),
        "float32, but the iteration variable is int64",
        "Cast(value, int64)",
        "f.body.block(b).i.extent",
    ),
    (
        block(reads=(region(buffer("Z", (4,)), (ZERO, ONE)),)),
        "buffer Z is not bound here",
        "names bound here: X, Y",
        "f.body.block(b).reads[0]",
    ),
    (
        block(writes=(region(X, *ALL),)),
        "X is a parameter that is not an output",
        "stores go to Y",
        "f.body.block(b).writes[0]",
    ),
    (block(reads=(region(X, ALL[0]),)), "1 ranges for X", "2 dimensions", "block(b).reads[0]"),
    (
        block(reads=(region(X, (ZERO, F), ALL[1]),)),
        "a range from int64 of float32 elements",
        "Cast(value, int64)",
        "f.body.block(b).reads[0]",
    ),
    (
        block(reads=(region(X, (F, F), ALL[1]),)),
        "a range from float32",
        "Cast(value, int64)",
        "f.body.block(b).reads[0]",
    ),
]


@pytest.mark.parametrize(("f", "message", "hint", "place"), WRONG)
def test_programs(f: PrimFunc, message: str, hint: str, place: str) -> None:
    fails(f, message, hint, place)


def test_a_program_cannot_call_a_graph() -> None:
    x = RVar("x", tensor((4,), "float32"))
    body: Stmt = CallKernel("main", (AddressOf(X, (ZERO, ZERO)),))
    mod = IRModule((kernel(body), Function("main", (x,), (), x)))
    fails(mod, "main is a graph function", "externals: f", "f.body.call(main)")
