"""Pictures that are resized between convolutions stay in channel blocks, right to the last lane."""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.ir.text.printer import print_function
from tests.rotation import rows_in_turn

SCALES = {"up": 2.0, "by a fraction": 1.5, "down": 0.5}
MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric")
CHANNELS = (16, 21, 5)
V3 = {"kind": "llvm", "mcpu": "x86-64-v3"}
THEN = ("conv", "output", "concat", "both")


def _model(
    mode: str, scale: float, coordinates: str, channels: int, then: str, open_: bool
) -> bytes:
    draw = np.random.default_rng(3)
    size = ("h", "w") if open_ else (10, 14)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(draw.standard_normal(shape).astype("f4") / 8, name)

    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"]),
        helper.make_node(
            "Resize",
            ["p", "", "scales"],
            ["q"],
            mode=mode,
            coordinate_transformation_mode=coordinates,
            nearest_mode="floor",
        ),
    ]
    initial = [
        weight("a", channels, 8, 1, 1),
        numpy_helper.from_array(np.array([1, 1, scale, scale], "f4"), "scales"),
    ]
    outputs = ["q"] if then in ("output", "both") else []
    if then != "output":
        outputs.append("y")
        source, width = "q", channels
        if then == "concat":  # channels that end in the middle of a block, then others
            nodes.append(helper.make_node("Concat", ["q", "q"], ["z"], axis=1))
            source, width = "z", 2 * channels
        nodes.append(helper.make_node("Conv", [source, "b"], ["y"], pads=[1, 1, 1, 1]))
        initial.append(weight("b", 7, width, 3, 3))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, *size])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        initial,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data: bytes = made.SerializeToString()
    return data


CASES = [
    (mode, scale, coordinates, channels, then)
    for k, (mode, scale, coordinates, channels, then) in enumerate(
        product(MODES, SCALES, COORDINATES, CHANNELS, THEN)
    )
    if k % 5 == 0  # coprime to every factor: each pair of values meets
]


def _compiled(folder: Path, data: bytes) -> tk.Executable:
    (folder / "model.onnx").write_bytes(data)
    return tk.compile(tk.frontend.from_onnx(folder / "model.onnx"), target=V3)


@pytest.mark.parametrize("open_", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("mode", MODES)
def test_resized_pictures(mode: str, open_: bool) -> None:
    for case in rows_in_turn([c for c in CASES if c[0] == mode], str, itemgetter(1)):
        data = _model(mode, SCALES[case[1]], *case[2:], open_)
        session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        f = tk.compile(data)
        for height, width in ((10, 14), (6, 34))[: 1 + open_]:
            x = np.random.default_rng(height).standard_normal((2, 8, height, width)).astype("f4")
            found = f(x)
            found = list(found.values()) if isinstance(found, dict) else found
            found = found if isinstance(found, list | tuple) else [found]
            for have, want in zip(found, session.run(None, {"x": x}), strict=True):
                assert have.shape == want.shape, case
                np.testing.assert_allclose(have, want, atol=2e-5, err_msg=str(case))


@pytest.mark.parametrize("open_", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("mode", ("linear", "cubic"))
@pytest.mark.parametrize("channels", CHANNELS)
def test_layouts_do_not_change_around_a_resize(
    channels: int, mode: str, open_: bool, tmp_path: Path
) -> None:
    exe = _compiled(tmp_path, _model(mode, 2.0, "half_pixel", channels, "conv", open_))
    kernels = [p.kernel for p in exe.placement()]
    # Of the parameter and of the result, and none between.
    assert sum(k.startswith("relayout") for k in kernels) <= 2, kernels


@pytest.mark.parametrize("channels", CHANNELS)
def test_every_lane_is_computed_at_once(channels: int, tmp_path: Path) -> None:
    exe = _compiled(tmp_path, _model("linear", 2.0, "half_pixel", channels, "output", False))
    blends = [f for f in exe.module.functions if f.name.startswith("take_mul")]
    assert len(blends) == 2
    for f in blends:
        assert "T.Ramp(0, 1, 8)" in print_function(f), f.name
