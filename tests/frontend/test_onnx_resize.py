"""Resize in all modes against the standard's reference, in any number of dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import model, node_model, ours, value

R = np.random.default_rng(3)
COORDINATES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def check(
    x: np.ndarray, scales: Any = None, sizes: Any = None, roi: Any = None, **attrs: Any
) -> None:
    """The import agrees with the reference evaluator."""
    operands = [
        x,
        None if roi is None else np.asarray(roi, np.float32),
        None if scales is None else np.asarray(scales, np.float32),
        None if sizes is None else np.asarray(sizes, np.int64),
    ]
    while operands[-1] is None:
        operands.pop()
    model_proto, feeds = node_model("Resize", operands, opset=19, fixed=(1, 2, 3), **attrs)
    (want,) = ReferenceEvaluator(model_proto).run(None, feeds)
    (output,) = ours(from_onnx(model_proto), feeds)
    assert (output.shape, output.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


def box(rank: int) -> list[float]:
    """Parts of all dimensions, some of them beyond the ends."""
    return [0.1, -0.2, 0.0, 0.4][:rank] + [0.9, 0.7, 1.0, 1.3][:rank]


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_blends(mode: str, coordinates: str, exclude: int) -> None:
    """One to three dimensions, up and down, by scales and by sizes, to one element."""
    attrs = {
        "coordinate_transformation_mode": coordinates,
        "mode": mode,
        "exclude_outside": exclude,
    }
    for shape, scales in (((7,), [1.7]), ((5, 4), [2.0, 0.6]), ((3, 5, 4), [1.0, 0.5, 2.5])):
        roi = box(len(shape)) if coordinates == "tf_crop_and_resize" else None
        if roi is not None and exclude:
            continue  # the reference gives the last weight to what is outside
        extra = {"extrapolation_value": 9.0} if roi else {}
        check(f(*shape), scales, roi=roi, **attrs, **extra)
        sizes = [max(1, int(n * s)) for n, s in zip(shape, scales, strict=True)]
        check(f(*shape), sizes=sizes, roi=roi, **attrs, **extra)


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str, coordinates: str) -> None:
    """Larger and smaller, down to a tenth: sums of a few, and products with a matrix."""
    for shape, scales in (
        ((2, 9), [1.0, 0.5]),
        ((8, 6), [0.3, 1.5]),
        ((2, 40, 3), [1.0, 0.1, 1.0]),
    ):
        for exclude in (0, 1):
            check(
                f(*shape),
                scales,
                mode=mode,
                antialias=1,
                exclude_outside=exclude,
                coordinate_transformation_mode=coordinates,
            )


@pytest.mark.parametrize("a", [-0.5, -0.75, 0.0])
def test_the_coefficient_of_cubic(a: float) -> None:
    check(f(5, 6), [1.3, 2.2], mode="cubic", cubic_coeff_a=a)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_in_proportion(mode: str, policy: str) -> None:
    for sizes in ([9, 5], [3, 9], [7, 7]):
        check(
            f(2, 4, 6),
            sizes=sizes,
            axes=[1, 2],
            mode=mode,
            keep_aspect_ratio_policy=policy,
        )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_rounded(mode: str, dtype: str) -> None:
    info = np.iinfo(dtype if dtype != "int32" else "int16")
    x = R.integers(info.min, info.max, (5, 7)).astype(dtype)
    # Factors of two: the reference rounds sums in float64, whose ties are others'.
    check(x, [2.0, 2.0], mode=mode, coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES[:-1])
def test_symbolic_extents(mode: str, coordinates: str, exclude: int) -> None:
    """One import for pictures of all sizes, scaled and brought to a size."""
    attrs = {
        "coordinate_transformation_mode": coordinates,
        "mode": mode,
        "exclude_outside": exclude,
    }
    for last, kind in ((["s"], "scales"), (["", "z"], "sizes")):
        operand = {
            "scales": np.array([1, 1.5], np.float32),
            "sizes": np.array([2, 7], np.int64),
        }[kind]
        model_proto = model(
            [helper.make_node("Resize", ["x", "", *last], ["y"], **attrs)],
            [value("x", np.float32, [2, "w"])],
            ["y"],
            consts={last[-1]: operand},
            opset=19,
        )
        module = from_onnx(model_proto)
        for width in (2, 5, 8):
            x = f(2, width)
            (want,) = ReferenceEvaluator(model_proto).run(None, {"x": x})
            (output,) = ours(module, {"x": x})
            np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


REFUSED = [
    ({"mode": "nearest", "antialias": 1}, "antialias=1 with mode='nearest'"),
    ({"mode": "quintic"}, "mode='quintic'"),
    ({"coordinate_transformation_mode": "middle"}, "coordinate_transformation_mode='middle'"),
    ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "needs roi"),
]


@pytest.mark.parametrize(("attrs", "says"), REFUSED)
def test_refusals(attrs: dict[str, Any], says: str) -> None:
    model_proto, _ = node_model(
        "Resize", [f(3, 4), None, np.array([2, 2], np.float32)], opset=19, fixed=(2,), **attrs
    )
    with pytest.raises(UnsupportedError, match=says):
        from_onnx(model_proto)


def test_what_needs_extents() -> None:
    for k, operand in enumerate((np.array([1, 2], np.float32), np.array([2, 7], np.int64)), 2):
        names = [*["x", "", "", ""][:k], "z"]
        model_proto = model(
            [helper.make_node("Resize", names, ["y"], antialias=1, mode="linear")],
            [value("x", np.float32, [2, "w"])],
            ["y"],
            consts={"z": operand},
            opset=19,
        )
        with pytest.raises(UnsupportedError, match="symbolic"):
            from_onnx(model_proto)
