"""Structural equality: what counts, what does not, and where the first difference is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.equal import first_difference, structural_equal
from tensorkiln.ir.expr import Binary, Expr, FloatImm, IntImm, Reduce, Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    FuncType,
    RVar,
    TensorType,
    constant,
    tensor,
)
from tensorkiln.ir.stmt import For, PrimFunc, Seq, Stmt, Store


def test_the_symbols_of_a_function_type_are_its_own() -> None:
    def mapping(n: Var, result: Var) -> FuncType:
        return FuncType((tensor((n, 4), "float32"),), tensor((result, 4), "float32"))

    n, m, free = Var("n"), Var("m"), Var("free")
    assert mapping(n, n) == mapping(m, m) and hash(mapping(n, n)) == hash(mapping(m, m))
    assert mapping(n, free) == mapping(m, free)
    assert mapping(n, n) != mapping(n, m)
    assert mapping(n, free) != mapping(n, Var("free"))
    assert FuncType((), mapping(n, n)) == FuncType((), mapping(m, m))
    assert FuncType((), mapping(n, n)) != FuncType(None, mapping(n, n))


def copy_kernel(names: str = "XYni", extent: int = 4, kind: str = "serial") -> PrimFunc:
    n, i = Var(names[2]), Var(names[3])
    x, y = buffer(names[0], (n, 16)), buffer(names[1], (n, 16))
    body = For(i, IntImm(0), IntImm(extent), kind, Store(y, (i, n - 1), x[i, n - 1]))
    return PrimFunc("copy", (x, y, n), body)


def chain(strides: tuple[int, int] = (1, 1), names: str = "xabn", span: str = "") -> IRModule:
    n = Var(names[3])
    kind = tensor((n, 4), "float32")
    x, a, b = (RVar(name, kind) for name in names[:3])
    w = constant(np.arange(4, dtype="float32"), names)
    bindings = (
        Binding(a, Call("add", (x, w), Attrs(), span)),
        Binding(b, Call("pool", (a,), Attrs.of(strides=strides, size=n * 2), span)),
    )
    return IRModule((Function("main", (x,), bindings, b),), names)


def test_names_spans_and_identities_do_not_count() -> None:
    assert structural_equal(copy_kernel("XYni"), copy_kernel("ABjk"))
    assert structural_equal(chain(names="xabn", span="p"), chain(names="qrst", span="q"))


def test_the_path_of_the_first_difference() -> None:
    assert (
        first_difference(chain((1, 1)), chain((2, 2)))
        == "main.bindings[1].value.attrs.strides: (1, 1) != (2, 2)"
    )
    assert first_difference(copy_kernel(), copy_kernel(extent=5)) == "body.extent.value: 4 != 5"
    assert (
        first_difference(copy_kernel(), copy_kernel(kind="parallel"))
        == "body.kind: 'serial' != 'parallel'"
    )
    f = copy_kernel()
    assert first_difference(f, replace(f, outputs=2)) == "outputs: 1 != 2"
    assert first_difference(f, replace(f, body=Seq((f.body,)))) == "body: For != Seq"
    g = chain().functions[0]
    assert isinstance(g, Function)
    assert first_difference(g, replace(g, result=g.params[0])) == "result: b != x"
    shorter = replace(g, bindings=g.bindings[:1])
    assert first_difference(g, shorter) == "2 bindings != 1 bindings"
    assert first_difference(chain(), IRModule()) == "functions: ('main',) != ()"


def test_renaming_must_be_one_to_one() -> None:
    a, b, i, j = Var("a"), Var("b"), Var("i"), Var("j")
    x, y = buffer("X", (4, 4)), buffer("Y", (4, 4))

    def nest(first: Var, second: Var, used: tuple[Expr, Expr]) -> PrimFunc:
        body: Stmt = Store(x, used, FloatImm(1.0))
        for v in (second, first):
            body = For(v, IntImm(0), IntImm(4), "serial", body)
        return PrimFunc("f", (x,), body)

    assert structural_equal(nest(a, b, (a, b)), nest(i, j, (i, j)))
    assert structural_equal(nest(a, b, (a, b)), nest(b, a, (b, a)))
    assert not structural_equal(nest(a, b, (a, b)), nest(i, j, (j, i)))
    assert not structural_equal(nest(a, b, (a, a)), nest(i, j, (i, j)))
    assert not structural_equal(nest(a, b, (a, b)), nest(i, j, (i, i)))
    swapped = PrimFunc("f", (x, y), Store(y, (IntImm(0), IntImm(0)), x[0, 0]))
    assert not structural_equal(swapped, replace(swapped, params=(y, x)))


def test_free_variables_equal_only_themselves() -> None:
    n, m = Var("n"), Var("n")
    assert structural_equal(Binary("add", n, m), Binary("add", n, m))
    assert first_difference(n + 1, m + 1) == "a: n != n, neither is bound"
    k, j = Var("k"), Var("j")
    total = Reduce("sum", ((k, IntImm(4)),), k + n)
    assert structural_equal(total, Reduce("sum", ((j, IntImm(4)),), j + n))
    assert not structural_equal(total, Reduce("sum", ((j, IntImm(4)),), k + n))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (FloatImm(0.0), FloatImm(-0.0)),
        (IntImm(1), IntImm(2)),
        (tensor((4,), "float32"), tensor((4,), "float64")),
        (tensor((4,), "float32"), tensor((4, 1), "float32")),
        (tensor((4,), "float32"), tensor((4,), "float32").with_layout(Layout.parse("A/4 A%4"))),
        (constant(np.array([0.0])), constant(np.array([-0.0]))),
        (constant(np.array([1, 2])), constant(np.array([[1, 2]]))),
        (constant(np.array([1.0], "float32")), constant(np.array([1.0], "float64"))),
    ],
)
def test_unequal(a: TensorType, b: TensorType) -> None:
    assert structural_equal(a, a) and structural_equal(b, b)
    assert first_difference(a, b) is not None


def test_constants_compare_by_bytes() -> None:
    nan = np.array([float("nan"), 1.0])
    assert structural_equal(constant(nan, "a"), constant(nan.copy(), "b"))
    wide = np.arange(8, dtype="int32")[::2]
    assert structural_equal(constant(wide), constant(wide.copy()))
    a = Constant(np.zeros(3), tensor((3,), "float64"), "w")
    assert first_difference(a, Constant(np.ones(3), a.type)) == "bytes of w != bytes of constant"


def test_attributes_distinguish_kinds_of_numbers() -> None:
    x = RVar("x", tensor((4,), "float32"))
    for a, b in ((1, True), (1, 1.0), (0.0, -0.0), (None, 0), ((1,), (1, 1)), (4, IntImm(4))):
        left, right = (Call("op", (x,), Attrs.of(v=v)) for v in (a, b))
        assert first_difference(left, right) is not None, (a, b)
        assert first_difference(left, left) is None
    nan = Call("op", (), Attrs.of(v=float("nan")))
    assert structural_equal(nan, Call("op", (), Attrs.of(v=float("nan"))))
    missing = first_difference(Call("op", (), Attrs.of(v=1)), Call("op", (), Attrs()))
    assert missing == "attrs: v is there != missing"
