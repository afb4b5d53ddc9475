"""Every operator's tensor program against its NumPy reference, on small odd shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.ir.expr import Binary, Expr, Var
from tensorkiln.ir.relax import TensorType, tensor
from tensorkiln.ir.visit import walk
from tensorkiln.ops.op import TensorIn
from tests.ops.element import check, data

NAN = float("nan")
N, M = Var("N"), Var("M")
EDGES = np.array([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, -3.0, 7.25, -40.0, 30.0])
POSITIVE = np.abs(EDGES) + 0.25


def ints(*values: int, dtype: str = "int32") -> np.ndarray:
    return np.array(values, dtype)


def bytes_(*shape: int, dtype: str = "uint8") -> np.ndarray:
    """Any number of 8 bits, in a type that holds it."""
    low, high = (-128, 128) if np.dtype(dtype).kind == "i" else (0, 256)
    return np.random.default_rng(shape).integers(low, high, shape).astype(dtype)


INTEGERS = tuple(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64))
# (from, to) of one width, of which at least the bits are both numbers
BITCASTS = [
    (a, z)
    for bits in (8, 16, 32, 64)
    for a in (f"int{bits}", f"uint{bits}", *((f"float{bits}",) if bits > 16 else ()))
    for z in (f"int{bits}", f"uint{bits}", *((f"float{bits}",) if bits > 16 else ()))
] + [("bool", "uint8"), ("bool", "int8"), ("bool", "bool"), ("float16", "float16")]


def full_range(dtype: str) -> np.ndarray:
    """The ends of an integer type, and numbers between them."""
    info = np.iinfo(dtype)
    bits = info.bits
    some = [1 << k for k in range(0, bits - 1, 3)]
    return np.array([info.min, info.max, info.min + 1, 0, 1, *some], dtype)


def shifts(dtype: str) -> np.ndarray:
    """Shifts within the width, at it, beyond it, and for signed types below 0."""
    bits = np.iinfo(dtype).bits
    signed = [-1, -bits, -100] if np.dtype(dtype).kind == "i" else []
    return np.array([0, 1, bits // 2, bits - 1, bits, bits + 1, 127, *signed], dtype)


def random_bits(dtype: str) -> np.ndarray:
    """Any bits that are a value of the type: of floats, all but NaNs, whose bits no rule keeps."""
    if dtype == "bool":
        return np.array([True, False, True])
    found = np.random.default_rng(5).integers(0, 256, 64 * np.dtype(dtype).itemsize, np.uint8)
    x = found.view(dtype)
    return x[x == x]


UNARY_FLOAT = (
    "identity",
    "abs",
    "neg",
    "relu",
    "sign",
    "erf",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "floor",
    "ceil",
    "round",
    "isnan",
    "gelu",
    "leaky_relu",
    "elu",
    "hard_sigmoid",
    "hard_swish",
    "silu",
    "softplus",
    "clip",
)

# operator, operands, attributes
CASES: list[tuple[str, list[np.ndarray], dict[str, object]]] = [
    *((op, [EDGES], {}) for op in UNARY_FLOAT),
    *((op, [POSITIVE], {}) for op in ("sqrt", "rsqrt", "reciprocal", "log")),
    *((op, [data(0, 3)], {}) for op in ("relu", "gelu", "erf", "clip", "isnan")),
    *((op, [data(3, 5, dtype=t)], {}) for op in ("abs", "neg", "relu", "sign")
      for t in ("int8", "int32", "int64")),
    *((op, [ints(0, 1, 200, dtype="uint8")], {}) for op in ("abs", "relu", "sign", "identity")),
    ("require", [EDGES], {"condition": True, "reason": "nothing"}),
    ("fit", [data(2, 3)], {"shape": (2, 3)}),
    ("stretch", [data(2, 1, 3)], {"shape": (4, 2, 5, 3)}),
    ("exp", [EDGES], {}),
    ("gelu", [EDGES], {"approximate": "tanh"}),
    ("leaky_relu", [EDGES], {"alpha": 0.3}),
    ("elu", [EDGES], {"alpha": 0.7}),
    ("hard_sigmoid", [EDGES], {"alpha": 1 / 6, "beta": 0.4}),
    ("clip", [EDGES], {"min": -1.0, "max": 2.0}),
    ("clip", [EDGES], {"max": 6.0}),
    ("clip", [EDGES], {"min": 2.0, "max": -1.0}),
    ("clip", [ints(-3, 0, 5, 9)], {"min": 0, "max": 6}),
    ("logical_not", [data(4, dtype="bool")], {}),
    ("cast", [EDGES], {"dtype": "int32"}),
    ("cast", [np.array([NAN, np.inf, -np.inf, 1e30, 2.9, -2.9])], {"dtype": "int64"}),
    ("cast", [np.array([300.7, -5.0, 12.5])], {"dtype": "uint8"}),
    ("cast", [np.array([0.0, NAN, 0.3, -0.0])], {"dtype": "bool"}),
    ("cast", [ints(0, 3, -1)], {"dtype": "bool"}),
    ("cast", [ints(300, -1, 5)], {"dtype": "uint8"}),
    ("cast", [data(4, dtype="bool")], {"dtype": "float32"}),
    ("cast", [EDGES], {"dtype": "float32"}),
    *((op, [data(2, 1, 3), data(4, 1)], {}) for op in (
        "add", "sub", "mul", "div", "minimum", "maximum", "equal", "not_equal", "less",
        "less_equal", "greater", "greater_equal")),
    *((op, [data(4, 3, dtype="bool"), data(3, dtype="bool", seed=1)], {}) for op in (
        "logical_and", "logical_or", "logical_xor", "equal", "not_equal")),
    *((op, [data(40, dtype=t), data(40, dtype=t, seed=3)], {}) for op in (
        "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
      for t in INTEGERS),
    *((op, [full_range(t)[:, None], shifts(t)], {}) for op in ("left_shift", "right_shift")
      for t in INTEGERS),
    *(("bitwise_not", [full_range(t)], {}) for t in INTEGERS),
    *(("bitcast", [random_bits(a)], {"dtype": z}) for a, z in BITCASTS),
    *((op, [data(40, dtype=t), data(40, dtype=t, seed=3)], {}) for op in (
        "add", "sub", "mul", "div", "mod", "minimum", "maximum", "less")
      for t in ("int8", "int64", "uint8")),
    ("mod", [data(40, dtype="int32"), data(40, dtype="int32", seed=5)], {"fmod": 1}),
    ("mod", [data(9), data(9, seed=2)], {"fmod": 1}),
    ("div", [np.array([1.0, -1.0, 0.0]), np.zeros(3)], {}),
    ("pow", [POSITIVE, EDGES], {}),
    ("pow", [ints(2, 3, -2, 2, 0), ints(3, 0, 3, -1, 2)], {}),
    ("where", [data(3, 1, dtype="bool"), data(1, 4), data(2, 3, 4)], {}),
    ("where", [data(3, dtype="bool"), data(3, dtype="int64"), data(1, dtype="int64")], {}),
    ("reshape", [data(2, 3, 4)], {"shape": (6, 2, 2)}),
    ("reshape", [data(4, 6)], {"shape": (3, 8)}),
    ("reshape", [data(1, 5, 1)], {"shape": (5,)}),
    ("reshape", [data(1)], {"shape": ()}),
    ("reshape", [data(2, 0, 3)], {"shape": (0, 7)}),
    ("transpose", [data(2, 3, 4)], {"axes": (2, 0, 1)}),
    ("broadcast_to", [data(3, 1)], {"shape": (2, 3, 4)}),
    ("broadcast_to", [data(1, 1)], {"shape": (0, 4)}),
    ("slice", [data(5, 6)], {"begin": (4, 1), "strides": (-2, 3), "shape": (3, 2)}),
    ("slice", [data(5)], {"begin": (5,), "strides": (1,), "shape": (0,)}),
    ("concat", [data(2, 1), data(2, 3, seed=1), data(2, 0), data(2, 2, seed=2)], {"axis": -1}),
    ("concat", [data(2, 3)], {"axis": 0}),
    ("pad", [data(3, 2)], {"before": (1, 0), "after": (2, 3), "value": 7.0}),
    ("pad", [data(0, 2)], {"before": (1, 0), "after": (1, 1)}),
    ("pad", [data(3, 2)], {"before": (2, 1), "after": (1, 2), "mode": "edge"}),
    ("pad", [data(4, 3)], {"before": (3, 0), "after": (2, 2), "mode": "reflect"}),
    ("pad", [data(3, 4, dtype="int64")], {"before": (0, 1), "after": (0, 0), "value": -4.0}),
    ("take", [data(5, 3), ints(0, -1, 4, -5, dtype="int64")], {"axis": 0}),
    ("bounds_check", [ints(0, -1, 4, -5, dtype="int64")], {"extent": 5}),
    ("bounds_check", [ints(0, 4, dtype="uint8")], {"extent": 5, "negative": False}),
    ("take", [data(2, 5, 3), data(2, 2, dtype="uint8") % 5], {"axis": -2}),
    ("take", [data(3), ints(7, -9)], {"axis": 0}),
    ("tile", [data(2, 1, 3)], {"repeats": (2, 3, 1)}),
    ("tile", [data(2, 3)], {"repeats": (0, 2)}),
    ("full", [], {"shape": (2, 3), "value": 1.5, "dtype": "float64"}),
    ("full", [], {"shape": (), "value": True, "dtype": "bool"}),
    ("arange", [], {"start": 3, "step": -2, "count": 5}),
    ("arange", [], {"start": 0.5, "step": 0.25, "count": 4, "dtype": "float64"}),
    ("relayout", [data(1, 5, 2, 2)], {"layout": "A B/4 C+1 D+1 B%4"}),
    *((op, [data(3, 4, 2)], {"axes": axes, "keepdims": keep})
      for op in ("sum", "mean", "max", "min", "prod")
      for axes, keep in (((0,), False), ((-1, 0), True), ((), False), ((0, 1, 2), False))),
    *((op, [data(2, 0)], {"axes": (1,)}) for op in ("sum", "mean", "max", "min", "prod")),
    *((op, [data(3, 5, dtype=t)], {"axes": (1,)})
      for op in ("sum", "mean", "max", "min", "prod") for t in ("int32", "uint8")),
    *((op, [data(3, 5, 2, dtype=t)], {"axis": axis, "keepdims": keep})
      for op in ("argmax", "argmin")
      for t, axis, keep in (("int32", 1, False), ("float64", -1, True))),
    ("conv2d", [data(2, 3, 5, 4), data(4, 3, 3, 2)], {}),
    ("conv2d", [data(1, 2, 6, 5), data(3, 2, 3, 3), data(3)],
     {"padding": (1, 0, 2, 1), "strides": (2, 3)}),
    ("conv2d", [data(1, 4, 5, 5), data(6, 2, 2, 2), data(6)],
     {"groups": 2, "dilation": (2, 3), "padding": (1, 1, 1, 1)}),
    ("conv2d", [data(1, 3, 4, 4), data(3, 1, 3, 3)], {"groups": 3, "padding": (1, 1, 1, 1)}),
    ("conv2d", [data(1, 8, 4, 4), data(12, 8, 3, 3), data(12)],
     {"groups": 4, "channel_window": (4, 4), "padding": (1, 1, 1, 1)}),
    ("conv2d", [data(2, 6, 3, 3), data(6, 2, 1, 1)], {"groups": 6, "channel_window": (2, 1)}),
    ("conv2d", [data(0, 3, 4, 4), data(3, 3, 3, 3)], {}),
    ("conv2d", [data(1, 3, 1, 7), data(2, 3, 1, 3)], {"padding": (0, 1, 0, 1)}),
    ("conv2d_transpose", [data(2, 3, 4, 3), data(3, 2, 3, 2), data(2)],
     {"strides": (2, 3), "cut": (-1, 0, -1, 2)}),
    ("conv2d_transpose", [data(1, 4, 3, 3), data(4, 3, 4, 4), data(6)],
     {"strides": (2, 2), "cut": (1, 1, 1, 1), "groups": 2}),
    ("conv2d_transpose", [data(1, 2, 2, 5), data(2, 3, 1, 2)], {"strides": (3, 1)}),
    ("conv2d_transpose", [data(0, 2, 2, 5), data(2, 3, 1, 2)], {"strides": (3, 1)}),
    ("max_pool2d", [data(1, 2, 5, 6)], {"kernel": (3, 2), "strides": (2, 2)}),
    ("max_pool2d", [data(1, 2, 6, 6) - 9], {"kernel": (3, 3), "strides": (2, 2),
     "padding": (1, 1, 1, 1), "ceil_mode": True}),
    ("max_pool2d", [data(1, 1, 7, 7)], {"kernel": (2, 2), "dilation": (2, 3)}),
    ("max_pool2d", [data(1, 1, 5, 5, dtype="int8")], {"kernel": (2, 2), "padding": (1, 0, 0, 1)}),
    *(("avg_pool2d", [data(1, 2, 6, 5)], {"kernel": (3, 3), "strides": (2, 2), "padding": pads,
       "ceil_mode": ceil, "count_include_pad": include})
      for pads in ((0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0))
      for ceil in (False, True) for include in (False, True)),
    *(("avg_pool2d", [data(1, 2, 9, 7)], {"kernel": (3, 2), "strides": strides, "padding": pads,
       "dilation": dilation, "ceil_mode": ceil, "count_include_pad": include})
      for dilation in ((2, 3), (1, 4)) for strides in ((1, 1), (2, 3))
      for pads in ((0, 0, 0, 0), (2, 1, 1, 0))
      for ceil in (False, True) for include in (False, True)),
    ("batch_norm", [data(2, 3, 2, 2), data(3), data(3, seed=1), data(3, seed=2),
                    np.abs(data(3, seed=3))], {"eps": 1e-3}),
    ("layer_norm", [data(2, 3, 4), data(4), data(4, seed=1)], {"eps": 1e-3}),
    ("layer_norm", [data(2, 3, 4), data(3, 4)], {"axis": -2}),
    ("softmax", [data(2, 5)], {}),
    ("softmax", [data(3, 4, 2) * 400], {"axis": 1}),
    ("log_softmax", [data(3, 4, 2)], {"axis": -2}),
    *(("lrn", [data(1, 6, 2, 1)], {"size": size, "alpha": 0.5, "beta": beta, "bias": 2.0})
      for size in (1, 3, 4) for beta in (0.75, 0.5, 1.0, 0.6)),
    ("matmul", [data(3, 4), data(4, 2)], {}),
    ("matmul", [data(2, 1, 3, 4), data(5, 4, 2)], {}),
    ("matmul", [data(4), data(4)], {}),
    ("matmul", [data(4), data(2, 4, 3)], {}),
    ("matmul", [data(2, 3, 4), data(4)], {}),
    ("matmul", [data(2, 4, 3), data(2, 5, 4)], {"transpose_a": True, "transpose_b": True}),
    ("matmul", [data(3, 0), data(0, 2)], {}),
    ("matmul", [data(3, 4, dtype="int32"), data(4, 2, dtype="int32")], {}),
    ("linear", [data(2, 3, 4), data(4, 5), data(5)], {}),
    ("linear", [data(4), data(4, 5)], {}),
    ("linear", [bytes_(3, 6), bytes_(6, 5, dtype="int8"), ints(4, -5, 6, 7, 8)], {}),
    ("conv2d", [bytes_(1, 4, 5, 5), bytes_(6, 2, 2, 2, dtype="int8")],
     {"groups": 2, "padding": (1, 0, 0, 1)}),
    ("conv2d", [data(1, 2, 4, 4, dtype="int32"), data(3, 2, 3, 3, dtype="int32")], {}),
    ("matmul", [bytes_(2, 3, 4, dtype="int16"), bytes_(2, 4, 5, dtype="int16")], {"wide": True}),
    *(("quantize", [EDGES, np.array(0.5), np.array(zero, t)], {})
      for zero, t in ((3, "uint8"), (0, "uint8"), (-7, "int8"), (300, "uint16"), (0, "int16"))),
    ("quantize", [data(2, 3, 4), POSITIVE[:3, None], bytes_(3, 1)], {}),
    ("quantize", [np.array([NAN, np.inf, -np.inf, 1e30]), np.array(1.0), np.array(0, "int8")], {}),
    *(("dequantize", [bytes_(2, 3, dtype=t), POSITIVE[:3], bytes_(3, dtype=t)], {})
      for t in ("uint8", "int8", "uint16", "int16", "int32")),
    ("dequantize", [bytes_(2, 3), np.array(0.25), np.array(0, "uint8")], {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "arrays", "attrs"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_program_matches_reference(
    op: str, arrays: list[np.ndarray], attrs: dict[str, object]
) -> None:
    check(op, *arrays, **attrs)


def test_every_operator_with_a_program_is_checked() -> None:
    checked = {op for op, _, _ in CASES}
    assert checked == {op.name for op in ops.OPS.values() if op.program is not None}


SYMBOLIC: list[tuple[str, list[tuple[list[Expr | int], np.ndarray]], dict[str, object]]] = [
    ("add", [([N, 3], data(2, 3)), ([N, 1], data(2, 1))], {}),
    ("where", [([1, M], data(1, 4, dtype="bool")), ([N, M], data(2, 4)), ([M], data(4))], {}),
    ("reshape", [([N, M, 6], data(2, 3, 6))], {"shape": (N, M, 2, 3)}),
    ("reshape", [([N, M, 6], data(2, 3, 6))], {"shape": (N * M, 3, 2)}),
    ("reshape", [([N, 4], data(3, 4))], {"shape": (N * 4,)}),
    ("transpose", [([N, 2, M], data(3, 2, 4))], {"axes": (2, 1, 0)}),
    ("broadcast_to", [([N, 1], data(3, 1))], {"shape": (2, N, N + 2)}),
    ("slice", [([N, 4], data(5, 4))], {"begin": (N - 1, 0), "strides": (-1, 2), "shape": (N, 2)}),
    ("concat", [([N], data(2)), ([M], data(3, seed=1)), ([1], data(1))], {"axis": 0}),
    ("pad", [([N, 2], data(3, 2))], {"before": (N, 0), "after": (1, 1), "value": 1.0}),
    ("pad", [([N], data(4))], {"before": (2,), "after": (3,), "mode": "reflect"}),
    ("take", [([N, 3], data(4, 3)), ([M], ints(-1, 3, 0, dtype="int64"))], {"axis": 0}),
    ("tile", [([N], data(3))], {"repeats": (2,)}),
    ("mean", [([N, M], data(2, 3))], {"axes": (0, 1)}),
    ("argmax", [([N, M], data(2, 3))], {"axis": 1}),
    (
        "conv2d",
        [([N, 2, M, 5], data(2, 2, 6, 5)), ([3, 2, 3, 3], data(3, 2, 3, 3))],
        {"padding": (1, 1, 1, 1), "strides": (2, 2)},
    ),
    (
        "max_pool2d",
        [([N, 1, M, M], data(1, 1, 6, 6))],
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    (
        "avg_pool2d",
        [([1, 1, N, M], data(1, 1, 5, 6))],
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    ("layer_norm", [([N, M], data(2, 3)), ([M], data(3)), ([M], data(3, seed=1))], {}),
    ("softmax", [([N, M], data(2, 3))], {}),
    ("matmul", [([N, 2, M], data(2, 2, 3)), ([N, M, 4], data(2, 3, 4))], {}),
    ("matmul", [([N, 2, M], data(2, 2, 3)), ([N, 4, M], data(2, 4, 3))], {"transpose_b": True}),
    ("linear", [([N, M, 3], data(2, 2, 3)), ([3, 2], data(3, 2))], {}),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs"), SYMBOLIC, ids=lambda v: v if isinstance(v, str) else ""
)
def test_symbolic_shapes(
    op: str, operands: list[tuple[list[Expr | int], np.ndarray]], attrs: dict[str, object]
) -> None:
    check(op, *(a for _, a in operands), shapes=[s for s, _ in operands], **attrs)


@pytest.mark.parametrize(
    "op",
    [
        "relu",
        "clip",
        "sign",
        "elu",
        "hard_sigmoid",
        "hard_swish",
        "leaky_relu",
        "softplus",
        "silu",
        "gelu",
    ],
)
def test_nan_goes_through(op: str) -> None:
    attrs = {"min": -1.0, "max": 1.0} if op == "clip" else {}
    out = check(op, np.array([NAN, 1.0, NAN]), **attrs)
    assert np.isnan(out).tolist() == [True, False, True]


@pytest.mark.parametrize("op", ["minimum", "maximum"])
def test_extremes_with_nan_on_either_side(op: str) -> None:
    out = check(op, np.array([NAN, 1.0, NAN, 2.0]), np.array([1.0, NAN, NAN, 3.0]))
    assert np.isnan(out).tolist() == [True, True, True, False]


def test_rounding_is_half_to_even() -> None:
    assert check("round", np.array([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


def test_integer_division_truncates_and_zero_divides_to_zero() -> None:
    a, b = ints(7, -7, 7, -7, 5, -128), ints(2, 2, -2, -2, 0, -1)
    assert check("div", a, b).tolist() == [3, -3, -3, 3, 0, 128]
    assert check("mod", a, b).tolist() == [1, 1, -1, -1, 0, 0]
    assert check("mod", a, b, fmod=1).tolist() == [1, -1, 1, -1, 0, 0]
    low = np.array([-128], np.int8)
    assert check("div", low, np.array([3], np.int8)).tolist() == [-42]


def test_argmax_takes_the_first_and_stays_in_range() -> None:
    assert check("argmax", np.array([[2.0, 5.0, 5.0]]), axis=1).tolist() == [1]
    assert check("argmin", np.array([[NAN, NAN]]), axis=1).tolist() == [0]


def test_lean_forms() -> None:
    """Reshapes that only split or keep dimensions use no division; a plain slice no product."""

    def operations(op: str, source: TensorType, **attrs: object) -> list[str]:
        full = ops.get(op).complete(attrs)
        seen: list[str] = []

        def element(*index):  # noqa: ANN002, ANN202
            seen.extend(x.op for i in index for x in walk(i) if isinstance(x, Binary))
            return index[0]

        out = ops.get(op).infer([source], full)
        index = [Var(f"i{d}") for d in range(out.ndim)]
        ops.get(op).program([TensorIn(source, element)], full, out)(*index)
        return seen

    assert operations("reshape", tensor((N, M, 768), "float32"), shape=(N, M, 12, 64)) == [
        "add",
        "mul",
    ]
    assert operations("reshape", tensor((N, 1, 8), "float32"), shape=(N, 8)) == []
    assert operations(
        "slice", tensor((4, 8), "float32"), begin=(0, 2), strides=(1, 1), shape=(4, 2)
    ) == ["add"]
