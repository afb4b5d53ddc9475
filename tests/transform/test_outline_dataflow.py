"""Outlining: which operators run together, what parts get, and what is left alone."""

from __future__ import annotations

import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Body, Call, Function, If, Lambda
from tensorkiln.ir.verify import verify
from tensorkiln.script import from_source
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.outline_dataflow import outline_dataflow
from tests.transform.graphs import check_text

ADD_ONE = """
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1
"""


def outlined(body: str, params: str = 'x: R.Tensor((4,), "float32")') -> IRModule:
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    text = f"@ir_module\nclass Net:{ADD_ONE}\n    @R.function\n    def main({params}):\n{lines}"
    mod = infer_types(from_source(text, infer=ops.infer))
    out = outline_dataflow(mod)
    verify(out)
    return out


def parts(mod: IRModule) -> dict[str, list[str]]:
    """Operators of each part."""
    operators_by_part = {}
    for f in mod.graphs:
        calls = [b.value for b in f.bindings if isinstance(b.value, Call)]
        operators_by_part[f.name] = [c.op or c.callee.name for c in calls]  # type: ignore[union-attr]
    return operators_by_part


def calls(body: Function | Body) -> list[str]:
    """What host code calls, in order."""
    names: list[str] = []
    for b in body.bindings:
        if isinstance(b.value, If):
            names += ["if", *calls(b.value.then), "else", *calls(b.value.orelse), "end"]
        elif isinstance(b.value, Lambda):
            names += ["def", *calls(b.value.function), "end"]
        elif isinstance(b.value, Call):
            names.append(b.value.op or b.value.callee.name)  # type: ignore[union-attr]
    return names


def test_straight_line_modules_are_left_alone() -> None:
    text = '@R.function\ndef main(x: R.Tensor((4,), "float32")):\n    y = R.relu(x)\n    return y\n'
    mod = from_source(text, infer=ops.infer)
    assert infer_types(mod) is mod
    assert outline_dataflow(mod) is mod
    assert mod.graphs == mod.functions
    assert mod.outers == ()


def test_operators_do_not_pass_what_acts_on_the_world() -> None:
    out = outlined("""
y = R.neg(x)
s = R.call_packed("note", y)
z = R.exp(x)
cls.add_one(z, x)
w = R.add(z, x)
return (w, s)
""")
    assert calls(out["main"]) == [  # type: ignore[arg-type]
        "main_part0",
        "call_packed",
        "main_part1",
        "call_tir_inplace",
        "main_part2",
    ]
    assert parts(out) == {"main_part0": ["neg"], "main_part1": ["exp"], "main_part2": ["add"]}


def test_operators_pass_casts_and_tuples_that_they_do_not_need() -> None:
    out = outlined(
        """
y = R.neg(x)
t = (y, o)
m = R.match_cast(o, R.Tensor(("q",), "float32"))
z = R.exp(y)
u = R.add(m, m)
v = R.add(z, t[0])
return (v, u)
""",
        'x: R.Tensor((4,), "float32"), o: R.Object',
    )
    assert parts(out) == {"main_part0": ["neg", "exp"], "main_part1": ["add", "add"]}


def test_kernels_join_and_unused_operators_are_gone() -> None:
    out = outlined("""
y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
dead = R.exp(y)
z = R.neg(y)
R.call_packed("note", z)
return z
""")
    assert parts(out) == {"main_part0": ["add_one", "neg"]}
    part = out["main_part0"]
    assert isinstance(part, Function)
    assert [p.name for p in part.params] == ["x"]
    assert part.attrs.private


def test_an_operator_that_nothing_reads_goes_even_alone() -> None:
    out = outlined("""
R.call_packed("note", x)
dead = R.exp(x)
return x
""")
    assert parts(out) == {}
    assert calls(out["main"]) == ["call_packed"]  # type: ignore[arg-type]


def test_captured_values_become_parameters() -> None:
    out = outlined("""
b = R.exp(x)
@R.function
def inner(a: R.Tensor(("k", 4), "float32")):
    c = R.add(a, b)
    return R.mul(c, x)
return inner
""")
    assert calls(out["main"]) == ["main_part1", "def", "main_part0", "end"]  # type: ignore[arg-type]
    inner = out["main_part0"]
    assert isinstance(inner, Function)
    assert [p.name for p in inner.params] == ["a", "b", "x"]


def test_a_dimension_comes_with_a_tensor_that_has_it() -> None:
    out = outlined(
        """
ones = R.full(shape=(n,), value=1.0, dtype="float32")
return (ones, s)
""",
        't: R.Tuple(R.String, R.Tensor((4, "n"), "float32")), s: R.String',
    )
    part = out["main_part0"]
    assert isinstance(part, Function)
    (carrier,) = part.params
    assert carrier.tensor.ndim == 2
    first = out["main"].bindings[0]  # type: ignore[union-attr]
    assert isinstance(first, Binding)
    assert calls(out["main"]) == ["main_part0"]  # type: ignore[arg-type]


def test_a_dimension_that_no_tensor_has_by_itself_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no tensor has the dimension n by itself") as info:
        outlined(
            'y = R.full(shape=(n,), value=1.0, dtype="float32")\nreturn (y, s)',
            's: R.String, x: R.Tensor(("n * 2",), "float32")',
        )
    assert "R.match_cast, of a shape with 'n'" in str(info.value)


def test_callers_of_graph_functions_are_outer() -> None:
    text = """@ir_module
class Net:
    @R.function
    def half(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.neg(x)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = cls.half(x)
        return R.exp(y)
"""
    mod = infer_types(from_source(text, infer=ops.infer))
    assert [f.name for f in mod.graphs] == ["half", "main"]
    out = outline_dataflow(mod)
    assert [f.name for f in out.graphs] == ["half", "main_part0"]
    assert [f.name for f in out.outers] == ["main"]
    assert calls(out["main"]) == ["half", "main_part0"]  # type: ignore[arg-type]


def test_a_name_that_is_taken_is_not_given() -> None:
    text = """@ir_module
class Net:
    @R.function
    def main_part0(x: R.Tensor((4,), "float32")):
        return R.neg(x)

    @R.function
    def main(x: R.Tensor((4,), "float32"), s: R.String):
        return (R.exp(x), s)
"""
    out = outline_dataflow(infer_types(from_source(text, infer=ops.infer)))
    assert list(out) == ["main_part0", "main_part1", "main"]


def test_parts_as_text() -> None:
    check_text(
        outline_dataflow,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32"), c: R.Prim("bool")):
            y = R.exp(x)
            z = R.neg(y)
            if c:
                a = R.abs(z)
                b = a
            else:
                b = z
            return b
        """,
        """
        @ir_module
        class Module:
            @R.function(attrs={"private": True})
            def main_part0(z: R.Tensor((4,), "float32")):
                a = R.abs(z)
                return a

            @R.function(attrs={"private": True})
            def main_part1(x: R.Tensor((4,), "float32")):
                y = R.exp(x)
                z = R.neg(y)
                return z

            @R.function(attrs={"outer": True})
            def main(x: R.Tensor((4,), "float32"), c: R.Prim("bool")):
                z = Module.main_part1(x)
                if c:
                    a = Module.main_part0(z)
                    b = a
                else:
                    b = z
                return b
        """,
    )
