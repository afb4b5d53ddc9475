"""Statistics of 16-bit floats are computed in float32 whatever operators they are written with.

Each operator gets elements of magnitudes 1e-6 to 6e4, whose squares and sums a float16 cannot hold,
and is compared with float64 wherever the result itself fits the type.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper, numpy_helper

import tensorkiln as tk
from tests.frontend.onnx_models import value

MAGNITUDES = (1e-6, 1e-3, 1.0, 100.0, 300.0, 8000.0, 6e4)
HALVES: dict[str, Any] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SHAPE = (2, 6, 4, 16)


def data(dtype: str, magnitude: float, seed: int = 0) -> np.ndarray:
    """Uniform in [-1, 1] of the magnitude, and a mean that is not 0, rounded to the type."""
    x = np.random.default_rng(seed).uniform(-0.9, 1.0, SHAPE)
    return (x * magnitude).astype(HALVES[dtype])


def wrong(output: np.ndarray, want: np.ndarray, dtype: str, steps: float) -> str:
    """How a result differs from the one of float64, by more than some roundings to the type of its
    largest elements; "" where it does not, or where the type has no such numbers."""
    limit = ml_dtypes.finfo(HALVES[dtype])
    want = np.asarray(want, np.float64)
    fits = np.abs(want) <= float(limit.max)
    if not fits.any():
        return ""
    output = np.asarray(output).astype(np.float64)
    largest = np.abs(want[fits]).max()
    slack = steps * float(limit.eps) * largest + float(limit.smallest_subnormal)
    difference = np.abs(output[fits] - want[fits])
    return (
        ""
        if (difference <= slack).all()
        else f"off by {difference.max() / slack:.3g} of what is allowed"
    )


# --- ONNX ----------------------------------------------------------------------------------------

_AXES = np.asarray([1, 3])
_LAST = np.asarray([-1])
CHANNELS = np.linspace(0.5, 1.5, SHAPE[1])
ROW = np.linspace(0.5, 1.5, SHAPE[3])
GROUPS = np.linspace(0.5, 1.5, SHAPE[1])
# name -> (operator, operands after x: integers, or numbers of x's type; attributes)
OPERATORS: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    **{
        name + keep: (name, [_AXES], {"keepdims": int(keep == " kept")})
        for name in (
            *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMean", "ReduceSum", "ReduceProd"),
            *("ReduceLogSumExp",),
        )
        for keep in ("", " kept")
    },
    "LpNormalization 1": ("LpNormalization", [], {"p": 1, "axis": -1}),
    "LpNormalization 2": ("LpNormalization", [], {"p": 2, "axis": 1}),
    "MeanVarianceNormalization": ("MeanVarianceNormalization", [], {"axes": [2, 3]}),
    "RMSNormalization": ("RMSNormalization", [ROW], {"axis": -1}),
    "RMSNormalization tiny": ("RMSNormalization", [ROW], {"axis": -1, "epsilon": 1e-12}),
    "LayerNormalization": ("LayerNormalization", [ROW, ROW], {"axis": -1}),
    "LayerNormalization tiny": ("LayerNormalization", [ROW, ROW], {"axis": -1, "epsilon": 1e-12}),
    "InstanceNormalization": ("InstanceNormalization", [CHANNELS, CHANNELS], {}),
    "GroupNormalization": ("GroupNormalization", [GROUPS, GROUPS], {"num_groups": 3}),
    "LRN": ("LRN", [], {"size": 3, "alpha": 0.5}),
    "LpPool": ("LpPool", [], {"p": 2, "kernel_shape": [2, 3]}),
    "GlobalLpPool": ("GlobalLpPool", [], {"p": 2}),
    "AveragePool": ("AveragePool", [], {"kernel_shape": [2, 3]}),
    "GlobalAveragePool": ("GlobalAveragePool", [], {}),
    "Softmax": ("Softmax", [], {"axis": -1}),
    "LogSoftmax": ("LogSoftmax", [], {"axis": 1}),
}


# What the standard's evaluator lacks, or has for float32 only: by what it has.
BY_OTHERS = {
    "GlobalLpPool": ("LpPool", {"p": 2, "kernel_shape": SHAPE[2:]}),
    "MeanVarianceNormalization": ("InstanceNormalization", {"epsilon": 0.0}),
}


def onnx_model(dtype: Any, by_others: bool = False) -> onnx.ModelProto:
    """A model of all operators that reads x and has a result for each."""
    nodes, consts = [], {}
    for k, (op, parameters, attrs) in enumerate(OPERATORS.values()):
        if by_others and op in BY_OTHERS:
            op, attrs = BY_OTHERS[op]
            parameters = [np.ones(6), np.zeros(6)] if op == "InstanceNormalization" else parameters
        names = [f"c{k}_{i}" for i in range(len(parameters))]
        for name, v in zip(names, parameters, strict=True):
            consts[name] = v if v.dtype.kind == "i" else v.astype(dtype)
        nodes.append(helper.make_node(op, ["x", *names], [f"y{k}"], **attrs))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", dtype, SHAPE)],
        [onnx.ValueInfoProto(name=f"y{k}") for k in range(len(nodes))],
        [numpy_helper.from_array(v, k) for k, v in consts.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def local_response(x: np.ndarray) -> np.ndarray:
    """LRN by the standard's formula."""
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = sum(squares[:, k : k + SHAPE[1]] for k in range(3))
    return np.asarray(x / (1 + 0.5 / 3 * near) ** 0.75)


# What the evaluator computes wrongly: without absolute values; over as many channels as samples.
FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "LpNormalization 1": lambda x: x / np.abs(x).sum(-1, keepdims=True),
    "LRN": local_response,
}


def in_float64(x: np.ndarray) -> list[np.ndarray]:
    """What the standard's evaluator says of `x`, or a formula."""
    wide = onnx.reference.ReferenceEvaluator(onnx_model(np.float64, by_others=True))
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        results = dict(zip(OPERATORS, wide.run(None, {"x": x}), strict=True))
        return list((results | {name: f(x) for name, f in FORMULAS.items()}).values())


def test_rows_of_zeros_have_no_nan() -> None:
    """What is added to a variance is not 0, as 1e-9 is in float16."""
    zeros = np.zeros(SHAPE, np.float16)
    for name, y in zip(OPERATORS, tk.compile(onnx_model(np.float16))(zeros), strict=True):
        assert "Normalization" not in name or not np.isnan(y).any(), name


@pytest.mark.parametrize("pipeline", ["auto", "minimal"])
@pytest.mark.parametrize("dtype", HALVES)
def test_operators_of_onnx(dtype: str, pipeline: str) -> None:
    run = tk.compile(onnx_model(HALVES[dtype]), relax_pipeline=pipeline)
    bad = []
    for magnitude in MAGNITUDES:
        x = data(dtype, magnitude)
        results = list(run(x))
        for name, output, want in zip(OPERATORS, results, in_float64(x), strict=True):
            bad += [f"{name} {magnitude}: {m}" for m in [wrong(output, want, dtype, 4)] if m]
    assert not bad, "\n".join(bad)


# mean, variance, and whether the operand is a convolution's result. One whose mean is large, into
# which it is folded, has a bias that is rounded to the type.
STATISTICS = [
    (mean, variance, convolved)
    for mean in (0.0, 100.0, 6e4)
    for variance in (0.0, 6e-8, 1.0, 6e4)
    for convolved in ((False, True) if not mean else (False,))
]


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("pipeline", ["auto", "minimal"])
@pytest.mark.parametrize("wide", ["none", "statistics", "all"])
@pytest.mark.parametrize("dtype", HALVES)
def test_batch_normalization(dtype: str, wide: str, pipeline: str) -> None:
    """By statistics that are constants or operands, of 16 bits or of float32: one over a deviation
    of 0 and an epsilon of 1e-12 is a million."""
    half, count = HALVES[dtype], SHAPE[1]
    types = [half if wide != "all" else np.float32] * 2
    types += [half if wide == "none" else np.float32] * 2
    line = np.linspace(0.5, 1.5, count)
    rows = [(line, line - 1, np.full(count, m), np.full(count, v)) for m, v, _ in STATISTICS]
    params = [[p.astype(t) for p, t in zip(row, types, strict=True)] for row in rows]
    taps = np.eye(count)[:, :, None, None].astype(half)
    nodes, consts = [], {"taps": taps}
    for k, (_, _, convolved) in enumerate(STATISTICS):
        names = [f"p{k}_{i}" for i in range(4)]
        nodes += [helper.make_node("Conv", ["x", "taps"], [f"c{k}"])] if convolved else []
        operands = [f"c{k}" if convolved else "x", *names]
        nodes.append(helper.make_node("BatchNormalization", operands, [f"y{k}"], epsilon=1e-12))
        consts |= dict(zip(names, params[k], strict=True))
    nodes.append(helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"], epsilon=1e-12))
    infos = [value("x", half, SHAPE)]
    infos += [value(n, t, [count]) for n, t in zip("sbmv", types, strict=True)]
    outputs = [*(f"y{k}" for k in range(len(rows))), "y"]
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(v, k) for k, v in consts.items()],
    )
    opsets = [helper.make_opsetid("", 23)]
    run = tk.compile(
        helper.make_model(graph, opset_imports=opsets, ir_version=11), relax_pipeline=pipeline
    )
    bad = []
    for magnitude in MAGNITUDES:
        x = data(dtype, magnitude)
        for k, row in enumerate(params):
            results = list(run(x, *row))
            s, b, m, v = (p.astype(np.float64)[:, None, None] for p in row)
            want = (x.astype(np.float64) - m) / np.sqrt(v + 1e-12) * s + b
            for name, output in (("constants", results[k]), ("operands", results[-1])):
                error = wrong(output, want, dtype, 4)
                bad += [f"{STATISTICS[k]} {name} {magnitude}: {error}"] if error else []
    assert not bad, "\n".join(bad)


# --- torch ---------------------------------------------------------------------------------------


def torch_operators() -> Mapping[str, Callable[[Any], Any]]:
    """Statistics as programs of torch write them."""
    import torch
    from torch.nn import functional as F

    def weight(x: Any) -> Any:
        return torch.linspace(0.5, 1.5, x.shape[-1]).to(x.dtype)

    norms = {f"norm {p}": lambda x, p=p: x.norm(p, dim=-1) for p in (1, 2, 3, 0.5, float("inf"))}
    return norms | {
        "norm of all": lambda x: torch.linalg.vector_norm(x / 8),
        "matrix norm": torch.linalg.matrix_norm,
        "normalize": lambda x: F.normalize(x, dim=-1),
        "normalize 1": lambda x: F.normalize(x, p=1.0, dim=1),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], weight(x), eps=1e-6),
        "rms_norm as formula": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], weight(x)),
        "layer_norm as formula": lambda x: (
            (x - x.mean(-1, True)) / torch.sqrt(((x - x.mean(-1, True)) ** 2).mean(-1, True) + 1e-5)
        ),
        "group_norm": lambda x: F.group_norm(x, 3),
        "instance_norm": F.instance_norm,
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "var": lambda x: x.var(dim=-1),
        "var of all": lambda x: x.var(),
        "std": lambda x: x.std(dim=(1, 2)),
        "std biased": lambda x: x.std(dim=1, correction=0),
        "var_mean": lambda x: torch.var_mean(x, dim=-1)[0],
        "standardized": lambda x: (x - x.mean(1, True)) / x.std(1, correction=0, keepdim=True),
        "coefficient of variation": lambda x: x.std(-1) / x.abs().mean(-1),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=-1),
        "cosine as formula": lambda x: (x * x.flip(1)).sum(-1) / (x.norm(dim=-1) ** 2),
        "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(1)),
        "mean": lambda x: x.mean(dim=(1, 3)),
        "sum over count": lambda x: x.sum(dim=(1, 3)) / 96,
        "geometric mean": lambda x: x.abs()[..., :3].prod(-1).pow(1 / 3),
        "logsumexp": lambda x: torch.logsumexp(x, -1),
        "softmax as formula": lambda x: (
            torch.exp(x - x.amax(-1, True)) / torch.exp(x - x.amax(-1, True)).sum(-1, True)
        ),
        "mse_loss": lambda x: F.mse_loss(x, x * 0.5).sqrt(),
        "l1_loss": lambda x: F.l1_loss(x, x.flip(1)),
        "huber_loss": lambda x: F.huber_loss(x, x.flip(1)),
        "local_response_norm": lambda x: F.local_response_norm(x, 3, alpha=0.5),
        "lp_pool2d": lambda x: F.lp_pool2d(x, 2, (2, 2)),
        "avg_pool2d": lambda x: F.avg_pool2d(x, (2, 3)),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 2)),
        "root of a dot": lambda x: torch.einsum("abcd,abcd->abc", x, x).sqrt(),
        "root of a product": lambda x: (x @ x.mT).diagonal(dim1=-2, dim2=-1).sqrt(),
        "index_add over count": lambda x: (
            torch.zeros(2, 3, 4, 16, dtype=x.dtype).index_add(1, _PLACES(), x) / 2
        ),
        "cumulative mean": lambda x: x.cumsum(-1) / torch.arange(1, 17).to(x.dtype),
        "weight norm of a constant": lambda x: x[..., :1] * (1 / _big(x).norm()),
        "over a deviation and an epsilon": lambda x: x / (x.std(-1, keepdim=True) + 1e-8),
        "variance of many": lambda x: x.repeat(1, 1, 40, 40).var(),
        "centroid": lambda x: (x * x).sum(-1) / x.abs().sum(-1),
    }


def _PLACES() -> Any:
    import torch

    return torch.tensor([0, 1, 2, 0, 1, 2])


def _big(x: Any) -> Any:
    import torch

    return torch.full((300,), 300.0).to(x.dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_operators_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    operators = torch_operators()

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return tuple(f(x) for f in operators.values())

    def tensor_of(x: np.ndarray) -> Any:
        return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = tk.compile(Net(), example_inputs=(tensor_of(data(dtype, 1.0)),))
    bad = []
    for magnitude in MAGNITUDES:
        x = tensor_of(data(dtype, magnitude))
        results = list(run(x))
        for name, output, f in zip(operators, results, operators.values(), strict=True):
            error = wrong(output.float().numpy(), f(x.double()).numpy(), dtype, 6)
            bad += [f"{name} {magnitude}: {error}"] if error else []
    assert not bad, "\n".join(bad)


def test_more_rows_than_a_float16_counts() -> None:
    """Also where the number of rows, a divisor, is known at the call only."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.var(0), x.std(0), x.norm(dim=0), x.mean(0)

    x = (torch.randn(70000, 3, generator=torch.Generator().manual_seed(0)) * 200).half()
    shapes = ({0: torch.export.Dim("n", min=2)},)
    run = tk.compile(tk.frontend.from_torch(Net(), (x[:64],), dynamic_shapes=shapes))
    for output, want in zip(run(x), Net()(x.double()), strict=True):
        assert not wrong(output.float().numpy(), want.numpy(), "float16", 4)
