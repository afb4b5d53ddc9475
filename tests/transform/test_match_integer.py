"""Which products become sums of integers, and what of their surroundings joins them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.progress import Progress
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, constant, tensor
from tensorkiln.kernels.case import Graph, c, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.transform.relax.match_integer import match_integer
from tests.transform.graphs import check_text, graph, main, ops_of

R = np.random.default_rng(5)


def q(dtype: str, *shape: int) -> Constant:
    info = np.iinfo(dtype)
    return constant(R.integers(info.min, info.max + 1, shape).astype(dtype))


def scales(*shape: int) -> Constant:
    return constant((0.01 + R.random(shape) / 50).astype(np.float32))


def at(zero: int, dtype: str = "uint8") -> Constant:
    return constant(np.array(zero, dtype))


def weights(g: Graph, *shape: int, axis: int = 0, dtype: str = "int8", zero: int = 0) -> Value:
    along = [n if d == axis else 1 for d, n in enumerate(shape)]
    return g.dequantize(q(dtype, *shape), scales(*along), constant(np.full(along, zero, dtype)))


def arguments(mod: IRModule) -> dict[str, np.ndarray]:
    arrays = {}
    for p in main(mod).params:
        shape = p.tensor.static_shape()
        if p.tensor.dtype.is_float:
            arrays[p.name] = R.standard_normal(shape).astype(np.float32)
        else:
            arrays[p.name] = q(p.tensor.dtype.name, *shape).array  # type: ignore[misc]
    return arrays


def check(build: Callable[..., Value], expected: list[str], **params: object) -> IRModule:
    """The operators after the pass; its meaning is that of float64 up to float32's roundings, and
    integers differ by one where those decide."""
    before = graph(build, **params)
    after = match_integer(before)
    assert ops_of(after) == expected
    assert match_integer(after) is after
    inputs = arguments(before)
    (want,), (have,) = evaluate(before, inputs, dtype="float64"), evaluate(after, inputs)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(have, want, rtol=0, atol=3e-6 * np.abs(want).max())
    else:
        difference = np.abs(have.astype(int) - want.astype(int))
        assert difference.max() <= 1 and difference.mean() < 1e-2
    return after


U8 = tensor((1, 8, 6, 5), "uint8")
ROWS = tensor((3, 12), "uint8")


def test_a_convolution_between_conversions_is_rounded_once() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        bias_scale = constant(np.float32(0.02) * np.ones(4, np.float32))
        w = g.dequantize(q("int8", 4, 8, 3, 3), c(1.0), at(0, "int8"))
        b = g.dequantize(
            constant(R.integers(-999, 999, 4).astype(np.int32)),
            bias_scale,
            constant(np.zeros(4, np.int32)),
        )
        y = g.conv2d(g.dequantize(x, c(0.02), at(0)), w, b, padding=(1, 1, 1, 1))
        return g.quantize(g.relu(y), c(0.5), at(0))

    after = check(build, ["conv2d", "dequantize", "quantize"], x=U8)
    total, _, last = (b.value for b in main(after).bindings)
    assert total.attrs.padding == (1, 1, 1, 1) and len(total.args) == 3  # type: ignore[union-attr]
    assert last.args[1].array == 1  # type: ignore[union-attr]


def test_padding_stands_for_the_zero_point() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.conv2d(g.dequantize(x, c(0.02), at(7)), weights(g, 4, 8, 3, 3), padding=(1, 0, 1, 2))
        return g.quantize(y, c(0.5), at(9))

    after = check(build, ["pad", "conv2d", "dequantize", "quantize"], x=U8)
    pad, conv = (b.value for b in main(after).bindings[:2])
    assert pad.attrs.value == 7 and conv.attrs.padding == (0, 0, 0, 0)  # type: ignore[union-attr]
    assert len(conv.args) == 3  # the zero point's share is a bias


def test_signed_activations_move_by_128() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        return g.linear(g.dequantize(x, c(0.02), at(-128, "int8")), weights(g, 12, 5, axis=1))

    after = check(build, ["cast", "add", "cast", "linear", "dequantize"], x=tensor((3, 12), "int8"))
    assert len(main(after).bindings[3].value.args) == 2  # zero is 0 now: nothing to correct


def test_unsigned_weights_that_fit_are_signed() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        w = weights(g, 12, 5, axis=1, dtype="uint8", zero=128)
        return g.linear(g.dequantize(x, c(0.02), at(3)), w)

    check(build, ["linear", "dequantize"], x=ROWS)


def test_unsigned_weights_that_do_not_fit_stay_floats() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        w = weights(g, 12, 5, axis=1, dtype="uint8", zero=3)
        return g.linear(g.dequantize(x, c(0.02), at(3)), w)

    check(build, ["dequantize", "dequantize", "linear"], x=ROWS)


def test_a_number_of_terms_that_is_no_multiple_is_padded() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        return g.matmul(g.dequantize(x, c(0.02), at(3)), weights(g, 10, 5, axis=1))

    check(build, ["pad", "linear", "dequantize"], x=tensor((3, 10), "uint8"))


def test_a_transposed_layer_with_a_bias_after_it() -> None:
    """As exporters write Gemm."""

    def build(g, x):  # noqa: ANN001, ANN202
        scale = scales(5)
        w = g.dequantize(
            q("int8", 5, 12), constant(scale.array[:, None]), constant(np.zeros((5, 1), np.int8))
        )
        b = g.dequantize(
            constant(R.integers(-999, 999, 5).astype(np.int32)),
            constant(np.float32(0.02) * scale.array),
            constant(np.zeros(5, np.int32)),
        )
        y = g.matmul(g.dequantize(x, c(0.02), at(3)), w, transpose_b=True)
        return g.add(y, b)

    after = check(build, ["linear", "dequantize"], x=ROWS)
    assert len(main(after).bindings[0].value.args) == 3


def test_a_product_of_activations_sums_16_bits() -> None:
    def build(g, x, y):  # noqa: ANN001, ANN202
        left_product, right = g.dequantize(x, c(0.02), at(3)), g.dequantize(y, c(0.5), at(0))
        return g.quantize(g.matmul(left_product, right), c(0.5), at(100))

    expected = ["cast", "sub", "cast", "matmul", "dequantize", "quantize"]
    check(build, expected, x=tensor((2, 3, 12), "uint8"), y=tensor((2, 12, 7), "uint8"))


def test_what_is_packed_is_moved_last() -> None:
    """Heads of an attention: the right side is split into heads after it was computed in int16, so
    that one kernel moves and packs it; a value with another reader stays as it is."""

    def build(shared: bool) -> Callable[..., Value]:
        def attend(g: Graph, x: Value, y: Value) -> Value:
            heads = g.transpose(g.reshape(y, shape=(6, 2, 8)), axes=(1, 2, 0))
            keys = g.quantize(g.mul(g.dequantize(heads, c(0.02), at(3)), c(0.4)), c(0.01), at(7))
            right = g.dequantize(keys, c(0.01), at(7))
            total = g.matmul(g.dequantize(x, c(0.02), at(3)), right)
            return g.add(total, g.sum(right, axes=(1, 2), keepdims=True)) if shared else total

        return attend

    sides = {"x": tensor((2, 5, 8), "uint8"), "y": tensor((6, 16), "uint8")}
    computed = ["cast", "sub", "dequantize", "mul", "quantize", "cast", "sub"]
    moved = ["reshape", "transpose", "matmul", "dequantize"]
    check(build(False), [*computed, *moved], **sides)
    shared = ops_of(match_integer(graph(build(True), **sides)))
    assert shared.index("transpose") < shared.index("mul")


def test_dynamic_zero_points_stay_beside_the_sums() -> None:
    def build(g, x, zero):  # noqa: ANN001, ANN202
        left_operand = g.sub(g.cast(x, dtype="int32"), g.cast(zero, dtype="int32"))
        return g.matmul(left_operand, g.cast(q("int8", 12, 5), dtype="int32"))

    before = graph(build, x=ROWS, zero=tensor((), "uint8"))
    after = match_integer(before)
    assert ops_of(after) == ["cast", "linear", "mul", "sub"]
    inputs = arguments(before)
    np.testing.assert_array_equal(evaluate(before, inputs)[0], evaluate(after, inputs)[0])


def test_conversions_move_and_cancel() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.max_pool2d(g.dequantize(x, c(0.02), at(3)), kernel=(2, 2))
        y = g.transpose(g.reshape(y, shape=(1, 8, 20)), axes=(0, 2, 1))
        return g.quantize(y, c(0.02), at(3))

    check(build, ["max_pool2d", "reshape", "transpose"], x=U8)


def test_a_residual_is_rescaled_with_its_sum() -> None:
    def build(g, x, r):  # noqa: ANN001, ANN202
        y = g.conv2d(g.dequantize(x, c(0.02), at(0)), weights(g, 8, 8, 1, 1))
        y = g.dequantize(g.quantize(y, c(0.3), at(120)), c(0.3), at(120))
        return g.quantize(g.relu(g.add(y, g.dequantize(r, c(0.1), at(5)))), c(0.25), at(0))

    expected = ["conv2d", "dequantize", "quantize", "dequantize", "dequantize", "add", "quantize"]
    check(build, expected, x=U8, r=U8)


def test_bounds_that_saturation_has_anyway_go() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        return g.quantize(g.clip(x, min=0.0, max=6.0), c(6 / 255), at(0))

    check(build, ["quantize"], x=(3, 7))
    check(
        lambda g, x: g.quantize(g.clip(x, min=0.0, max=5.0), c(6 / 255), at(0)),
        ["clip", "quantize"],
        x=(3, 7),
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: g.reshape(g.relu(g.linear(x, c(np.ones((4, 4))))), shape=(2, 3, 4)),
        lambda g, x: g.conv2d(g.reshape(x, shape=(1, 4, 3, 2)), c(np.ones((2, 4, 1, 1)))),
    ],
)
def test_graphs_of_floats_stay_the_same_object(build: Callable[..., Value]) -> None:
    mod = graph(build, x=(6, 4))
    assert match_integer(mod) is mod


def test_a_product_of_scaled_integers() -> None:
    check_text(
        match_integer,
        """
        @R.function
        def main(x: R.Tensor((2, 4), "uint8")):
            a = R.dequantize(x, R.const(0.5, "float32"), R.const(0, "uint8"))
            b = R.dequantize(
                R.const([1, 2, 3, 4, 5, 6, 7, 8], "int8", (4, 2)),
                R.const(0.25, "float32"),
                R.const(0, "int8"),
            )
            y = R.matmul(a, b)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((2, 4), "uint8")):
            y_1 = R.linear(x, R.const([1, 2, 3, 4, 5, 6, 7, 8], "int8", (4, 2)))
            y = R.dequantize(y_1, R.const(0.125, "float32"), R.const(0, "int32"))
            return y
        """,
    )


# ---- why a product stays in float32 --------------------------------------------------------------


def product(
    op: str = "linear",
    left_scale: tuple[object, ...] = (0.02, 0),
    dtype: str = "uint8",
    right: Callable[[Graph], Value] = lambda g: weights(g, 12, 7, axis=1),
    **attrs: object,
) -> Callable[..., Value]:
    """A product of x, dequantised by constants of `left_scale` if there are any, and `right`."""

    def build(g: Graph, x: Value, *operands: Value) -> Value:
        a: Value = x
        if left_scale:
            s, z = left_scale
            a = g.dequantize(
                x, s if isinstance(s, Constant) else c(s), constant(np.asarray(z, dtype))
            )
        return g.emit(op, a, operands[-1] if right is None else right(g), span="it", **attrs)

    return build


FLOAT = tensor((3, 12), "float32")
IMAGES = tensor((1, 8, 6, 5), "uint8")
REASONS: dict[str, tuple[Callable[..., Value], dict[str, object]]] = {
    "its left side is not dequantised": (product(left_scale=()), {"x": FLOAT}),
    "its right side is not dequantised": (
        product(right=lambda g: rand(12, 7)),
        {"x": ROWS},
    ),
    "its left side has several scales or zero points": (
        product(left_scale=(scales(3, 1), np.zeros((3, 1)))),
        {"x": ROWS},
    ),
    "its right side has scales or zero points that are not one, or one per channel": (
        product(right=lambda g: weights(g, 12, 7, axis=0)),
        {"x": ROWS},
    ),
    "its left side is int16": (product(dtype="int16"), {"x": tensor((3, 12), "int16")}),
    "its weights less their zero point do not fit in 8 bits": (
        product(right=lambda g: weights(g, 12, 7, axis=1, dtype="uint8")),
        {"x": ROWS},
    ),
    "a scale or zero point of its left side is computed": (
        lambda g, x, s: g.emit(
            "linear", g.dequantize(x, s, at(0)), weights(g, 12, 7, axis=1), span="it"
        ),
        {"x": ROWS, "s": tensor((), "float32")},
    ),
    "its right side is computed": (
        lambda g, x, w: g.emit(
            "conv2d",
            g.dequantize(x, c(0.02), at(0)),
            g.dequantize(w, c(0.02), at(0, "int8")),
            span="it",
        ),
        {"x": IMAGES, "w": tensor((4, 8, 3, 3), "int8")},
    ),
    "there is none for conv2d_transpose": (
        product("conv2d_transpose", right=lambda g: weights(g, 8, 4, 2, 2, axis=1), strides=(2, 2)),
        {"x": IMAGES},
    ),
    "its left side is transposed": (
        product("matmul", right=lambda g: weights(g, 3, 7, axis=1), transpose_a=True),
        {"x": ROWS},
    ),
    "its weights are not a matrix": (
        product("matmul", right=lambda g: weights(g, 2, 12, 7, axis=1)),
        {"x": tensor((2, 3, 12), "uint8")},
    ),
    "its left side has several scales or zero points, or computes them": (
        lambda g, x, y, s: g.emit(
            "matmul", g.dequantize(x, s, at(0)), g.dequantize(y, c(0.1), at(3)), span="it"
        ),
        {"x": ROWS, "y": tensor((12, 4), "uint8"), "s": tensor((), "float32")},
    ),
    "its right side is int16": (
        lambda g, x, y: g.emit(
            "matmul",
            g.dequantize(x, c(0.1), at(0)),
            g.dequantize(y, c(0.1), at(3, "int16")),
            span="it",
        ),
        {"x": ROWS, "y": tensor((12, 4), "int16")},
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_product_stays_in_float32(reason: str) -> None:
    build, params = REASONS[reason]
    after = match_integer(graph(build, **params))
    assert main(after).attrs["decomposed"] == (("it", f"no integer kernel: {reason}"),)
    assert match_integer(after) is after


def test_products_without_quantised_operands_have_no_reason() -> None:
    before = graph(product(left_scale=(), right=lambda g: rand(12, 7)), x=FLOAT)
    assert match_integer(before) is before


def test_compile_notes_products_that_stay_in_float32() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = g.dequantize(x, c(0.1), at(0))
        for before, after in pairwise((12, 12, 12, 20, 28, 36, 44)):
            y = g.linear(y, rand(before, after))
            y = g.dequantize(g.quantize(y, c(0.1), at(0)), c(0.1), at(0))
        return y

    progress = Progress()
    tk.compile(graph(build, x=ROWS), progress=progress)
    reason = "no integer kernel: its right side is not dequantised"
    assert progress.notes == [
        f"node linear and 1 more: {reason}",
        f"node linear: {reason}",
        f"node linear: {reason}",
        "2 more of these: Executable.placement()",
    ]
