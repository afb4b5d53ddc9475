"""A function of a byte between two conversions becomes a table; nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.relax import Value, constant, tensor
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_integer import match_integer
from tests.transform.graphs import graph, ops_of

Build = Callable[[Graph, Value], Value]
BYTES = np.arange(256, dtype=np.uint8)


def number(value: float, dtype: str = "float32") -> Value:
    return constant(np.array(value, dtype))


def between(f: Build, dtype: str, *, axis: bool = False) -> Callable[..., Value]:
    """quantize(f(dequantize(x))); with `axis` the last scale is one per row."""

    def build(g: Graph, x: Value) -> Value:
        y = f(g, g.dequantize(x, number(0.03), number(7, dtype)))  # type: ignore[arg-type]
        step = np.linspace(0.01, 0.02, 4, dtype=np.float32).reshape(4, 1)
        zero = np.full((4, 1), 5, dtype)
        if axis:
            return g.quantize(y, constant(step), constant(zero))
        return g.quantize(y, number(0.015), number(5, dtype))

    return build


FUNCTIONS: dict[str, Build] = {
    "gelu": lambda g, x: g.gelu(x),
    "tanh": lambda g, x: g.tanh(x),
    "silu as written": lambda g, x: g.mul(x, g.sigmoid(x)),
    "chain": lambda g, x: g.sub(number(1.0), g.mul(g.exp(g.neg(g.relu(x))), number(0.5))),
    "twice": lambda g, x: g.add(g.sin(x), g.cos(x)),
    "clipped power": lambda g, x: g.clip(g.pow(x, number(3.0)), min=-1.0, max=1.0),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_256_values_are_those_of_the_operators(name: str, dtype: str) -> None:
    mod = graph(between(FUNCTIONS[name], dtype), x=tensor((4, 64), dtype))
    after = match_integer(match_activations(mod))
    assert ops_of(after) == (["take"] if dtype == "uint8" else ["cast", "take"])
    inputs = {"x": BYTES.view(dtype).reshape(4, 64)}
    (want,), (have,) = evaluate(mod, inputs), evaluate(after, inputs)
    np.testing.assert_array_equal(have, want)
    (exact,) = evaluate(mod, inputs, dtype="float64")
    assert np.abs(have.astype(int) - exact.astype(int)).max() <= 1
    assert len(np.unique(have)) > 8, "the case says little"
    run = tk.runtime.Executor(tk.compile(mod).jit())["main"]
    np.testing.assert_array_equal(run(inputs["x"]).numpy(), have)


@pytest.mark.parametrize(
    "build",
    [
        between(lambda g, x: g.relu(g.neg(x)), "uint8"),
        between(lambda g, x: g.tanh(x), "uint8", axis=True),
        between(lambda g, x: g.softmax(g.tanh(x), axis=-1), "uint8"),
        between(lambda g, x: g.tanh(g.add(x, constant(np.ones((4, 1), np.float32)))), "uint8"),
    ],
    ids=["cheap", "a scale per row", "of a whole row", "another number per row"],
)
def test_what_is_no_function_of_a_byte_stays(build: Callable[..., Value]) -> None:
    assert "take" not in ops_of(match_integer(graph(build, x=tensor((4, 64), "uint8"))))


def test_two_bytes_have_no_table() -> None:
    def build(g: Graph, x: Value, y: Value) -> Value:
        a, b = (g.dequantize(v, number(0.03), number(7, "uint8")) for v in (x, y))
        return g.quantize(g.add(g.tanh(a), b), number(0.015), number(5, "uint8"))

    kinds = dict.fromkeys("xy", tensor((4, 64), "uint8"))
    assert "take" not in ops_of(match_integer(graph(build, **kinds)))


def test_words_have_no_table() -> None:
    mod = graph(between(lambda g, x: g.tanh(x), "uint16"), x=tensor((4, 64), "uint16"))
    assert "take" not in ops_of(match_integer(mod))


def test_the_operators_may_be_read_elsewhere_too() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = g.tanh(g.dequantize(x, number(0.03), number(7, "uint8")))
        q = g.quantize(y, number(0.01), number(128, "uint8"))
        return g.add(y, g.dequantize(q, number(0.01), number(128, "uint8")))

    mod = graph(build, x=tensor((4, 64), "uint8"))
    after = match_integer(mod)
    assert "take" in ops_of(after) and "tanh" in ops_of(after)
    inputs = {"x": BYTES.reshape(4, 64)}
    np.testing.assert_array_equal(evaluate(after, inputs)[0], evaluate(mod, inputs)[0])


ORDER = np.random.default_rng(0).permutation(256)
FROM_A_RESULT: dict[str, Build] = {
    "linear": lambda g, x: g.linear(x, rand(256, 256)),
    "linear and relu": lambda g, x: g.relu(g.linear(x, rand(256, 256))),
    "softmax": lambda g, x: g.softmax(x, axis=-1),
    "sum": lambda g, x: g.sum(g.mul(x, rand(256, 256)), axes=(1,)),
}


@pytest.mark.parametrize("name", FROM_A_RESULT)
def test_what_is_taken_from_256_computed_numbers_is_no_table(name: str) -> None:
    """Each element is another of the product's, so the product's kernel cannot compute it."""
    mod = graph(lambda g, x: g.take(FROM_A_RESULT[name](g, x), constant(ORDER), axis=0), x=(256,))
    operand = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    (want,) = evaluate(mod, {"x": operand}, dtype="float64")
    np.testing.assert_allclose(tk.compile(mod)(operand), want, rtol=0, atol=1e-4)
