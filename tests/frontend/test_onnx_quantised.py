"""Operators on 8 and 16 bits, bit for bit what ONNX Runtime gives, and the ONNX reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tensorkiln.frontend.onnx import from_onnx
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime import Executor
from tests.frontend.onnx_models import agree, node_model, ours

R = np.random.default_rng(11)
BYTES = ("uint8", "int8")


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * R.standard_normal(shape)).astype(np.float32)


def q(dtype: str, *shape: int) -> np.ndarray:
    """Any value of a type."""
    info = np.iinfo(dtype)
    return R.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(dtype: str, *shape: int) -> np.ndarray:
    """The same, but for one bit of int8: where a processor has no dot products, ONNX Runtime adds
    two products of uint8 and int8 in 16 bits, which saturate."""
    return q(dtype, *shape) // 2 if dtype == "int8" else q(dtype, *shape)


def scales(*shape: int) -> np.ndarray:
    return (0.01 + 0.02 * R.random(shape)).astype(np.float32)


def s(x: float, dtype: str = "float32") -> np.ndarray:
    return np.array(x, dtype)


# What lies between two numbers of 8 bits, and beyond them.
TIES = np.arange(-300, 300, dtype=np.float32) / 2


# (operator, operands, opset, positions of initializers, attributes)
Case = tuple[str, list[Any], int, tuple[int, ...], dict[str, Any]]
CONV = ((1, 1), (0, 1)), ((2, 1), (1, 1))
# Channels by themselves, beside a border that is the least or the greatest number.
DEPTHWISE: list[Case] = [
    ("QLinearConv", [q(a, 2, 24, 9, 11), s(0.02), s(zero, a), weights("int8", 24, 1, *k),
                     scales(24), np.zeros(24, "int8"), s(1.5), s(30, a)], 10,
     (1, 2, 3, 4, 5, 6, 7), {"pads": pads, "strides": (stride, stride), "group": 24})
    for a in BYTES
    for zero in (np.iinfo(a).min, np.iinfo(a).max)
    for k, pads in (((3, 3), (1, 1, 1, 1)), ((3, 3), (0, 2, 1, 0)), ((5, 5), (2, 2, 2, 2)))
    for stride in (1, 2)
]  # fmt: skip
CASES: list[Case] = [
    *(("QuantizeLinear", [TIES, s(1.0), s(zero, d)], 13, (1, 2), {})
      for d in BYTES for zero in (0, 5)),
    *(("QuantizeLinear", [f(5, 37, scale=3), s(0.031), s(7, d)], 13, (1, 2), {}) for d in BYTES),
    *(("QuantizeLinear", [f(3, 5, 19, scale=3), scales(5), q(d, 5)], 13, fixed, {"axis": -2})
      for d in BYTES for fixed in ((), (1, 2))),
    ("QuantizeLinear", [f(4, 21, scale=3), s(0.02)], 13, (), {}),
    *(("QuantizeLinear", [f(4, 21, scale=300), s(0.02), s(3, d)], 21, (), {})
      for d in ("uint16", "int16")),
    *(("DequantizeLinear", [q(d, 3, 5, 19), scales(5), q(d, 5)], 19, fixed, {})
      for d in BYTES for fixed in ((), (1, 2), (0, 1, 2))),
    *(("DequantizeLinear", [q(d, 4, 21), s(0.02), s(3, d)], 21, (), {})
      for d in ("uint16", "int16")),
    # One scale, on an axis that is not there: so onnxruntime.quantization writes biases of norms.
    ("DequantizeLinear", [q("int8", 7), scales(1), q("int8", 1)], 19, (1, 2), {"axis": 1}),
    ("DequantizeLinear", [q("int32", 3, 5, 19), scales(5)], 19, (1,), {}),
    ("DynamicQuantizeLinear", [f(3, 37, scale=2)], 11, (), {}),
    ("DynamicQuantizeLinear", [abs(f(4, 4)) + 1], 11, (), {}),
    *(("MatMulInteger", [q(a, *left_shape), weights(b, *right), *zeros], 10, fixed, {})
      for a, b in (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))
      for left_shape, right in (((7, 20), (20, 33)), ((2, 5, 7), (7, 16)), ((3, 2, 9), (3, 9, 5)))
      for zeros, fixed in (([], (1,)), ([s(3, a), s(5, b)], (1, 2, 3)), ([s(3, a), s(5, b)], ()),
                           ([s(3, a)], (1,)))),
    *(("QLinearMatMul", [q(a, *left_shape), s(0.02), s(9, a), weights(b, *right), s(0.03), s(1, b),
                         s(4.5), s(60, a)], 10, fixed, {})
      for a, b in (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))
      for left_shape, right in (((7, 20), (20, 33)), ((2, 5, 7), (7, 16)))
      for fixed in ((), (1, 2, 3, 4, 5, 6, 7))),
    *(("ConvInteger", [q("uint8", 2, 5, 9, 8), q(w, 7, 5, 3, 3), *zeros], 10, fixed,
       {"pads": [1, 0, 1, 2], "strides": [2, 1]})
      for w in BYTES
      for zeros, fixed in (([], (1,)), ([s(3, "uint8")], (1, 2)),
                           ([s(3, "uint8"), s(2, w)], (1, 2, 3)), ([s(3, "uint8"), s(2, w)], ()))),
    *(("QLinearConv", [q(a, 2, c, 9, 8), s(0.02), s(zero, a), weights(w, 24, c // groups, *k),
                       scales(24) if w == "int8" else s(0.02), np.zeros(24, w)
                       if w == "int8" else s(3, w), s(1.5), s(30, a), *bias], 10,
       (1, 2, 3, 4, 5, 6, 7, 8)[: 7 + len(bias)],
       {"pads": [k[0] // 2, k[1] // 2] * 2, "group": groups})
      for a, w in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"))
      for zero in (0, 20)
      for c, groups, k in ((16, 1, (3, 3)), (24, 24, (3, 3)), (8, 2, (1, 1)), (3, 1, (5, 3)))
      for bias in ((), (q("int32", 24) // 4096,))),
    *DEPTHWISE,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_bit_for_bit(case: Case) -> None:
    op, operands, opset, fixed, attrs = case
    outputs = 3 if op == "DynamicQuantizeLinear" else 1
    model_proto, feeds = node_model(
        op, operands, opset=opset, fixed=fixed, outputs=outputs, **attrs
    )
    module = agree(model_proto, feeds, rtol=0, atol=0)
    reference = ReferenceEvaluator(model_proto).run(None, dict(feeds))
    for mine, reference_output in zip(ours(module, feeds), reference, strict=True):
        if op == "QLinearConv":
            # The reference adds the zero point in float32 before it rounds: other ties.
            far = np.abs(mine.astype(int) - reference_output)
            assert far.max() <= 1 and far.mean() < 2e-3
            continue
        np.testing.assert_array_equal(mine, reference_output)


@pytest.mark.parametrize("dtype", BYTES)
def test_what_is_far_out_saturates(dtype: str) -> None:
    """Where the reference wraps around in 32 bits."""
    far = np.array([np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, 0.0, -0.0], np.float32)
    agree(
        *node_model("QuantizeLinear", [far, s(1.0), s(1, dtype)], opset=13, fixed=(1, 2)),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("case", DEPTHWISE, ids=[str(n) for n in range(len(DEPTHWISE))])
def test_compiled_channels_by_themselves(case: Case) -> None:
    op, operands, opset, fixed, attrs = case
    model_proto, feeds = node_model(op, operands, opset=opset, fixed=fixed, **attrs)
    module = from_onnx(model_proto)
    exe = compile_module(module)
    assert "conv2d_depthwise" in {k.kernel_class for k in exe.placement()}
    y = Executor(exe.jit())["main"](*feeds.values())
    np.testing.assert_array_equal(y.numpy(), ours(module, feeds)[0])
