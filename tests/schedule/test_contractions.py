"""Schedules of their own: convolution, depthwise, linear, attention, softmax, layer norm."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensorkiln.executable import Executable
from tensorkiln.ir.expr import Var
from tensorkiln.kernels.case import c, rand
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import EVERY_LEVEL, TARGETS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, random_array, typed, undefined_by

N, S, T = Var("N"), Var("S"), Var("T")
ROWS = [{"N": n} for n in (1, 2, 3, 7, 8, 15, 16, 33, 70)]


def _convolutions(b: Battery) -> None:
    cases = [
        # (batch, channels, height, width), (filters, kernel h, w), attributes
        ((1, 3, 9, 9), (8, 1, 1), {}),
        ((2, 3, 11, 13), (16, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((1, 16, 8, 8), (32, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((1, 16, 8, 8), (32, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
        ((1, 19, 7, 5), (21, 3, 3), {"padding": (1, 0, 0, 1)}),
        ((2, 33, 6, 7), (17, 2, 3), {"padding": (0, 2, 1, 0), "strides": (1, 2)}),
        ((1, 64, 5, 5), (96, 1, 1), {}),
        ((1, 64, 5, 5), (48, 1, 1), {"strides": (2, 2)}),
        ((1, 5, 12, 12), (7, 5, 5), {"padding": (2, 2, 2, 2)}),
        ((1, 8, 15, 15), (16, 7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
        ((1, 16, 13, 13), (16, 3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
        ((1, 4, 13, 9), (4, 3, 2), {"dilation": (3, 2), "strides": (2, 1)}),
        ((1, 1, 1, 1), (1, 1, 1), {}),
        ((1, 130, 3, 3), (130, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((3, 16, 1, 20), (16, 1, 5), {"padding": (0, 2, 0, 2)}),
        ((1, 16, 30, 30), (80, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((1, 7, 4, 4), (9, 4, 4), {}),
    ]
    for k, ((n, ch, h, w), (f, kh, kw), attrs) in enumerate(cases):
        weight, bias = rand(f, ch, kh, kw, seed=k), rand(f, seed=k)
        b.add(
            f"conv_{k}",
            lambda g, x, w=weight, a=attrs: g.conv2d(x, w, **a),
            (n, ch, h, w),
            tolerance=2e-5,
        )
        b.add(
            f"conv_relu_{k}",
            lambda g, x, w=weight, v=bias, a=attrs: g.relu(g.conv2d(x, w, v, **a)),
            (n, ch, h, w),
            tolerance=2e-5,
        )
        b.add(
            f"conv_batch_{k}",
            lambda g, x, w=weight, v=bias, a=attrs: g.conv2d(x, w, v, **a),
            (N, ch, h, w),
            sizes=[{"N": i} for i in (1, 2, 5)],
            tolerance=2e-5,
        )
    b.add("conv_chain", _chain, (2, 5, 17, 19), tolerance=2e-5)
    b.add("conv_residual", _residual, (1, 24, 9, 9), tolerance=2e-5)
    b.add("conv_concat", _branches, (1, 16, 7, 7), tolerance=2e-5)
    b.add(
        "conv_symbolic_image",
        lambda g, x: g.conv2d(x, rand(6, 3, 3, 3), padding=(1, 1, 1, 1)),
        (1, 3, S, T),
        sizes=[{"S": s, "T": t} for s, t in ((1, 1), (5, 8), (17, 16))],
        tolerance=2e-5,
    )
    b.add(
        "conv_weights_given",
        lambda g, x, w: g.conv2d(x, w, padding=(1, 1, 1, 1)),
        (1, 6, 7, 7),
        (5, 6, 3, 3),
        tolerance=2e-5,
    )
    for f in (5, 16, 33):
        b.add(
            f"conv_bias_given_{f}",
            lambda g, x, v, f=f: g.relu(g.conv2d(x, rand(f, 16, 3, 3), v, padding=(1, 1, 1, 1))),
            (1, 16, 7, 7),
            (f,),
            tolerance=2e-5,
        )
    b.add(
        "depthwise_bias_given",
        lambda g, x, v: g.conv2d(x, rand(19, 1, 3, 3), v, groups=19),
        (2, 19, 7, 7),
        (19,),
        tolerance=1e-5,
    )
    b.add(
        "grouped_bias_given",
        lambda g, x, v: g.conv2d(x, rand(12, 5, 3, 3), v, groups=4),
        (1, 20, 7, 7),
        (12,),
        tolerance=1e-5,
    )
    b.add(
        "conv_float64",
        lambda g, x: g.conv2d(
            x, c(np.random.default_rng(0).random((5, 6, 3, 3)), "float64"), padding=(1, 1, 1, 1)
        ),
        typed("float64", 1, 6, 7, 7),
    )
    b.add(
        "conv_int_weights_half",
        lambda g, x, w: g.conv2d(x, w),
        typed("float16", 1, 6, 7, 7),
        typed("float16", 5, 6, 3, 3),
        tolerance=2e-2,
    )


def _chain(g, x):  # noqa: ANN001, ANN202
    """Halos of several widths on one value, depthwise, pooling, global average, a classifier."""
    x = g.relu(g.conv2d(x, rand(24, 5, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2)))
    a = g.conv2d(x, rand(24, 24, 1, 1))
    d = g.conv2d(x, rand(24, 1, 5, 5), padding=(2, 2, 2, 2), groups=24)
    x = g.clip(g.add(a, d), min=0.0, max=6.0)
    x = g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    x = g.conv2d(x, rand(33, 24, 3, 3), rand(33), padding=(1, 1, 1, 1))
    x = g.mean(x, axes=(2, 3))
    return g.linear(x, rand(33, 10), rand(10))


def _residual(g, x):  # noqa: ANN001, ANN202
    y = g.relu(g.conv2d(x, rand(24, 24, 3, 3), padding=(1, 1, 1, 1)))
    y = g.conv2d(y, rand(24, 24, 3, 3), rand(24), padding=(1, 1, 1, 1))
    return g.relu(g.add(y, x))


def _branches(g, x):  # noqa: ANN001, ANN202
    one = g.relu(g.conv2d(x, rand(32, 16, 1, 1)))
    two = g.relu(g.conv2d(x, rand(16, 16, 3, 3), padding=(1, 1, 1, 1)))
    three = g.conv2d(g.avg_pool2d(x, kernel=(3, 3), padding=(1, 1, 1, 1)), rand(20, 16, 1, 1))
    return g.conv2d(g.concat(one, two, three, axis=1), rand(8, 68, 1, 1))


def _depthwise(b: Battery) -> None:
    for k, (ch, h, w, kh, kw, attrs) in enumerate(
        [
            (16, 8, 8, 3, 3, {"padding": (1, 1, 1, 1)}),
            (19, 9, 7, 3, 3, {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
            (32, 14, 14, 5, 5, {"padding": (2, 2, 2, 2)}),
            (7, 11, 11, 7, 7, {"padding": (3, 3, 3, 3)}),
            (16, 9, 9, 3, 3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
            (33, 6, 5, 2, 3, {"padding": (1, 0, 0, 2)}),
            (16, 1, 1, 1, 1, {}),
        ]
    ):
        weight, bias = rand(ch, 1, kh, kw, seed=k), rand(ch, seed=k)
        b.add(
            f"depthwise_{k}",
            lambda g, x, w=weight, ch=ch, a=attrs: g.conv2d(x, w, groups=ch, **a),
            (2, ch, h, w),
            tolerance=1e-5,
        )
        b.add(
            f"depthwise_bias_{k}",
            lambda g, x, w=weight, v=bias, ch=ch, a=attrs: g.sigmoid(
                g.conv2d(x, w, v, groups=ch, **a)
            ),
            (1, ch, h, w),
            tolerance=1e-5,
        )
    for groups, ch, f in ((2, 16, 32), (4, 20, 12), (3, 6, 6), (2, 64, 64)):
        b.add(
            f"grouped_{groups}_{ch}",
            lambda g, x, f=f, ch=ch, n=groups: g.relu(
                g.conv2d(x, rand(f, ch // n, 3, 3), padding=(1, 1, 1, 1), groups=n)
            ),
            (1, ch, 7, 9),
            tolerance=1e-5,
        )


def _products(b: Battery) -> None:
    for m, k, n in (
        (1, 1, 1),
        (1, 784, 256),
        (5, 17, 10),
        (7, 64, 48),
        (8, 33, 96),
        (13, 5, 31),
        (128, 64, 64),
        (29, 130, 129),
        (3, 7, 512),
        (64, 96, 1),
        (20, 1024, 80),
        (130, 300, 150),
    ):
        weight, bias = rand(k, n), rand(n)
        b.add(f"linear_{m}_{k}_{n}", lambda g, x, w=weight: g.linear(x, w), (m, k), tolerance=2e-5)
        b.add(
            f"linear_gelu_{m}_{k}_{n}",
            lambda g, x, w=weight, v=bias: g.gelu(g.linear(x, w, v)),
            (m, k),
            tolerance=2e-5,
        )
    b.add(
        "linear_symbolic",
        lambda g, x: g.relu(g.linear(x, rand(40, 50), rand(50))),
        (N, 40),
        sizes=ROWS,
        tolerance=2e-5,
    )
    b.add(
        "linear_3d",
        lambda g, x, y: g.add(g.linear(x, rand(24, 33)), y),
        (N, S, 24),
        (N, S, 33),
        sizes=[{"N": n, "S": s} for n, s in ((1, 1), (2, 3), (1, 9), (5, 7))],
        tolerance=2e-5,
    )
    for n in (1, 10, 33, 130):
        b.add(
            f"linear_bias_given_{n}",
            lambda g, x, v, n=n: g.linear(x, rand(40, n), v),
            (5, 40),
            (n,),
            tolerance=2e-5,
        )
    b.add(
        "linear_bias_computed",
        lambda g, x, v: g.relu(g.linear(x, rand(40, 21), g.exp(v))),
        (N, 40),
        (21,),
        sizes=ROWS,
        tolerance=2e-5,
    )
    b.add("linear_vector", lambda g, x: g.linear(x, rand(24, 33)), (24,), tolerance=2e-5)
    b.add(
        "linear_float64",
        lambda g, x: g.linear(x, c(np.random.default_rng(1).random((9, 40)), "float64")),
        typed("float64", 5, 9),
    )
    for k, (left, right) in enumerate(
        [
            ((3, 4), (4, 5)),
            ((17, 33), (33, 40)),
            ((2, 3, 8, 9), (2, 3, 9, 20)),
            ((5, 2, 7), (7, 33)),
            ((2, 1, 4, 6), (3, 6, 17)),
            ((9,), (9, 5)),
            ((5, 9), (9,)),
            ((33,), (33,)),
            ((1, 64), (64, 65)),
            ((4, 0), (0, 5)),
            ((40, 33), (33, 65)),
            ((2, 19, 64), (64, 80)),
            ((2, 3, 16, 40), (2, 3, 40, 70)),
        ]
    ):
        b.add(f"matmul_{k}", lambda g, x, y: g.matmul(x, y), left, right, tolerance=2e-5)
    for ta, tb in itertools.product((False, True), repeat=2):
        left, right = ((2, 9, 6) if ta else (2, 6, 9)), ((2, 33, 9) if tb else (2, 9, 33))
        b.add(
            f"matmul_{'nt'[ta]}{'nt'[tb]}",
            lambda g, x, y, a=ta, z=tb: g.matmul(x, y, transpose_a=a, transpose_b=z),
            left,
            right,
            tolerance=2e-5,
        )
    b.add(
        "matmul_of_rows",
        lambda g, x, y, z: g.gelu(g.add(g.matmul(x, y), z)),
        (N, 64),
        (64, 50),
        (50,),
        sizes=ROWS,
        tolerance=2e-5,
    )
    b.add(
        "matmul_symbolic",
        lambda g, x, y: g.matmul(x, y),
        (N, 1, S, 6),
        (3, 6, T),
        sizes=[{"N": 1, "S": 1, "T": 1}, {"N": 2, "S": 5, "T": 33}],
        tolerance=2e-5,
    )
    for d in ("int8", "int32", "int64", "uint8", "float64", "float16"):
        b.add(
            f"matmul_{d}",
            lambda g, x, y: g.matmul(x, y),
            typed(d, 5, 9),
            typed(d, 9, 34),
            tolerance=1e-2 if d == "float16" else 0.0,
        )


def _rows(b: Battery) -> None:
    for n in (1, 2, 7, 16, 17, 63, 64, 128, 130, 1000):
        b.add(f"softmax_{n}", lambda g, x: g.softmax(x), (5, n), tolerance=2e-6)
        b.add(f"log_softmax_{n}", lambda g, x: g.log_softmax(x), (5, n), tolerance=2e-6)
        b.add(
            f"layer_norm_{n}",
            lambda g, x, n=n: g.layer_norm(x, rand(n), rand(n)),
            (2, 3, n),
            tolerance=1e-5,
        )
    for op in ("softmax", "log_softmax"):
        for axis in (0, 1):
            b.add(
                f"{op}_axis{axis}",
                lambda g, x, o=op, a=axis: g.emit(o, x, axis=a),
                (4, 9, 20),
                tolerance=2e-6,
            )
        b.add(
            f"{op}_symbolic",
            lambda g, x, o=op: g.emit(o, x),
            (N, S),
            sizes=[{"N": n, "S": s} for n, s in ((1, 1), (3, 16), (2, 100), (9, 15))],
            tolerance=2e-6,
        )
        b.add(f"{op}_far", lambda g, x, o=op: g.emit(o, x), (4, 40), make=_far, tolerance=2e-6)
        b.add(f"{op}_half", lambda g, x, o=op: g.emit(o, x), typed("float16", 4, 40))
    b.add(
        "softmax_scaled",
        lambda g, x, y: g.softmax(g.add(g.mul(x, 0.125), y)),
        (6, 40),
        (6, 40),
        tolerance=2e-6,
    )
    b.add("softmax_vector", lambda g, x: g.softmax(x), (77,), tolerance=2e-6)
    b.add(
        "layer_norm_axis1",
        lambda g, x: g.layer_norm(x, rand(5, 7), rand(5, 7), axis=1),
        (3, 5, 7),
        tolerance=1e-5,
    )
    b.add(
        "layer_norm_gamma",
        lambda g, x: g.layer_norm(x, rand(40)),
        (N, 40),
        sizes=[{"N": 1}, {"N": 6}],
        tolerance=1e-5,
    )
    b.add(
        "layer_norm_residual",
        lambda g, x, y: g.relu(g.layer_norm(g.add(x, y), rand(40), rand(40))),
        (9, 40),
        (9, 40),
        tolerance=1e-5,
    )
    b.add("layer_norm_flat", lambda g, x: g.layer_norm(x, rand(40)), (3, 40), make=_flat_rows)


def _far(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Rows far from zero, one with minus infinity in it."""
    x = random_array(seed, dtype, shape) * 30 + 500
    x[0, ::2] = -np.inf
    return x.astype(dtype)


def _flat_rows(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Rows without variance."""
    return np.full(shape, 3, dtype)


def _attention(b: Battery) -> None:
    for k, (batch, heads, s, t, d, dv, causal) in enumerate(
        [
            (1, 2, 8, 8, 64, 64, False),
            (2, 3, 17, 17, 32, 32, True),
            (1, 1, 1, 30, 16, 16, False),
            (1, 2, 40, 40, 48, 48, True),
            (1, 1, 3, 600, 16, 16, False),
            (1, 1, 7, 3, 16, 16, True),
            (1, 1, 20, 530, 32, 32, True),
            (1, 2, 33, 20, 16, 16, True),
            (1, 1, 600, 600, 16, 16, True),
        ]
    ):
        shapes = ((batch, heads, s, d), (batch, heads, t, d), (batch, heads, t, dv))
        b.add(
            f"attention_{k}",
            lambda g, q, k, v, z=causal, d=d: g.attention(q, k, v, scale=d**-0.5, causal=z),
            *shapes,
            tolerance=5e-6,
        )
    shapes = ((2, 3, 9, 32), (2, 3, 13, 32), (2, 3, 13, 32))
    for mask in ((2, 1, 1, 13), (9, 13), (1, 1, 9, 13), (2, 3, 9, 13), (13,)):
        name = "x".join(map(str, mask))
        b.add(
            f"attention_mask_{name}",
            lambda g, q, k, v, m: g.attention(q, k, v, m, scale=0.2),
            *shapes,
            mask,
            tolerance=5e-6,
        )
        b.add(
            f"attention_bool_{name}",
            lambda g, q, k, v, m: g.attention(q, k, v, m, scale=0.2),
            *shapes,
            typed("bool", *mask),
            make=_seen,
            tolerance=5e-6,
        )
    symbolic = ((N, 2, S, 32), (N, 2, S, 32), (N, 2, S, 32))
    for causal in (False, True):
        b.add(
            f"attention_symbolic_{int(causal)}",
            lambda g, q, k, v, z=causal: g.attention(q, k, v, scale=0.2, causal=z),
            *symbolic,
            sizes=[{"N": n, "S": s} for n, s in ((1, 1), (2, 5), (1, 17), (1, 130), (2, 64))],
            tolerance=5e-6,
        )
    b.add(
        "self_attention",
        _self_attention,
        (N, S, 64),
        sizes=[{"N": n, "S": s} for n, s in ((1, 1), (2, 7), (1, 33))],
        tolerance=2e-5,
    )


def _seen(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """As ever, but every row of a mask shows its first key."""
    x = random_array(seed, dtype, shape)
    if dtype.kind == "b":
        x[..., 0] = True
    return x


def _self_attention(g, x):  # noqa: ANN001, ANN202
    """Projections, heads apart, attention, heads together, residual and norm."""
    n, s, _ = x.tensor.shape
    q, k, v = (
        g.transpose(
            g.reshape(g.linear(x, rand(64, 64, seed=i), rand(64)), shape=(n, s, 4, 16)),
            axes=(0, 2, 1, 3),
        )
        for i in range(3)
    )
    y = g.transpose(g.attention(q, k, v, scale=0.25), axes=(0, 2, 1, 3))
    y = g.linear(g.reshape(y, shape=(n, s, 64)), rand(64, 64, seed=4), rand(64))
    return g.layer_norm(g.add(x, y), rand(64), rand(64))


def build() -> Battery:
    b = Battery()
    for fill in (_convolutions, _depthwise, _products, _rows, _attention):
        fill(b)
    return b


BATTERY = build().in_turn()


@pytest.fixture(scope="module", params=EVERY_LEVEL)
def executable(request: pytest.FixtureRequest) -> Executable:
    return BATTERY.compile(TARGETS[request.param])


@pytest.fixture(scope="module")
def run(executable: Executable) -> Library:
    return load(executable)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_matches_float64(name: str, run: Library) -> None:
    BATTERY.check(name, run)


def test_kernels_need_no_support_library(executable: Executable) -> None:
    assert undefined_by(executable) == set()


@pytest.mark.parametrize(("depth", "width"), [(20, 20), (64, 32), (12, 48)])
def test_attention_of_odd_widths(depth: int, width: int) -> None:
    """No fused schedule: spelled out before layouts are chosen, masks and all."""
    b = Battery()
    b.add(
        "odd",
        lambda g, q, k, v: g.attention(q, k, v, scale=0.3),
        (1, 2, 5, depth),
        (1, 2, 33, depth),
        (1, 2, 33, width),
    )
    b.add(
        "causal",
        lambda g, q, k, v: g.attention(q, k, v, scale=0.3, causal=True),
        (1, 2, 5, depth),
        (1, 2, 9, depth),
        (1, 2, 9, width),
    )
    b.add(
        "masked",
        lambda g, q, k, v, m: g.attention(q, k, v, m, scale=0.3),
        (1, 2, 5, depth),
        (1, 2, 9, depth),
        (1, 2, 9, width),
        (1, 1, 1, 9),
    )
    library = b.compile(Target("native"))
    run = Executor(library.jit())
    for name in ("odd", "causal", "masked"):
        b.check(name, run)


@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (20, 64), (600, 600)])
def test_causal_tiles_end_with_their_last_query(rows: int, keys: int) -> None:
    """What the last query of a tile does not see is not read: its keys and values are NaN."""
    b = Battery()
    shapes = ((1, 1, rows, 32), (1, 1, keys, 32), (1, 1, keys, 32))
    b.add("f", lambda g, q, k, v: g.attention(q, k, v, scale=0.2, causal=True), *shapes)
    run = load(b.compile(Target("native")))
    q, k, v = (np.ones(shape, np.float32) for shape in shapes)
    k[:, :, -1] = v[:, :, -1] = np.nan
    result = np.asarray(run["f"](q, k, v))[0, 0]
    np.testing.assert_allclose(result[: rows // 2], 1.0, rtol=1e-6)
    assert np.isnan(result[-1]).all()


def test_every_schedule_is_met() -> None:
    classes = {k.kernel_class for k in BATTERY.compile(Target("native")).kernels}
    assert {
        "conv2d_direct",
        "conv2d_depthwise",
        "linear_packed",
        "attention_fused",
        "softmax_rows",
        "layer_norm_rows",
        "loops",
    } <= classes
