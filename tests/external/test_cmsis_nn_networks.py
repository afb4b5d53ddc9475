"""The four networks of MLPerf Tiny in int8: all on CMSIS-NN, bit for bit; and models as ONNX tools
write them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.cli.entry import main
from tensorkiln.external.cmsis_nn import CMSIS_NN
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Value, tensor
from tensorkiln.kernels.case import Graph
from tests.external.cmsis_nn_cases import Case, Conv, Linear, Pool, Q, add, softmax
from tests.external.test_cmsis_nn import COMPILER, stand_in

Array = np.ndarray
LAYER = Q(0.05, -128)


class Network:
    """Layers in sequence, built as a graph and computed in exact integers at the same time."""

    def __init__(self, *shape: int):
        self.g = Graph()
        self.last: Value = self.g.param("x", tensor(shape, "int8"))
        self.input = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
        self.value = self.input
        self.q = Q(0.03, 5)
        self.kinds: Counter[str] = Counter()
        self.distinct: list[int] = []  # how many values the result of each layer has

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def layer(self, case: Case, q: Q, *further_inputs: tuple[Value, Array]) -> None:
        further_values, arrays = [v for v, _ in further_inputs], [a for _, a in further_inputs]
        self.last = case.build(self.g, self.last, *further_values)
        self.value = case.expected(self.value, *arrays)
        self.kinds.update(case.kinds)
        self.distinct.append(len(np.unique(self.value)))
        self.q = q

    def conv(
        self,
        out: int,
        kernel: tuple[int, int],
        stride: int = 1,
        *,
        depthwise: bool = False,
        relu: str = "relu",
        q: Q = LAYER,
    ) -> None:
        totals = [
            max((-(-n // stride) - 1) * stride + k - n, 0)
            for n, k in zip(self.shape[2:], kernel, strict=True)
        ]
        before = [t // 2 for t in totals]
        after = [t - b for t, b in zip(totals, before, strict=True)]
        groups = self.shape[1] if depthwise else 1
        taps = kernel[0] * kernel[1] * self.shape[1] // groups
        scale = self.scale(taps, q)
        layer = Conv(
            "",
            self.shape,
            out,
            kernel,
            (stride,) * 2,
            (*before, *after),
            groups=groups,
            relu=relu,
            qx=self.q,
            qy=q,
            scale=scale,
        )
        self.layer(layer.case(), q)

    def scale(self, taps: int, q: Q) -> float:
        """The scale of random weights that makes sums of about 50 steps of the result."""
        spread = np.sqrt(np.mean((self.value.astype(float) - self.q.zero) ** 2) * taps) * 73
        return float(50 * q.scale / self.q.scale / spread)

    def dense(self, units: int, relu: str = "") -> None:
        scale = self.scale(self.shape[1], LAYER)
        self.layer(
            Linear("", self.shape, units, relu=relu, qx=self.q, qy=LAYER, scale=scale).case(), LAYER
        )

    def classify(self, classes: int) -> None:
        self.layer(Pool("", "avg", self.shape, None, q=self.q).case(), self.q)
        self.last = self.g.reshape(self.last, shape=self.shape[:2])
        self.value = self.value.reshape(self.shape[:2])
        self.dense(classes)
        last = Q(1 / 255, -128)
        self.layer(softmax("", self.shape, 1, self.q, last), last)

    def module(self) -> IRModule:
        return IRModule((self.g.finish(self.last),))


def keywords() -> Network:
    net = Network(1, 1, 49, 10)
    net.conv(64, (10, 4), 2)
    for _ in range(4):
        net.conv(64, (3, 3), depthwise=True)
        net.conv(64, (1, 1))
    net.classify(12)
    return net


def person() -> Network:
    net = Network(1, 3, 96, 96)
    net.conv(8, (3, 3), 2)
    blocks = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2)]
    for channels, stride in [*blocks, (256, 1)]:
        net.conv(net.shape[1], (3, 3), stride, depthwise=True, relu="relu6")
        net.conv(channels, (1, 1), relu="relu6")
    net.classify(2)
    return net


def anomaly() -> Network:
    net = Network(1, 640)
    for units in [*[128] * 4, 8, *[128] * 4]:
        net.dense(units, "relu")
    net.dense(640)
    return net


def images() -> Network:
    net = Network(1, 3, 32, 32)
    net.conv(16, (3, 3))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        saved = (net.last, net.value, net.q)
        net.conv(channels, (3, 3), stride)
        net.conv(channels, (3, 3), relu="", q=Q(0.07, 9))
        inner, inner_value, q = net.last, net.value, net.q
        net.last, net.value, net.q = saved
        if stride != 1:
            net.conv(channels, (1, 1), stride, relu="", q=Q(0.06, -4))
        sum_case = add("", net.shape, net.q, q, LAYER, "relu")
        net.layer(sum_case, LAYER, (inner, inner_value))
    net.classify(10)
    return net


NETWORKS: dict[str, Callable[[], Network]] = {
    "keywords": keywords,
    "person": person,
    "anomaly": anomaly,
    "images": images,
}


@pytest.mark.in_turn()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_mlperf_tiny(name: str, tmp_path: Path) -> None:
    net = NETWORKS[name]()
    exe = tk.compile(net.module(), externals=[CMSIS_NN])
    assert exe.refusals() == ()
    (function,) = exe.functions
    symbols = [c.symbol for c in function.calls]
    cmsis_symbols = [s for s in symbols if s.startswith("cmsis_nn_")]
    own_symbols = [s for s in symbols if s not in cmsis_symbols]
    assert len(cmsis_symbols) == sum(net.kinds.values())
    # The only layout change is that of the input, where it has several channels.
    assert own_symbols == (["transpose"] if net.input.ndim == 4 and net.input.shape[1] > 1 else [])
    run = exe.jit(COMPILER, addons=[stand_in(tmp_path)]).create_executor()["main"]
    assert min(net.distinct[:-3]) >= 4  # no layer saturates
    np.testing.assert_array_equal(run(net.input).numpy(), net.value)


# -- models as tools write them --------------------------------------------------------------------


def _float_model(path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    arrays = {
        "w0": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "b0": rng.normal(0, 0.1, 8),
        "w1": rng.normal(0, 0.3, (8, 1, 3, 3)),
        "w2": rng.normal(0, 0.3, (8, 8, 1, 1)),
        "w3": rng.normal(0, 0.3, (8, 4)),
        "b3": rng.normal(0, 0.1, 4),
    }
    nodes: list[Any] = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"], name="relu"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="dw", pads=[1] * 4, group=8),
        helper.make_node("Clip", ["c1", "low", "high"], ["r1"], name="clip"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="pw"),
        helper.make_node("Add", ["r0", "c2"], ["a"], name="add"),
        helper.make_node("MaxPool", ["a"], ["m"], name="max", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("AveragePool", ["m"], ["p"], name="avg", kernel_shape=[4, 4]),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], name="gemm"),
        helper.make_node("Softmax", ["g"], ["y"], name="softmax"),
    ]
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    weights += [numpy_helper.from_array(np.float32(v), n) for n, v in (("low", 0), ("high", 6))]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [info("x", 1, [1, 3, 8, 8])], [info("y", 1, [1, 4])], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_quantised_by_onnx_runtime(
    per_channel: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    quantization = pytest.importorskip("onnxruntime.quantization")
    _float_model(tmp_path / "float.onnx")
    rng = np.random.default_rng(2)
    samples = iter([{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[name-defined,misc]
        def get_next(self) -> dict[str, Array] | None:
            return next(samples, None)

    path = tmp_path / "int8.onnx"
    quantization.quantize_static(
        str(tmp_path / "float.onnx"),
        str(path),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    exe = tk.compile(tk.frontend.from_onnx(path), externals=[CMSIS_NN])
    assert exe.refusals() == ()
    assert _checked(path, capsys) == []
    nodes = {n for k in exe.placement() if k.kernel_class == "external:cmsis_nn" for n in k.nodes}
    assert nodes >= {"conv", "dw", "pw", "add", "max", "avg", "gemm", "softmax"}
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    run = exe.jit(COMPILER, addons=[stand_in(tmp_path)]).create_executor()["main"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(str(path), options).run(None, {"x": x})
    # Each layer may be one step off; a step of the logits changes a probability by under 0.02.
    np.testing.assert_allclose(run(x).numpy(), want, atol=0.04)


def _checked(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """What `kiln check --external cmsis_nn` says is refused."""
    assert main(["check", str(path), "--external", "cmsis_nn"]) == 0
    text = capsys.readouterr().out
    assert main(["check", str(path), "--external", "cmsis_nn", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["refused"]
    assert ("nothing is refused" in text) is (rows == [])
    assert all(f"{r['external']}" in text and r["reason"] in text for r in rows)
    return rows


def test_check_lists_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _float_model(tmp_path / "float.onnx")
    rows = _checked(tmp_path / "float.onnx", capsys)
    reasons = {r["node"]: r["reason"] for r in rows}
    assert reasons["conv"] == "no DequantizeLinear makes its input"
    assert reasons.keys() >= {"conv", "dw", "pw", "add", "max", "avg", "softmax"}
