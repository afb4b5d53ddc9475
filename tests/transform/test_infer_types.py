"""infer_types: types that operators derive, and those that do not agree."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Binary, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    RVar,
    tensor,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.infer_types import infer_types
from tests.transform.graphs import (
    check_text,
    graph,
    main,
)


def test_extents_are_simplified() -> None:
    n = Var("n")
    spelled = Binary("add", Binary("mul", n, IntImm(2)), IntImm(0))
    x = RVar("x", tensor((Binary("mul", IntImm(2), n),), "float32"))
    y, z = (RVar(name, tensor((spelled,), "float32")) for name in "yz")
    call = graph(lambda g, v: g.exp(v), v=(1,))
    attrs = main(call).bindings[0].value.attrs  # type: ignore[union-attr]
    bindings = (Binding(y, Call("exp", (x,), attrs)), Binding(z, Call("neg", (y,), attrs)))
    f = Function("main", (x,), bindings, z)
    out = infer_types(IRModule((f,)))
    shapes = {b.var.tensor.shape for b in main(out).bindings}
    assert len(shapes) == 1 and shapes != {(spelled,)}
    assert main(out).result is main(out).bindings[-1].var
    assert infer_types(out) is out


@pytest.mark.parametrize("declared", [((3,), "float32"), ((2,), "float64"), ((2, 1), "float32")])
def test_wrong_types_are_errors_of_the_module(declared: tuple[tuple[int, ...], str]) -> None:
    mod = graph(lambda g, x: g.exp(x), x=(2,))
    b = main(mod).bindings[0]
    wrong = RVar("wrong", tensor(*declared))
    f = Function("main", main(mod).params, (Binding(wrong, b.value),), wrong)
    with pytest.raises(UserError, match=r"declared .*, derived float32\[2\]") as caught:
        infer_types(IRModule((f,)))
    assert caught.value.where == "main/bindings[0] wrong"


def test_operands_that_do_not_fit_are_errors_of_the_module() -> None:
    x, y = (RVar(n, tensor((k,), "float32")) for n, k in (("x", 2), ("y", 3)))
    z = RVar("z", x.type)
    f = Function("main", (x, y), (Binding(z, Call("add", (x, y), Attrs())),), z)
    with pytest.raises(UserError, match="operator add: .*expected an extent of 2") as caught:
        infer_types(IRModule((f,)))
    assert caught.value.where == "main/bindings[0] z"


def test_calls_of_functions_have_their_result_type() -> None:
    inner = main(graph(lambda g, x: g.exp(x), x=(2,)))
    fused = Function("fused", inner.params, inner.bindings, inner.result, Attrs.of(primitive=True))
    x, y = RVar("x", tensor((2,), "float32")), RVar("y", tensor((2,), "float32"))
    outer = Function("main", (x,), (Binding(y, Call(GlobalRef("fused"), (x,))),), y)
    mod = IRModule((outer, fused))
    assert infer_types(mod) is mod
    assert eliminate_dead_code(mod) is mod
    alone = IRModule((Function("main", (x,), (), x), fused))
    assert list(eliminate_dead_code(alone)) == ["main"]


def test_extents_are_simplified_and_defaults_added() -> None:
    check_text(
        infer_types,
        """
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")):
            y: R.Tensor(("n * 1", 3), "float32") = R.matmul(x, w)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")):
            y = R.matmul(x, w, transpose_a=False, transpose_b=False, wide=False)
            return y
        """,
    )
