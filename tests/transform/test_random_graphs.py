"""Any small graph keeps its meaning under every pass, and under all of them in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, RVar, Tuple, Value, constant
from tensorkiln.kernels.case import Graph
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.fold_constants import fold_constants
from tensorkiln.transform.relax.fold_scale import fold_scale
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_attention import match_attention
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tensorkiln.transform.relax.match_linear import match_linear
from tensorkiln.transform.relax.widen_statistics import WidenStatistics
from tests.transform.graphs import assert_same_values, main

PASSES = (
    infer_types,
    eliminate_dead_code,
    canonicalize,
    fold_constants,
    eliminate_common_subexpressions,
    match_linear,
    match_activations,
    match_layer_norm,
    fold_scale,
    match_attention,
    canonicalize,
    fold_constants,
    WidenStatistics(),
    eliminate_common_subexpressions,
    eliminate_dead_code,
    infer_types,
)

NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 6.0, -0.25)
UNARY = ("neg", "abs", "relu", "tanh", "sigmoid", "erf", "identity")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


def _shape(v: Value) -> tuple[int, ...]:
    shape = v.type.static_shape()  # type: ignore[union-attr]
    assert shape is not None
    return shape


@st.composite
def modules(draw: st.DrawFn) -> IRModule:
    """Chains of operators whose shapes stay within [2, 3, 4] and its rearrangements."""
    g = Graph()
    values: list[Value] = [_param(g, "x"), _param(g, "y")]
    for _ in range(draw(st.integers(1, 12))):
        values.append(_step(draw, g, values))
    results = tuple(draw(st.sampled_from(values)) for _ in range(2))
    return IRModule((g.finish(Tuple((*results, values[-1]))),))


def _param(g: Graph, name: str) -> RVar:
    from tensorkiln.ir.relax import tensor

    return g.param(name, tensor((2, 3, 4), "float32"))


def _step(draw: st.DrawFn, g: Graph, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(sorted(STEPS)))
    return STEPS[kind](draw, g, x, values)


def _constant(draw: st.DrawFn, shape: tuple[int, ...]) -> Constant:
    if draw(st.booleans()):
        return constant(np.full(shape, draw(st.sampled_from(NUMBERS)), np.float32))
    seed = draw(st.integers(0, 3))
    return constant(np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32))


def _like(draw: st.DrawFn, g: Graph, x: Value, values: list[Value]) -> Value:
    """An operand that broadcasts to `x`: a value, a constant of some of its extents, a number."""
    candidates = [v for v in values if _shape(v) == _shape(x)]
    if draw(st.booleans()):
        return draw(st.sampled_from(candidates))
    shape = tuple(draw(st.sampled_from((1, d))) for d in _shape(x))
    c = _constant(draw, shape[draw(st.integers(0, len(shape))) :])
    return g.broadcast_to(c, shape=_shape(x)) if draw(st.integers(0, 4)) == 0 else c


def _unary(draw, g, x, values):  # noqa: ANN001, ANN202
    return g.emit(draw(st.sampled_from(UNARY)), x)


def _binary(draw, g, x, values):  # noqa: ANN001, ANN202
    operand = _like(draw, g, x, values)
    pair = (x, operand) if draw(st.booleans()) else (operand, x)
    return g.emit(draw(st.sampled_from(BINARY)), *pair)


def _divide(draw, g, x, values):  # noqa: ANN001, ANN202
    return g.div(x, draw(st.sampled_from([n for n in NUMBERS if n])))


def _power(draw, g, x, values):  # noqa: ANN001, ANN202
    return g.pow(g.tanh(x), draw(st.sampled_from((1, 2, 3))))


def _clip(draw, g, x, values):  # noqa: ANN001, ANN202
    low, high = sorted((draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(NUMBERS))))
    return g.clip(x, min=low, max=high)


def _transpose(draw, g, x, values):  # noqa: ANN001, ANN202
    return g.transpose(x, axes=tuple(draw(st.permutations(range(len(_shape(x)))))))


SHAPES = ((2, 3, 4), (6, 4), (24,), (2, 12), (1, 2, 3, 4), (2, 3, 1, 4), (2, 3, 2, 2), (4, 6))


def _reshape(draw, g, x, values):  # noqa: ANN001, ANN202
    size = int(np.prod(_shape(x)))
    fits = [s for s in SHAPES if int(np.prod(s)) == size] or [(size,)]
    return g.reshape(x, shape=draw(st.sampled_from(fits)))


def _slice(draw, g, x, values):  # noqa: ANN001, ANN202
    begin, count = [], []
    for d in _shape(x):
        b = draw(st.integers(0, d - 1)) if draw(st.integers(0, 2)) == 0 else 0
        begin.append(b)
        count.append(draw(st.sampled_from((d - b, 1))) if b else d)
    return g.slice(x, begin=tuple(begin), strides=(1,) * len(begin), shape=tuple(count))


def _take(draw, g, x, values):  # noqa: ANN001, ANN202
    axis = draw(st.integers(0, len(_shape(x)) - 1))
    extent = _shape(x)[axis]
    indices = draw(st.lists(st.integers(-extent, extent - 1), min_size=1, max_size=3))
    return g.take(x, constant(np.array(indices, np.int64)), axis=axis)


def _reduce(draw, g, x, values):  # noqa: ANN001, ANN202
    axes = draw(st.sets(st.integers(0, len(_shape(x)) - 1)))
    op = draw(st.sampled_from(("sum", "mean", "max", "min")))
    return g.emit(op, x, axes=tuple(sorted(axes)), keepdims=True)


def _linear(draw, g, x, values):  # noqa: ANN001, ANN202
    w = _constant(draw, (_shape(x)[-1], draw(st.sampled_from((3, 4)))))
    return g.linear(x, w) if draw(st.booleans()) else g.matmul(x, w)


def _norm(draw, g, x, values):  # noqa: ANN001, ANN202
    if len(_shape(x)) < 2:
        return g.relu(x)
    channels = _shape(x)[1]
    gamma, beta, mean = (_constant(draw, (channels,)) for _ in range(3))
    var = constant(np.full(channels, 1.5, np.float32))
    return g.batch_norm(x, gamma, beta, mean, var, eps=1e-3)


def _conv(draw, g, x, values):  # noqa: ANN001, ANN202
    if len(_shape(x)) != 4:
        return g.tanh(x)
    w = _constant(draw, (3, _shape(x)[1], 1, 1))
    pad = draw(st.integers(0, 1))
    return g.conv2d(x, w, padding=(pad,) * 4)


STEPS = {
    f.__name__: f
    for f in (
        _unary,
        _binary,
        _divide,
        _power,
        _clip,
        _transpose,
        _reshape,
        _slice,
        _take,
        _reduce,
        _linear,
        _norm,
        _conv,
    )
}


@settings(max_examples=120)
@given(modules())
def test_every_pass_keeps_the_meaning(mod: IRModule) -> None:
    for apply in dict.fromkeys(PASSES):
        out = apply(mod)
        assert main(out).result.type == main(mod).result.type
        assert_same_values(mod, out, rtol=2e-5)
        infer_types(out)


@settings(max_examples=120)
@given(modules())
def test_all_passes_in_order(mod: IRModule) -> None:
    out = mod
    for apply in PASSES:
        out = apply(out)
    assert_same_values(mod, out, rtol=2e-5)
    for apply in (canonicalize, fold_constants, eliminate_common_subexpressions):
        assert apply(out) is out
    assert all(int_value(d) is not None for b in main(out).bindings for d in b.var.tensor.shape)
