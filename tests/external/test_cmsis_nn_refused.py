"""What CMSIS-NN does not take: the reason is shown, and our own kernels compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.external.cmsis_nn import CMSIS_NN
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, Value, constant, tensor
from tensorkiln.kernels.case import Graph
from tests.external.cmsis_nn_cases import Conv, Linear, Pool, Q, Weights, dequantize, quantize

IMAGE = tensor((1, 4, 6, 6), "int8")
X, Y = Q(0.05, 3), Q(0.2, -7)
Build = Callable[..., Value]


def graph(build: Build, *types: Any) -> IRModule:
    g = Graph()
    inputs = [g.param(f"x{i}", t) for i, t in enumerate(types)]
    return IRModule((g.finish(build(g, *inputs)),))


def _conv(change: Callable[[Graph, Value, list[Value]], Value]) -> Build:
    """A convolution whose operands `change` may replace."""

    def build(g: Graph, q: Value) -> Value:
        operands = Weights((4, 4, 3, 3), 0, True).operands(g, X)
        return change(g, dequantize(g, q, X), list(operands))

    return build


def _c(values: object, dtype: str) -> Value:
    return constant(np.asarray(values, dtype))


def _weights(g: Graph, scale: object = 0.01, zero: object = 0, dtype: str = "int8") -> Value:
    w = constant(np.random.default_rng(0).integers(1, 100, (4, 4, 3, 3)).astype(dtype))
    return g.dequantize(w, _c(scale, "float32"), _c(zero, dtype))


def _bias(g: Graph, scale: float, zero: int = 0) -> Value:
    return g.dequantize(_c([1, 2, 3, 4], "int32"), _c(scale, "float32"), _c(zero, "int32"))


def _pool(q: Q, **attrs: Any) -> Build:
    def build(g: Graph, v: Value) -> Value:
        kind = g.avg_pool2d if "count_include_pad" in attrs else g.max_pool2d
        return quantize(g, kind(dequantize(g, v, X), kernel=(2, 2), **attrs), q)

    return build


def _softmax(axis: int, x: Q = X, y: Q = Q(1 / 256, -128)) -> Build:  # noqa: B008
    return lambda g, v: quantize(g, g.softmax(dequantize(g, v, x), axis=axis), y)


ONE = tensor((1, 4), "int8")
REFUSED: dict[str, tuple[Build, tuple[Any, ...], str]] = {
    "float input": (
        lambda g, x: quantize(g, g.conv2d(x, _weights(g)), Y),
        (tensor((1, 4, 6, 6), "float32"),),
        "no DequantizeLinear makes its input",
    ),
    "uint8 input": (
        lambda g, q: quantize(g, g.conv2d(dequantize(g, q, X, "uint8"), _weights(g)), Y),
        (tensor((1, 4, 6, 6), "uint8"),),
        "its input is uint8; CMSIS-NN computes on int8",
    ),
    "symbolic size": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, *w), Y)),
        (tensor((1, 4, Var("n"), 6), "int8"),),
        "its input has a symbolic size",
    ),
    "scale per channel": (
        lambda g, q: quantize(
            g,
            g.conv2d(
                g.dequantize(
                    q,
                    _c(np.full((1, 4, 1, 1), 0.1), "float32"),
                    _c(np.zeros((1, 4, 1, 1)), "int8"),
                ),
                _weights(g),
            ),
            Y,
        ),
        (IMAGE,),
        "its input has 4 scales",
    ),
    "computed weights": (
        lambda g, q, w: quantize(g, g.conv2d(dequantize(g, q, X), dequantize(g, w, Q(0.01, 0))), Y),
        (IMAGE, tensor((4, 4, 3, 3), "int8")),
        "the model computes its weights",
    ),
    "float weights": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, _c(np.ones((4, 4, 3, 3)), "float32")), Y)),
        (IMAGE,),
        "no DequantizeLinear makes its weights",
    ),
    "uint8 weights": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, _weights(g, dtype="uint8")), Y)),
        (IMAGE,),
        "its weights are uint8",
    ),
    "weights with a zero point": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, _weights(g, zero=2)), Y)),
        (IMAGE,),
        "its weights have a zero point",
    ),
    "scales along inputs": (
        _conv(
            lambda g, x, w: quantize(
                g,
                g.conv2d(
                    x,
                    _weights(g, np.full((1, 4, 1, 1), 0.01), np.zeros((1, 4, 1, 1))),
                ),
                Y,
            )
        ),
        (IMAGE,),
        "scales along another dimension",
    ),
    "float bias": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, w[0], _c([1, 2, 3, 4], "float32")), Y)),
        (IMAGE,),
        "no DequantizeLinear makes its bias",
    ),
    "bias of another scale": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, _weights(g), _bias(g, 0.1)), Y)),
        (IMAGE,),
        "its bias is not in units of",
    ),
    "bias with a zero point": (
        _conv(lambda g, x, w: quantize(g, g.conv2d(x, _weights(g), _bias(g, 0.0005, 1)), Y)),
        (IMAGE,),
        "its bias is not in units of",
    ),
    "float result": (
        _conv(lambda g, x, w: g.conv2d(x, *w)),
        (IMAGE,),
        "its result is read before it is quantised",
    ),
    "another operator after it": (
        _conv(lambda g, x, w: quantize(g, g.tanh(g.conv2d(x, *w)), Y)),
        (IMAGE,),
        "its result is not quantised: tanh reads it",
    ),
    "two readers": (
        _conv(
            lambda g, x, w: (lambda y: Tuple((quantize(g, y, Y), quantize(g, g.relu(y), X))))(
                g.conv2d(x, *w)
            )
        ),
        (IMAGE,),
        "its result is read before it is quantised",
    ),
    "uint8 result": (
        _conv(lambda g, x, w: g.quantize(g.conv2d(x, *w), _c(0.2, "float32"), _c(3, "uint8"))),
        (IMAGE,),
        "its result is uint8",
    ),
    "empty range": (
        _conv(lambda g, x, w: quantize(g, g.clip(g.conv2d(x, *w), min=2.0, max=1.0), Y)),
        (IMAGE,),
        "the bounds of its Clip leave no value",
    ),
    "groups": (
        lambda g, q: Conv("", (1, 4, 6, 6), 4, groups=2).case().build(g, q),
        (IMAGE,),
        "it has 2 groups of 2 channels each",
    ),
    "too large a factor": (
        lambda g, q: (
            Conv("", (1, 4, 6, 6), 4, qx=Q(30.0, 0), qy=Q(1e-3, 0), scale=0.1).case().build(g, q)
        ),
        (IMAGE,),
        "its sums may exceed 32 bits",
    ),
    "too small a factor": (
        lambda g, q: (
            Conv("", (1, 4, 6, 6), 4, qx=Q(1e-6, 0), qy=Q(10.0, 0), scale=1e-6).case().build(g, q)
        ),
        (IMAGE,),
        "the ratio of its scales is outside of",
    ),
    "transposed operand": (
        lambda g, q: quantize(
            g,
            g.matmul(
                dequantize(g, q, X),
                *Weights((4, 3), 1, False, biased=False).operands(g, X),
                transpose_a=True,
            ),
            Y,
        ),
        (tensor((4, 2), "int8"),),
        "its left operand is a transposed matrix or a vector",
    ),
    "two activations": (
        lambda g, a, b: quantize(g, g.matmul(dequantize(g, a, X), dequantize(g, b, X)), Y),
        (tensor((2, 3), "int8"), tensor((3, 4), "int8")),
        "the model computes its weights",
    ),
    "pool with dilation": (_pool(X, dilation=(2, 2)), (IMAGE,), "it has dilation (2, 2)"),
    "pool that counts padding": (
        _pool(X, count_include_pad=True, padding=(1, 1, 1, 1)),
        (IMAGE,),
        "it counts the padding",
    ),
    "pool of another scale": (
        _pool(Y),
        (IMAGE,),
        "its result has another scale or zero point than its input",
    ),
    "mean of channels": (
        lambda g, q: quantize(g, g.mean(dequantize(g, q, X), axes=(1,), keepdims=True), X),
        (IMAGE,),
        "it does not reduce the height and width of images",
    ),
    "softmax of rows": (_softmax(2), (IMAGE,), "it is over dimension 2 of 4"),
    "softmax of a fine scale": (
        _softmax(1, y=Q(1 / 300, -128)),
        (ONE,),
        "the scale of its result is below 1/256",
    ),
    "softmax of a coarse input": (_softmax(1, x=Q(20.0, 0)), (ONE,), "the scale of its input, 20"),
    "softmax of many": (
        _softmax(1),
        (tensor((1, 4096), "int8"),),
        "it is over 4096 values, more than 4095",
    ),
    "addition that broadcasts": (
        lambda g, a, b: quantize(g, g.add(dequantize(g, a, X), dequantize(g, b, X)), Y),
        (IMAGE, tensor((1, 4, 1, 1), "int8")),
        "its operands have the shapes (1, 4, 6, 6) and (1, 4, 1, 1)",
    ),
    "addition of a constant": (
        lambda g, a: quantize(
            g, g.add(dequantize(g, a, X), dequantize(g, _c(np.ones((1, 4)), "int8"), X)), Y
        ),
        (ONE,),
        "its right operand is a constant",
    ),
    "addition to a fine scale": (
        lambda g, a, b: quantize(g, g.add(dequantize(g, a, X), dequantize(g, b, X)), Q(1e-9, 0)),
        (ONE, ONE),
        "the ratio of its scales",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_reason(name: str) -> None:
    build, types, reason = REFUSED[name]
    exe = tk.compile(graph(build, *types), externals=[CMSIS_NN])
    assert exe.module.externals == ()
    (refusal,) = [r for r in exe.refusals() if reason in r.reason] or exe.refusals()
    assert reason in refusal.reason
    assert refusal.external == "cmsis_nn" and refusal.node.startswith("node ")


def test_a_kernel_shows_why_it_is_ours() -> None:
    build, types, reason = REFUSED["uint8 weights"]
    exe = tk.compile(graph(build, *types), externals=[CMSIS_NN])
    kernels = [k for k in exe.placement() if "node conv2d" in k.nodes]
    refusals = {line for k in kernels for line in k.refused}
    assert kernels and refusals == {f"cmsis_nn: {reason}; CMSIS-NN computes on int8"}


def test_operators_that_it_has_nothing_for_are_no_refusals() -> None:
    exe = tk.compile(graph(lambda g, x: g.tanh(x), tensor((4,), "float32")), externals=[CMSIS_NN])
    assert exe.refusals() == ()


def test_a_module_without_layers_of_it_is_the_same() -> None:
    mod = graph(lambda g, x: g.tanh(g.relu(x)), tensor((4,), "float32"))
    assert tk.compile(mod, externals=[CMSIS_NN]).artifacts == tk.compile(mod).artifacts


def test_the_minimal_pipeline_takes_them_too() -> None:
    cases = [Conv("").case(), Linear("").case(), Pool("").case()]
    for case in cases:
        mod = graph(case.build, *(tensor(s, "int8") for s in case.shapes))
        exe = tk.compile(mod, externals=[CMSIS_NN], relax_pipeline="minimal")
        assert [k.kernel for k in exe.placement() if "external" in k.kernel_class] == [
            f"cmsis_nn_{case.kinds[0]}"
        ]
