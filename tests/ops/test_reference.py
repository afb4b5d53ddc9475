"""The NumPy references against ONNX Runtime: an operator means what ONNX says it means."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln import ops
from tests.ops.element import data

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

NAN = float("nan")
ONNX_TYPE = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}


def onnx_run(
    op: str, inputs: list[np.ndarray], attrs: dict[str, object], opset: int = 17
) -> np.ndarray:
    """One operator through ONNX Runtime, one thread."""
    h = onnx.helper
    names = [f"i{k}" for k in range(len(inputs))]
    infos = [
        h.make_tensor_value_info(n, ONNX_TYPE[a.dtype.name], a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    out = onnx.ValueInfoProto(name="o")
    graph = h.make_graph([h.make_node(op, names, ["o"], **attrs)], "g", infos, [out])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def rand(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return data(*shape, dtype=dtype, seed=seed)


EDGES = f32(0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, -3.0, 7.25, -40.0, 30.0)
NANS = f32(NAN, 1.0, -2.0, NAN, 3.0, 0.5, NAN, -0.5, NAN)
INTS = np.array([7, -7, 7, -7, 6, -128], np.int64)
BY = np.array([2, 2, -2, -2, 3, -1], np.int64)
X4 = rand(2, 4, 7, 6)

# ours, its attributes; ONNX's, its attributes; operands
CASES: list[tuple[str, dict, str, dict, list[np.ndarray]]] = [
    *((ours, {}, theirs, {}, [values])
      for ours, theirs in (
          ("relu", "Relu"), ("elu", "Elu"), ("hard_swish", "HardSwish"), ("softplus", "Softplus"),
          ("sigmoid", "Sigmoid"), ("erf", "Erf"), ("tanh", "Tanh"), ("sign", "Sign"),
          ("round", "Round"), ("floor", "Floor"), ("ceil", "Ceil"), ("isnan", "IsNaN"),
          ("sin", "Sin"), ("tan", "Tan"), ("asin", "Asin"), ("acos", "Acos"), ("atan", "Atan"),
          ("sinh", "Sinh"), ("cosh", "Cosh"), ("asinh", "Asinh"), ("acosh", "Acosh"),
          ("atanh", "Atanh"), ("abs", "Abs"), ("neg", "Neg"))
      for values in (EDGES, NANS)),
    ("hard_sigmoid", {"alpha": 0.3, "beta": 0.4}, "HardSigmoid", {"alpha": 0.3, "beta": 0.4},
     [EDGES]),
    ("leaky_relu", {"alpha": 0.3}, "LeakyRelu", {"alpha": 0.3}, [NANS]),
    ("div", {}, "Div", {}, [INTS, BY]),
    ("mod", {}, "Mod", {}, [INTS, BY]),
    ("mod", {"fmod": 1}, "Mod", {"fmod": 1}, [INTS, BY]),
    ("mod", {"fmod": 1}, "Mod", {"fmod": 1}, [rand(9), rand(9, seed=1)]),
    ("pow", {}, "Pow", {}, [np.abs(rand(9)), rand(9, seed=1)]),
    ("pow", {}, "Pow", {}, [np.array([2, 3, -2, 2]), np.array([3, 2, 3, -1])]),
    ("maximum", {}, "Max", {}, [NANS, NANS[::-1].copy()]),
    ("minimum", {}, "Min", {}, [NANS, f32(1.0)]),
    ("where", {}, "Where", {}, [rand(3, 1, dtype="bool"), rand(4), rand(2, 3, 4)]),
    ("cast", {"dtype": "int32"}, "Cast", {"to": 6}, [EDGES]),
    ("cast", {"dtype": "bool"}, "Cast", {"to": 9}, [NANS]),
    ("cast", {"dtype": "uint8"}, "Cast", {"to": 2}, [np.array([300, -1, 7], np.int32)]),
    ("take", {"axis": 1}, "Gather", {"axis": 1}, [rand(2, 5, 3), np.array([[0, -1], [4, -5]])]),
    *(("pad", {"before": (2, 0), "after": (1, 2), "mode": mode}, "Pad", {"mode": mode},
       [rand(4, 3), np.array([2, 0, 1, 2])]) for mode in ("constant", "edge", "reflect")),
    ("tile", {"repeats": (2, 3)}, "Tile", {}, [rand(2, 3), np.array([2, 3])]),
    ("mean", {"axes": (1,)}, "ReduceMean", {"axes": [1], "keepdims": 0}, [rand(3, 5)]),
    ("mean", {"axes": (1,)}, "ReduceMean", {"axes": [1], "keepdims": 0},
     [np.array([[1, 2, -4, -2], [5, 6, 7, 9]], np.int32)]),
    ("prod", {"axes": (0,), "keepdims": True}, "ReduceProd", {"axes": [0]}, [rand(3, 5)]),
    ("argmax", {"axis": 1}, "ArgMax", {"axis": 1, "keepdims": 0}, [f32(1, 5, 5, 2)[None]]),
    ("conv2d", {"padding": (1, 0, 2, 1), "strides": (2, 1), "dilation": (1, 2), "groups": 2},
     "Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2},
     [X4, rand(6, 2, 3, 2), rand(6)]),
    ("conv2d", {"padding": (1, 1, 1, 1), "groups": 4}, "Conv",
     {"pads": [1, 1, 1, 1], "group": 4}, [X4, rand(4, 1, 3, 3)]),
    *(("conv2d_transpose", {"strides": (2, 3), "cut": cut, "groups": groups}, "ConvTranspose",
       {"strides": [2, 3], "pads": [max(n, 0) for n in cut],
        "output_padding": [max(-n, 0) for n in cut[2:]], "group": groups},
       [X4, rand(4, 3, 3, 4), rand(3 * groups)])
      for cut in ((0, 0, 0, 0), (1, 1, 0, 2), (1, 0, -1, -2)) for groups in (1, 2)),
    *(("max_pool2d", {"kernel": (3, 2), "strides": (2, 2), "padding": pads, "ceil_mode": ceil},
       "MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": list(pads),
                   "ceil_mode": int(ceil)}, [X4])
      for pads in ((0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 1)) for ceil in (False, True)),
    ("max_pool2d", {"kernel": (2, 2), "dilation": (2, 3)}, "MaxPool",
     {"kernel_shape": [2, 2], "dilations": [2, 3]}, [X4]),
    *(("avg_pool2d", {"kernel": (3, 3), "strides": (2, 2), "padding": pads, "ceil_mode": ceil,
                      "count_include_pad": include},
       "AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": list(pads),
                       "ceil_mode": int(ceil), "count_include_pad": int(include)}, [X4])
      for pads in ((0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0))
      for ceil in (False, True) for include in (False, True)),
    ("batch_norm", {"eps": 1e-3}, "BatchNormalization", {"epsilon": 1e-3},
     [X4, rand(4), rand(4, seed=1), rand(4, seed=2), np.abs(rand(4, seed=3))]),
    ("layer_norm", {"axis": -2, "eps": 1e-3}, "LayerNormalization",
     {"axis": -2, "epsilon": 1e-3}, [rand(2, 3, 4), rand(3, 4), rand(3, 4, seed=1)]),
    ("softmax", {"axis": 1}, "Softmax", {"axis": 1}, [rand(2, 5, 3) * 50]),
    ("log_softmax", {"axis": -1}, "LogSoftmax", {"axis": -1}, [rand(2, 5, 3)]),
    *(("lrn", {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 2.0}, "LRN",
       {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 2.0}, [X4]) for size in (3, 5)),
    ("matmul", {}, "MatMul", {}, [rand(2, 1, 3, 4), rand(5, 4, 2)]),
    ("matmul", {}, "MatMul", {}, [rand(4), rand(2, 4, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "attrs", "theirs", "onnx_attrs", "arrays"),
    CASES,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_reference_is_onnx(
    ours: str, attrs: dict, theirs: str, onnx_attrs: dict, arrays: list[np.ndarray]
) -> None:
    opset = 19 if theirs == "AveragePool" else 14
    opset = 17 if theirs == "LayerNormalization" else opset
    have = ops.get(ours).numpy(arrays, ops.get(ours).complete(attrs))
    want = onnx_run(theirs, arrays, onnx_attrs, opset)
    assert have.dtype == want.dtype
    np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def test_clip_with_nan_is_onnx() -> None:
    bounds = [np.array(-1, np.float32), np.array(2, np.float32)]
    want = onnx_run("Clip", [NANS, *bounds], {})
    attrs = ops.get("clip").complete({"min": -1.0, "max": 2.0})
    np.testing.assert_array_equal(ops.get("clip").numpy([NANS], attrs), want)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_onnx(approximate: str) -> None:
    want = onnx_run("Gelu", [EDGES], {"approximate": approximate}, opset=20)
    attrs = ops.get("gelu").complete({"approximate": approximate})
    np.testing.assert_allclose(ops.get("gelu").numpy([EDGES], attrs), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention_by_hand(causal: bool, mask: str | None) -> None:
    """Against a loop over every query and key; S < T, so that causal means "up to T - S + i"."""
    q, k, v = data(2, 2, 3, 4), data(2, 2, 5, 4, seed=1), data(2, 2, 5, 6, seed=2)
    arrays = [q, k, v]
    if mask == "bool":
        arrays.append(np.array([[True, False, True, True, True]] * 3))
    elif mask == "float":
        arrays.append(data(2, 1, 3, 5, seed=3))
    attrs = ops.get("attention").complete({"scale": 0.5, "causal": causal})
    have = ops.get("attention").numpy(arrays, attrs)
    for b, head, i in np.ndindex(2, 2, 3):
        weights = np.zeros(5)
        for j in range(5):
            score = float(q[b, head, i] @ k[b, head, j]) * 0.5
            if mask == "float":
                score += arrays[3][b, 0, i, j]
            seen = not (causal and j > i + 2) and not (mask == "bool" and not arrays[3][i, j])
            weights[j] = np.exp(score) if seen else 0.0
        want = weights @ v[b, head] / weights.sum()
        np.testing.assert_allclose(have[b, head, i], want, rtol=1e-10)


def test_attention_without_a_visible_key_gives_zeros() -> None:
    q = data(1, 1, 2, 3)
    mask = np.array([[True, True], [False, False]])
    attrs = ops.get("attention").complete({"scale": 1.0})
    out = ops.get("attention").numpy([q, q, q, mask], attrs)
    assert out[0, 0, 1].tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(out).all()


def test_references_keep_the_precision_they_are_given() -> None:
    """No reference computes float64 operands in less, or returns float32 ones as more."""
    x = np.abs(data(1, 2, 4, 4)) + 0.5
    attrs = {
        "avg_pool2d": {"kernel": (2, 2)},
        "lrn": {"size": 3},
        "attention": {"scale": 0.3},
        "sum": {"axes": (1,)},
        "mean": {"axes": (1,)},
        "prod": {"axes": (1,)},
        "max_pool2d": {"kernel": (2, 2)},
        "clip": {"min": 0.0, "max": 0.7},
    }
    for op in (
        "gelu",
        "erf",
        "sigmoid",
        "silu",
        "elu",
        "leaky_relu",
        "hard_swish",
        "softplus",
        "rsqrt",
        "softmax",
        "log_softmax",
        *attrs,
    ):
        operator = ops.get(op)
        full = operator.complete(attrs.get(op, {}))
        count = 3 if op == "attention" else 1
        wide = operator.numpy([x] * count, full)
        narrow = operator.numpy([x.astype(np.float32)] * count, full)
        assert wide.dtype == np.float64, op
        assert narrow.dtype == np.float32, op
        assert (wide != wide.astype(np.float32)).any(), f"{op} rounds float64"
