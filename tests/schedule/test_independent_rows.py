"""A sample's result never depends on what else is in the batch: bit for bit, at every place of it,
whatever the other samples hold, in each network family that some optimisation is made for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import Call, RVar, Value, constant
from tensorkiln.kernels.case import Graph, c, rand
from tensorkiln.ops import OPS
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests import processors
from tests.codegen.kernels import LEVELS
from tests.rotation import WIDE
from tests.schedule.battery import Battery
from tests.schedule.test_integer_products import q

Build = Callable[[Graph, RVar], Value]
SAME = (1, 1, 1, 1)
N = Var("N")
# What the other samples become. All but the first would reach any result they are added to, even
# with weight zero.
OTHERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "large": lambda x: x * np.float32(1e4),
    "nan": lambda x: np.full_like(x, np.nan),
    "inf": lambda x: np.full_like(x, np.inf),
    "most": lambda x: np.where(x > 0, np.float32(3.4e38), np.float32(-3.4e38)),
}
PROCESSORS = LEVELS | {name: Target({"mcpu": name}) for name in WIDE}
# No operators on samples: they have none, or only passes make them, out of those here.
NOT_OF_SAMPLES = {
    "arange",
    "full",
    "relayout",
    "identity",
    "broadcast_to",
    "winograd_conv2d",
    "strassen_linear",
    "strassen_parts",
    # They give their operand, under conditions on dimensions or indices.
    *("require", "bounds_check", "fit", "stretch"),
    # Rows are put to rows that others name: samples are not independent by intent.
    "scatter",
    "coupled",
    "top_k",
    "tree_leaves",
}


def _conv(o: int, i: int, k: int, **attrs: object) -> Build:
    attrs = {"padding": (k // 2,) * 4, **attrs}
    return lambda g, x: g.relu(
        g.conv2d(x, rand(o, i // attrs.get("groups", 1), k, k), rand(o), **attrs)
    )


def _layer(k: int, n: int, then: str = "gelu") -> Build:
    return lambda g, x: g.emit(then, g.linear(x, rand(k, n), rand(n)))


def _residual(g: Graph, x: RVar) -> RVar:
    y = g.relu(g.conv2d(x, rand(32, 32, 3, 3), rand(32), padding=SAME))
    return g.relu(g.add(g.conv2d(y, rand(32, 32, 3, 3, seed=1), rand(32), padding=SAME), x))


def _image_network(g: Graph, x: RVar) -> RVar:
    x = g.relu(g.conv2d(x, rand(24, 3, 3, 3), rand(24), padding=SAME, strides=(2, 2)))
    x = g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=SAME)
    x = g.silu(g.conv2d(x, rand(24, 1, 3, 3), groups=24, padding=SAME))
    x = g.batch_norm(x, rand(24), rand(24), rand(24), rand(24, low=0.5))
    s = g.sigmoid(g.conv2d(g.mean(x, axes=(2, 3), keepdims=True), rand(24, 24, 1, 1)))
    return g.linear(
        g.reshape(g.mean(g.mul(x, s), axes=(2, 3)), shape=(x.tensor.shape[0], 24)), rand(24, 10)
    )


def _heads(g: Graph, x: RVar, seed: int) -> RVar:
    n, s, _ = x.tensor.shape
    y = g.reshape(g.linear(x, rand(64, 64, seed=seed), rand(64)), shape=(n, s, 4, 16))
    return g.transpose(y, axes=(0, 2, 1, 3))


def _transformer(causal: bool) -> Build:
    def build(g: Graph, x: RVar) -> RVar:
        n, s, _ = x.tensor.shape
        y = g.attention(*(_heads(g, x, i) for i in range(3)), scale=0.25, causal=causal)
        y = g.reshape(g.transpose(y, axes=(0, 2, 1, 3)), shape=(n, s, 64))
        x = g.layer_norm(g.add(x, g.linear(y, rand(64, 64, seed=4), rand(64))), rand(64), rand(64))
        y = g.linear(g.gelu(g.linear(x, rand(64, 256), rand(256))), rand(256, 64))
        return g.layer_norm(g.add(x, y), rand(64), rand(64))

    return build


def _plain_attention(g: Graph, x: RVar) -> RVar:
    scores = g.mul(g.matmul(x, g.transpose(x, axes=(0, 1, 3, 2))), 0.25)
    return g.matmul(g.softmax(scores, axis=-1), x)


def _integer_conv(g: Graph, x: RVar) -> RVar:
    """Static scales: each sample's bytes are its own."""
    scale, zero = constant(np.array(0.05, np.float32)), constant(np.array(128, np.uint8))
    y = g.dequantize(g.quantize(x, scale, zero), scale, zero)
    w = g.dequantize(q("int8", 24, 16, 3, 3), scale, constant(np.array(0, np.int8)))
    return g.dequantize(g.quantize(g.relu(g.conv2d(y, w, padding=SAME)), scale, zero), scale, zero)


def _integer_linear(g: Graph, x: RVar) -> RVar:
    scale, zero = constant(np.array(0.05, np.float32)), constant(np.array(128, np.uint8))
    y = g.dequantize(g.quantize(x, scale, zero), scale, zero)
    w = g.dequantize(q("int8", 64, 48), scale, constant(np.array(0, np.int8)))
    return g.linear(y, w)


def _sliced(g: Graph, x: RVar) -> RVar:
    n = x.tensor.shape[0]
    parts = (g.slice(x, begin=(0, k), strides=(1, 1), shape=(n, 20)) for k in (0, 20))
    return g.add(*parts)


_TWO = [name for name, op in OPS.items() if op.pattern == "broadcast" and op.inputs == ("a", "b")]
_FORMULAS = [
    name for name, op in OPS.items() if op.pattern == "elementwise" and name not in NOT_OF_SAMPLES
]


def _formulas(g: Graph, x: RVar) -> RVar:
    """Every one of one number or two."""
    values: list[Value] = []
    attrs: dict[str, dict[str, object]] = {
        "bitcast": {"dtype": "int32"},
        "cast": {"dtype": "float64"},
        "clip": {"max": 0.5},
        "mod": {"fmod": 1},
    }
    for name in (*_FORMULAS, *_TWO):
        operands = [x, g.mul(x, 0.5)] if name in _TWO else [x]
        if name.startswith("logical_"):
            operands = [g.greater(v, 0.0) for v in operands]
        if name.startswith("bitwise_") or name.endswith("_shift"):
            operands = [g.cast(g.mul(v, 10.0), dtype="int32") for v in operands]
        values.append(g.cast(g.emit(name, *operands, **attrs.get(name, {})), dtype="float32"))
    values.append(g.where(g.greater(x, 0.0), x, g.exp(x)))
    return g.concat(*values, axis=1)


def _transposed(g: Graph, x: RVar) -> RVar:
    y = g.conv2d_transpose(x, rand(24, 40, 4, 4), rand(40), strides=(2, 2), cut=SAME)
    return g.relu(y)


FAMILIES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "transposed": (_transposed, (5, 24, 5, 6)),
    "dilated": (_conv(40, 24, 3, dilation=(4, 4), padding=(4,) * 4), (5, 24, 6, 7)),
    "linear_small": (_layer(24, 33), (9, 24)),
    "linear": (_layer(384, 384), (57, 384)),
    "linear_of_strassen_s_size": (_layer(768, 512), (128, 768)),
    "linear_one_column": (_layer(130, 1, "relu"), (30, 130)),
    "linear_many": (_layer(64, 96), (130, 64)),
    "linear_of_sequences": (_layer(64, 80), (5, 7, 64)),
    "product": (lambda g, x: g.matmul(x, rand(64, 50)), (31, 64)),
    "product_of_each": (lambda g, x: g.matmul(x, g.transpose(x, axes=(0, 2, 1))), (5, 17, 40)),
    "product_of_large": (lambda g, x: g.matmul(x, g.transpose(x, axes=(0, 2, 1))), (3, 70, 130)),
    "product_in_half": (
        lambda g, x: g.cast(
            g.matmul(g.cast(x, dtype="float16"), c(rand(24, 20).array, "float16")), dtype="float32"
        ),
        (9, 24),
    ),
    "conv1": (_conv(48, 40, 1), (5, 40, 9, 9)),
    "conv1_strided": (_conv(48, 40, 1, strides=(2, 2)), (5, 40, 9, 9)),
    "conv3_winograd": (_conv(64, 64, 3), (3, 64, 30, 30)),
    "conv3_winograd_overhang": (_conv(48, 32, 3), (5, 32, 13, 11)),
    "conv3_strided": (_conv(40, 24, 3, strides=(2, 2)), (5, 24, 13, 13)),
    "conv7_of_colours": (_conv(32, 3, 7, strides=(2, 2)), (3, 3, 23, 23)),
    "conv_to_few": (_conv(2, 16, 1), (5, 16, 9, 9)),
    "conv_dilated": (_conv(20, 16, 3, dilation=(2, 2), padding=(2, 2, 2, 2)), (3, 16, 13, 13)),
    "conv_grouped": (_conv(32, 32, 3, groups=4), (5, 32, 9, 9)),
    "conv_depthwise": (_conv(35, 35, 3, groups=35), (5, 35, 9, 9)),
    "conv_depthwise_strided": (_conv(32, 32, 5, groups=32, strides=(2, 2)), (5, 32, 9, 9)),
    "conv_concat": (
        lambda g, x: g.concat(_conv(24, 16, 1)(g, x), _conv(24, 16, 3)(g, x), axis=1),
        (3, 16, 9, 9),
    ),
    "residual": (_residual, (3, 32, 14, 14)),
    "max_pool": (
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=SAME),
        (5, 20, 9, 9),
    ),
    "avg_pool": (lambda g, x: g.avg_pool2d(x, kernel=(3, 3), padding=SAME), (5, 20, 9, 9)),
    "pooled_conv": (
        lambda g, x: g.max_pool2d(_conv(24, 16, 3)(g, x), kernel=(2, 2), strides=(2, 2)),
        (5, 16, 10, 10),
    ),
    "global_pool": (lambda g, x: g.mean(_conv(32, 16, 1)(g, x), axes=(2, 3)), (5, 16, 9, 9)),
    "lrn": (lambda g, x: g.lrn(_conv(32, 16, 3)(g, x), size=5), (5, 16, 9, 9)),
    "softmax": (lambda g, x: g.softmax(x), (9, 77)),
    "log_softmax": (lambda g, x: g.log_softmax(x), (9, 77)),
    "softmax_of_columns": (lambda g, x: g.softmax(x, axis=1), (5, 30, 17)),
    "layer_norm": (lambda g, x: g.layer_norm(x, rand(77), rand(77)), (9, 77)),
    "batch_norm": (
        lambda g, x: g.batch_norm(x, rand(20), rand(20), rand(20), rand(20, low=0.5)),
        (5, 20, 9, 9),
    ),
    "instance_norm": (lambda g, x: g.sub(x, g.mean(x, axes=(2, 3), keepdims=True)), (5, 20, 9, 9)),
    "rms_norm": (
        lambda g, x: g.mul(x, g.rsqrt(g.add(g.mean(g.mul(x, x), axes=(-1,), keepdims=True), 1e-5))),
        (9, 77),
    ),
    "attention_block": (_transformer(causal=False), (3, 17, 64)),
    "attention_block_causal": (_transformer(causal=True), (3, 19, 64)),
    "attention_by_hand": (_plain_attention, (3, 2, 19, 16)),
    "integer_conv": (_integer_conv, (3, 16, 9, 9)),
    "integer_linear": (_integer_linear, (9, 64)),
    "image_network": (_image_network, (3, 3, 33, 33)),
    "sliced": (_sliced, (9, 40)),
    "gathered": (lambda g, x: g.take(x, constant(np.array([3, 0, 5, 3])), axis=1), (5, 9, 7)),
    "padded": (lambda g, x: g.pad(x, before=(0, 1), after=(0, 2)), (9, 13)),
    "moved": (
        lambda g, x: g.reshape(
            g.transpose(g.tile(x, repeats=(1, 2, 1)), axes=(0, 2, 1)),
            shape=(x.tensor.shape[0], 126),
        ),
        (5, 9, 7),
    ),
    "formulas": (_formulas, (9, 21)),
}
for _op in ("sum", "mean", "prod", "max", "min", "argmax", "argmin"):
    FAMILIES[_op] = (
        lambda g, x, o=_op: g.emit(o, x, axes=(1,)) if "arg" not in o else g.emit(o, x, axis=1),
        (9, 77),
    )
    FAMILIES[f"{_op}_of_columns"] = (
        lambda g, x, o=_op: g.emit(o, x, axes=(1,)) if "arg" not in o else g.emit(o, x, axis=1),
        (5, 30, 17),
    )


def build() -> Battery:
    """Each family with its own number of samples, and with any number."""
    b = Battery()
    for name, (make, shape) in FAMILIES.items():
        b.add(name, make, shape)
        b.add(f"{name}_any", make, (N, *shape[1:]))
    return b


# With its own number of samples or with any, in turn.
BATTERY = build().in_turn(lambda name: name.removesuffix("_any"))


@pytest.fixture(scope="module", params=PROCESSORS)
def run(request: pytest.FixtureRequest) -> Executor:
    target = PROCESSORS[request.param]
    processors.require(target)
    return Executor(BATTERY.compile(target).jit())


@pytest.mark.parametrize("name", BATTERY.cases)
def test_samples_do_not_see_each_other(name: str, run: Executor) -> None:
    shape = FAMILIES[name.removesuffix("_any")][1]
    x = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    want = np.array(run[name](x))
    for what, others in OTHERS.items():
        for own in {0, 1, len(x) // 2, len(x) - 1}:
            y = others(x)
            y[own] = x[own]
            got = np.asarray(run[name](y))[own]
            assert got.tobytes() == want[own].tobytes(), f"sample {own} among {what}"
    for shift in (1, len(x) // 2):
        got = np.asarray(run[name](np.roll(x, shift, axis=0)))
        assert got.tobytes() == np.roll(want, shift, axis=0).tobytes(), f"moved by {shift}"


def test_every_operator_on_samples_is_here() -> None:
    functions = [case.function for case in build().cases.values()]
    used = {b.value.op for f in functions for b in f.bindings if isinstance(b.value, Call)}
    assert set(OPS) - used == NOT_OF_SAMPLES


def test_every_schedule_is_here() -> None:
    kinds = {kernel.kernel_class for kernel in BATTERY.compile(Target("native")).kernels}
    assert kinds >= {
        "conv2d_direct",
        "conv2d_depthwise",
        "conv2d_winograd",
        "conv2d_dilated",
        "conv2d_few_outputs",
        "conv2d_transposed",
        "linear_packed",
        "matmul_packed",
        "attention_fused",
        "pool_blocked",
        "global_pool_blocked",
        "lrn_blocked",
        "movement",
    }
    assert not [kind for kind in kinds if "strassen" in kind]
