"""Operands that say what an operator does (axes, pads, sizes, k) and that only data knows: each
node gets all of its operands when the function runs. Expected values are ONNX Runtime's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError, UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_backend import compiled
from tests.frontend.onnx_models import agree, main, model, node_model, ours, theirs, value

rng = np.random.default_rng(0)
X = rng.standard_normal((2, 3, 4)).astype(np.float32)
PICTURE = rng.standard_normal((1, 2, 4, 5)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A node, its operands, and other values of those behind the first."""

    op: str
    operands: Sequence[np.ndarray | None]
    other_operands: Sequence[Sequence[np.ndarray | None]] = ()
    opset: int = 18
    outputs: int = 1
    attrs: dict[str, Any] = field(default_factory=dict)


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
CASES = [
    *(
        Case(f"Reduce{name}", [np.abs(X), ints(1)], [[ints(-1)], [ints(0)]], attrs={"keepdims": k})
        for name in REDUCTIONS
        for k in (0, 1)
    ),
    Case("ReduceSum", [X, ints(2, 0)], [[ints(0, 1)], [ints(-1, 1)]]),
    Case("ReduceSum", [X, ints()], attrs={"noop_with_empty_axes": 1}),
    Case("CumSum", [X, np.int64(1)], [[np.int64(-1)]], 14, attrs={"exclusive": 1}),
    Case("CumSum", [X, np.array(2, np.int32)], [[np.array(0, np.int32)]], attrs={"reverse": 1}),
    Case("Squeeze", [X[:, :1], ints(1)], [[ints(-2)]]),
    Case("Unsqueeze", [X, ints(0, 4)], [[ints(2, -1)], [ints(-2, 1)]]),
    Case("Trilu", [X, np.int64(1)], [[np.int64(-1)], [np.int64(9)]]),
    Case("Trilu", [X, np.int64(0)], [[np.int64(-2)]], attrs={"upper": 0}),
    Case("TopK", [X, ints(2)], [[ints(4)], [ints(0)]], outputs=2),
    Case("TopK", [X, ints(1)], [[ints(3)]], outputs=2, attrs={"axis": 1, "largest": 0}),
    Case("Split", [X, ints(1, 3)], [[ints(4, 0)]], outputs=2, attrs={"axis": 2}),
    Case("Slice", [X, ints(1), ints(9), ints(2)], [[ints(0), ints(-1), ints(-2)]]),
    Case(
        "Slice",
        [X, ints(1, 0), ints(9, 2), ints(2, 0), ints(2, 1)],
        [[ints(-1, 0), ints(-9, 1), ints(1, 2), ints(-1, 1)]],
    ),
    Case("Expand", [X[:, :1], ints(2, 3, 4)], [[ints(2, 5, 4)]]),
    Case("Tile", [X, ints(1, 2, 1)], [[ints(3, 1, 2)]]),
    Case(
        "Pad", [X, ints(0, 1, 2, 0, 3, 0)], [[ints(1, 0, 0, 0, 0, 1)], [ints(0, -1, 1, 0, 0, -2)]]
    ),
    Case(
        "Pad",
        [X, ints(1, 2), np.float32(7), ints(2)],
        [[ints(2, 0), np.float32(-1), ints(0)], [ints(-1, 2), np.float32(3), ints(-1)]],
    ),
    Case("Pad", [X, ints(0, 1, 2, 0, 2, 3)], [[ints(1, 0, 0, 1, 1, 0)]], attrs={"mode": "reflect"}),
    Case("Pad", [X, ints(0, 1, 2, 0, 2, 3)], [[ints(1, 0, 0, 4, 1, 0)]], attrs={"mode": "edge"}),
    Case(
        "Pad", [X, ints(0, 1, 2, 0, 2, 3)], [[ints(1, 0, 0, 1, 1, 0)]], 19, attrs={"mode": "wrap"}
    ),
    *(
        Case(
            "Resize",
            [PICTURE, None, np.float32(scales)],
            [[None, np.float32(other_scales)]],
            13,
            1,
            {"mode": mode, "coordinate_transformation_mode": coordinates},
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "align_corners")
        for scales, other_scales in [
            ([1, 1, 1.5, 2], [1, 1, 0.5, 1]),
            ([1, 1, 1.7, 2], [1, 1, 0.6, 1]),
        ]
        # With corners aligned, ONNX Runtime rounds the length first, against the standard.
        if coordinates != "align_corners" or scales[2] == 1.5
    ),
    Case("Resize", [PICTURE, None, None, ints(1, 2, 7, 3)], [[None, None, ints(1, 2, 2, 9)]], 13),
    Case(
        "Resize",
        [PICTURE, None, None, ints(7, 8)],
        [[None, None, ints(9, 3)]],
        18,
        1,
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "mode": "linear"},
    ),
    Case("Resize", [PICTURE, np.float32([1, 1, 2, 3])], [[np.float32([1, 1, 1, 2])]], 10),
    Case("Upsample", [PICTURE, np.float32([1, 1, 2, 3])], [[np.float32([1, 1, 1, 2])]], 9),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_each_operand_at_run_time(case: Case) -> None:
    model_proto, feeds = node_model(
        case.op, case.operands, opset=case.opset, outputs=case.outputs, **case.attrs
    )
    module = agree(model_proto, feeds, rtol=1e-4, atol=1e-5)
    names = [f"x{k}" for k in range(1, len(case.operands))]
    for other_operands in case.other_operands:
        other_feeds = feeds | {
            n: np.asarray(v) for n, v in zip(names, other_operands, strict=True) if v is not None
        }
        for a, b in zip(ours(module, other_feeds), theirs(model_proto, other_feeds), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_all_in_one_compile() -> None:
    """One library of a node of each kind, called with two sets of operands."""
    picked = [c for k, c in enumerate(CASES) if c.opset == 18 and c.other_operands and k % 2][:12]
    nodes, inputs, outputs = list[Any](), list[Any](), list[str]()
    runs: list[dict[str, np.ndarray]] = [{}, {}]
    for k, case in enumerate(picked):
        names = ["" if v is None else f"x{k}_{i}" for i, v in enumerate(case.operands)]
        outs = [f"y{k}_{i}" for i in range(case.outputs)]
        nodes.append(helper.make_node(case.op, names, outs, **case.attrs))
        outputs += outs
        for run, further_operands in enumerate((case.operands[1:], case.other_operands[0])):
            for name, v in zip(names, (case.operands[0], *further_operands), strict=True):
                if v is not None:
                    runs[run][name] = np.asarray(v)
        inputs += [value(n, runs[0][n].dtype, runs[0][n].shape) for n in names if n]
    model_proto = model(nodes, inputs, outputs, opset=18)
    module = from_onnx(model_proto)
    order = main(module).attrs["input_names"]
    call = tk.runtime.Executor(tk.compile(module))["main"]
    for feeds in runs:
        outputs_of_call = [np.asarray(v) for v in call(*(feeds[n] for n in order))]
        for a, b in zip(outputs_of_call, theirs(model_proto, feeds), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# Nodes whose operand behind the first does not fit, values of it, and what the error says.
WRONG: list[tuple[str, list[Any], dict[str, Any], list[tuple[np.ndarray, str]]]] = [
    (
        "ReduceSum",
        [X, ints(1)],
        {},
        [
            (ints(3), "axes is 3, expected -3 to 2"),
            (ints(-4), "axes is -4, expected -3 to 2"),
        ],
    ),
    (
        "ReduceMax",
        [X, ints(1, 0)],
        {},
        [(ints(1, -2), "axes is [1, -2], expected 2 different axes from -3 to 2")],
    ),
    ("CumSum", [X, np.int64(1)], {}, [(np.int64(-4), "axis is -4, expected -3 to 2")]),
    (
        "TopK",
        [X, ints(1)],
        {},
        [
            (ints(5), "k is 5, expected 0 to 4, the extent of dimension 2"),
            (ints(-1), "k is -1, expected 0 or more"),
        ],
    ),
    (
        "Split",
        [X, ints(1, 1)],
        {"axis": 0},
        [
            (
                ints(1, 2),
                "split is [1, 2], expected 2 parts whose sum is the extent of dimension 0",
            ),
            (ints(3, -1), "split is [3, -1], expected 0 or more"),
        ],
    ),
    (
        "Squeeze",
        [X[:, :1], ints(1)],
        {},
        [
            (ints(0), "axes is 0, expected 1, of extent 1"),
            (ints(7), "axes is 7, expected 1, of extent 1"),
        ],
    ),
    ("Unsqueeze", [X, ints(1)], {}, [(ints(4), "axes is 4, expected -4 to 3")]),
    (
        "Tile",
        [X, ints(1, 2, 1)],
        {},
        [(ints(1, -2, 1), "repeats is [1, -2, 1], expected 0 or more")],
    ),
    (
        "Expand",
        [X[:, :1], ints(2, 3, 4)],
        {},
        [
            (ints(2, -3, 4), "shape is [2, -3, 4], expected 0 or more"),
            (ints(3, 3, 4), "shape is [3, 3, 4], expected extents that broadcast with [2, 1, 4]"),
        ],
    ),
    (
        "Reshape",
        [X, ints(4, 6)],
        {},
        [
            (ints(5, 5), "shape is [5, 5], expected sizes of as many elements"),
            (ints(-1, 7), "shape is [-1, 7], expected sizes of as many elements"),
            (ints(-1, -1), "shape is [-1, -1], expected sizes of as many elements"),
            (ints(-3, -8), "shape is [-3, -8], expected sizes of as many elements"),
        ],
    ),
    (
        "OneHot",
        [ints(1, 2), np.int64(3), np.float32([0, 1])],
        {},
        [(np.int64(-3), "depth is -3, expected 0 or more")],
    ),
    (
        "Pad",
        [X, ints(0, 1), np.float32(0), ints(1)],
        {},
        [(ints(-9, 0), "dimension 1 of its result")],
    ),
    ("ConstantOfShape", [ints(2, 3)], {}, [(ints(2, -3), "input is [2, -3], expected 0 or more")]),
    (
        "Slice",
        [X, ints(0), ints(2), ints(1), ints(1)],
        {},
        [
            (ints(7), "axis 7 of a tensor with 3 dimensions"),
            (ints(0), "the step of axis 1 is 0"),
        ],
    ),
    (
        "Resize",
        [PICTURE, None, None, ints(1, 2, 3, 4)],
        {},
        [(ints(1, 2, -3, 4), "sizes is [1, 2, -3, 4], expected 0 or more")],
    ),
]
# The number of the operand that is wrong where it is not the second.
PLACES = {"ConstantOfShape": [0], "Slice": [3, 4], "Resize": [3]}


def test_operands_that_do_not_fit_are_named_when_the_function_runs() -> None:
    """The node, the operand, its value and what was expected: of one library with all of them, and
    by NumPy. ONNX Runtime refuses them, too."""
    nodes, inputs, feeds = list[Any](), list[Any](), dict[str, np.ndarray]()
    for op, operands, attrs, _ in WRONG:
        names = ["" if v is None else f"{op}_{k}" for k, v in enumerate(operands)]
        outs = [f"{op}_y{k}" for k in range(2 if op in ("TopK", "Split") else 1)]
        nodes.append(helper.make_node(op, names, outs, name=f"my_{op}", **attrs))
        feeds |= {n: np.asarray(v) for n, v in zip(names, operands, strict=True) if n}
    inputs = [value(n, v.dtype, v.shape) for n, v in feeds.items()]
    model_proto = model(nodes, inputs, [o for n in nodes for o in n.output], opset=18)
    module = from_onnx(model_proto)
    call = tk.runtime.Executor(tk.compile(module))["main"]
    for a, b in zip(call(*feeds.values()), theirs(model_proto, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-5)
    for op, _, _, rows in WRONG:
        for k, (wrong, says) in enumerate(rows):
            places = PLACES.get(op, [1])
            wrong_feeds = feeds | {f"{op}_{places[k % len(places)]}": np.asarray(wrong)}
            assert list(wrong_feeds) == list(feeds)
            with pytest.raises(ValueError) as caught:
                call(*wrong_feeds.values())
            assert f"my_{op}: {says}" in str(caught.value), str(caught.value)
            with pytest.raises((ValueError, TensorkilnError)) as caught:
                ours(module, wrong_feeds)
            assert op == "Pad" or f"my_{op}: {says}" in str(caught.value), str(caught.value)
            if op != "ReduceMax":  # where it takes an axis that is named twice
                with pytest.raises(Exception, match=op):
                    theirs(model_proto, wrong_feeds)


def resized_by_tf2onnx(h: Any, w: Any) -> onnx.ModelProto:
    """As tf2onnx writes a resize to 8 x 6 for opset 10: the scale is a quotient of sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "two", "four"], ["hw"]),
        helper.make_node("Cast", ["hw"], ["had"], to=1),
        helper.make_node("Div", ["wanted", "had"], ["quotient"]),
        helper.make_node("Concat", ["ones", "quotient"], ["scales"], axis=0),
        helper.make_node("Resize", ["x", "scales"], ["r"], mode="linear"),
        helper.make_node("Conv", ["r", "w"], ["y"], kernel_shape=[3, 3]),
    ]
    consts = {"two": ints(2), "four": ints(4), "wanted": np.float32([8, 6])}
    consts |= {"ones": np.float32([1, 1]), "w": np.ones((4, 2, 3, 3), np.float32)}
    return model(nodes, [value("x", np.float32, ["n", 2, h, w])], ["y"], consts=consts, opset=10)


@pytest.mark.parametrize(("h", "w"), [("h", "w"), (4, 5)])
def test_scales_that_are_quotients_of_sizes(h: Any, w: Any) -> None:
    """Known scales of other dimensions stay known, so that a convolution has its channels."""
    module = agree(resized_by_tf2onnx(h, w), {"x": PICTURE}, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        compiled(module, {"x": PICTURE})[0], ours(module, {"x": PICTURE})[0], rtol=1e-4, atol=1e-4
    )


def test_proportions_that_are_kept_at_any_size() -> None:
    for policy in ("not_larger", "not_smaller"):
        model_proto, _ = node_model(
            "Resize",
            [PICTURE, None, None, ints(7, 9)],
            fixed=(3,),
            opset=19,
            axes=[2, 3],
            keep_aspect_ratio_policy=policy,
            mode="linear",
        )
        for d in model_proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            d.dim_param = f"size{d.dim_value}"
        for h, w in ((4, 5), (3, 8), (9, 2)):
            agree(model_proto, {"x0": np.resize(PICTURE, (1, 2, h, w))}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Conv", {}),
        ("Conv", {"dilations": [2, 1]}),
        ("MaxPool", {"kernel_shape": [3, 2]}),
        ("AveragePool", {"kernel_shape": [3, 2]}),
        ("AveragePool", {"kernel_shape": [3, 2], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [3, 3]}),
        ("AveragePool", {"kernel_shape": [2, 4], "count_include_pad": 1}),
        ("MaxPool", {"kernel_shape": [2, 4]}),
        ("LpPool", {"kernel_shape": [3, 3]}),
    ],
)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_any_size(op: str, attrs: dict[str, Any], auto_pad: str) -> None:
    w = rng.standard_normal((3, 2, 3, 4)).astype(np.float32)
    node = helper.make_node(
        op, ["x", "w"][: 1 + (op == "Conv")], ["y"], strides=[2, 3], auto_pad=auto_pad, **attrs
    )
    model_proto = model([node], [value("x", np.float32, [1, 2, "h", "w_"])], ["y"], consts={"w": w})
    module = from_onnx(model_proto)
    # ONNX Runtime takes no dilation here, and no windows that leave elements out.
    takes = "dilations" not in attrs and attrs.get("kernel_shape") != [3, 2]
    for h in range(5, 9):
        x = rng.standard_normal((1, 2, h, h + 3)).astype(np.float32) + 1
        (output,) = ours(module, {"x": x})
        frozen = from_onnx(model_proto, freeze={"h": h, "w_": h + 3})
        for want in (*ours(frozen, {"x": x}), *(theirs(model_proto, {"x": x}) if takes else ())):
            assert output.shape == want.shape
            np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_boxes_of_their_own_number_of_points(mode: str, coordinates: str) -> None:
    boxes = np.float32([[0, 0, 3, 2], [1, 1, 1, 1], [0.5, -2, 9, 3.7], [2, 1, 2.4, 3]])
    model_proto, feeds = node_model(
        "RoiAlign",
        [np.abs(PICTURE), boxes, ints(0, 0, 0, 0)],
        opset=16,
        output_height=2,
        output_width=3,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        spatial_scale=1.2,
    )
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        compiled(from_onnx(model_proto), feeds), theirs(model_proto, feeds), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_one_value_listed_twice_as_output() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    model_proto = model([relu], [value("x", np.float32, [3])], ["y", "y", "x", "y"])
    module = from_onnx(model_proto)
    assert main(module).attrs["output_names"] == ("y", "y_2", "x", "y_3")
    x = np.float32([-1, 0, 2])
    for results in (ours(module, {"x": x}), compiled(module, {"x": x})):
        for a, b in zip(results, [np.maximum(x, 0)] * 2 + [x, np.maximum(x, 0)], strict=True):
            np.testing.assert_array_equal(a, b)


def _nested(depth: int, name: str) -> onnx.GraphProto:
    if not depth:
        node = helper.make_node("Relu", ["x"], [name])
    else:
        sides = [_nested(depth - 1, f"{name}{k}") if k else _same(f"{name}0") for k in (0, 1)]
        node = helper.make_node("If", ["c"], [name], then_branch=sides[1], else_branch=sides[0])
    return helper.make_graph([node], "g", [], [value(name, np.float32, [2])])


def _nested_model(depth: int) -> onnx.ModelProto:
    inputs = [value("x", np.float32, [2]), value("c", np.bool_, [])]
    return model(list(_nested(depth, "y").node), inputs, ["y"])


def test_bodies_deeper_than_the_stack_are_named() -> None:
    def deeper(calls: int) -> None:
        if calls:
            return deeper(calls - 1)
        with pytest.raises(UnsupportedError, match="nested too deeply") as caught:
            from_onnx(data)
        (issue,) = caught.value.issues
        assert issue.node.startswith("If:y/If:y1/If:y11/"), issue.node
        return None

    data = _nested_model(31).SerializeToString()
    stack_depth = len(inspect.stack())
    deeper(sys.getrecursionlimit() - stack_depth - 250)


def test_bodies_as_deep_as_files_nest() -> None:
    module = from_onnx(_nested_model(31))
    x = np.float32([-1, 2])
    for c, want in ((True, [0, 2]), (False, [-1, 2])):
        (output,) = compiled(module, {"x": x, "c": np.array(c)})
        np.testing.assert_array_equal(output, np.float32(want))


def _same(name: str) -> onnx.GraphProto:
    node = helper.make_node("Identity", ["x"], [name])
    return helper.make_graph([node], "g", [], [value(name, np.float32, [2])])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_hardmax_until_opset_12(axis: int) -> None:
    agree(*node_model("Hardmax", [X], opset=11, axis=axis))


@pytest.mark.parametrize("mode", ["constant", "reflect", "wrap"])
def test_pads_that_follow_from_sizes(mode: str) -> None:
    """To a multiple of 4, as networks of any size of picture begin."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mod", ["shape", "four"], ["over"]),
        helper.make_node("Sub", ["four", "over"], ["more"]),
        helper.make_node("Mod", ["more", "four"], ["added"]),
        helper.make_node("Concat", ["none", "added"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode),
    ]
    x = rng.standard_normal((5, 7)).astype(np.float32)
    consts = {"four": ints(4), "none": ints(0, 0)}
    model_proto = model(nodes, [value("x", np.float32, ["h", "w"])], ["y"], consts=consts, opset=19)
    assert agree(model_proto, {"x": x})["main"].result.tensor.ndim == 2
    for shape in ((4, 8), (6, 5)):
        agree(model_proto, {"x": np.resize(x, shape)})


def of_two_ranks(names: list[str], opset: int = 13) -> onnx.ModelProto:
    """Branches of 2 and 3 dimensions, and what reads them."""
    sides = [
        helper.make_node("ReduceSum", ["x", "one"], ["a"], keepdims=0),
        helper.make_node("Relu", ["x"], ["b"]),
    ]
    graphs = [
        helper.make_graph([n], "g", [], [onnx.ValueInfoProto(name=n.output[0])]) for n in sides
    ]
    nodes = [
        helper.make_node("If", ["c"], ["s"], then_branch=graphs[0], else_branch=graphs[1]),
        helper.make_node("Sigmoid", ["s"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["total"], keepdims=0),
        helper.make_node("Flatten", ["r"], ["flat"], axis=1),
        helper.make_node("Neg", ["x"], ["other"]),
        helper.make_node("Shape", ["r"], ["shape"]),
        helper.make_node("ReduceSum", ["other", "one"], ["part"], keepdims=1),
    ]
    inputs = [value("x", np.float32, ["n", 2, 3]), value("c", np.bool_, [])]
    return model(nodes, inputs, names, consts={"one": ints(1)}, opset=opset)


def test_branches_of_different_ranks() -> None:
    """What follows is imported into both; results must agree in rank."""
    model_proto = of_two_ranks(["total", "flat", "part"])
    module = from_onnx(model_proto)
    for c in (True, False):
        feeds = {"x": X[:, :2, :3], "c": np.array(c)}
        want = theirs(model_proto, feeds)
        for outputs in (ours(module, feeds), compiled(module, feeds)):
            for a, b in zip(outputs, want, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for names in (["r"], ["total", "s"]):
        with pytest.raises(UnsupportedError, match="2 or 3 dimensions") as caught:
            from_onnx(of_two_ranks(names))
        assert [i.op for i in caught.value.issues] == ["If"]
