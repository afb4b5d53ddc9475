"""What the verifier refuses in branches, closures, casts, loops and calls of outer functions."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Body,
    Bound,
    Call,
    Function,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
    PrimValue,
    RVar,
    ShapeValue,
    StringValue,
    Tuple,
    TupleType,
    Type,
    tensor,
)
from tensorkiln.ir.verify import verify

F4 = tensor((4,), "float32")
n, q = Var("n"), Var("q")
x, o = RVar("x", F4), RVar("o", ObjectType())
s = RVar("s", tensor((n,), "float32"))
f = RVar("f", FuncType((tensor((Var("k"),), "float32"),), F4))
TRUE = PrimValue(IntImm(1, BOOL))


def module(*bindings: tuple[RVar, Bound]) -> IRModule:
    bound = tuple(Binding(v, b) for v, b in bindings)
    callee = Function("g", (RVar("p", F4),), (), StringValue("done"))
    return IRModule((callee, Function("main", (x, o, s, f), bound, StringValue("end"))))


def var(t: Type = F4, name: str = "y") -> RVar:
    return RVar(name, t)


def branch(then: Body, orelse: Body, cond: Bound = TRUE) -> If:
    return If(cond, then, orelse)  # type: ignore[arg-type]


inner = RVar("inner", F4)
a, b = RVar("a", F4), RVar("b", F4)
ONLY_THEN = branch(Body((Binding(inner, x),), inner), Body((), x))
WIDE = tensor((n, 4), "float32")
QUEUE = tensor((q,), "float32")
loop_cond = Lambda(Function("c", (a,), (), TRUE))
loop_body = Lambda(Function("b", (b,), (), b))
cond_var, body_var = RVar("c", loop_cond.type), RVar("b", loop_body.type)

WRONG: list[tuple[str, list[tuple[RVar, Bound]], str, str, str]] = [
    (
        "cond",
        [(var(), branch(Body((), x), Body((), x), x))],
        "one bool, not float32[4]",
        "compare it and reduce it to one element",
        "(y)",
    ),
    (
        "types",
        [(var(), branch(Body((), x), Body((), o)))],
        "the branch gives object",
        "MatchCast(value, float32[4])",
        ".orelse",
    ),
    (
        "scope",
        [(var(), ONLY_THEN), (var(name="z"), inner)],
        "inner is not bound here",
        "names bound here: f, o, s, x, y",
        "(z)",
    ),
    ("twice", [(var(), ONLY_THEN), (inner, x)], "bound twice", "a new RVar('inner'", "(inner)"),
    (
        "closure",
        [(var(FuncType((), F4)), Lambda(Function("l", (), (), inner)))],
        "inner",
        "names bound here: f, o, s, x",
        ".l",
    ),
    (
        "capture type",
        [(var(FuncType((F4,), o.type)), Lambda(Function("l", (a,), (), a)))],
        "its value function (float32[4]) -> float32[4]",
        "make the variable function",
        "(y)",
    ),
    (
        "cast",
        [(var(tensor((5,), "float32")), MatchCast(x, tensor((5,), "float32")))],
        "never",
        "dimension 0 must be 5, it is 4",
        "(y)",
    ),
    (
        "cast type",
        [(var(), MatchCast(o, WIDE))],
        "the variable is float32[4]",
        "make the variable float32[n, 4]",
        "(y)",
    ),
    (
        "symbol",
        [(var(QUEUE), Call("mystery", (x,)))],
        "dimension q is not known here",
        "names bound here: n",
        "(y)",
    ),
    (
        "attr",
        [(var(), Call("call_packed", (), Attrs.of(name="p", k=q)))],
        "q is not",
        "names bound here: n",
        ".attrs.k",
    ),
    (
        "widen",
        [(var(), o)],
        "the variable is float32[4], its value object",
        "MatchCast(value, float32[4])",
        "(y)",
    ),
    (
        "narrow",
        [(var(), RVar("x", AnyTensorType(1)))],
        "x is not bound here",
        "another x is bound",
        "(y)",
    ),
    (
        "no name",
        [(var(), Call("call_packed", (x,)))],
        "call_packed without a name",
        "attrs=Attrs.of(name=",
        "(y)",
    ),
    (
        "dps",
        [(var(o.type), Call("call_dps_packed", (), Attrs.of(name="p")))],
        "writes tensors",
        "call_packed gives",
        "(y)",
    ),
    (
        "tir",
        [(var(), Call("call_tir_inplace", (x,)))],
        "a tensor program of this module",
        "programs are none",
        "(y)",
    ),
    (
        "arity",
        [(var(), Call(f, (x, x)))],
        "f takes 1 operands, the call gives 2",
        "for each of: float32[k]",
        "(y)",
    ),
    (
        "arg",
        [(var(), Call(f, (o,)))],
        "float32[k] expected, object given",
        "MatchCast(value, float32[k])",
        ".args[0]",
    ),
    (
        "result",
        [(var(tensor((5,), "float32")), Call(f, (x,)))],
        "float32[4] expected",
        "so is the variable",
        "(y)",
    ),
    (
        "callee",
        [(var(), Call(o, (x,)))],
        "o is object, not a function",
        "functions bound here: f",
        "(y)",
    ),
    (
        "graph",
        [(var(StringValue("").type), Call(GlobalRef("g"), (s, s)))],
        "g takes 1",
        "for each of: float32[4]",
        "(y)",
    ),
    (
        "unknown",
        [(var(FuncType(None, o.type)), GlobalRef("h"))],
        "no function 'h'",
        "there are g, main",
        "(y)",
    ),
    (
        "loop",
        [(var(), Call("while_loop", (x, x, x)))],
        "two functions and the state",
        "not float32[4]",
        "(y)",
    ),
    (
        "loop state",
        [
            (cond_var, loop_cond),
            (body_var, loop_body),
            (var(), Call("while_loop", (cond_var, body_var, o))),
        ],
        "float32[4] expected, object given",
        "MatchCast(value, float32[4])",
        "(y).args[0]",
    ),
    (
        "loop result",
        [
            (cond_var, loop_cond),
            (body_var, loop_body),
            (var(TupleType((F4,))), Call("while_loop", (cond_var, body_var, x))),
        ],
        "the loop gives float32[4], its variable is (float32[4])",
        "make the variable float32[4]",
        "(y)",
    ),
    (
        "loop cond",
        [(body_var, loop_body), (var(), Call("while_loop", (body_var, body_var, x)))],
        "the condition of a loop is one bool, not float32[4]",
        "compare it and reduce",
        "(y)",
    ),
]


@pytest.mark.parametrize(
    ("bindings", "message", "hint", "place"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_is_wrong_is_named(
    bindings: list[tuple[RVar, Bound]], message: str, hint: str, place: str
) -> None:
    with pytest.raises(InternalError) as info:
        verify(module(*bindings))
    assert info.value.code == "malformed-ir"
    assert message in info.value.message, info.value.message
    assert hint in info.value.hint and hint, info.value.hint
    assert info.value.where.startswith("main.bindings[")
    assert place in info.value.where


def test_what_is_right_passes() -> None:
    cast = RVar("m", QUEUE)
    verify(
        module(
            (RVar("w", ObjectType()), x),
            (RVar("any", AnyTensorType(1)), x),
            (cast, MatchCast(o, QUEUE)),
            (RVar("r", QUEUE), Call("mystery", (cast, ShapeValue((q,))))),
            (RVar("t", TupleType((F4, ObjectType()))), Tuple((x, o))),
            (RVar("k", FuncType(None, ObjectType())), GlobalRef("g")),
            (cond_var, loop_cond),
            (body_var, loop_body),
            (RVar("end", F4), Call("while_loop", (cond_var, body_var, x))),
        )
    )


def test_a_fused_group_has_no_branches() -> None:
    group = Function(
        "k",
        (x,),
        (Binding(var(), branch(Body((), x), Body((), x))),),
        x,
        Attrs.of(primitive=True),
    )
    with pytest.raises(InternalError, match="If in a fused group") as info:
        verify(IRModule((group,)))
    assert info.value.where == "k" and "compute y before the group" in info.value.hint
