"""The verifier knows the type rule of every operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensorkiln import ops
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.expr import Var, as_expr
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Type, tensor
from tensorkiln.ops.verify import verify
from tests.ops.test_attribute import OTHERS
from tests.ops.test_programs import CASES

SAMPLES: dict[str, tuple[list[Type], dict[str, Any]]] = {
    **{op: ([tensor(a.shape, str(a.dtype)) for a in arrays], attrs) for op, arrays, attrs in CASES},
    **OTHERS,
}


def module(op: str, types: list[Type], attrs: dict[str, Any], result: Type) -> IRModule:
    params = tuple(RVar(f"x{i}", t) for i, t in enumerate(types))
    y = RVar("y", result)
    return IRModule((Function("main", params, (Binding(y, ops.call(op, *params, **attrs)),), y),))


def of(op: str) -> tuple[list[Type], dict[str, Any], TensorType]:
    types, attrs = SAMPLES[op]
    result = ops.infer(ops.call(op, *(RVar("x", t) for t in types), **attrs))
    return types, attrs, result  # type: ignore[return-value]


SIZED = sorted(set(SAMPLES) & set(ops.OPS))


def test_every_operator_has_a_sample() -> None:
    assert set(SAMPLES) >= set(ops.OPS) - {"strassen_parts"}


@pytest.mark.parametrize("op", SIZED)
def test_a_result_is_what_the_rule_gives(op: str) -> None:
    types, attrs, right = of(op)
    verify(module(op, types, attrs, right))
    if right.ndim and op != "relayout":
        layout = Layout.plain(right.ndim).with_halo({0: 1})
        verify(module(op, types, attrs, right.with_layout(layout)))
    wrong = [
        tensor(right.shape, "uint64" if right.dtype.name != "uint64" else "int8"),
        tensor((*right.shape, 1), right.dtype),
        tensor((*(d + 1 for d in right.shape[:1]), *right.shape[1:]), right.dtype),
    ]
    for t in wrong:
        if t == right:  # a number has no first dimension
            continue
        with pytest.raises(InternalError, match=f"operator {op} gives") as caught:
            verify(module(op, types, attrs, t))
        assert caught.value.code == "type-mismatch"
        assert caught.value.where == "main.bindings[0](y)"


@pytest.mark.parametrize("op", [op for op in SIZED if SAMPLES[op][0]])
def test_operands_are_what_the_rule_takes(op: str) -> None:
    types, attrs, right = of(op)
    for count in (len(types) - 1, len(types) + 3):
        given = [*types, *types[:1] * 3][:count]
        params = tuple(RVar(f"x{i}", t) for i, t in enumerate(given))
        y = RVar("y", right)
        call = replace(ops.call(op, *(RVar("x", t) for t in types), **attrs), args=params)
        mod = IRModule((Function("main", params, (Binding(y, call),), y),))
        try:
            fits = ops.infer(call) == right
        except UserError:
            fits = False
        if not fits:
            with pytest.raises(InternalError):
                verify(mod)


def test_extents_may_be_written_in_two_ways() -> None:
    n = Var("n")
    x = RVar("x", TensorType((n * 2,), tensor((), "float32").dtype))
    y = RVar("y", TensorType((n + n,), x.tensor.dtype))
    verify(IRModule((Function("main", (x,), (Binding(y, Call("relu", (x,))),), y),)))
    z = RVar("z", TensorType((n + as_expr(1),), x.tensor.dtype))
    with pytest.raises(InternalError, match="operator relu gives"):
        verify(IRModule((Function("main", (x,), (Binding(z, Call("relu", (x,))),), z),)))


def test_a_call_is_verified_again_for_another_variable() -> None:
    """What an earlier verification knew of a call does not hold for another binding of it."""
    x = RVar("x", tensor((4,), "float32"))
    y = RVar("y", x.type)
    call, known = Call("relu", (x,)), {}
    first = IRModule((Function("main", (x,), (Binding(y, call),), y),))
    verify(first, known)
    z = RVar("z", tensor((5,), "float32"))
    with pytest.raises(InternalError, match="operator relu gives"):
        verify(IRModule((Function("main", (x,), (Binding(z, call),), z),)), known)
