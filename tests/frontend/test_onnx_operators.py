"""Every operator against ONNX Runtime, on random data and with odd attributes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import agree, model, node_model, ours, theirs, value

R = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    return (R.random(shape) + 0.1).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: str = "int64") -> np.ndarray:
    return R.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return R.random(shape) > 0.5


def s(x: float, dtype: str = "float32") -> np.ndarray:
    return np.array(x, dtype)


def places(*shape: int, n: int) -> np.ndarray:
    """Places of a dimension of n, some of them several times, some counted from its end."""
    return R.integers(-n, n, shape)


def single(*shape: int, n: int) -> np.ndarray:
    """Places along the last of a dimension of n, none of them twice."""
    return np.stack([R.permutation(n)[: shape[-1]] for _ in range(shape[0])])


X4 = f(2, 3, 7, 6)
X5 = f(2, 3, 5, 6, 7)
POOLS: list[dict[str, Any]] = [
    {},
    {"strides": [1, 2, 3], "pads": [1, 0, 1, 0, 2, 1]},
    {"strides": [2, 2, 2], "ceil_mode": 1},
    {"auto_pad": "SAME_UPPER", "strides": [2, 1, 2]},
    {"dilations": [2, 1, 3]},
]
UNARY = [
    "Abs", "Neg", "Exp", "Erf", "Tanh", "Sigmoid", "Relu", "Floor", "Ceil", "Round", "Sign", "Sin",
    "Cos", "Tan", "Sinh", "Cosh", "Asinh", "Atan", "HardSwish",
    "Softplus", "Softsign", "Identity", "Mish",
    "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Shrink",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"]
REDUCE = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"]

# (operator, operands, opset, positions of initializers, attributes)
Case = tuple[str, list[Any], int, tuple[int, ...], dict[str, Any]]
CASES: list[Case] = [
    *((op, [f(3, 4)], 18, (), {}) for op in UNARY),
    *((op, [f(3, 4) / 4], 9, (), {}) for op in ("Asin", "Acos", "Atanh")),
    ("Acosh", [pos(3, 4) + 0.9], 9, (), {}),
    *((op, [pos(3, 4)], 13, (), {}) for op in ("Sqrt", "Log", "Reciprocal")),
    *((op, [f(2, 1, 4), f(3, 1)], 16, (), {}) for op in BINARY),
    *((op, [ints(3, 4), ints(4, low=1)], 16, (), {}) for op in BINARY),
    *((op, [flags(3, 4), flags(4)], 16, (), {}) for op in ("And", "Or", "Xor", "Equal")),
    *((op, [ints(3, 4, dtype=t), ints(4, dtype=t)], 18, (), {})
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor") for t in ("int8", "uint16", "int64")),
    *(("BitwiseNot", [ints(3, 4, dtype=t)], 18, (), {}) for t in ("int8", "uint16", "int64")),
    *(("BitShift", [ints(3, 4, low=0, dtype=t), ints(4, low=0, dtype=t)], 11, (), {"direction": d})
      for d in ("LEFT", "RIGHT") for t in ("uint8", "uint32", "uint64")),
    *((op, [f(2, 3), f(3), f(1, 1)], 13, (), {}) for op in ("Sum", "Max", "Min", "Mean")),
    *((op, [f(2, 3)], 13, (), {}) for op in ("Sum", "Max", "Min", "Mean")),
    *((f"Reduce{op}", [f(2, 3, 4)], 11, (), {"axes": [-1, 0], "keepdims": 0}) for op in REDUCE),
    *((f"Reduce{op}", [f(2, 3, 4)], 11, (), {}) for op in REDUCE),
    *((f"Reduce{op}", [f(2, 3, 4), i(1)], 18, (1,), {}) for op in REDUCE),
    ("ReduceSum", [f(2, 3), i(1)], 13, (1,), {"keepdims": 0}),
    ("ReduceSum", [f(2, 3), np.zeros(0, np.int64)], 13, (1,), {"noop_with_empty_axes": 1}),
    ("ReduceSum", [f(2, 3), np.zeros(0, np.int64)], 13, (1,), {}),
    ("ReduceSum", [ints(2, 3)], 13, (), {}),
    ("ReduceLogSum", [pos(2, 3)], 11, (), {"axes": [1]}),
    ("LeakyRelu", [f(3, 4)], 16, (), {"alpha": 0.3}),
    ("Elu", [f(3, 4)], 7, (), {"alpha": 2.0}),
    ("Selu", [f(3, 4)], 7, (), {"alpha": 2.0, "gamma": 3.0}),
    ("Celu", [f(3, 4)], 12, (), {"alpha": 0.5}),
    ("HardSigmoid", [f(3, 4)], 7, (), {"alpha": 0.4, "beta": 0.1}),
    ("ThresholdedRelu", [f(3, 4)], 10, (), {"alpha": 0.5}),
    ("Shrink", [f(3, 4)], 9, (), {"bias": 0.2, "lambd": 0.4}),
    ("PRelu", [X4, f(3, 1, 1)], 16, (1,), {}),
    ("Gelu", [f(3, 4)], 20, (), {}),
    ("Gelu", [f(3, 4)], 20, (), {"approximate": "tanh"}),
    ("Clip", [f(3, 4)], 7, (), {"min": -0.5, "max": 0.25}),
    ("Clip", [f(3, 4)], 7, (), {"max": 0.25}),
    ("Clip", [f(3, 4), s(-0.5), s(0.5)], 13, (1, 2), {}),
    ("Clip", [f(3, 4), None, s(0.5)], 13, (2,), {}),
    ("Clip", [f(3, 4), s(-0.5)], 13, (), {}),
    ("Clip", [ints(3, 4), s(-2, "int64"), s(3, "int64")], 13, (1, 2), {}),
    ("Pow", [pos(3, 4), f(4)], 13, (), {}),
    ("Pow", [f(3, 4), s(2, "int64")], 13, (1,), {}),
    ("Mod", [ints(3, 4), ints(4, low=1)], 13, (), {}),
    ("Mod", [ints(3, 4), ints(4, low=1)], 13, (), {"fmod": 1}),
    ("Mod", [f(3, 4), pos(4)], 13, (), {"fmod": 1}),
    ("Not", [flags(3, 4)], 13, (), {}),
    ("IsNaN", [np.array([1, np.nan, np.inf], np.float32)], 13, (), {}),
    ("IsInf", [np.array([1, -np.inf, np.inf], np.float32)], 10, (), {"detect_negative": 0}),
    ("IsInf", [np.array([1, np.nan, -np.inf], np.float32)], 10, (), {}),
    ("Where", [flags(3, 1), f(4), f(3, 4)], 16, (), {}),
    *(("Cast", [f(3, 4) * 9], 13, (), {"to": to}) for to in (1, 6, 7, 9, 10, 11)),
    ("Cast", [ints(3, 4)], 13, (), {"to": 1}),
    ("CastLike", [ints(3, 4), f(1)], 15, (), {}),
    ("Dropout", [f(3, 4)], 7, (), {"ratio": 0.3}),
    ("Dropout", [f(3, 4), s(0.3), s(False, "bool")], 13, (1, 2), {}),
    # shapes
    ("Shape", [f(3, 4, 5)], 13, (), {}),
    ("Shape", [f(3, 4, 5)], 15, (), {"start": -2}),
    ("Shape", [f(3, 4, 5)], 15, (), {"start": 1, "end": -1}),
    ("Size", [f(3, 4)], 13, (), {}),
    ("Reshape", [f(3, 4), i(0, 2, -1)], 13, (1,), {}),
    ("Reshape", [f(2, 0, 3), i(0, 3, 2)], 14, (1,), {"allowzero": 1}),
    *(("Flatten", [f(2, 3, 4)], 13, (), {"axis": a}) for a in (0, 1, -1, 3)),
    ("Squeeze", [f(1, 3, 1)], 11, (), {}),
    ("Squeeze", [f(1, 3, 1)], 11, (), {"axes": [-1]}),
    ("Squeeze", [f(1, 3, 1), i(0)], 13, (1,), {}),
    ("Unsqueeze", [f(3, 4)], 11, (), {"axes": [3, 0]}),
    ("Unsqueeze", [f(3, 4), i(-1, 1)], 13, (1,), {}),
    ("Transpose", [f(2, 3, 4)], 13, (), {}),
    ("Transpose", [f(2, 3, 4)], 13, (), {"perm": [1, 2, 0]}),
    ("Concat", [f(2, 3), f(2, 1), f(2, 4)], 13, (), {"axis": -1}),
    ("Concat", [f(2, 3)], 13, (), {"axis": 0}),
    ("Expand", [f(3, 1), i(2, 1, 4)], 13, (1,), {}),
    ("Expand", [f(2, 3, 4), i(1, 1)], 13, (1,), {}),
    ("Tile", [f(2, 3), i(2, 3)], 13, (1,), {}),
    ("Range", [s(2, "int64"), s(11, "int64"), s(3, "int64")], 11, (0, 1, 2), {}),
    ("Range", [s(9, "int64"), s(-1, "int64"), s(-4, "int64")], 11, (0, 1, 2), {}),
    ("Range", [s(1.5), s(4), s(0.5)], 11, (0, 1, 2), {}),
    ("ConstantOfShape", [i(2, 3)], 9, (0,), {}),
    ("EyeLike", [f(3, 4)], 9, (), {"k": 1}),
    *(("Trilu", [f(2, 4, 5), s(k, "int64")], 14, (1,), {"upper": u})
      for k in (-2, 0, 1) for u in (0, 1)),
    ("Trilu", [ints(4, 4)], 14, (), {}),
    ("DepthToSpace", [f(1, 8, 2, 3)], 13, (), {"blocksize": 2}),
    ("DepthToSpace", [f(1, 8, 2, 3)], 13, (), {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [f(1, 2, 4, 6)], 13, (), {"blocksize": 2}),
    # picking
    ("Slice", [f(5, 6)], 9, (), {"starts": [1, -3], "ends": [-1, 100]}),
    ("Slice", [f(5, 6)], 9, (), {"starts": [-4], "ends": [3], "axes": [-1]}),
    ("Slice", [f(5, 6), i(1), i(2**63 - 1), i(1), i(2)], 13, (1, 2, 3, 4), {}),
    ("Slice", [f(5, 6), i(-1), i(-(2**63)), i(0), i(-2)], 13, (1, 2, 3, 4), {}),
    ("Slice", [f(5, 6), i(10, 2), i(0, 1)], 13, (1, 2), {}),
    ("Gather", [f(5, 6), ints(2, 3, low=-5, high=5)], 13, (), {}),
    ("Gather", [f(5, 6), ints(2, low=-6, high=6)], 13, (), {"axis": -1}),
    ("Gather", [f(5, 6), s(2, "int64")], 13, (1,), {"axis": 1}),
    ("GatherElements", [f(5, 6), ints(2, 6, low=-5, high=5)], 13, (), {"axis": 0}),
    ("GatherElements", [f(5, 6), ints(5, 2, low=-6, high=6)], 13, (), {"axis": 1}),
    ("GatherND", [f(3, 4, 5), ints(2, 6, 2, low=-3, high=3)], 13, (), {}),
    ("GatherND", [f(3, 4), ints(2, 2, low=0, high=3)], 13, (), {}),
    *(("GatherND", [f(2, 3, 4, 5), ints(2, 3, 2, low=-3, high=3)], 12, (), {"batch_dims": b})
      for b in (1, 2)),
    *(("ScatterElements", [f(4, 5, 3), places(*shape, n=n), f(*shape)], 18, (),
       {"axis": a, "reduction": r})
      for a, n, shape in ((0, 4, (2, 5, 3)), (1, 5, (4, 3, 3)), (-1, 3, (3, 4, 2)))
      for r in ("add", "mul", "max", "min")),
    *(("ScatterElements", [x, single(2, 3, n=5), x[:2, :3] * 2], 13, k, {"axis": 1})
      for x in (f(3, 5), ints(3, 5)) for k in ((), (1,))),
    ("Scatter", [f(3, 5), single(2, 3, n=5), f(2, 3)], 9, (), {"axis": 1}),
    *(("ScatterND", [f(4, 5, 3), places(6, 2, n=4), f(6, 3)], 18, (), {"reduction": r})
      for r in ("add", "mul", "max", "min")),
    *(("ScatterND", [x, i(2, 0, -1)[:, None], x[2::-1]], 13, k, {})
      for x in (f(4, 3), ints(4, 2, 2), flags(4, 2)) for k in ((), (1,))),
    ("ScatterND", [f(4, 3), np.array([[[1, 2], [0, 0]]]), f(1, 2)], 11, (), {}),
    *(("ReverseSequence", [f(4, 4, 3), i(1, 3, 4, 2)], 10, (),
       {"batch_axis": b, "time_axis": 1 - b}) for b in (0, 1)),
    ("OneHot", [ints(2, 3, low=-4, high=4), s(4, "int64"), f(2)], 11, (1,), {"axis": 1}),
    ("Pad", [f(2, 3)], 7, (), {"pads": [0, 1, 2, 0], "value": 1.5}),
    ("Pad", [f(4, 5), i(1, 2, 0, 1)], 13, (1,), {"mode": "reflect"}),
    ("Pad", [f(4, 5), i(1, 2, 0, 1)], 13, (1,), {"mode": "edge"}),
    ("Pad", [f(4, 5), i(-1, 2, 1, -2), s(3.5)], 13, (1, 2), {}),
    ("Pad", [f(4, 5), i(1, 2), None, i(-1)], 18, (1, 3), {}),
    *((op, [f(3, 4, 2)], 13, (), {"axis": 1, "keepdims": k})
      for op in ("ArgMax", "ArgMin") for k in (0, 1)),
    ("ArgMax", [ints(3, 9, high=-6)], 13, (), {"axis": -1, "select_last_index": 1}),
    *((op, [f(2, 3, 4)], v, (), a) for op in ("Softmax", "LogSoftmax")
      for v, a in ((11, {}), (11, {"axis": 2}), (11, {"axis": 0}), (13, {}), (13, {"axis": 0}))),
    ("Hardmax", [f(3, 4)], 13, (), {}),
    *(("CumSum", [f(3, 4), s(1, "int32")], 14, (1,), {"exclusive": e, "reverse": r})
      for e in (0, 1) for r in (0, 1)),
    ("Upsample", [f(1, 2, 3, 2)], 7, (), {"scales": [1.0, 1.0, 2.0, 3.0]}),
    ("Upsample", [f(1, 2, 3, 2), np.array([1, 1, 2, 2], np.float32)], 9, (1,), {"mode": "linear"}),
    ("Resize", [f(1, 2, 3, 2), np.array([1, 1, 2, 1.5], np.float32)], 10, (1,), {}),
    *(("Resize", [f(1, 2, 5, 4), None, None, i(1, 2, 8, 3)], 13, (3,), {
        "mode": m, "coordinate_transformation_mode": c})
      for m in ("nearest", "linear")
      for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")),
    *(("Resize", [f(1, 2, 5, 4), None, np.array([1, 1, 1.6, 0.6], np.float32)], 13, (2,), {
        "nearest_mode": m})
      for m in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    # networks
    ("Conv", [X4, f(4, 3, 3, 2), f(4)], 11, (1, 2), {
        "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ("Conv", [f(1, 4, 6, 6), f(6, 2, 3, 3)], 11, (), {"group": 2, "kernel_shape": [3, 3]}),
    *(("Conv", [f(1, 2, 7, 6), f(3, 2, 3, 2)], 11, (1,), {"auto_pad": p, "strides": [2, 2]})
      for p in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    ("Conv", [f(2, 3, 9), f(4, 3, 3), f(4)], 11, (1,), {"pads": [2, 1], "strides": [2]}),
    ("ConvTranspose", [f(1, 4, 5, 4), f(4, 3, 3, 2), f(3)], 11, (1, 2), {
        "strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
    ("ConvTranspose", [f(1, 4, 5, 4), f(4, 3, 3, 3)], 11, (1,), {
        "group": 2, "dilations": [2, 1]}),
    ("ConvTranspose", [f(1, 2, 6), f(2, 3, 4)], 11, (1,), {"strides": [3], "pads": [1, 1]}),
    ("ConvTranspose", [f(2, 4, 5, 4), f(4, 3, 2, 4), f(6)], 11, (1, 2), {
        "group": 2, "strides": [2, 3], "dilations": [3, 2], "pads": [0, 2, 1, 3]}),
    ("ConvTranspose", [f(1, 3, 4, 3), f(3, 2, 1, 2)], 11, (1,), {
        "strides": [3, 4], "output_padding": [2, 3]}),
    ("ConvTranspose", [f(1, 3, 6, 5), f(3, 2, 4, 4), f(2)], 11, (1, 2), {
        "strides": [2, 2], "pads": [5, 3, 4, 3]}),
    *(("ConvTranspose", [f(1, 2, 4, 3), f(2, 3, 3, 4)], 11, (1,), {
        "strides": [2, 3], "auto_pad": p}) for p in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    ("ConvTranspose", [f(1, 2, 4, 3), f(2, 3, 3, 4)], 11, (1,), {
        "strides": [2, 3], "output_shape": [8, 11]}),
    ("MaxPool", [X4], 11, (), {
        "kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ("MaxPool", [X4], 11, (), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    ("MaxPool", [f(1, 2, 9)], 11, (), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ("MaxPool", [X4], 8, (), {"kernel_shape": [3, 3], "strides": [2, 2],
                              "auto_pad": "SAME_UPPER"}),
    *(("AveragePool", [X4], 11, (), {
        "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1],
        "count_include_pad": c, "ceil_mode": m}) for c in (0, 1) for m in (0, 1)),
    ("AveragePool", [f(1, 2, 9)], 7, (), {"kernel_shape": [4]}),
    *(("MaxPool", [X5], 12, (), {"kernel_shape": [2, 3, 2], **a}) for a in POOLS),
    *(("AveragePool", [X5], 19, (), {"kernel_shape": [2, 3, 2], "count_include_pad": c, **a})
      for a in POOLS for c in (0, 1)),
    *(("AveragePool", [X4], 19, (), {"kernel_shape": [3, 2], "dilations": [2, 3], "ceil_mode": m,
                                     "strides": [2, 1], "count_include_pad": c,
                                     "pads": [1, 1, 2, 0]})
      for c in (0, 1) for m in (0, 1)),
    *(("LpPool", [x], 18, (), {"kernel_shape": [3] * (x.ndim - 2), "p": p, **a})
      for x in (f(2, 3, 9), X4, X5) for p in (1, 2, 3)
      for a in ({}, {"strides": [2] * (x.ndim - 2), "pads": [1, 0, 2, 1, 1, 2][: 2 * x.ndim - 4]},
                {"auto_pad": "SAME_LOWER"}, {"dilations": [2, 1, 2][: x.ndim - 2]})),
    ("LpPool", [X4], 18, (), {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}),
    *(("GlobalLpPool", [x], 7, (), {"p": p}) for x in (f(2, 3, 9), X4) for p in (1, 2, 3)),
    ("GlobalAveragePool", [X4], 7, (), {}),
    ("GlobalMaxPool", [X4], 7, (), {}),
    ("LRN", [X4], 13, (), {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 2.0}),
    ("BatchNormalization", [X4, f(3), f(3), f(3), pos(3)], 9, (1, 2, 3, 4), {"epsilon": 0.01}),
    ("BatchNormalization", [f(5, 3), f(3), f(3), f(3), pos(3)], 15, (1, 2, 3, 4), {}),
    ("LayerNormalization", [f(2, 3, 4), f(4), f(4)], 17, (1, 2), {"epsilon": 0.01}),
    ("LayerNormalization", [f(2, 3, 4), f(3, 4)], 17, (1,), {"axis": 1}),
    ("InstanceNormalization", [X4, f(3), f(3)], 7, (1, 2), {"epsilon": 0.01}),
    ("GroupNormalization", [f(2, 6, 3, 3), f(6), f(6)], 21, (1, 2), {"num_groups": 3}),
    ("LpNormalization", [f(3, 4)], 7, (), {"axis": 0, "p": 1}),
    ("MeanVarianceNormalization", [X4], 9, (), {}),
    ("MeanVarianceNormalization", [f(3, 5)], 13, (), {"axes": [-1]}),
    ("MatMul", [f(2, 3, 4), f(4, 5)], 13, (1,), {}),
    ("MatMul", [f(2, 1, 3, 4), f(3, 4, 5)], 13, (), {}),
    ("MatMul", [f(4), f(2, 4, 5)], 13, (), {}),
    ("MatMul", [f(2, 3, 4), f(4)], 13, (), {}),
    *(("Gemm", [f(*((4, 3) if a else (3, 4))), f(*((5, 4) if b else (4, 5))), f(*c)], 13, k, {
        "transA": a, "transB": b, "alpha": alpha, "beta": beta})
      for a in (0, 1) for b in (0, 1) for k in ((), (1, 2))
      for alpha, beta, c in ((1.0, 1.0, (5,)), (0.5, 2.0, (3, 1)))),
    ("Gemm", [f(3, 4), f(4, 5)], 13, (1,), {}),
    ("Gemm", [f(3, 4), f(4, 5), f(1)], 13, (1, 2), {}),
    ("Einsum", [f(2, 3, 4), f(2, 4, 5)], 12, (), {"equation": "bij,bjk->bik"}),
    ("Einsum", [f(2, 3, 4, 5), f(2, 6, 4, 5)], 12, (), {"equation": "bqhd,bkhd->bhqk"}),
    ("Einsum", [f(3, 4), f(5)], 12, (), {"equation": "ij,k->kij"}),
    ("Einsum", [f(3, 4)], 12, (), {"equation": "ij->j"}),
    ("QuantizeLinear", [f(3, 4), s(0.05), s(7, "uint8")], 13, (1, 2), {}),
    ("QuantizeLinear", [f(3, 4), pos(3), ints(3, dtype="int8")], 13, (1, 2), {"axis": 0}),
    ("DequantizeLinear", [ints(3, 4, dtype="int8"), pos(4), ints(4, dtype="int8")], 13, (1, 2),
     {"axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{c[2]}-{n}" for n, c in enumerate(CASES)])
def test_operator(case: Case) -> None:
    op, operands, opset, fixed, attrs = case
    model_proto, feeds = node_model(op, operands, opset=opset, fixed=fixed, **attrs)
    agree(model_proto, feeds, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("opset", "operands", "attrs"),
    [
        (11, [f(6, 4)], {"axis": 0}),
        (11, [f(6, 4)], {"axis": 0, "split": [1, 2, 3]}),
        (13, [f(6, 4), i(3, 2, 1)], {"axis": -2}),
        (18, [f(7, 4)], {"axis": 0, "num_outputs": 3}),
    ],
)
def test_split(opset: int, operands: list[np.ndarray], attrs: dict[str, Any]) -> None:
    model_proto, feeds = node_model("Split", operands, opset=opset, fixed=(1,), outputs=3, **attrs)
    agree(model_proto, feeds)


SAME = np.array([[1, 3, 3, 1, 2], [0, -0.0, 0, 0, 0]], np.float32)


@pytest.mark.parametrize("x", [f(3, 9), ints(4, 7), ints(2, 3, 8, dtype="uint8"), SAME])
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0])
def test_top_k(x: np.ndarray, count: int, largest: int, axis: int) -> None:
    """Of equal elements the first comes first."""
    operands, attrs = [x, i(count)], {"axis": axis, "largest": largest}
    model_proto, feeds = node_model("TopK", operands, opset=11, fixed=(1,), outputs=2, **attrs)
    if count > x.shape[axis]:
        with pytest.raises(UnsupportedError, match=f"k={count}"):
            from_onnx(model_proto)
        return
    agree(model_proto, feeds)
    if largest and x.dtype.kind == "f":
        model_proto, feeds = node_model("TopK", [x], opset=9, outputs=2, axis=axis, k=count)
        agree(model_proto, feeds)


def grid(*shape: int) -> np.ndarray:
    """Coordinates inside of a picture, outside of it, far away, and at its corners."""
    out = R.uniform(-1.4, 1.4, shape).astype(np.float32)
    out.reshape(-1)[:6] = [-1, 1, 0, 2.5, -7.25, 1]
    return out


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    attrs = {"padding_mode": padding, "align_corners": align}
    old = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    for size in ((5, 6), (1, 4)):
        operands = [f(2, 3, *size), grid(2, 4, 5, 2)]
        for opset, name in ((16, old), (20, mode)):
            model_proto, feeds = node_model("GridSample", operands, opset=opset, mode=name, **attrs)
            agree(model_proto, feeds, rtol=1e-4, atol=2e-5)
    if mode != "cubic":  # ONNX Runtime has no other
        operands = [f(2, 3, 4, 5, 6), grid(2, 3, 2, 4, 3)]
        model_proto, feeds = node_model("GridSample", operands, opset=20, mode=mode, **attrs)
        agree(model_proto, feeds, rtol=1e-4, atol=2e-5)


def test_grid_sample_of_one_dimension_and_of_odd_coordinates() -> None:
    """Against a loop; coordinates that are no numbers are nowhere, and nothing leaks from there."""
    x = np.array([[[np.inf, 2, 3, np.nan, 5]]], np.float32)
    grid = np.array([[[-9], [-0.4], [0.0], [np.nan], [np.inf]]], np.float32)
    model_proto, feeds = node_model(
        "GridSample", [x, grid], opset=20, align_corners=1, mode="nearest"
    )
    output = ours(from_onnx(model_proto), feeds)[0]
    np.testing.assert_array_equal(output, [[[0, 2, 3, 0, 0]]])


def test_grid_sample_that_does_not_fit() -> None:
    for operands, attrs, says in (
        ([f(1, 2, 3, 4), f(1, 5, 5, 3)], {}, "rows of 2"),
        ([f(1, 2, 3, 4), f(1, 5, 5, 2)], {"mode": "best"}, "mode='best'"),
        ([f(1, 2, 3, 4), f(1, 5, 5, 2)], {"padding_mode": "none"}, "padding_mode='none'"),
    ):
        model_proto, _ = node_model("GridSample", operands, opset=20, **attrs)
        with pytest.raises(UnsupportedError, match=says):
            from_onnx(model_proto)


def test_computed_places_in_compiled_code() -> None:
    """What stands at computed places, over a symbolic batch, against ONNX Runtime."""
    nodes = [
        helper.make_node("GridSample", ["picture", "grid"], ["z"], mode="linear"),
        helper.make_node("TopK", ["x", "k"], ["best", "at"], name="top"),
        helper.make_node("ScatterElements", ["x", "at", "best"], ["s"], axis=1, reduction="add"),
        helper.make_node("Unsqueeze", ["rows", "one"], ["r"]),
        helper.make_node("ScatterND", ["s", "r", "u"], ["y"]),
    ]
    inputs = [
        value("x", np.float32, ["n", 20]),
        value("rows", np.int64, [2]),
        value("u", np.float32, [2, 20]),
        value("picture", np.float32, ["n", 3, 5, 4]),
        value("grid", np.float32, ["n", 4, 3, 2]),
    ]
    model_proto = model(nodes, inputs, ["y", "at", "z"], consts={"k": i(6), "one": i(1)}, opset=20)
    run = tk.runtime.Executor(tk.compile(from_onnx(model_proto), "native"), tk.cpu())["main"]
    for n in (3, 8):
        feeds = {"x": f(n, 20), "rows": i(n - 1, 0), "u": f(2, 20)}
        feeds |= {"picture": f(n, 3, 5, 4), "grid": grid(n, 4, 3, 2)}
        outputs, want = run(*feeds.values()), theirs(model_proto, feeds)
        for a, b in zip(outputs, want, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)


def test_top_k_counts_nan_as_the_greatest() -> None:
    x = np.array([1, np.nan, 3, np.nan, -np.inf, np.inf], np.float32)
    for largest, want in ((1, [1, 3, 5, 2]), (0, [4, 0, 2, 5])):
        model_proto, feeds = node_model(
            "TopK", [x, i(4)], opset=11, fixed=(1,), outputs=2, largest=largest
        )
        values, index = ours(from_onnx(model_proto), feeds)
        assert index.tolist() == want
        np.testing.assert_array_equal(values, x[want])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(("axis", "shape"), [(-2, (2, 3, 6, 4)), (1, (2, 5, 3))])
def test_tensor_scatter(mode: str, axis: int, shape: tuple[int, ...]) -> None:
    past = f(*shape)
    update = np.take(past, [0, 1], axis) * 2
    start_indices = i(0, 3) if mode == "linear" else i(shape[axis] - 1, 2)
    model_proto, feeds = node_model(
        "TensorScatter", [past, update, start_indices], opset=24, axis=axis, mode=mode
    )
    want = past.copy()
    for b in range(2):
        for k in range(2):
            index = (start_indices[b] + k) % shape[axis]
            np.moveaxis(want[b], axis if axis < 0 else axis - 1, 0)[index] = np.moveaxis(
                update[b], axis if axis < 0 else axis - 1, 0
            )[k]
    np.testing.assert_array_equal(ours(from_onnx(model_proto), feeds)[0], want)


@pytest.mark.parametrize(
    ("op", "operands", "fixed", "attrs", "says"),
    [
        ("ScatterElements", [f(3, 4), i(0, 1), f(2)], (), {}, "of 1 or more"),
        (
            "ScatterElements",
            [f(3, 4), ints(2, 4), f(2, 3)],
            (),
            {},
            "updates must have shape",
        ),
        ("ScatterElements", [f(3, 4), ints(2, 5), f(2, 5)], (), {}, "indices within dimension 1"),
        ("ScatterElements", [f(3, 4), ints(2, 4), f(2, 4)], (), {"reduction": "sum"}, "'sum'"),
        ("ScatterElements", [f(3, 4), ints(2, 4), ints(2, 4)], (), {}, "of int64"),
        ("ScatterND", [f(3, 4), ints(2, 3), f(2)], (), {}, "must be 1..rank"),
        ("ScatterND", [f(3, 4), ints(2, 1), f(2, 3)], (), {}, "updates must have shape"),
        ("ScatterND", [f(3, 4), i(1, 3)[:, None], f(2, 4)], (1,), {}, "an element of index 3"),
        (
            "GatherND",
            [f(3, 4), ints(2, 1)],
            (),
            {"batch_dims": 1},
            "indices must have shape",
        ),
        ("GatherND", [f(3, 4), ints(3, 1)], (), {"batch_dims": 2}, "must be 1..rank"),
        ("ReverseSequence", [f(3, 4, 2), i(1, 2, 3)], (), {"time_axis": 2}, "expected 0 and 1"),
    ],
)
def test_scattering_that_does_not_fit(
    op: str, operands: list[Any], fixed: tuple[int, ...], attrs: dict[str, Any], says: str
) -> None:
    model_proto, _ = node_model(op, operands, opset=18, fixed=fixed, **attrs)
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(model_proto)
    assert says in str(caught.value)


def test_dropout_gives_its_mask() -> None:
    model_proto, feeds = node_model("Dropout", [f(3, 4)], opset=13, outputs=2)
    agree(model_proto, feeds)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, flags(1, 1, 5, 5) | np.eye(5, dtype=bool), f(5, 5)])
def test_attention_of_equal_lengths(causal: int, mask: np.ndarray | None) -> None:
    operands = [f(2, 4, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 6), mask]
    model_proto, feeds = node_model("Attention", operands, opset=23, is_causal=causal, scale=0.3)
    agree(model_proto, feeds, rtol=1e-4)


def test_attention_of_flat_operands() -> None:
    model_proto, feeds = node_model(
        "Attention",
        [f(2, 5, 32), f(2, 7, 32), f(2, 7, 32)],
        opset=23,
        q_num_heads=4,
        kv_num_heads=4,
    )
    agree(model_proto, feeds, rtol=1e-4)


def test_light_models_make_weights_by_constant_of_shape() -> None:
    """The result is a constant, so that layers see weights."""
    from onnx import helper

    from tensorkiln.ir.relax import Constant
    from tests.frontend.onnx_models import FLOAT, main, model, value

    half = helper.make_tensor("value", FLOAT, [1], [0.5])
    model_proto = model(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["w"], value=half),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        [value("x", np.float32, [3, 4])],
        ["y"],
        consts={"shape": i(4, 5)},
        opset=9,
    )
    f_main = main(agree(model_proto, {"x": f(3, 4)}))
    (binding,) = f_main.bindings
    assert binding.value.op == "linear"
    assert isinstance(binding.value.args[1], Constant)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (0, 1), (2, 2)])
def test_pooling_with_ceil_mode_of_any_picture(op: str, kernel: int, pads: tuple[int, int]) -> None:
    """Windows may be larger than the picture; refused where not one begins inside of it."""
    if max(pads) >= kernel:
        return  # windows of padding alone
    for extent, stride, include in product((1, 2, 3, 5), (1, 2, 3, 4), (0, 1)):
        counted = {"count_include_pad": include} if op == "AveragePool" else {}
        model_proto, feeds = node_model(
            op,
            [f(1, 2, extent, 4)],
            opset=19,
            kernel_shape=[kernel, 2],
            strides=[stride, 1],
            pads=[pads[0], 0, pads[1], 0],
            ceil_mode=1,
            **counted,
        )
        if -(-(extent + sum(pads) - kernel) // stride) + 1 > 0:
            agree(model_proto, feeds)
        else:
            with pytest.raises(UnsupportedError, match=f"or more \\(kernel {kernel}\\)"):
                from_onnx(model_proto)
