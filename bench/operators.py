"""`python -m bench.operators`: operators beside ONNX Runtime, in shapes that real models have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bench.beside import Model, main
from bench.contenders import Array
from bench.measure import mismatch

_DRAW = np.random.default_rng(7)
_CODES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


def _f(*shape: int) -> Array:
    return _DRAW.standard_normal(shape).astype(np.float32)


def _model(
    op: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] = {},
    opset: int = 20,
    **attrs: Any,
) -> bytes:
    """A model of one node, whose operands are the inputs, then the constants; "" leaves one out."""
    names = [*inputs, *constants]
    node = helper.make_node(op, [n.rstrip("_") for n in names], outputs, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, _CODES[v.dtype.name], v.shape)
            for n, v in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(n) for n in outputs if n],
        [numpy_helper.from_array(v, n) for n, v in constants.items() if n.rstrip("_")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(proto.SerializeToString())


def _top_k(shape: tuple[int, ...], k: int, dtype: str = "float32", axis: int = -1) -> Model:
    x = _f(*shape).astype(dtype) if dtype != "int64" else _DRAW.integers(-(10**6), 10**6, shape)
    data = _model("TopK", {"x": x}, ["v", "i"], {"k": np.array([k])}, axis=axis)
    name = f"{'x'.join(map(str, shape))} k {k} {dtype}"
    return Model("TopK", name, data, {"x": x}, _exact)


def _elements(rows: int, columns: int, many: int, reduction: str) -> Model:
    inputs = {
        "x": _f(rows, columns),
        "i": np.argsort(_DRAW.random((rows, columns)), axis=1)[:, :many].astype(np.int64),
        "u": _f(rows, many),
    }
    data = _model("ScatterElements", inputs, ["y"], axis=1, reduction=reduction)
    return Model("ScatterElements", f"{rows}x{columns} of {many} {reduction}", data, inputs, _near)


def _nd(shape: tuple[int, ...], depth: int, many: int, reduction: str) -> Model:
    total = int(np.prod(shape[:depth]))
    flat = _DRAW.permutation(total)[:many]
    places = np.stack(np.unravel_index(flat, shape[:depth]), axis=1).astype(np.int64)
    inputs = {"x": _f(*shape), "i": places, "u": _f(many, *shape[depth:])}
    data = _model("ScatterND", inputs, ["y"], reduction=reduction)
    name = f"{'x'.join(map(str, shape))} of {many} {reduction}"
    return Model("ScatterND", name, data, inputs, _near)


def _grid(n: int, c: int, size: int, out: int, mode: str, padding: str = "zeros") -> Model:
    grid = np.clip(_f(n, out, out, 2) * 0.6, -1.2, 1.2)
    inputs = {"x": _f(n, c, size, size), "g": grid}
    data = _model("GridSample", inputs, ["y"], mode=mode, padding_mode=padding, align_corners=0)
    return Model("GridSample", f"{n}x{c}x{size} to {out} {mode}", data, inputs, _near)


def _pool(op: str, c: int, shape: tuple[int, int, int], kernel: int, stride: int) -> Model:
    inputs = {"x": _f(1, c, *shape)}
    data = _model(op, inputs, ["y"], kernel_shape=[kernel] * 3, strides=[stride] * 3)
    name = f"{op} {c}x{'x'.join(map(str, shape))} k {kernel} s {stride}"
    return Model("3-D pooling", name, data, inputs, _near)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _product(rows: int, terms: int, columns: int) -> Model:
    """A few rows by many columns of weights."""
    inputs, w = {"x": _f(rows, terms)}, _f(terms, columns) / np.float32(terms**0.5)
    data = _model("MatMul", inputs, ["y"], {"w": w})
    return Model("MatMul", f"{rows}x{terms} by {terms}x{columns}", data, inputs, _near)


def _convolution(shape: tuple[int, ...], outs: int, kernel: int) -> Model:
    inputs = {"x": _f(*shape)}
    w = _f(outs, shape[1], kernel, kernel) / np.float32((shape[1] * kernel**2) ** 0.5)
    pads = [kernel // 2] * 4
    data = _model("Conv", inputs, ["y"], {"w": w}, kernel_shape=[kernel] * 2, pads=pads)
    return Model("Conv", f"{_text(shape)} to {outs} k {kernel}", data, inputs, _near)


def _transpose(shape: tuple[int, ...], axes: Sequence[int]) -> Model:
    inputs = {"x": _f(*shape)}
    data = _model("Transpose", inputs, ["y"], perm=list(axes))
    return Model("Transpose", f"{_text(shape)} by {_text(axes)}", data, inputs, _exact)


def _resize(shape: tuple[int, ...], size: int, place: str = "half_pixel") -> Model:
    inputs = {"x": _f(*shape)}
    sizes = np.array([*shape[:2], size, size])
    constants = {"": np.zeros(0, np.float32), "_": np.zeros(0, np.float32), "s": sizes}
    data = _model(
        *("Resize", inputs, ["y"], constants),
        mode="linear",
        coordinate_transformation_mode=place,
    )
    return Model("Resize", f"{_text(shape)} to {size} {place}", data, inputs, _near)


def _lstm(
    op: str, gates: int, steps: int, batch: int, width: int, bidirectional: bool = False
) -> Model:
    d = 2 if bidirectional else 1
    inputs = {"x": _f(steps, batch, width)}
    constants = {
        "w": _f(d, gates * width, width) / np.float32(width**0.5),
        "r": _f(d, gates * width, width) / np.float32(width**0.5),
        "b": _f(d, 2 * gates * width) / 10,
    }
    data = _model(
        op,
        inputs,
        ["y"],
        constants,
        hidden_size=width,
        direction="bidirectional" if bidirectional else "forward",
    )
    name = f"{op} {steps} steps, batch {batch}, {width}{' both ways' if bidirectional else ''}"
    return Model("LSTM", name, data, inputs, _near)


def _near(outputs: Sequence[Array], peer_outputs: Sequence[Array]) -> str:
    return mismatch(list(peer_outputs), list(outputs))


def _exact(outputs: Sequence[Array], peer_outputs: Sequence[Array]) -> str:
    is_equal = all(np.array_equal(a, b) for a, b in zip(outputs, peer_outputs, strict=True))
    return "" if is_equal else "values or places differ"


CASES = (
    lambda: _top_k((1, 1000), 5),  # classes of a picture
    lambda: _top_k((64, 1000), 5),
    lambda: _top_k((1, 50257), 50),  # a vocabulary
    lambda: _top_k((1, 8400), 300),  # boxes of a detector
    lambda: _top_k((1, 268000), 1000),
    lambda: _top_k((256, 64), 8),  # experts
    lambda: _top_k((100, 2000), 5, "float64"),  # neighbours
    lambda: _top_k((16, 1000), 1000),  # all are sorted
    lambda: _top_k((1, 50000), 100, "int64"),
    lambda: _elements(64, 1000, 10, "none"),
    lambda: _elements(512, 512, 512, "none"),
    lambda: _elements(512, 512, 512, "add"),
    lambda: _elements(1, 50257, 50, "none"),
    lambda: _nd((1024, 64), 1, 128, "none"),
    lambda: _nd((4096, 512), 1, 2048, "add"),
    lambda: _nd((8, 128, 128), 3, 4000, "none"),
    lambda: _nd((64, 256, 256), 2, 3000, "none"),
    lambda: _grid(1, 64, 64, 64, "linear"),
    lambda: _grid(1, 3, 224, 224, "linear", "border"),
    lambda: _grid(4, 32, 32, 100, "nearest"),
    lambda: _grid(1, 16, 64, 64, "cubic"),
    lambda: _pool("MaxPool", 64, (16, 56, 56), 3, 2),
    lambda: _pool("MaxPool", 32, (32, 32, 32), 2, 2),
    lambda: _pool("AveragePool", 64, (8, 28, 28), 2, 2),
    lambda: _pool("AveragePool", 16, (24, 24, 24), 3, 1),
    *(partial(_product, n, 768, 3072) for n in (1, 2, 3, 4, 7)),
    *(partial(_product, n, 768, 50257) for n in (2, 4)),
    lambda: _convolution((1, 64, 128, 128), 1, 3),
    lambda: _convolution((1, 32, 224, 224), 1, 1),
    lambda: _convolution((1, 16, 256, 256), 2, 7),
    lambda: _transpose((1000, 333), (1, 0)),
    lambda: _transpose((1, 197, 12, 64), (0, 2, 1, 3)),
    lambda: _transpose((1, 49, 96), (0, 2, 1)),
    lambda: _transpose((4, 3, 255, 127), (0, 2, 3, 1)),
    lambda: _resize((1, 256, 14, 14), 28),
    lambda: _resize((1, 21, 28, 28), 224),
    lambda: _resize((1, 64, 65, 65), 129, "align_corners"),
    lambda: _lstm("LSTM", 4, 32, 1, 256),
    lambda: _lstm("LSTM", 4, 16, 8, 128, True),
    lambda: _lstm("LSTM", 4, 100, 1, 128),
    lambda: _lstm("GRU", 3, 32, 1, 256),
)


def models(only: str) -> Iterator[Model]:
    """Every case."""
    for make in CASES:
        model = make()
        if only.lower() in f"{model.group} {model.name}".lower():
            yield model


if __name__ == "__main__":
    main("bench.operators", models)
