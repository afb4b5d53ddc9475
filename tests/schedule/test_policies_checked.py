"""The compiler's own schedules, each step of them proved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.families.conv2d.program import Conv, conv2d_program
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import Constant, constant
from tensorkiln.ir.stmt import For
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.ops.winograd import transformed_filter
from tensorkiln.schedule.choose import schedule_group, trace_of
from tensorkiln.schedule.primitives import Schedule, replay
from tensorkiln.schedule.register_tile import finished
from tensorkiln.target import Target
from tests.schedule.battery import typed
from tests.schedule.groups import groups_of
from tests.transform.graphs import Build, graph, rand

AVX512 = Target({"kind": "llvm", "mcpu": "x86-64-v4", "winograd": 0})
AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "winograd": 0})
N, S = Var("N"), Var("S")


def _conv(filters: int, channels: int, size: int = 3, **attrs: object) -> Build:
    return lambda g, x: g.relu(
        g.conv2d(x, rand(filters, channels, size, size), rand(filters), **attrs)
    )


def _winograd(filters: int, channels: int, pad: int = 1) -> Build:
    u = constant(transformed_filter(rand(filters, channels, 3, 3).array, (4, 4)))
    return lambda g, x: g.relu(
        g.winograd_conv2d(x, u, rand(filters), tile=(4, 4), padding=(pad,) * 4)
    )


def _transposed(channels: int, filters: int, size: int, cut: int = 0) -> Build:
    return lambda g, x: g.relu(
        g.conv2d_transpose(
            x, rand(channels, filters, size, size), rand(filters), strides=(2, 2), cut=(cut,) * 4
        )
    )


def _layer_norm(n: int) -> Build:
    return lambda g, x: g.relu(g.layer_norm(x, rand(n), rand(n)))


def _pooled(channels: int, op: str = "mean") -> Build:
    return lambda g, x: g.relu(g.emit(op, g.conv2d(x, rand(channels, 3, 1, 1)), axes=(2, 3)))


def _lrn(channels: int, **attrs: object) -> Build:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.lrn(g.conv2d(x, rand(channels, 3, 1, 1)), **attrs)
        return g.conv2d(y, rand(5, channels, 3, 3), padding=(1, 1, 1, 1))

    return build


def _window(op: str, channels: int, **attrs: object) -> Build:
    return lambda g, x: g.relu(g.emit(op, g.conv2d(x, rand(channels, 3, 1, 1)), **attrs))


def _linear(k: int, n: int) -> Build:
    return lambda g, x: g.relu(g.linear(x, rand(k, n), rand(n)))


def _strassen(k: int, n: int) -> Build:
    def build(g, x):  # noqa: ANN001, ANN202
        rows = tuple(d.value for d in x.tensor.shape[:-1])
        return g.relu(g.strassen_linear(g.strassen_parts(x), rand(k, n), rand(n), rows=rows))

    return build


def _scattered(g, x):  # noqa: ANN001, ANN202
    rows, columns = (d.value for d in x.tensor.shape)
    places = constant(np.array([0, 2, -1, 0, rows - 1, rows]))
    return g.scatter(x, places, rand(6, columns), reduction="add")


def _scaled(g, x):  # noqa: ANN001, ANN202
    y = g.conv2d(x, rand(40, 16, 1, 1))
    return g.conv2d(g.add(g.mul(y, y), y), rand(8, 40, 3, 3), padding=(1, 1, 1, 1))


def _attention(causal: bool = False) -> Build:
    return lambda g, x: g.attention(x, x, x, scale=0.25, causal=causal)


def _masked(g, x):  # noqa: ANN001, ANN202
    return g.attention(x, x, x, rand(1, 1, 1, 19), scale=0.25)


def _heads(g, x):  # noqa: ANN001, ANN202
    """Heads taken apart before and put together after."""
    n, rows, width = x.tensor.shape
    y = g.transpose(g.reshape(x, shape=(n, rows, width // 32, 32)), axes=(0, 2, 1, 3))
    y = g.transpose(g.attention(y, y, y, scale=0.25), axes=(0, 2, 1, 3))
    return g.reshape(y, shape=(n, rows, width))


def _transpose(*axes: int) -> Build:
    return lambda g, x: g.transpose(x, axes=axes)


def _channels(g, x):  # noqa: ANN001, ANN202
    """Rows of pixels become channel blocks with a halo."""
    return g.conv2d(g.neg(x), rand(20, 1, 3, 3), padding=(1, 1, 1, 1), groups=20)


def _plain(g, x):  # noqa: ANN001, ANN202
    """Blocks of channels, the last one partial, become rows of pixels."""
    return g.conv2d(x, rand(21, 3, 1, 1))


def _pixels(g, x):  # noqa: ANN001, ANN202
    """Every other pixel, which goes where all of them were."""
    y = g.slice(
        g.conv2d(x, rand(48, 3, 1, 1)),
        begin=(0, 0, 0, 1),
        strides=(1, 1, 2, 2),
        shape=(1, 48, 4, 3),
    )
    return g.conv2d(y, rand(16, 48, 1, 1))


def _bytes(*shape: int) -> Constant:
    return constant(np.random.default_rng(shape).integers(-128, 128, shape).astype(np.int8))


def _padded(g, x):  # noqa: ANN001, ANN202
    """A picture with a border of the zero point, which is no halo."""
    y = g.quantize(x, 0.05, constant(np.array(3, np.uint8)))
    y = g.pad(y, before=(0, 0, 1, 2), after=(0, 0, 0, 1), value=3.0)
    return g.conv2d(y, _bytes(8, 4, 3, 3))


def _quantised(op: str, *weights: int, **attrs: object) -> Build:
    """A product of uint8 and int8, requantised."""
    zero, none = constant(np.array(3, np.uint8)), constant(np.array(0, np.int32))

    def build(g, x):  # noqa: ANN001, ANN202
        y = g.emit(op, g.quantize(x, 0.05, zero), _bytes(*weights), **attrs)
        return g.quantize(g.relu(g.dequantize(y, 0.01, none)), 0.5, zero)

    return build


def _of_activations(g, x):  # noqa: ANN001, ANN202
    y = g.cast(x, dtype="int16")
    return g.matmul(y, g.transpose(y, axes=(0, 1, 3, 2)), wide=True)


# A graph, the shape of its parameter, and the op_class of the group that is meant.
CASES: dict[str, tuple[Build, tuple[int | Var, ...], str]] = {
    "conv": (_conv(32, 16, padding=(1, 1, 1, 1)), (1, 16, 9, 9), "conv2d_direct"),
    "conv_pieces": (_conv(19, 40, padding=(1, 1, 1, 1)), (2, 40, 5, 7), "conv2d_direct"),
    "conv_planar": (_conv(16, 3, strides=(2, 2)), (1, 3, 13, 13), "conv2d_direct"),
    "conv_parallel": (_conv(64, 64, padding=(1, 1, 1, 1)), (1, 64, 15, 15), "conv2d_direct"),
    "conv_batch": (_conv(16, 16), (N, 16, 6, 6), "conv2d_direct"),
    "conv_one_weight": (_conv(1, 1, 1), (1, 1, 5, 5), "conv2d_direct"),
    "conv_grouped": (_conv(32, 8, groups=4), (1, 32, 5, 5), "conv2d_direct"),
    # Of images of unknown rows and columns, places contain products of sizes: test_open_images.py.
    "conv_open_signal": (_conv(16, 16, padding=(1, 1, 1, 1)), (1, 16, 1, S), "conv2d_direct"),
    "winograd": (_winograd(32, 32), (N, 32, 8, 8), "conv2d_winograd"),
    "winograd_pieces": (_winograd(19, 72), (1, 72, 12, 6), "conv2d_winograd"),
    "winograd_blocks": (_winograd(64, 16, 0), (1, 16, 62, 58), "conv2d_winograd"),
    "winograd_panels": (_winograd(64, 64), (1, 64, 16, 16), "conv2d_winograd"),
    "winograd_overhang": (_winograd(19, 40), (1, 40, 13, 7), "conv2d_winograd"),
    "planes": (lambda g, x: g.relu(g.mul(x, rand(40, 1, 1))), (N, 40, 14, 14), "loops"),
    "few_planes": (lambda g, x: g.relu(g.mul(x, rand(3, 1, 1))), (1, 3, 160, 161), "loops"),
    "transposed": (_transposed(16, 32, 2), (N, 16, 5, 5), "conv2d_transposed"),
    "transposed_phases": (_transposed(40, 19, 3, 1), (1, 40, 5, 4), "conv2d_transposed"),
    "transposed_parallel": (_transposed(64, 64, 4, 1), (1, 64, 9, 7), "conv2d_transposed"),
    "dilated": (
        _conv(19, 40, dilation=(4, 5), padding=(4, 5) * 2), (N, 40, 9, 7), "conv2d_dilated"
    ),
    "dilated_pieces": (
        _conv(264, 264, dilation=(12, 12), padding=(12,) * 4), (1, 264, 18, 17), "conv2d_dilated"
    ),
    "depthwise": (_conv(32, 1, padding=(1, 1, 1, 1), groups=32), (1, 32, 7, 7), "conv2d_depthwise"),
    "depthwise_large": (_conv(19, 1, 5, groups=19), (1, 19, 9, 9), "conv2d_depthwise"),
    # One row of pixels, one block of channels, few panels: what is in them is shared.
    "conv_signal": (_conv(24, 32, 1), (1, 32, 1, 901), "conv2d_direct"),
    "conv_few_rows": (_conv(24, 40, padding=(1,) * 4), (1, 40, 3, 67), "conv2d_direct"),
    "transposed_signal": (_transposed(16, 16, 2), (1, 16, 1, 901), "conv2d_transposed"),
    "depthwise_signal": (
        _conv(16, 1, padding=(1,) * 4, groups=16), (1, 16, 1, 3001), "conv2d_depthwise"
    ),
    "blocked_signal": (_scaled, (1, 16, 1, 2001), "loops"),
    "blocked_few_rows": (_scaled, (1, 16, 5, 403), "loops"),
    "relayout_signal": (_channels, (1, 20, 1, 2048), "movement"),
    "relayout_signal_odd": (_channels, (1, 20, 1, 2049), "movement"),
    "linear_one_panel": (_linear(64, 32), (321, 64), "linear_packed"),
    "linear_few_panels": (_linear(64, 112), (301, 64), "linear_packed"),
    "linear": (_linear(64, 96), (7, 64), "linear_packed"),
    "linear_shared_rest": (_linear(300, 70), (130, 300), "linear_packed"),
    "linear_odd": (_linear(37, 41), (13, 37), "linear_packed"),
    "linear_pieces": (_linear(300, 64), (5, 300), "linear_packed"),
    "linear_rows": (_linear(64, 64), (N, 64), "linear_packed"),
    "conv_bytes": (_quantised("conv2d", 19, 40, 3, 3, padding=(1, 1, 1, 1)), (2, 40, 5, 7),
                   "conv2d_direct"),
    "conv_bytes_few": (_quantised("conv2d", 32, 3, 3, 3), (N, 3, 9, 9), "conv2d_direct"),
    "picture": (_quantised("conv2d", 32, 3, 3, 3), (N, 3, 9, 20), "pixels"),
    "picture_halo": (
        _quantised("conv2d", 32, 1, 3, 3, padding=(1, 0, 2, 1)), (2, 1, 9, 37), "pixels"
    ),
    "picture_padded": (_padded, (1, 4, 40, 40), "pixels"),
    "conv_bytes_grouped": (_quantised("conv2d", 32, 8, 3, 3, groups=4), (1, 32, 5, 5),
                           "conv2d_direct"),
    "depthwise_bytes": (_quantised("conv2d", 32, 1, 3, 3, groups=32), (1, 32, 7, 7),
                        "conv2d_depthwise"),
    "linear_bytes": (_quantised("linear", 64, 41), (13, 64), "linear_packed"),
    "linear_bytes_rows": (_quantised("linear", 64, 64), (N, 64), "linear_packed"),
    "matmul_16": (_of_activations, (2, 3, 9, 16), "matmul_packed"),
    "strassen": (_strassen(64, 64), (7, 64), "linear_strassen"),
    "strassen_parts": (_strassen(64, 64), (2, 15, 64), "strassen_parts"),
    "strassen_chunks": (_strassen(512, 64), (13, 512), "linear_strassen"),
    "strassen_parallel": (_strassen(256, 256), (64, 256), "linear_strassen"),
    "softmax": (lambda g, x: g.softmax(x), (3, 2, 37), "softmax_rows"),
    "softmax_chains": (lambda g, x: g.softmax(x), (150,), "softmax_rows"),
    "softmax_symbolic": (lambda g, x: g.softmax(x), (N, S), "softmax_rows"),
    "softmax_parallel": (lambda g, x: g.softmax(x), (4, 16, 128), "softmax_rows"),
    "log_softmax": (lambda g, x: g.log_softmax(x), (3, 300), "softmax_rows"),
    "layer_norm": (_layer_norm(40), (2, 3, 40), "layer_norm_rows"),
    "layer_norm_parallel": (_layer_norm(384), (N, 5, 384), "layer_norm_rows"),
    "global_pool": (_pooled(32), (2, 3, 7, 7), "global_pool_blocked"),
    "global_pool_odd": (_pooled(20, "max"), (1, 3, 5, 9), "global_pool_blocked"),
    "global_pool_batch": (_pooled(16), (N, 3, 2, 3), "global_pool_blocked"),
    "lrn": (_lrn(40, size=5), (2, 3, 4, 5), "lrn_blocked"),
    "lrn_wide": (_lrn(40, size=16), (1, 3, 2, 2), "lrn_blocked"),
    "lrn_even": (_lrn(7, size=4, beta=0.6), (1, 3, 6, 2), "lrn_blocked"),
    "linear_parallel": (_linear(256, 256), (64, 256), "linear_packed"),
    "flat": (lambda g, x: g.relu(g.mul(x, x)), (5, 37), "loops"),
    "flat_parallel": (lambda g, x: g.exp(x), (64, 131), "loops"),
    "flat_symbolic": (lambda g, x: g.exp(x), (N, S), "loops"),
    "broadcast": (lambda g, x: g.add(x, rand(70)), (3, 4, 70), "loops"),
    "broadcast_symbolic": (lambda g, x: g.add(x, rand(3, 1)), (N, 3, S), "loops"),
    "blocked": (_scaled, (1, 16, 5, 7), "loops"),
    "concat": (lambda g, x: g.concat(g.neg(x), x, axis=1), (3, 37), "loops"),
    "sum_last": (lambda g, x: g.sum(x, axes=(1,)), (9, 150), "loops"),
    "sum_first": (lambda g, x: g.sum(x, axes=(0,)), (9, 37), "loops"),
    "mean_of_two": (lambda g, x: g.mean(x, axes=(1, 2)), (5, 9, 150), "loops"),
    "max_symbolic": (lambda g, x: g.max(x, axes=(0, 2)), (N, 5, S), "loops"),
    "sum_of_integers": (lambda g, x: g.sum(g.cast(x, dtype="int32"), axes=(1,)), (3, 40), "loops"),
    "argmax": (lambda g, x: g.argmax(x, axis=1), (6, 41), "loops"),
    "softmax_of_columns": (lambda g, x: g.softmax(x, axis=1), (2, 5, 40), "loops"),
    "softmax_of_columns_parallel": (lambda g, x: g.softmax(x, axis=0), (16, 512), "loops"),
    "pixels": (_pixels, (1, 3, 7, 7), "movement"),
    "transpose": (_transpose(1, 0), (37, 53), "movement"),
    "transpose_parallel": (_transpose(1, 0), (300, 301), "movement"),
    "transpose_crowded": (_transpose(1, 0), (512, 40), "movement"),
    "transpose_crowded_around": (_transpose(0, 2, 1), (2, 256, 40), "movement"),
    "transpose_around": (_transpose(0, 2, 1, 3), (2, 12, 9, 64), "movement"),
    "transpose_thin": (_transpose(0, 3, 1, 2), (1, 9, 9, 3), "movement"),
    "relayout_into": (_channels, (1, 20, 5, 9), "movement"),
    "relayout_out": (_plain, (1, 3, 6, 7), "movement"),
    "slice": (
        lambda g, x: g.slice(x, begin=(1, 3), shape=(5, 37), strides=(1, 1)), (7, 41), "movement"),
    "slice_with_steps": (
        lambda g, x: g.slice(x, begin=(1, 3), shape=(5, 9), strides=(1, 3)), (7, 41), "movement"),
    "max_pool": (
        _window("max_pool2d", 32, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
        (N, 3, 27, 25), "pool_blocked"),
    "max_pool_ceil": (
        _window("max_pool2d", 20, kernel=(2, 3), strides=(2, 2), ceil_mode=True),
        (2, 3, 13, 12), "pool_blocked"),
    "avg_pool": (
        _window("avg_pool2d", 16, kernel=(3, 3), padding=(1, 1, 1, 1)),
        (1, 3, 5, 30), "pool_blocked"),
    "avg_pool_row": (
        _window("avg_pool2d", 16, kernel=(1, 3), padding=(0, 2, 0, 2), count_include_pad=True),
        (1, 3, 4, 3), "pool_blocked"),
    "pool_one_element": (
        _window("max_pool2d", 16, kernel=(1, 1), strides=(2, 2)), (1, 3, 5, 1), "pool_blocked"),
    "pool_parallel": (
        _window("max_pool2d", 64, kernel=(2, 2), strides=(2, 2)), (1, 3, 48, 48), "pool_blocked"),
    "pooled_rows": (
        lambda g, x: g.relu(g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))),
        (2, 3, 9, 25), "pool_rows"),
    "pooled_rows_symbolic": (
        lambda g, x: g.max_pool2d(g.neg(x), kernel=(2, 2), strides=(2, 2)), (N, 2, 6, 20),
        "pool_rows"),
    "pooled_rows_mean": (
        lambda g, x: g.avg_pool2d(x, kernel=(3, 2), padding=(0, 1, 1, 0), ceil_mode=True),
        (1, 2, 5, 18), "pool_rows"),
    "pooled_rows_direct": (
        lambda g, x: g.max_pool2d(x, kernel=(1, 3), strides=(1, 3)), (1, 2, 3, 27), "pool_rows"),
    "pooled_rows_parallel": (
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), padding=(0, 1, 0, 1)), (2, 4, 60, 130),
        "pool_rows"),
    "scatter_into_rows": (_scattered, (40, 600), "scatter"),
    "scatter_into_uneven_rows": (_scattered, (33, 700), "scatter"),
    "scatter_into_columns": (_scattered, (3, 9600), "scatter"),
    "top_of_rows": (lambda g, x: g.top_k(x, k=3, largest=True), (21, 17), "top_k"),
    "top_of_rows_parallel": (lambda g, x: g.top_k(x, k=3, largest=False), (210, 30), "top_k"),
    "top_of_rows_symbolic": (lambda g, x: g.top_k(x, k=2, largest=True), (N, 30), "top_k"),
    "top_of_long_rows": (lambda g, x: g.top_k(x, k=40, largest=True), (21, 400), "top_k"),
    # Of attention with a symbolic size, or more than one block of keys, the proof takes too long.
    "attention": (_attention(), (1, 2, 9, 16), "attention_fused"),
    "attention_wide": (_attention(), (1, 2, 5, 64), "attention_fused"),
    "attention_causal": (_attention(True), (2, 1, 37, 48), "attention_fused"),
    "attention_masked": (_masked, (1, 2, 19, 32), "attention_fused"),
    "attention_heads": (_heads, (1, 17, 64), "attention_fused"),
}  # fmt: skip


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["avx512", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_every_step_is_proved(name: str, target: Target) -> None:
    build, shape, kind = CASES[name]
    found = []
    for group in groups_of(graph(build, x=shape), target):
        proved = schedule_group(group, target, check=True)
        assert proved.script() == schedule_group(group, target).script()
        found.append(proved.op_class)
    assert kind in found


# Of operands of bfloat16, and the classes of their kernels. With a symbolic size, strides of moves
# are products of symbols, which the proof does not take.
HALVES: dict[str, tuple[Build, tuple[int, ...], set[str]]] = {
    "attention": (
        lambda g, x: g.attention(x, x, x, scale=0.25, wide=True),
        (1, 2, 9, 32),
        {"attention_fused", "movement"},
    ),
    "attention_causal": (
        lambda g, x: g.cast(
            g.attention(x, x, x, scale=0.25, causal=True, wide=True), dtype="bfloat16"
        ),
        (1, 1, 37, 64),
        {"attention_fused", "movement"},
    ),
    "transpose": (_transpose(0, 2, 1, 3), (2, 12, 9, 64), {"movement"}),
    "transpose_parallel": (_transpose(1, 0), (300, 301), {"movement"}),
    "interleave": (_transpose(1, 0), (2, 80), {"movement"}),
    "cast": (
        lambda g, x: g.transpose(g.cast(g.cast(x, dtype="float32"), dtype="bfloat16"), axes=(1, 0)),
        (40, 33),
        {"movement"},
    ),
}


@pytest.mark.parametrize("mcpu", ["cooperlake", "x86-64-v3"])
@pytest.mark.parametrize("name", HALVES)
def test_every_step_of_halves_is_proved(name: str, mcpu: str) -> None:
    build, shape, kinds = HALVES[name]
    target, found = Target({"kind": "llvm", "mcpu": mcpu}), set()
    for group in groups_of(graph(build, x=typed("bfloat16", *shape)), target):
        proved = schedule_group(group, target, check=True)
        assert proved.script() == schedule_group(group, target).script()
        found.add(proved.op_class)
    if mcpu == "cooperlake":
        assert found == kinds


def test_a_trace_replays() -> None:
    build, shape, _ = CASES["conv_pieces"]
    groups = groups_of(graph(build, x=shape), AVX2)
    group = next(g for g in groups if g.anchor is not None)
    trace = trace_of(group, AVX2)
    assert 'f = split_even(f, "w", ' in trace and "f = parallel(f, " in trace
    s = Schedule(conv2d_program(Conv(group)))
    s.func = replay(trace, s.func, check=False)
    made = schedule_group(group, AVX2)
    assert replace(finished(s), op_class=made.op_class).script() == made.script()


def test_a_transpose_is_made_of_steps() -> None:
    (group,) = groups_of(graph(_transpose(1, 0), x=(40, 64)), AVX2)
    trace = trace_of(group, AVX2)
    assert 'f = split(f, "q", 8, tail="overlap")' in trace
    assert '"transpose_8x8")' in trace


@pytest.mark.parametrize(
    ("features", "lanes"), [(["+zve32f", "+zvl64b"], 2), (["+v", "+zvl2048b"], 64)]
)
@pytest.mark.parametrize(
    "name",
    ["conv", "softmax_chains", "layer_norm", "global_pool", "attention_wide", "transpose"],
)
def test_vectors_of_other_lengths(name: str, features: list[str], lanes: int) -> None:
    target = Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu", "mattr": features})
    assert target.vector_lanes("float32") == lanes
    build, shape, kind = CASES[name]
    groups = groups_of(graph(build, x=shape), target)
    assert kind in [schedule_group(g, target, check=True).op_class for g in groups]


@pytest.mark.parametrize("fpu", [True, False], ids=["cortex-m4", "cortex-m0plus"])
@pytest.mark.parametrize(
    "name",
    [
        "conv_pieces",
        "conv_parallel",
        "conv_one_weight",
        *(name for name in CASES if name.startswith("pool_")),
        "conv_bytes",
        "conv_grouped",
        "conv_bytes_grouped",
        "conv_bytes_few",
        "depthwise_bytes",
        "linear_odd",
        "linear_bytes",
    ],
)
def test_tiles_of_scalars(name: str, fpu: bool) -> None:
    cpu = ("thumbv7em-none-eabihf", "cortex-m4") if fpu else ("thumbv6m-none-eabi", "cortex-m0plus")
    target = Target({"kind": "c", "mtriple": cpu[0], "mcpu": cpu[1]})
    assert target.vector_lanes("float32") == 1
    build, shape, kind = CASES[name]
    made = [schedule_group(g, target, check=True) for g in groups_of(graph(build, x=shape), target)]
    assert kind in [p.op_class for p in made]
    anchored = [s for p in made if p.op_class == kind for s in walk_stmt(p.body)]
    # Without an operating system there are no threads to share work.
    assert "parallel" not in [s.kind for s in anchored if isinstance(s, For)]
