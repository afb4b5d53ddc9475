"""The generic schedule: elementwise, broadcast, injective and reducing kernels of every shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensorkiln.executable import Executable
from tensorkiln.ir.expr import Var, as_expr
from tensorkiln.ir.relax import Tuple, Value, constant
from tensorkiln.kernels.case import Build, Graph
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import EVERY_LEVEL, TARGETS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, random_array, typed, undefined_by

N, M = Var("N"), Var("M")
SYMBOLIC = [{"N": n, "M": m} for n, m in ((1, 1), (1, 5), (3, 1), (2, 17), (5, 64), (33, 31))]
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
EVERY = ("bool", *INTS, *FLOATS)


def _positive(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    x = random_array(seed, dtype, shape)
    return np.asarray(np.abs(x) + dtype.type(0.25), dtype)


def _small(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(random_array(seed, dtype, shape) % 5, dtype)


def _bits(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits, among them those of NaNs; of booleans, those that are one."""
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw[..., 0] < 128 if dtype.kind == "b" else raw.view(dtype)[..., 0]


def bits_convert(a: str, z: str) -> bool:
    """Whether the bits of one type can be had as another, which is a number whatever they are."""
    same = np.dtype(a).itemsize == np.dtype(z).itemsize and z != "bool"
    return same and a != z and ("float" not in a + z or np.dtype(a).itemsize > 2)


def _elementwise(b: Battery) -> None:
    for n in (1, 2, 15, 16, 17, 63, 64, 65, 1023, 1025, 70001):
        b.add(f"flat_{n}", lambda g, x, y: g.relu(g.add(g.mul(x, 2.0), y)), (n,), (n,))
    for shape in (
        (),
        (1,),
        (1, 1, 1),
        (3, 1, 5),
        (2, 3, 1),
        (4, 20, 1, 1),
        (1, 40),
        (40, 1),
        (1, 3, 1, 7, 1),
        (2, 3, 4, 5),
        (7, 5, 3, 2, 2),
        (0,),
        (3, 0, 2),
    ):
        name = "x".join(map(str, shape)) or "scalar"
        b.add(f"shape_{name}", lambda g, x, y: g.sub(x, y), shape, shape)
    b.add(
        "flat_symbolic_last_1",
        lambda g, x, y: g.mul(g.add(x, y), x),
        (N, M, 1),
        (N, M, 1),
        sizes=SYMBOLIC,
    )
    b.add("flat_symbolic", lambda g, x, y: g.add(x, g.abs(y)), (N, M), (N, M), sizes=SYMBOLIC)
    for op in (
        "abs",
        "relu",
        "sign",
        "floor",
        "ceil",
        "round",
        "reciprocal",
        "neg",
        "isnan",
        "leaky_relu",
        "hard_sigmoid",
        "hard_swish",
        "identity",
    ):
        for d in FLOATS:
            b.add(f"{op}_{d}", lambda g, x, op=op: g.emit(op, x), typed(d, 3, 37))
    for op in (
        "exp",
        "erf",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "gelu",
        "silu",
        "softplus",
        "elu",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
    ):
        for d in FLOATS:
            b.add(f"{op}_{d}", lambda g, x, op=op: g.emit(op, x), typed(d, 3, 37))
    for d in FLOATS:
        b.add(f"tan_{d}", lambda g, x: g.tan(g.sin(x)), typed(d, 3, 37))
    for op in ("sqrt", "rsqrt", "log"):
        for d in FLOATS:
            b.add(f"{op}_{d}", lambda g, x, op=op: g.emit(op, x), typed(d, 3, 37), make=_positive)
    for op, d in itertools.product(("abs", "neg", "relu", "sign"), INTS):
        if op != "neg" or not d.startswith("u"):
            b.add(f"{op}_{d}", lambda g, x, op=op: g.emit(op, x), typed(d, 3, 37))
    for op, d in itertools.product(
        ("add", "sub", "mul", "div", "minimum", "maximum", "mod"), (*INTS, *FLOATS)
    ):
        attrs = {"fmod": 1} if op == "mod" and d.startswith("float") else {}
        b.add(
            f"{op}_{d}",
            lambda g, x, y, op=op, a=attrs: g.emit(op, x, y, **a),
            typed(d, 5, 33),
            typed(d, 5, 33),
            make=_positive if attrs else None,
        )
    for op, d in itertools.product(
        ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"), INTS
    ):
        b.add(
            f"{op}_{d}",
            lambda g, x, y, op=op: g.emit(op, x, y),
            typed(d, 5, 33),
            typed(d, 5, 33),
        )
    for d in INTS:
        b.add(f"bitwise_not_{d}", lambda g, x: g.bitwise_not(x), typed(d, 3, 37))
    for a, z in itertools.product(EVERY, EVERY):
        if bits_convert(a, z):
            b.add(
                f"bitcast_{a}_{z}",
                lambda g, x, z=z: g.bitcast(x, dtype=z),
                typed(a, 77),
                make=_bits,
                exact=True,
            )
    b.add("mod_signs", lambda g, x, y: g.mod(x, y, fmod=1), typed("int32", 40), typed("int32", 40))
    for op, d in itertools.product(("equal", "not_equal", "less", "greater_equal"), EVERY):
        if d != "bool" or (op.endswith("equal") and "greater" not in op):
            b.add(f"{op}_{d}", lambda g, x, y, op=op: g.emit(op, x, y), typed(d, 50), typed(d, 50))
    for op in ("logical_and", "logical_or", "logical_xor"):
        b.add(op, lambda g, x, y, op=op: g.emit(op, x, y), typed("bool", 3, 21), typed("bool", 21))
    b.add("logical_not", lambda g, x: g.logical_not(x), typed("bool", 3, 21))
    for d in EVERY:
        b.add(
            f"where_{d}",
            lambda g, c, x, y: g.where(c, x, y),
            typed("bool", 4, 1, 19),
            typed(d, 3, 19),
            typed(d, 4, 3, 1),
        )
    for a, z in itertools.product(EVERY, EVERY):
        if a != z:
            b.add(f"cast_{a}_{z}", lambda g, x, z=z: g.cast(x, dtype=z), typed(a, 77))
    b.add("pow_float", lambda g, x, y: g.pow(x, y), (45,), (45,), make=_positive)
    b.add(
        "pow_double",
        lambda g, x, y: g.pow(x, y),
        typed("float64", 45),
        typed("float64", 45),
        make=_positive,
    )
    for d in ("int8", "int32", "int64", "uint8"):
        b.add(f"pow_{d}", lambda g, x, y: g.pow(x, y), typed(d, 99), typed(d, 99), make=_small)
    b.add("clip", lambda g, x: g.clip(x, min=-0.5, max=0.75), (3, 45))
    b.add("clip_int", lambda g, x: g.clip(x, min=-5, max=7), typed("int8", 45))
    b.add(
        "mixed_widths",
        lambda g, x, y: g.add(g.cast(x, dtype="float64"), y),
        typed("int8", 131),
        typed("float64", 131),
    )


def _broadcast(b: Battery) -> None:
    pairs = [
        ((3, 4, 5), (5,)),
        ((3, 4, 5), (4, 1)),
        ((3, 4, 37), (3, 1, 1)),
        ((1, 40), (7, 1)),
        ((2, 1, 3, 1), (4, 1, 33)),
        ((), (3, 4)),
        ((6, 0), (1, 1)),
        ((5, 1), (1, 17)),
        ((2, 16, 3, 3), (16, 1, 1)),
        ((2, 65), (2, 1)),
    ]
    for k, (s, t) in enumerate(pairs):
        b.add(f"broadcast_{k}", lambda g, x, y: g.add(g.mul(x, y), y), s, t)
    b.add("broadcast_symbolic", lambda g, x, y: g.mul(x, y), (N, M), (1, M), sizes=SYMBOLIC)
    b.add("broadcast_symbolic_rows", lambda g, x, y: g.mul(x, y), (N, M), (N, 1), sizes=SYMBOLIC)
    b.add("broadcast_to", lambda g, x: g.broadcast_to(x, shape=(4, 3, 5)), (3, 1))
    b.add(
        "batch_norm",
        lambda g, x: g.batch_norm(
            x,
            *(
                constant(np.random.default_rng(k).uniform(0.5, 2, 5).astype(np.float32))
                for k in range(4)
            ),
        ),
        (2, 5, 3, 3),
    )


def _injective(b: Battery) -> None:
    for axes in itertools.permutations(range(3)):
        name = "".join(map(str, axes))
        b.add(f"transpose_{name}", lambda g, x, a=axes: g.transpose(x, axes=a), (5, 17, 33))
        b.add(
            f"transpose_symbolic_{name}",
            lambda g, x, a=axes: g.transpose(x, axes=a),
            (N, 3, M),
            sizes=SYMBOLIC,
        )
    b.add("transpose_4d", lambda g, x: g.transpose(x, axes=(0, 2, 1, 3)), (2, 3, 7, 16))
    b.add("transpose_bool", lambda g, x: g.transpose(x, axes=(1, 0)), typed("bool", 9, 70))
    b.add("transpose_int8", lambda g, x: g.transpose(x, axes=(1, 0)), typed("int8", 70, 9))
    b.add(
        "reshape_of_transpose",
        lambda g, x: g.relu(g.reshape(g.transpose(x, axes=(1, 0, 2)), shape=(6, 20))),
        (4, 6, 5),
    )
    b.add("reshape_only", lambda g, x: g.reshape(x, shape=(6, 20)), (4, 6, 5))
    for k, (begin, strides, shape) in enumerate(
        [
            ((0, 0), (1, 1), (3, 40)),
            ((2, 1), (1, 1), (3, 33)),
            ((0, 3), (2, 3), (3, 12)),
            ((4, 39), (-1, -1), (5, 40)),
            ((4, 0), (-2, 1), (3, 40)),
            ((1, 1), (1, 1), (0, 5)),
            ((4, 39), (1, 1), (1, 1)),
            ((0, 38), (1, -2), (5, 20)),
        ]
    ):
        b.add(
            f"slice_{k}",
            lambda g, x, b=begin, s=strides, n=shape: g.slice(x, begin=b, strides=s, shape=n),
            (5, 40),
        )
    b.add(
        "slice_symbolic",
        lambda g, x: g.slice(x, begin=(0, 1), strides=(1, 2), shape=(N, 8)),
        (N, 20),
        sizes=[{"N": n} for n in (1, 2, 9)],
    )
    for axis, mode in itertools.product((0, 1), ("constant", "edge", "reflect")):
        before, after = ((2, 0), (1, 0)) if axis == 0 else ((0, 3), (0, 2))
        b.add(
            f"pad_{mode}_{axis}",
            lambda g, x, m=mode, p=before, q=after: g.pad(
                x, before=p, after=q, mode=m, value=1.5 if m == "constant" else 0.0
            ),
            (4, 23),
        )
    b.add("pad_both", lambda g, x: g.pad(x, before=(1, 2, 0), after=(0, 1, 3)), (3, 4, 18))
    b.add("pad_empty", lambda g, x: g.pad(x, before=(1, 1), after=(1, 1), value=2.0), (0, 3))
    b.add(
        "pad_symbolic", lambda g, x: g.pad(x, before=(1, 0), after=(0, 2)), (N, M), sizes=SYMBOLIC
    )
    b.add("tile", lambda g, x: g.tile(x, repeats=(2, 3)), (3, 7))
    b.add("tile_long", lambda g, x: g.relu(g.tile(x, repeats=(2, 1))), (3, 40))
    b.add("full", lambda g, x: g.add(g.full(shape=(3, 37), value=2.5), x), (37,))
    b.add(
        "arange",
        lambda g, x: g.add(g.arange(start=1.0, step=0.5, count=37, dtype="float32"), x),
        (37,),
    )


def _take(b: Battery) -> None:
    def within(limit: int):  # noqa: ANN202
        def make(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
            x = random_array(seed, dtype, shape)
            return x % limit if dtype.kind in "iu" else x

        return make

    for axis, d in itertools.product((0, 1, 2), ("int32", "int64", "uint8")):
        b.add(
            f"take_{axis}_{d}",
            lambda g, x, i, a=axis: g.take(x, i, axis=a),
            (5, 7, 33),
            typed(d, 2, 3),
            make=within(5),
        )
    b.add(
        "take_scalar", lambda g, x, i: g.take(x, i, axis=1), (4, 9), typed("int64"), make=within(9)
    )
    b.add(
        "take_clamped",
        lambda g, x, i: g.take(x, i, axis=0, outside="clamp"),
        (9, 20),
        typed("int64", 60),
    )
    b.add(
        "take_negative",
        lambda g, x: g.take(x, constant(np.array([-1, 0, -3, 2])), axis=1),
        (3, 5, 40),
    )
    b.add(
        "take_rows",
        lambda g, x, i: g.take(x, i, axis=0),
        (50, 64),
        typed("int64", N, M),
        sizes=[{"N": n, "M": m} for n, m in ((1, 3), (1, 1), (2, 5))],
        make=within(50),
    )


def _blend(columns: int) -> Build:
    """Sums of two elements of a row, at computed places that are the same in each row."""
    draw = np.random.default_rng(columns)
    first, second = (constant(draw.integers(-20, 20, columns)) for _ in range(2))

    def build(g: Graph, x: Value) -> Value:
        weights = g.cast(constant(draw.integers(-4, 4, columns)), dtype=x.type.dtype.name)
        return g.add(g.mul(g.take(x, first, axis=-1), weights), g.take(x, second, axis=-1))

    return build


def _columns(b: Battery) -> None:
    """Fewer rows than are computed at once, as many, and more; work for several threads."""
    for shape in ((7,), (8,), (2, 5), (3, 1, 3), (17,), (0,), (40, 25)):
        for columns in (1, 4, 33):
            name = f"columns_{'x'.join(map(str, shape))}_{columns}"
            b.add(name, _blend(columns), (*shape, 20))
    b.add("columns_int32", _blend(9), typed("int32", 11, 20))
    b.add("columns_float64", _blend(9), typed("float64", 11, 20))
    b.add("columns_symbolic", _blend(9), (N, M, 20), sizes=[*SYMBOLIC, {"N": 0, "M": 3}])
    b.add("columns_concat", lambda g, x: g.concat(_blend(9)(g, x), x, axis=1), (13, 20))
    b.add("columns_sigmoid", lambda g, x: g.sigmoid(_blend(9)(g, x)), (13, 20))


def _concat(b: Battery) -> None:
    for axis in range(3):
        shapes = [[3, 4, 20] for _ in range(3)]
        for k, extent in enumerate((1, 5, 18)):
            shapes[k][axis] = extent
        b.add(f"concat_{axis}", lambda g, *xs, a=axis: g.concat(*xs, axis=a), *map(tuple, shapes))
        b.add(
            f"concat_relu_{axis}",
            lambda g, *xs, a=axis: g.relu(g.concat(*map(g.neg, xs), axis=a)),
            *map(tuple, shapes),
        )
    b.add("concat_one", lambda g, x: g.concat(x, axis=0), (3, 4))
    b.add("concat_empty", lambda g, x, y, z: g.concat(x, y, z, axis=1), (2, 0), (2, 5), (2, 0))
    b.add(
        "concat_bool",
        lambda g, x, y: g.concat(x, y, axis=1),
        typed("bool", 2, 3),
        typed("bool", 2, 30),
    )
    b.add("concat_symbolic", lambda g, x, y: g.concat(x, y, axis=0), (N, 7), (M, 7), sizes=SYMBOLIC)
    b.add(
        "concat_symbolic_last",
        lambda g, x, y: g.concat(x, y, axis=1),
        (4, N),
        (4, M),
        sizes=SYMBOLIC,
    )


def _subsets(n: int) -> list[tuple[int, ...]]:
    return [s for k in range(1, n + 1) for s in itertools.combinations(range(n), k)]


def _reductions(b: Battery) -> None:
    for op, axes in itertools.product(("sum", "mean", "max", "min", "prod"), _subsets(3)):
        name = f"{op}_{''.join(map(str, axes))}"
        b.add(name, lambda g, x, op=op, a=axes: g.emit(op, x, axes=a), (5, 7, 37), tolerance=2e-5)
        b.add(
            f"{name}_keep",
            lambda g, x, op=op, a=axes: g.emit(op, x, axes=a, keepdims=True),
            (3, 40, 2),
            tolerance=2e-5,
        )
        b.add(
            f"{name}_symbolic",
            lambda g, x, op=op, a=axes: g.emit(op, x, axes=a),
            (N, 3, M),
            sizes=SYMBOLIC,
            tolerance=2e-5,
        )
    for op, d in itertools.product(("sum", "max", "min", "prod", "mean"), (*INTS, *FLOATS)):
        for axis in (0, 1):
            wide = {"float16": 2e-2, "float32": 2e-5}.get(d, 0.0)
            b.add(
                f"{op}_{axis}_{d}",
                lambda g, x, op=op, a=axis: g.emit(op, x, axes=(a,)),
                typed(d, 9, 35),
                tolerance=wide,
                make=_tenths if op == "prod" else None,
            )
    for op, d in itertools.product(
        ("argmax", "argmin"), ("int8", "int64", "uint8", "float32", "float64", "float16")
    ):
        for axis in (0, 1, -1):
            b.add(
                f"{op}_{axis}_{d}".replace("-", "m"),
                lambda g, x, op=op, a=axis: g.emit(op, x, axis=a),
                typed(d, 6, 41, 3),
            )
    b.add(
        "argmax_symbolic",
        lambda g, x: g.argmax(x, axis=1),
        (N, M),
        sizes=[s for s in SYMBOLIC if s["M"]],
    )
    for k, shape in enumerate(((24,), (2, 12), (4, 6), (8, 3))):
        axes = tuple(range(len(shape)))[-1:]
        b.add(
            f"mean_of_view_{k}",
            lambda g, x, s=shape, a=axes: g.mean(g.reshape(x, shape=s), axes=a),
            (6, 4),
            tolerance=2e-5,
        )
    b.add("views_of_one", _views, (2, 3, 4))
    b.add("sum_of_product", lambda g, x, y: g.sum(g.mul(x, y), axes=(1,)), (5, 133), (5, 133))
    b.add("mean_of_square", lambda g, x: g.mean(g.mul(x, x), axes=(1, 2)), (4, 9, 33))
    b.add("sum_then_scale", lambda g, x: g.mul(g.sum(x, axes=(1,), keepdims=True), 0.5), (5, 133))
    b.add("sum_empty", lambda g, x: g.sum(x, axes=(1,)), (5, 0))
    b.add("max_empty", lambda g, x: g.max(x, axes=(0,)), typed("int32", 0, 5))
    b.add("many_results", lambda g, x: Tuple((g.sum(x, axes=(0,)), g.exp(x), x)), (5, 19))


def _normalised(b: Battery) -> None:
    """Reductions whose result is used along the reduced axis, which is not the last."""
    for op, axis in itertools.product(("softmax", "log_softmax"), (0, 1)):
        for k, shape in enumerate(((5, 7, 37), (3, 40, 2), (1, 9, 16))):
            b.add(
                f"{op}_{axis}_{k}",
                lambda g, x, op=op, a=axis: g.emit(op, x, axis=a),
                shape,
                tolerance=2e-6,
            )
        b.add(
            f"{op}_{axis}_symbolic",
            lambda g, x, op=op, a=axis: g.emit(op, x, axis=a),
            (N, M, 19),
            sizes=SYMBOLIC,
            tolerance=2e-6,
        )
    b.add("less_its_mean", lambda g, x: g.sub(x, g.mean(x, axes=(0,), keepdims=True)), (9, 33))


def _views(g, x):  # noqa: ANN001, ANN202
    """Several results in one memory: each must get its own."""
    y = g.relu(x)
    flat = g.reshape(y, shape=(24,))
    return Tuple((flat, y, g.reshape(y, shape=(6, 4)), g.reshape(x, shape=(24,))))


def _tenths(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    x = random_array(seed, dtype, shape)
    return np.asarray(1 + x / 10, dtype) if dtype.kind == "f" else x


def _pools(b: Battery) -> None:
    shapes = {"small": (2, 3, 9, 11), "blocked": (1, 16, 8, 13), "odd": (2, 19, 7, 7)}
    windows = [
        {"kernel": (2, 2), "strides": (2, 2)},
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
        {"kernel": (3, 2), "strides": (1, 2), "padding": (0, 1, 2, 0)},
        {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True},
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 0, 0, 1), "ceil_mode": True},
        {"kernel": (1, 1), "strides": (2, 3)},
        {"kernel": (7, 7)},
    ]
    for (name, shape), (k, w) in itertools.product(shapes.items(), enumerate(windows)):
        b.add(f"max_pool_{name}_{k}", lambda g, x, w=w: g.max_pool2d(x, **w), shape)
        for include in (False, True):
            b.add(
                f"avg_pool_{name}_{k}_{int(include)}",
                lambda g, x, w=w, i=include: g.avg_pool2d(x, count_include_pad=i, **w),
                shape,
            )
    b.add(
        "max_pool_dilated",
        lambda g, x: g.max_pool2d(x, kernel=(3, 2), dilation=(2, 3), padding=(1, 1, 1, 1)),
        (1, 5, 9, 9),
    )
    for d in ("int8", "uint8", "int32", "float64"):
        b.add(
            f"max_pool_{d}",
            lambda g, x: g.max_pool2d(x, kernel=(3, 3), padding=(1, 1, 1, 1)),
            typed(d, 1, 3, 6, 7),
        )
    b.add(
        "max_pool_symbolic",
        lambda g, x: g.max_pool2d(x, kernel=(2, 2), strides=(2, 2), padding=(1, 0, 1, 0)),
        (N, 4, M, 9),
        sizes=[{"N": n, "M": m} for n, m in ((1, 4), (1, 1), (3, 7), (2, 8))],
    )
    b.add("lrn", lambda g, x: g.lrn(x, size=5), (2, 19, 5, 5))
    b.add("lrn_even", lambda g, x: g.lrn(x, size=4, beta=0.6, alpha=0.5), (1, 16, 4, 4))


def build() -> Battery:
    b = Battery()
    for fill in (
        _elementwise,
        _broadcast,
        _injective,
        _take,
        _columns,
        _concat,
        _reductions,
        _normalised,
        _pools,
    ):
        fill(b)
    return b


BATTERY = build().in_turn()


@pytest.fixture(scope="module", params=EVERY_LEVEL)
def executable(request: pytest.FixtureRequest) -> Executable:
    return BATTERY.compile(TARGETS[request.param])


@pytest.fixture(scope="module")
def run(executable: Executable) -> Library:
    return load(executable)


def test_kernels_need_no_support_library(executable: Executable) -> None:
    assert undefined_by(executable) == set()


@pytest.mark.parametrize("name", BATTERY.cases)
def test_matches_float64(name: str, run: Library) -> None:
    BATTERY.check(name, run)


def test_inputs_that_are_views() -> None:
    """Strided, reversed and transposed inputs give what their contiguous copies give."""
    b = Battery()
    b.add("add", lambda g, x, y: g.add(x, y), (5, 33), (5, 33))
    add = Executor(b.compile(Target("native")).jit())["add"]
    base = random_array(5, np.dtype("float32"), (40, 66))
    y = random_array(6, np.dtype("float32"), (5, 33))
    views = [base[::8, ::2], base[4::-1, 65:0:-2], base.T[10:43, 3:8].T, base[:5, 1:34]]
    for x in views:
        assert x.shape == (5, 33)
        np.testing.assert_array_equal(add(x, y), add(np.ascontiguousarray(x), y))


@pytest.mark.slow
def test_more_elements_than_int32_bytes() -> None:
    n = (1 << 27) + 3
    b = Battery()
    b.add("huge", lambda g, x: g.add(g.mul(x, 2.0), 1.0), (as_expr(n),))
    x = np.arange(n, dtype=np.float32) % 1000
    out = np.asarray(Executor(b.compile(Target("native")).jit())["huge"](x))
    for part in (slice(0, 100), slice(n // 2, n // 2 + 100), slice(n - 100, n)):
        np.testing.assert_array_equal(out[part], x[part] * 2 + 1)
    assert float(out.sum(dtype=np.float64)) == float(x.sum(dtype=np.float64) * 2 + n)
