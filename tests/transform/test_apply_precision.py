"""apply_precision: what takes 16 bits, what stays float32, and why."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, Function, RVar, constant, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.target import Target
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tests.ops.test_programs import CASES
from tests.transform.graphs import check_text, check_unchanged, graph

PAIRS = Target({"kind": "llvm", "mcpu": "cooperlake", "precision": "bfloat16"})
SINGLES = Target({"kind": "llvm", "mcpu": "haswell", "precision": "bfloat16"})
HALF = Target({"kind": "llvm", "mcpu": "cooperlake", "precision": "float16"})


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def calls(mod: IRModule) -> list[Call]:
    (f,) = (f for f in mod.functions if isinstance(f, Function))
    return [b.value for b in f.bindings if isinstance(b.value, Call)]


def by_op(mod: IRModule, op: str) -> list[Call]:
    return [c for c in calls(mod) if c.op == op]


def dtypes(call: Call) -> list[str]:
    return [a.type.dtype.name for a in call.args]  # type: ignore[union-attr]


def test_before_and_after() -> None:
    """The operands of both products, and what the sum beside them reads."""
    source = """
        @R.function
        def main(
            x: R.Tensor((32, 64), "float32"), y: R.Tensor((64, 64), "float32"),
        ):
            h = R.relu(x)
            p = R.matmul(h, y)
            q = R.add(p, h)
            return q
        """
    check_text(
        ApplyPrecision(PAIRS),
        source,
        """
        @R.function
        def main(
            x: R.Tensor((32, 64), "float32"), y: R.Tensor((64, 64), "float32"),
        ):
            y_bfloat16 = R.cast(y, dtype="bfloat16")
            h = R.relu(x)
            h_bfloat16 = R.cast(h, dtype="bfloat16")
            h_float32 = R.cast(h_bfloat16, dtype="float32")
            p = R.matmul(
                h_bfloat16, y_bfloat16, transpose_a=False, transpose_b=False, wide=True
            )
            q = R.add(p, h_float32)
            return q
        """,
    )


@pytest.mark.parametrize("target", [PAIRS, SINGLES, HALF], ids=["pairs", "singles", "half"])
def test_which_operands_are_narrow(target: Target) -> None:
    """Data where there is an instruction for pairs of products, weights always, biases never."""
    w, b = constant(weights(8, 4)), constant(weights(4))
    mod = graph(lambda g, x: g.linear(x, w, b), x=(2, 8))
    (call,) = by_op(ApplyPrecision(target)(mod), "linear")
    data = target.precision if target is PAIRS else "float32"
    assert dtypes(call) == [data, target.precision, "float32"]
    assert call.attrs.wide
    assert isinstance(call.args[1], Constant)
    np.testing.assert_array_equal(
        call.args[1].array, w.array.astype(np.dtype(target.precision)), strict=True
    )


def test_products_without_a_kernel_stay() -> None:
    """Of two computed operands, few rows: plain loops would convert each element many times."""
    mod = graph(lambda g, x, y: g.matmul(x, y), x=(2, 8), y=(8, 8))
    check_unchanged(ApplyPrecision(PAIRS), mod)


def test_float32_and_devices_without_the_option_change_nothing() -> None:
    w = constant(weights(8, 4))
    mod = graph(lambda g, x: g.linear(x, w), x=(2, 8))
    for target in (Target("llvm"), Target({"kind": "llvm", "precision": "float32"})):
        check_unchanged(ApplyPrecision(target), mod)
    check_unchanged(ApplyPrecision(Target({"kind": "cuda", "arch": "sm_80"})), mod)


def test_operators_are_the_users_choice() -> None:
    w = constant(weights(8, 4))
    mod = graph(lambda g, x: g.linear(x, w), x=(2, 8))
    check_unchanged(ApplyPrecision(PAIRS, operators=("conv2d",)), mod)


@pytest.mark.parametrize("depthwise", [False, True])
def test_depthwise_convolutions_stay(depthwise: bool) -> None:
    groups = 32 if depthwise else 1
    w = constant(weights(32, 32 // groups, 1, 1))
    mod = graph(lambda g, x: g.conv2d(x, w, groups=groups), x=(1, 32, 9, 9))
    (call,) = by_op(ApplyPrecision(PAIRS)(mod), "conv2d")
    assert dtypes(call) == (["float32"] * 2 if depthwise else ["bfloat16"] * 2)


def test_weights_that_would_overflow_stay() -> None:
    """65504 is the largest float16; an infinity that is there already may stay one."""
    for value, dtype in ((65504.0, "float16"), (70000.0, "float32"), (np.inf, "float16")):
        array = weights(8, 4)
        array[3, 2] = value
        w = constant(array)
        b = GraphBuilder()
        x = b.param("x", tensor((2, 8), "float32"))
        mod = IRModule((b.finish(b.emit("linear", x, w, span="node")),), "m")
        after = ApplyPrecision(HALF)(mod)
        (call,) = by_op(after, "linear")
        assert call.args[1].type.dtype.name == dtype, value  # type: ignore[union-attr]
        (f,) = after.functions
        reasons = dict(f.attrs.get("decomposed", ()))
        assert ("node" in reasons) == (dtype == "float32")
        assert "overflow float16" in reasons.get("node", "overflow float16")


def test_an_odd_number_of_terms_is_multiplied_in_float32() -> None:
    """Pairs of terms lie next to each other: the last would be half of one."""
    for terms, data in ((8, "bfloat16"), (7, "float32")):
        w = constant(weights(terms, 4))
        mod = graph(lambda g, x, w=w: g.linear(x, w), x=(2, terms))
        (call,) = by_op(ApplyPrecision(PAIRS)(mod), "linear")
        assert dtypes(call) == [data, "bfloat16"]


def test_convolutions_that_winograd_computes_stay() -> None:
    w = constant(weights(256, 256, 3, 3))
    b = GraphBuilder()
    x = b.param("x", tensor((1, 256, 56, 56), "float32"))
    y = b.emit("conv2d", x, w, padding=(1, 1, 1, 1), span="node")
    mod = IRModule((b.finish(y),), "m")
    after = ApplyPrecision(SINGLES)(mod)
    (call,) = by_op(after, "conv2d")
    assert dtypes(call) == ["float32", "float32"]
    (f,) = after.functions
    assert f.attrs.decomposed == (
        ("node", "float32: another algorithm is faster than products of 16 bits"),
    )


@pytest.mark.parametrize(("dilation", "dtype"), [(2, "bfloat16"), (20, "float32")])
def test_dilated_convolutions_that_sum_few_taps_stay(dilation: int, dtype: str) -> None:
    """Most taps lie outside of the image, and a kernel of float32 does not sum them."""
    w = constant(weights(32, 32, 3, 3))
    attrs: dict[str, Any] = {"dilation": (dilation,) * 2, "padding": (dilation,) * 4}
    mod = graph(lambda g, x: g.conv2d(x, w, **attrs), x=(1, 32, 28, 28))
    (call,) = by_op(ApplyPrecision(PAIRS)(mod), "conv2d")
    assert dtypes(call) == [dtype] * 2


def test_a_result_keeps_its_type() -> None:
    """It is stored twice: in float32 for the caller, in 16 bits for the product."""
    w = constant(weights(8, 4))
    b = GraphBuilder()
    x = b.param("x", tensor((2, 8), "float32"))
    h = b.emit("relu", x)
    y = b.emit("linear", h, w)
    from tensorkiln.ir.relax import Tuple

    mod = IRModule((b.finish(Tuple((h, y))),), "m")
    (f,) = ApplyPrecision(PAIRS)(mod).functions
    assert isinstance(f, Function)
    assert [t.dtype.name for t in f.result.type.fields] == ["float32", "float32"]  # type: ignore


def test_normalisations_have_a_copy_in_float32() -> None:
    w, scale = constant(weights(8, 8)), constant(weights(8))
    mod = graph(
        lambda g, x: (lambda h: g.add(g.linear(h, w), h))(
            g.layer_norm(x, scale, scale, axis=-1, eps=1e-5)
        ),
        x=(2, 8),
    )
    (add,) = by_op(ApplyPrecision(PAIRS)(mod), "add")
    assert isinstance(add.args[1], RVar)
    (norm,) = (c for c in calls(ApplyPrecision(PAIRS)(mod)) if c.op == "layer_norm")
    values_by_var = {
        b.var: b.value for f in ApplyPrecision(PAIRS)(mod).functions for b in f.bindings
    }  # type: ignore[union-attr]
    assert values_by_var[add.args[1]].op == norm.op


def test_casts_move_before_operators_that_move_elements() -> None:
    w = constant(weights(8, 4))
    mod = graph(
        lambda g, x: g.linear(g.reshape(g.transpose(g.exp(x), axes=(1, 0)), shape=(2, 8)), w),
        x=(8, 2),
    )
    after = calls(ApplyPrecision(PAIRS)(mod))
    assert [c.op for c in after] == ["exp", "cast", "transpose", "reshape", "linear"]


MOVING = [
    pytest.param(name, arrays, attrs, id=f"{name}-{k}")
    for k, (name, arrays, attrs) in enumerate(CASES)
    if (ops.get(name).pattern == "injective" or name == "max_pool2d")
    and any(a.dtype.kind == "f" for a in arrays)
]


@pytest.mark.parametrize(("name", "arrays", "attrs"), MOVING)
def test_rounding_commutes_with_operators_that_move_elements(
    name: str, arrays: list[np.ndarray], attrs: dict[str, Any]
) -> None:
    """What the pass relies on when it moves casts before them, for the table of operators."""
    half = ml_dtypes.bfloat16
    op = ops.get(name)
    arrays = [a.astype("float32") if a.dtype.kind == "f" else a for a in arrays]
    narrow = [a.astype(half) if a.dtype.kind == "f" else a for a in arrays]
    full = op.complete(attrs)
    np.testing.assert_array_equal(op.numpy(narrow, full), op.numpy(arrays, full).astype(half))


def test_each_operator_that_moves_elements_is_in_the_table() -> None:
    moving = {n for n, op in ops.OPS.items() if op.pattern == "injective"} - {"relayout"}
    assert moving - {p.values[0] for p in MOVING} <= {"arange", "full"}  # without operands
