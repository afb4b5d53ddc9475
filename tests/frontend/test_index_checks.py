"""Indices in data: a call in which one is outside fails where ONNX Runtime's and torch's fail, and
says which; `indices="clamp"` takes the nearest inside.

Each table is one library, whose operators have indices of their own: a call puts one number into
one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.runtime.failures import IndexOutsideError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

N, M = 5, 3  # the extents of the operand
ONNX_TYPE = {"float32": 1, "int32": 6, "int64": 7}


@dataclass(frozen=True)
class Op:
    """An operator of ONNX: its operands but for the indices, which are zeros of this shape, and
    come second. `spot` is where a number is put, `extent` what it indexes there."""

    name: str
    shape: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    spot: tuple[int, ...] = (1, 0)
    extent: int = N
    updates: tuple[int, ...] = ()
    types: tuple[str, ...] = ("int64", "int32")
    place: str = "[1, 0]"  # as messages have it
    domain: str = ""
    negative: bool = True  # whether negative indices count from the end


OPS = (
    Op("Gather", (2, 2)),
    Op("Gather", (2, 2), {"axis": 1}, extent=M),
    Op("Gather", (), spot=(), place="[]"),
    Op("GatherElements", (4, 2)),
    Op("GatherElements", (4, 2), {"axis": 1}, extent=M),
    Op("GatherND", (4, 2), types=("int64",), place="[1]"),
    Op("GatherND", (4, 2), types=("int64",), spot=(3, 1), extent=M, place="[3]"),
    Op("GatherND", (4, 1), types=("int64",), place="[1]"),
    Op("ScatterElements", (4, M), updates=(4, M)),
    Op("ScatterElements", (N, 2), {"axis": 1, "reduction": "add"}, extent=M, updates=(N, 2)),
    Op("ScatterND", (4, 2), types=("int64",), updates=(4,), place="[1]"),
    Op("ScatterND", (4, 1), {"reduction": "max"}, types=("int64",), updates=(4, M), place="[1]"),
    Op(
        "ArrayFeatureExtractor",
        (2,),
        types=("int64",),
        spot=(1,),
        extent=M,
        place="[1]",
        domain="ai.onnx.ml",
        negative=False,
    ),
)
IDS = [f"{k}-{op.name}" for k, op in enumerate(OPS)]


def values(dtype: str, extent: int) -> list[int]:
    limits = np.iinfo(dtype)
    numbers = (-extent - 1, -extent, -1, 0, extent - 1, extent, limits.min, limits.max)
    return [n for n in numbers if limits.min <= n <= limits.max]


def node(op: Op, k: int) -> Any:
    inputs = ["x", f"i{k}", *([f"u{k}"] if op.updates else [])]
    attrs = {"domain": op.domain} if op.domain else {}
    return onnx.helper.make_node(op.name, inputs, [f"y{k}"], name=f"node{k}", **attrs, **op.attrs)


def model(rows: dict[int, Op], dtype: str, dims: dict[int, str]) -> Any:
    """One node for each row; `dims` are names of extents."""
    h = onnx.helper
    named = lambda shape: [dims.get(n, n) for n in shape]  # noqa: E731
    infos = [h.make_tensor_value_info("x", 1, named((N, M)))]
    for k, op in rows.items():
        infos.append(h.make_tensor_value_info(f"i{k}", ONNX_TYPE[dtype], named(op.shape)))
        if op.updates:
            infos.append(h.make_tensor_value_info(f"u{k}", 1, named(op.updates)))
    outs = [h.make_tensor_value_info(f"y{k}", 1, None) for k in rows]
    graph = h.make_graph([node(op, k) for k, op in rows.items()], "g", infos, outs)
    opsets = [h.make_opsetid("", 18), h.make_opsetid("ai.onnx.ml", 3)]
    model_proto = h.make_model(graph, opset_imports=opsets, ir_version=8)
    return model_proto.SerializeToString()


def feeds(rows: dict[int, Op], dtype: str) -> dict[str, np.ndarray]:
    arrays = {"x": np.arange(N * M, dtype=np.float32).reshape(N, M)}
    for k, op in rows.items():
        arrays[f"i{k}"] = np.zeros(op.shape, dtype)
        if op.updates:
            arrays[f"u{k}"] = np.arange(np.prod(op.updates), dtype=np.float32).reshape(op.updates)
    return arrays


def with_number(
    arrays: dict[str, np.ndarray], k: int, op: Op, number: int
) -> dict[str, np.ndarray]:
    indices = arrays[f"i{k}"].copy()
    indices[op.spot] = number
    return {**arrays, f"i{k}": indices}


def theirs(op: Op, dtype: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model({0: op}, dtype, {}), options)
    return lambda arrays: session.run(None, arrays)[0]


@pytest.mark.parametrize("dims", [{}, {N: "n", M: "m"}], ids=["static", "symbolic"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_onnx(dtype: str, dims: dict[int, str]) -> None:
    rows = {k: op for k, op in enumerate(OPS) if dtype in op.types}
    if dims:  # features are counted when the model is imported
        rows = {k: op for k, op in rows.items() if not op.domain}
    f = tk.compile(model(rows, dtype, dims))
    arrays = feeds(rows, dtype)
    for k, op in rows.items():
        expected = theirs(op, dtype)
        for number in values(dtype, op.extent):
            changed_arrays = with_number(arrays, k, op, number)
            alone = {"x": changed_arrays["x"]}
            alone |= {
                f"{name}0": changed_arrays[f"{name}{k}"]
                for name in "iu"
                if f"{name}{k}" in changed_arrays
            }
            try:
                want = expected(alone)
            except Exception:
                want = None
            lowest = -op.extent if op.negative else 0
            legal = lowest <= number < op.extent
            assert (want is not None) == legal, (op, number, "ONNX Runtime")
            if legal:
                output = f(**changed_arrays)[list(rows).index(k)]
                np.testing.assert_array_equal(output, want, err_msg=f"{op} {number}")
                continue
            with pytest.raises(IndexOutsideError) as failure:
                f(**changed_arrays)
            message = f"index {number} at {op.place} is outside of a dimension of {op.extent}, "
            message += f"expected {lowest} to {op.extent - 1} (node{k})"
            assert failure.value.code == "index" and failure.value.message == f"main: {message}"
    f(**arrays)  # a failure leaves nothing behind


# Operators whose indices are lengths, places in pictures, positions, or within samples: the place
# of a number, and the least and the greatest that are legal.
OTHERS = """<ir_version: 10, opset_import: ["" : 24]>
g (float[5, 2] x, int64[2] lengths, float[1, 1, 1, 2] maxima, int64[1, 1, 1, 2] places,
   float[1, 1, 2, 4] heads, float[5, 2] angles, int64[1, 2] positions,
   float[2, 5, 3] cache, float[2, 2, 3] news, int64[2] write, int64[2] turn, int64[2, 2, 1] rows)
=> (float[5, 2] a, float[1, 1, K, L] b, float[1, 1, 2, 4] c, float[2, 5, 3] d, float[2, 5, 3] e,
    float[2, 2, 3] f) {
    [reverse] a = ReverseSequence(x, lengths)
    [unpool] b = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(maxima, places)
    [rotate] c = RotaryEmbedding(heads, angles, angles, positions)
    [linear] d = TensorScatter<axis = 1>(cache, news, write)
    [circular] e = TensorScatter<axis = 1, mode = "circular">(cache, news, turn)
    [batch] f = GatherND<batch_dims = 1>(cache, rows)
}"""
LEGAL: dict[str, tuple[tuple[int, ...], int, int]] = {
    "lengths": ((1,), 0, 5),
    "places": ((0, 0, 0, 1), 0, 7),
    "positions": ((0, 1), 0, 4),
    "write": ((1,), 0, 3),
    "turn": ((1,), 0, (1 << 63) - 2),
    "rows": ((1, 0, 0), -5, 4),
}


def test_lengths_places_and_positions() -> None:
    data = onnx.parser.parse_model(OTHERS).SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session, f = ort.InferenceSession(data, options), tk.compile(data)
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    base = {v.name: np.zeros(v.shape, kinds[v.type]) for v in session.get_inputs()}
    for k, x in enumerate(base.values()):
        if x.dtype == np.float32:
            x[...] = np.arange(x.size).reshape(x.shape) + k
    base["places"][..., 0] = 2  # each to its own place: of equal ones it is open which stays
    for name, (spot, low, high) in LEGAL.items():
        numbers = {-(1 << 63), -high - 2, -high - 1, low - 1, low, -1, high, high + 1, 1 << 31}
        for number in sorted(n for n in numbers if n < (1 << 63) - 1):
            arrays = base | {name: base[name].copy()}
            arrays[name][spot] = number
            try:
                want = session.run(None, arrays)
            except Exception:
                want = None
            assert (want is not None) == (low <= number <= high), (name, number, "ONNX Runtime")
            if want is not None:
                for a, b in zip(f(**arrays), want, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=f"{name} {number}")
                continue
            with pytest.raises(IndexOutsideError) as failure:
                f(**arrays)
            assert f"index {number} at [{spot[0]}" in failure.value.message, (name, number)
            assert f"expected {low} to {high}" in failure.value.message, (name, number)


# -- torch ------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")


def _scatter_mean(x: Any, i: Any) -> Any:
    return x.scatter_reduce(0, i, torch.ones(4, 2), "mean", include_self=False)


def _put(x: Any, i: Any) -> Any:
    return x.index_put((i[:, 0],), torch.tensor(7.0))


# name, function of x and indices, the shape of these, whether negative ones count from the end
CALLS: list[tuple[str, Callable[[Any, Any], Any], tuple[int, ...], bool]] = [
    ("embedding", lambda x, i: torch.nn.functional.embedding(i, x), (4, 2), False),
    ("one_hot", lambda x, i: torch.nn.functional.one_hot(i, N), (4, 2), False),
    ("index_select", lambda x, i: x.index_select(0, i[:, 0]), (4, 2), False),
    ("gather", lambda x, i: x.gather(0, i), (4, 2), False),
    ("scatter", lambda x, i: x.scatter(0, i, torch.ones(4, 2)), (4, 2), False),
    ("scatter value", lambda x, i: x.scatter(0, i, 2.0), (4, 2), False),
    ("scatter_add", lambda x, i: x.scatter_add(0, i, torch.ones(4, 2)), (4, 2), False),
    ("scatter_reduce", _scatter_mean, (4, 2), False),
    ("index", lambda x, i: x[i], (4, 2), True),
    ("index of both", lambda x, i: x.t()[torch.zeros_like(i), i], (4, 2), True),
    ("index_put", _put, (4, 2), True),
    ("index_put accumulate", lambda x, i: x.index_put((i,), x[0], accumulate=True), (4, 2), True),
    ("take", lambda x, i: torch.take(x[:, 0], i), (4, 2), True),
    ("index_fill", lambda x, i: x.index_fill(0, i[:, 0], 3.0), (4, 2), True),
    ("index_add", lambda x, i: x.index_add(0, i[:, 0], torch.ones(4, M)), (4, 2), False),
    ("index_copy", lambda x, i: x.index_copy(0, i[:, 0], torch.ones(4, M)), (4, 2), False),
]


class Calls(torch.nn.Module):
    def forward(self, x: Any, *indices: Any) -> Any:
        return tuple(call(x, i) for (_, call, _, _), i in zip(CALLS, indices, strict=True))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_torch(dynamic: bool) -> None:
    x = torch.arange(N * M, dtype=torch.float32).reshape(N, M)
    zeros = [torch.zeros(shape, dtype=torch.int64) for _, _, shape, _ in CALLS]
    dims = ({0: torch.export.Dim("n")}, tuple({} for _ in CALLS)) if dynamic else None
    program = torch.export.export(Calls(), (x, *zeros), dynamic_shapes=dims)
    f = tk.compile(program)
    for k, (name, call, _, negative) in enumerate(CALLS):
        for number in values("int64", N):
            if not -(1 << 40) < number < 1 << 40 and "index_add" in name:
                continue
            indices = zeros[k].clone()
            indices[1, 0] = number
            try:
                want = call(x, indices)
            except (IndexError, RuntimeError):
                want = None
            lowest = -N if negative else 0
            assert (want is not None) == (lowest <= number < N), (name, number, "torch")
            indices_by_position = [indices if j == k else z for j, z in enumerate(zeros)]
            if want is not None:
                np.testing.assert_array_equal(
                    f(x, *indices_by_position)[k], want, err_msg=f"{name} {number}"
                )
                continue
            with pytest.raises(IndexOutsideError) as failure:
                f(x, *indices_by_position)
            message = failure.value.message
            assert f"index {number} at [1" in message and f"expected {lowest} to {N - 1}" in message
