"""Planned graphs that are not of the form, and calls that do not fit what they call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import AddressOf
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Ramp, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    FuncType,
    GlobalRef,
    PrimValue,
    RVar,
    ShapeValue,
    Tuple,
    Value,
    tensor,
)
from tensorkiln.ir.stmt import CallKernel, PrimFunc, Seq
from tensorkiln.script import from_source
from tests.ir.test_verify import KERNEL, ONE, PAIR, T4, ZERO, call, fails, graph, x, y, z
from tests.transform.test_partial_graph_aot import PROGRAM

PLANNED = from_source(PROGRAM)
INIT, MAIN, RUN = (PLANNED[name] for name in ("init", "main", "run"))
assert isinstance(INIT, Function) and isinstance(MAIN, Function) and isinstance(RUN, PrimFunc)
STORAGES, W, OUT = (b.var for b in MAIN.bindings)
X8, Z8 = MAIN.params
(N,) = (d for d in Z8.tensor.shape if isinstance(d, Var))


def planned(*functions: Function | PrimFunc) -> IRModule:
    """The program with other functions of the same names."""
    now = {f.name: f for f in functions}
    return IRModule(tuple(now.get(f.name, f) for f in PLANNED.functions))


def main(
    *more: tuple[RVar, Bound], result: Value = OUT, last: Bound = MAIN.bindings[-1].value
) -> IRModule:
    """With further bindings before the last, or another value of that."""
    assert isinstance(MAIN, Function)
    bindings = (*MAIN.bindings[:-1], *(Binding(*m) for m in more), Binding(OUT, last))
    return planned(replace(MAIN, bindings=bindings, result=result))


def runs(*args: Value) -> Call:
    return Call(GlobalRef("run"), args)


def _far() -> IRModule:
    """An address that is an element of a buffer."""
    assert isinstance(RUN, PrimFunc) and isinstance(RUN.body, Seq)
    first, second = RUN.body.stmts
    assert isinstance(first, CallKernel)
    moved = (AddressOf(RUN.buffers[0], (ONE,)), *first.args[1:])
    return planned(replace(RUN, body=Seq((replace(first, args=moved), second))))


S0, S1 = INIT.bindings
NO_STORAGE = Call("call_packed", (), Attrs.of(name="f"))
SIZES = ShapeValue((N,))
HANDLES = RVar("p", tensor((2,), "handle"))

FORM: list[tuple[IRModule, str, str, str]] = [
    (
        _far(),
        "expected the start of a buffer",
        "AddressOf(buffer, (0",
        "main.calls[0](add).args[0]",
    ),
    (
        planned(replace(MAIN, bindings=(), result=X8)),
        "calls the one that runs it",
        "attribute `host`: run",
        "main",
    ),
    (
        main((RVar("more", Tuple((X8,)).type), Tuple((X8,)))),
        "holds constants, one set",
        "Tuple belongs in the run function",
        "main.bindings[2](more)",
    ),
    (
        main((RVar("more", STORAGES.type), MAIN.bindings[0].value)),
        "holds constants, one set",
        "storages is the set",
        "main.bindings[2](more)",
    ),
    (
        main(last=Call("relu", (X8,))),
        "expected a call of a tensor program with the attribute `host`",
        "there are run",
        "main.bindings[2](y)",
    ),
    (main(result=X8), "returns what its run function gives", "return y", "main.bindings[2](y)"),
    (
        main(last=runs(X8, Z8, STORAGES, Tuple((W,)), PrimValue(N))),
        "run reads 4 buffers, the call gives 5",
        "one operand for each of: x, z, storages, constants",
        "main.bindings[2](y)",
    ),
    (
        main(last=runs(W, Z8, STORAGES, Tuple((W,)), SIZES)),
        "x is neither a parameter nor a set",
        "parameters are x, z; storages is the set of storages",
        "main.bindings[2](y)",
    ),
    (
        main(last=runs(X8, Z8, STORAGES, Tuple((X8,)), SIZES)),
        "holds constants only",
        "constants bound here: ",
        "main.bindings[2](y)",
    ),
    (
        planned(
            replace(
                MAIN,
                params=(X8, Z8, HANDLES),
                bindings=(
                    *MAIN.bindings[:2],
                    Binding(OUT, runs(X8, Z8, HANDLES, Tuple((W,)), SIZES)),
                ),
            )
        ),
        "a set is a buffer of handles",
        "pass it a tuple",
        "main.bindings[2](y)",
    ),
    (
        planned(replace(INIT, bindings=(replace(S0, value=NO_STORAGE), S1))),
        "s0 is not alloc_storage(size=...)",
        "init only makes storages",
        "init",
    ),
    (
        planned(replace(INIT, params=(X8,), bindings=(S0,), result=Tuple((S0.var,)))),
        "x: expected R.Shape of names",
        "its type is float32[8]",
        "init",
    ),
]


@pytest.mark.parametrize(("mod", "message", "hint", "path"), FORM)
def test_the_form(mod: IRModule, message: str, hint: str, path: str) -> None:
    fails(mod, message, hint, path)


def in_place(*args: Value, at: object, result: RVar = y) -> IRModule:
    return graph((result, call("call_tir_inplace", KERNEL, *args, inplace=at)))


def loops(gives: RVar) -> IRModule:
    """A loop over one tensor whose body gives something else."""
    cond = RVar("cond", FuncType((T4,), tensor((), BOOL)))
    body = RVar("body", FuncType((T4,), gives.type))
    bound = (Binding(y, call("while_loop", cond, body, x)),)
    return IRModule((Function("main", (cond, body, x), bound, y),))


def of_a_group() -> IRModule:
    group = Function("group", (x,), (), x, Attrs.of(primitive=True))
    p = RVar("p", T4)
    bound = (Binding(z, Call(GlobalRef("group"), (p,))),)
    return IRModule((group, Function("main", (p,), bound, z)))


CALLS: list[tuple[IRModule, str, str, str]] = [
    (in_place(x, at=(7,)), "expected indices of 1 operands", "-1 to 0", "main.bindings[0](y)"),
    (in_place(x, at=0), "inplace=0: expected indices", "a tuple", "main.bindings[0](y)"),
    (
        in_place(x, at=(0,)),
        "2 buffers, the call 1 and 0 new ones",
        "in order: A, B",
        "main.bindings[0](y)",
    ),
    (
        in_place(x, at=(-1,), result=PAIR),
        "1 results in place, the variable has 2",
        "each of 2 results",
        "main.bindings[0](pair)",
    ),
    (
        in_place(x, x, at=(1,), result=z),
        "result float32[5] is operand 1, float32[4]",
        "make the result float32[4]",
        "main.bindings[0](z)",
    ),
    (
        loops(z),
        "it gives float32[5]",
        "return the next state from it, float32[4]",
        "main.bindings[0](y)",
    ),
    (of_a_group(), "float32[4] expected, float32[5]", "group gives float32[4]", "bindings[0](z)"),
    (
        graph((y, call("alloc_storage", x, size=64))),
        "takes no operands",
        "size is its bytes",
        "main.bindings[0](y)",
    ),
    (
        graph((y, call("relu", call("relu", x)))),  # type: ignore[arg-type]
        "Call is not a value",
        "bind the Call to a variable",
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((y, call("op", ShapeValue((Ramp(ZERO, ONE, 4),))))),
        "int64x4 in a shape",
        "VectorReduce",
        "main.bindings[0](y).args[0]",
    ),
    (
        graph((RVar("t", 3), call("op", x))),  # type: ignore[arg-type]
        "3 is not a type",
        "TensorType, TupleType",
        "main.bindings[0](t)",
    ),
]


@pytest.mark.parametrize(("mod", "message", "hint", "path"), CALLS)
def test_calls(mod: IRModule, message: str, hint: str, path: str) -> None:
    fails(mod, message, hint, path)
