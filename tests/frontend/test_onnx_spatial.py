"""Windows, boxes and pictures in any number of dimensions, against ONNX Runtime, and where it has
no such kernel against the standard's reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import agree, model, node_model, ours, theirs, value

R = np.random.default_rng(9)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def as_reference(model_proto: Any, feeds: Any, rtol: float = 1e-4) -> None:
    module = from_onnx(model_proto)
    outputs, want = ours(module, feeds), ReferenceEvaluator(model_proto).run(None, feeds)
    for a, b in zip(outputs, want, strict=True):
        b = np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def as_compiled(model_proto: Any, feeds: Any, rtol: float = 1e-4) -> None:
    """Compiled code against ONNX Runtime; to the bit if `rtol` is 0."""
    run = tk.runtime.Executor(tk.compile(from_onnx(model_proto)).jit(), tk.cpu())["main"]
    output, (want,) = run(*feeds.values()).numpy(), theirs(model_proto, feeds)
    assert (output.shape, output.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(output, want, rtol=rtol, atol=2e-5 if rtol else 0)


DEEP: list[dict[str, Any]] = [
    {},
    {"pads": [1, 0, 2, 0, 1, 1]},
    {"strides": [2, 1, 3], "pads": [1, 1, 1, 1, 1, 1]},
    {"dilations": [2, 1, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID", "strides": [1, 2, 2]},
]


@pytest.mark.in_turn("attrs")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("attrs", DEEP)
def test_convolution_in_three_dimensions(attrs: dict[str, Any], groups: int, bias: bool) -> None:
    operands = [f(2, 4, 6, 5, 7), f(8, 4 // groups, 3, 2, 3), *([f(8)] if bias else [])]
    model_proto, feeds = node_model("Conv", operands, fixed=(1, 2), group=groups, **attrs)
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


def test_convolution_in_four_dimensions() -> None:
    """Against sums in float64, as nobody else has it."""
    x, w = f(1, 2, 4, 3, 5, 4), f(3, 2, 2, 2, 3, 2)
    model_proto, feeds = node_model(
        "Conv", [x, w], strides=[2, 1, 1, 2], pads=[0, 1, 0, 0, 1, 0, 0, 1]
    )
    (output,) = ours(from_onnx(model_proto), feeds)
    wide = np.pad(x.astype(float), ((0, 0), (0, 0), (0, 1), (1, 0), (0, 0), (0, 1)))
    views = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], axis=(2, 3, 4, 5))
    want = np.einsum("ncabdeijkl,ocijkl->noabde", views[:, :, ::2, :, :, ::2], w.astype(float))
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


@pytest.mark.in_turn("attrs")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 1, 3]},
        {"strides": [2, 2, 2], "pads": [1, 0, 1, 0, 1, 1], "output_padding": [1, 0, 1]},
        {"dilations": [2, 1, 1], "strides": [1, 2, 1]},
        {"strides": [2, 2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [3, 2, 2], "output_shape": [10, 9, 8]},
    ],
)
def test_transposed_convolution_in_three_dimensions(attrs: dict[str, Any], groups: int) -> None:
    operands = [f(2, 4, 3, 4, 3), f(4, 6 // groups, 3, 2, 3), f(6)]
    model_proto, feeds = node_model("ConvTranspose", operands, fixed=(1, 2), group=groups, **attrs)
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs", "says"),
    [
        ("Conv", {"strides": [0, 1, 1]}, "strides="),
        ("Conv", {"pads": [1, 1, 1]}, "pads="),
        ("Conv", {"group": 3}, "group=3"),
        ("Conv", {"kernel_shape": [3, 3, 3]}, "kernel_shape="),
        ("ConvTranspose", {"strides": [0, 1, 1]}, "strides="),
        ("ConvTranspose", {"dilations": [-1, 1, 1]}, "dilations="),
        ("ConvTranspose", {"pads": [-1, 0, 0, 0, 0, 0]}, "pads="),
        ("ConvTranspose", {"strides": [2, 2]}, "strides=[2, 2]: expected 3"),
    ],
)
def test_deep_convolutions_that_do_not_fit(op: str, attrs: dict[str, Any], says: str) -> None:
    model_proto, _ = node_model(op, [f(1, 4, 5, 5, 5), f(4, 4, 2, 2, 2)], fixed=(1,), **attrs)
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(model_proto)
    assert says in str(caught.value)


def test_deep_convolutions_compile() -> None:
    model_proto, feeds = node_model(
        "Conv", [f(2, 4, 6, 5, 7), f(8, 2, 3, 2, 3), f(8)], fixed=(1, 2), group=2
    )
    module = from_onnx(model_proto)
    (want,) = ours(module, feeds)
    np.testing.assert_allclose(
        np.asarray(tk.compile(module)(feeds["x0"])), want, rtol=1e-4, atol=1e-5
    )


COLS = [
    ((5, 5), (1, 5), {}),
    ((5, 6), (2, 3), {"strides": [1, 2]}),
    ((6, 6), (2, 2), {"dilations": [1, 3], "pads": [1, 0, 2, 1]}),
    ((4, 5, 3), (2, 1, 3), {"strides": [2, 1, 1], "pads": [0, 1, 0, 1, 0, 1]}),
    ((7,), (3,), {"strides": [2], "dilations": [2], "pads": [1, 1]}),
]


@pytest.mark.parametrize(("image", "block", "attrs"), COLS)
def test_col2im(image: Any, block: Any, attrs: dict[str, Any]) -> None:
    n = len(image)
    steps, apart = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    pads = attrs.get("pads", [0] * (2 * n))
    count = 1
    for k in range(n):
        room = image[k] + pads[k] + pads[n + k] - apart[k] * (block[k] - 1) - 1
        count *= room // steps[k] + 1
    x = f(2, 3 * int(np.prod(block)), count)
    model_proto, feeds = node_model(
        "Col2Im", [x, i(*image), i(*block)], opset=18, fixed=(1, 2), **attrs
    )
    as_reference(model_proto, feeds)


POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "dilations": [2, 3]},
    {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
]


@pytest.mark.in_turn("attrs")
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("attrs", POOLS)
def test_where_the_maxima_are(attrs: dict[str, Any], order: int) -> None:
    """Of random numbers, and of few different ones: then the first counts."""
    for x in (f(2, 3, 7, 8), R.integers(0, 3, (2, 3, 7, 8)).astype(np.float32)):
        model_proto, feeds = node_model(
            "MaxPool", [x], opset=12, outputs=2, storage_order=order, **attrs
        )
        agree(model_proto, feeds)


@pytest.mark.parametrize("dims", [1, 3])
def test_where_the_maxima_are_in_other_dimensions(dims: int) -> None:
    attrs = {"kernel_shape": [2, 3, 2][:dims], "strides": [2, 1, 2][:dims]}
    model_proto, feeds = node_model(
        "MaxPool", [f(2, 3, *[6, 5, 7][:dims])], opset=12, outputs=2, **attrs
    )
    agree(model_proto, feeds)


@pytest.mark.parametrize("margins", [None, (1, 0)])
@pytest.mark.parametrize(
    "attrs",
    [{"kernel_shape": [2, 2], "strides": [2, 2]}, {"kernel_shape": [3, 2], "strides": [3, 2]}],
)
def test_unpooling_what_was_pooled(attrs: dict[str, Any], margins: Any) -> None:
    pooled, feeds = node_model("MaxPool", [f(2, 3, 6, 6)], opset=12, outputs=2, **attrs)
    y, indices = ours(from_onnx(pooled), feeds)
    extents = [
        (n - 1) * s + k
        for n, s, k in zip(y.shape[2:], attrs["strides"], attrs["kernel_shape"], strict=True)
    ]
    shape_operands = (
        []
        if margins is None
        else [i(2, 3, *(a + b for a, b in zip(extents, margins, strict=True)))]
    )
    model_proto, feeds = node_model(
        "MaxUnpool", [y, indices, *shape_operands], opset=11, fixed=(2,), **attrs
    )
    as_reference(model_proto, feeds)


BOXES = np.array(
    [[0, 0, 6, 5], [1.3, 2.1, 4.4, 7.9], [-3, -2, 12, 3], [5, 5, 5.2, 5.1]], np.float32
)


@pytest.mark.in_turn("mode")
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("size", "ratio", "scale"), [((2, 3), 2, 1.0), ((1, 1), 3, 0.5)])
def test_boxes_of_a_picture(
    size: tuple[int, int], ratio: int, scale: float, mode: str, coordinates: str
) -> None:
    attrs = {
        "output_height": size[0],
        "output_width": size[1],
        "sampling_ratio": ratio,
        "spatial_scale": scale,
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
    }
    model_proto, feeds = node_model(
        "RoiAlign", [f(2, 3, 7, 8), BOXES, i(0, 1, 0, 1)], opset=16, **attrs
    )
    as_reference(model_proto, feeds)


@pytest.mark.in_turn("attrs")
@pytest.mark.parametrize("offsets", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "attrs", [{}, {"pads": [1, 0, 1, 2], "strides": [2, 1]}, {"dilations": [1, 2]}]
)
def test_moved_taps(attrs: dict[str, Any], groups: int, offsets: int) -> None:
    x, w = f(2, 4, 5, 4), f(4, 4 // groups, 3, 2)
    plain, feeds = node_model("Conv", [x, w], group=groups, **attrs)
    height, width = ours(from_onnx(plain), feeds)[0].shape[2:]
    offset = 2 * f(2, offsets * 3 * 2 * 2, height, width)
    for bias_and_mask in ([], [f(4), f(2, offsets * 3 * 2, height, width)]):
        model_proto, feeds = node_model(
            "DeformConv",
            [x, w, offset, *bias_and_mask],
            opset=19,
            group=groups,
            offset_group=offsets,
            **attrs,
        )
        as_reference(model_proto, feeds)


def test_taps_that_stay_are_a_convolution() -> None:
    x, w = f(1, 3, 6, 5), f(4, 3, 3, 3)
    model_proto, feeds = node_model(
        "DeformConv", [x, w, np.zeros((1, 18, 4, 3), np.float32)], opset=19
    )
    plain, plain_feeds = node_model("Conv", [x, w])
    want = ours(from_onnx(plain), plain_feeds)[0]
    np.testing.assert_allclose(ours(from_onnx(model_proto), feeds)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("pads", "axes"), [((1, 2, 3, 4), None), ((7, 9), (1,)), ((-1, 5), (0,))])
def test_padding_that_goes_round(pads: Any, axes: Any) -> None:
    operands = [f(3, 4), i(*pads), None, None if axes is None else i(*axes)]
    model_proto, feeds = node_model("Pad", operands, opset=19, fixed=(1, 3), mode="wrap")
    x = feeds["x0"]
    before = dict(zip(axes or (0, 1), pads[: len(pads) // 2], strict=True))
    after = dict(zip(axes or (0, 1), pads[len(pads) // 2 :], strict=True))
    for axis, n in product(range(2), [0]):
        low, high = before.get(axis, n), after.get(axis, n)
        cropped = x.take(range(max(-low, 0), x.shape[axis] - max(-high, 0)), axis)
        x = np.pad(
            cropped, [(max(low, 0), max(high, 0)) if k == axis else (0, 0) for k in (0, 1)], "wrap"
        )
    np.testing.assert_array_equal(ours(from_onnx(model_proto), feeds)[0], x)


@pytest.mark.in_turn("attrs")
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]},
        {"kernel_shape": [2, 3, 2], "strides": [1, 2, 3], "pads": [1, 0, 1, 0, 2, 1]},
        {"kernel_shape": [2, 2, 3], "strides": [2, 1, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 2, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2, 2]},
    ],
)
@pytest.mark.parametrize("size", [(5, 9, 41), (4, 6, 7), (1, 5, 16)])
def test_pooling_in_three_dimensions(attrs: dict[str, Any], size: tuple[int, ...]) -> None:
    """Compiled, maxima to the bit, also of integers."""
    if any(n < k for n, k in zip(size, attrs["kernel_shape"], strict=True)):
        attrs = {**attrs, "auto_pad": "SAME_LOWER", "pads": None}
    attrs = {k: v for k, v in attrs.items() if v is not None}
    x = f(2, 3, *size)
    for array in (x, (x * 40).astype(np.int8)):
        model_proto, feeds = node_model("MaxPool", [array], opset=19, **attrs)
        as_compiled(model_proto, feeds, rtol=0)
    for include in (0, 1):
        model_proto, feeds = node_model(
            "AveragePool", [x], opset=19, count_include_pad=include, **attrs
        )
        as_compiled(model_proto, feeds)


def test_pooling_of_symbolic_planes() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 3, 2], strides=[2, 1, 2])
    for shape in (["n", 3, "d", "h", "w"], ["n", "c", "d", 8, 19], [1, 2, 4, "h", 30]):
        model_proto = model([node], [value("x", np.float32, shape)], ["y"], opset=19)
        run = tk.runtime.Executor(tk.compile(from_onnx(model_proto)).jit(), tk.cpu())["main"]
        for n, d, h, w in ((1, 4, 8, 19), (2, 7, 5, 33)):
            sizes = {"n": n, "c": 3, "d": d, "h": h, "w": w}
            x = f(*(sizes.get(k, k) for k in shape))
            np.testing.assert_array_equal(run(x).numpy(), theirs(model_proto, {"x": x})[0])


@pytest.mark.in_turn("mode")
@pytest.mark.parametrize("channels", [1, 15, 16, 19, 70])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_pictures_of_few_and_many_channels(mode: str, channels: int) -> None:
    """Channels of a point are read as rows if there are a vector of them."""
    grid = np.clip(f(2, 9, 8, 2), -1.3, 1.3)
    for padding, align in product(("zeros", "border", "reflection"), (0, 1)):
        attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
        model_proto, feeds = node_model(
            "GridSample", [f(2, channels, 5, 7), grid], opset=20, **attrs
        )
        as_compiled(model_proto, feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_deep_pictures_of_many_channels_in_float64(mode: str) -> None:
    x, grid = f(1, 24, 3, 4, 5).astype(np.float64), f(1, 3, 2, 17, 3).astype(np.float64)
    model_proto, feeds = node_model("GridSample", [x, grid], opset=20, mode=mode)
    as_compiled(model_proto, feeds)


def test_pictures_of_symbolic_channels_and_points() -> None:
    node = helper.make_node("GridSample", ["x", "at"], ["y"], mode="linear")
    inputs = [
        value("x", np.float32, ["n", "c", 6, 5]),
        value("at", np.float32, ["n", "h", "w", 2]),
    ]
    model_proto = model([node], inputs, ["y"], opset=20)
    run = tk.runtime.Executor(tk.compile(from_onnx(model_proto)).jit(), tk.cpu())["main"]
    for n, c, h, w in [(1, 3, 4, 5), (2, 16, 3, 3), (3, 65, 7, 9), (1, 1, 1, 1)]:
        feeds = {"x": f(n, c, 6, 5), "at": f(n, h, w, 2)}
        (want,) = theirs(model_proto, feeds)
        np.testing.assert_allclose(run(*feeds.values()).numpy(), want, rtol=1e-4, atol=1e-5)
