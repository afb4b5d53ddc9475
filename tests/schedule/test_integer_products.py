"""Products of integers on every level: sums are exact, ends of the ranges included."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, constant
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.schedule.intrin.dot import dot_name
from tensorkiln.schedule.intrin.transpose import columns_name
from tensorkiln.target import Target
from tensorkiln.target.dots import SMALL_WEIGHT, saturates_byte_pairs
from tests.codegen.kernels import EVERY_LEVEL, TARGETS, without
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, typed, undefined_by
from tests.schedule.gpu.test_device_instructions import check_template

N = Var("N")


def _without_dots() -> Target:
    """This machine as if it had no instruction for sums of products of bytes."""
    return without(Target("native"), "avx512vnni", "avxvnni", "amx-int8")


def q(dtype: str, *shape: int, seed: int = 0, limit: int = 128) -> Constant:
    """Numbers of a type, half of them its ends: their sums would saturate in 16 bits. Signed ones
    are at most `limit` in magnitude."""
    info = np.iinfo(dtype)
    low, high = max(info.min, -limit) if info.min else 0, min(info.max, limit if info.min else 255)
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(low, high + 1, shape)
    ends = rng.choice([low, high], shape)
    return constant(np.where(rng.random(shape) < 0.5, ends, x).astype(dtype))


def bytes_(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return q(dtype.name, *shape, seed=seed).array


def small(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """What is left of bytes when a zero point is taken away."""
    return np.random.default_rng([seed, *shape]).integers(-255, 256, shape).astype(dtype)


def bias(n: int) -> Constant:
    return constant(np.random.default_rng(n).integers(-9999, 9999, n).astype(np.int32))


def requantized(g, y: Value, channels: tuple[int, ...]) -> Value:  # noqa: ANN001
    """Scales are powers of two, so float32 has no rounding but the last, which is that of ties."""
    scale = 2.0 ** -np.random.default_rng(1).integers(6, 10, channels)
    one, zero = constant(np.array(1, np.float32)), constant(np.array(3, np.uint8))
    x = g.dequantize(y, constant(np.asarray(scale, np.float32)), constant(np.array(0, np.int32)))
    return g.quantize(g.relu(x), one, zero)


def _twice(g, y: Value, dtype: str) -> Value:  # noqa: ANN001
    """What saturates on the way stays so."""
    zero, none = constant(np.array(5, dtype)), constant(np.array(0, np.int32))
    one, half = constant(np.array(1, np.float32)), constant(np.array(0.5, np.float32))
    first = g.quantize(g.dequantize(y, constant(np.array(2**-9, np.float32)), none), one, zero)
    return g.quantize(g.neg(g.dequantize(first, half, zero)), one, zero)


def _convolutions(b: Battery, limit: int = 128) -> None:
    same, down = {"padding": (1, 1, 1, 1)}, {"padding": (1, 1, 1, 1), "strides": (2, 2)}
    cases = [
        # (batch, channels, height, width), (filters, kernel h, w), attributes
        ((1, 3, 9, 9), (8, 3, 3), {}),
        ((2, 4, 15, 15), (16, 7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
        ((1, 16, 8, 8), (32, 3, 3), same),
        ((1, 16, 8, 8), (32, 3, 3), down),
        ((1, 19, 7, 5), (21, 3, 3), {"padding": (1, 0, 0, 1)}),
        ((2, 33, 6, 7), (17, 2, 3), {"padding": (0, 2, 1, 0), "strides": (1, 2)}),
        ((1, 64, 5, 5), (96, 1, 1), {}),
        ((1, 130, 3, 3), (130, 3, 3), same),
        ((1, 16, 30, 30), (80, 3, 3), same),
        ((1, 32, 9, 9), (32, 3, 3), {**same, "groups": 4}),
        ((1, 24, 7, 7), (24, 3, 3), {**down, "groups": 24}),
        ((1, 5, 6, 6), (5, 5, 5), {"groups": 5, "padding": (2, 2, 2, 2)}),
        # One filter for each channel: tiles of two sizes, one or two groups of four rows, rows of
        # fewer than four columns, or hardly more.
        ((1, 8, 3, 29), (8, 3, 3), {"groups": 8, "strides": (1, 13)}),
        ((2, 9, 5, 17), (9, 3, 3), {"groups": 9, "padding": (0, 1, 2, 1)}),
        ((1, 20, 9, 31), (20, 5, 5), {**down, "groups": 20, "padding": (2, 1, 2, 3)}),
        ((1, 33, 8, 33), (33, 7, 7), {"groups": 33, "padding": (3, 3, 3, 3)}),
        ((1, 17, 3, 3), (17, 3, 3), {**same, "groups": 17}),
        ((1, 16, 6, 5), (16, 4, 2), {"groups": 16, "strides": (2, 3)}),
        ((1, 16, 6, 4), (16, 3, 3), {"groups": 16, "strides": (1, 2)}),
        ((1, 8, 6, 5), (8, 3, 3), {"groups": 8, "dilation": (2, 2), "padding": (2, 2, 2, 2)}),
        ((1, 8, 6, 9), (8, 2, 5), {"groups": 8, "dilation": (2, 1), "strides": (1, 4)}),
        # Pictures, whose rows are as long as a tile of pixels at least.
        ((2, 3, 18, 33), (8, 3, 3), same),
        ((1, 4, 17, 16), (8, 3, 3), {"padding": (0, 2, 1, 0), "strides": (2, 2)}),
        ((1, 1, 5, 40), (8, 1, 1), {}),
        ((1, 2, 16, 17), (8, 2, 2), {}),
    ]
    for k, ((n, ch, h, w), (f, kh, kw), attrs) in enumerate(cases):
        weight = q("int8", f, ch // attrs.get("groups", 1), kh, kw, seed=k, limit=limit)
        kind = ("depthwise" if attrs.get("groups") == f else "conv") + "_small" * (limit < 128)
        b.add(
            f"{kind}_{k}",
            lambda g, x, w=weight, a=attrs: g.conv2d(x, w, **a),
            typed("uint8", n, ch, h, w),
            make=bytes_,
        )
        if limit < 128:
            continue
        b.add(
            f"{kind}_requantized_{k}",
            lambda g, x, w=weight, a=attrs, f=f: requantized(
                g, g.conv2d(x, w, bias(f), **a), (1, f, 1, 1)
            ),
            typed("uint8", N, ch, h, w),
            make=bytes_,
            sizes=[{"N": 1}, {"N": 3}],
        )
    if limit < 128:
        return
    for k, (ch, before, after) in enumerate(
        [(3, (1, 1), (1, 1)), (1, (0, 2), (3, 0)), (4, (2, 0), (0, 1)), (2, (0, 0), (1, 0))]
    ):
        weight = q("int8", 8, ch, 3, 3, seed=k)

        def padded(g, x, w=weight, before=before, after=after):  # noqa: ANN001, ANN202
            y = g.quantize(x, constant(np.array(0.5, "f4")), constant(np.array(7, np.uint8)))
            y = g.pad(y, before=(0, 0, *before), after=(0, 0, *after), value=7.0)
            return g.conv2d(y, w)

        b.add(f"picture_padded_{k}", padded, typed("float32", 2, ch, 9, 35))
        b.add(
            f"pictures_padded_{k}",
            padded,
            typed("float32", N, ch, N + 4, 16),
            sizes=[{"N": 1}, {"N": 3}],
        )
    b.add("conv_chain", _chain, typed("uint8", 1, 3, 17, 19), make=bytes_)
    b.add(
        "conv_weights_given",
        lambda g, x, w: g.conv2d(x, w, **same),
        typed("uint8", 1, 6, 7, 7),
        typed("int8", 5, 6, 3, 3),
        make=bytes_,
    )


def _chain(g, x):  # noqa: ANN001, ANN202
    """Halos, pooling and a residual on bytes."""
    y = requantized(g, g.conv2d(x, q("int8", 24, 3, 3, 3), bias(24)), (1, 24, 1, 1))
    y = g.max_pool2d(y, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    z = g.conv2d(y, q("int8", 24, 24, 3, 3), bias(24), padding=(1, 1, 1, 1))
    half, zero = constant(np.array(0.5, np.float32)), constant(np.array(3, np.uint8))
    z = g.dequantize(z, constant(np.array(2**-9, np.float32)), constant(np.array(0, np.int32)))
    return g.quantize(g.add(z, g.dequantize(y, half, zero)), half, zero)


def _layers(b: Battery, limit: int = 128) -> None:
    linear = "linear" + "_small" * (limit < 128)
    for k, n in sizes_of_layers():
        weight = q("int8", k, n, seed=k, limit=limit)
        b.add(
            f"{linear}_{k}_{n}",
            lambda g, x, w=weight: g.linear(x, w),
            typed("uint8", 7, k),
            make=bytes_,
        )
        if limit < 128:
            continue
        b.add(
            f"linear_requantized_{k}_{n}",
            lambda g, x, w=weight, n=n: requantized(g, g.linear(x, w, bias(n)), (n,)),
            typed("uint8", N, k),
            make=bytes_,
            sizes=[{"N": i} for i in (1, 2, 5, 14, 33)],
        )
    if limit < 128:
        return
    for dtype in ("uint8", "int8"):
        b.add(
            f"linear_requantized_twice_{dtype}",
            lambda g, x, d=dtype: _twice(g, g.linear(x, q("int8", 64, 48)), d),
            typed("uint8", 9, 64),
            make=bytes_,
        )
    b.add(
        "linear_batches",
        lambda g, x: g.linear(x, q("int8", 64, 50)),
        typed("uint8", 2, 3, 64),
        make=bytes_,
    )
    for m, k, n in (
        *((7, 12, 5), (16, 64, 128), (128, 128, 64), (1, 2, 33)),
        *((7, 13, 5), (16, 65, 128), (30, 197, 64), (3, 1, 33), (9, 3, 96)),  # an odd term is left
    ):
        b.add(
            f"matmul_{m}_{k}_{n}",
            lambda g, x, y: g.matmul(x, y, wide=True),
            typed("int16", 2, 3, m, k),
            typed("int16", 2, 3, k, n),
            make=small,
        )
    b.add(
        "matmul_requantized",
        lambda g, x, y: requantized(g, g.matmul(x, y, wide=True), ()),
        typed("int16", 4, 9, 32),
        typed("int16", 4, 32, 40),
        make=small,
    )
    b.add(
        "matmul_odd",
        lambda g, x, y: g.matmul(x, y, wide=True),
        typed("int16", 5, 9),
        typed("int16", 9, 7),
        make=small,
    )
    b.add(
        "matmul_broadcast",
        lambda g, x, y: g.matmul(x, y, wide=True),
        typed("int16", 2, 1, 5, 8),
        typed("int16", 3, 8, 7),
        make=small,
    )


def sizes_of_layers() -> list[tuple[int, int]]:
    """Terms and columns, whole vectors and not."""
    return [(k, n) for k in (4, 64, 300) for n in (1, 16, 41, 96)]


def _all() -> Battery:
    battery = Battery()
    for limit in (128, SMALL_WEIGHT):
        _convolutions(battery, limit)
        _layers(battery, limit)
    return battery


BATTERY = _all().in_turn()


@pytest.fixture(scope="module", params=[*EVERY_LEVEL, "native_without_dots"])
def executable(request: pytest.FixtureRequest) -> Executable:
    return BATTERY.compile(TARGETS.get(request.param) or _without_dots())


@pytest.fixture(scope="module")
def run(executable: Executable) -> Library:
    return load(executable)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_sums_are_exact(name: str, run: Library) -> None:
    BATTERY.check(name, run)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_instructions_of_depthwise_products(lanes: int) -> None:
    names = [columns_name(rows, lanes) for rows in range(1, 5)]
    names += [dot_name("uint8", lanes, 4, small, by_lane=True) for small in (False, True)]
    for name in names:
        check_template(name, range(2))


def _classes(exe: Executable) -> set[str]:
    return {p.kernel_class for p in exe.placement()}


def test_they_have_schedules_of_their_own(executable: Executable) -> None:
    found = _classes(executable)
    assert {"conv2d_direct", "conv2d_depthwise", "linear_packed", "matmul_packed"} <= found


@pytest.mark.parametrize(
    ("weight", "is_small"), [(SMALL_WEIGHT, True), (-SMALL_WEIGHT, True), (65, False), (-65, False)]
)
@pytest.mark.parametrize("op", ["linear", "conv2d"])
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "alderlake"])
def test_who_sums_bytes_in_16_bits(level: str, op: str, weight: int, is_small: bool) -> None:
    """Processors without an instruction that sums products of bytes in 32 bits, if no weight is too
    large: the next larger magnitude is multiplied as 16-bit numbers."""
    target = Target({"kind": "llvm", "mcpu": level})
    assert saturates_byte_pairs(target) == (level != "alderlake")
    g = GraphBuilder()
    shape, x = ((32, 16), (3, 32)) if op == "linear" else ((16, 32, 1, 1), (1, 32, 4, 4))
    w = np.zeros(shape, np.int8)
    w.flat[7] = weight
    module = IRModule((g.finish(g.emit(op, g.param("x", typed("uint8", *x)), constant(w))),))
    executable = tk.compile(module, target)
    text = "".join(a.text() for a in executable.artifacts if a.file_name.endswith(".s"))
    assert ("pmaddubsw" in text) == (is_small and level != "alderlake")


def test_weights_that_are_called_small() -> None:
    """A module may say so itself: of weights that are not, it is refused, and of other types."""
    for level in ("x86-64-v3", "alderlake"):  # whether or not its sums would saturate
        g = GraphBuilder()
        w = constant(np.full((32, 16), 65, np.int8))
        y = g.emit("linear", g.param("x", typed("uint8", 3, 32)), w, small_weights=True)
        with pytest.raises(UserError, match=r"small_weights.* 64 in magnitude.*65"):
            tk.compile(IRModule((g.finish(y),)), Target({"kind": "llvm", "mcpu": level}))
    g = GraphBuilder()
    floats = constant(np.ones((32, 16), np.float32))
    with pytest.raises(UserError, match="False for float32 by float32"):
        g.emit("linear", g.param("x", typed("float32", 3, 32)), floats, small_weights=True)


def test_kernels_need_no_support_library(executable: Executable) -> None:
    assert undefined_by(executable) == set()
