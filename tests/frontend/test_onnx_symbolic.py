"""Symbolic dimensions: shapes as data are folded at import, for every size at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tensorkiln.arith.simplify import prove_equal
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.frontend import check_onnx, from_onnx
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.relax import Function
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime import Executor, cpu
from tests.frontend.onnx_models import agree, main, model, ours, theirs, value

N = helper.make_node


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def x(*shape: int | str | None) -> onnx.ValueInfoProto:
    return value("x", np.float32, shape)


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def operators(f: Function) -> list[str]:
    return [b.value.op for b in f.bindings]


def test_one_variable_per_name() -> None:
    model_proto = model(
        [N("Add", ["x", "z"], ["y"])],
        [x("batch", None), value("z", np.float32, ["batch", 1])],
        ["y"],
    )
    f = main(from_onnx(model_proto))
    a, b = f.params
    assert a.tensor.shape[0] is b.tensor.shape[0]
    assert [d.name for d in a.tensor.shape if isinstance(d, Var)] == ["batch", "x_d1"]
    assert f.attrs["dim_names"] == ((a.tensor.shape[0], "batch"), (a.tensor.shape[1], "x_d1"))


def test_freeze() -> None:
    model_proto = model([N("Relu", ["x"], ["y"])], [x("batch", None, 3)], ["y"])
    f = main(from_onnx(model_proto, freeze={"batch": 2, "x_d1": 5}))
    assert f.params[0].tensor.static_shape() == (2, 5, 3)
    assert "dim_names" not in f.attrs


def test_composed_dimensions() -> None:
    model_proto = model(
        [N("Concat", ["x", "y", "z"], ["o"], axis=0)],
        [x("s"), value("y", np.float32, ["s + 1"]), value("z", np.float32, ["2*s"])],
        ["o"],
    )
    f = main(from_onnx(model_proto))
    s = f.params[0].tensor.shape[0]
    assert prove_equal(f.params[1].tensor.shape[0], s + 1)
    assert prove_equal(f.result.tensor.shape[0], s * 4 + 1)
    frozen = main(from_onnx(model_proto, freeze={"s": 3}))
    assert frozen.result.tensor.static_shape() == (13,)


def test_a_composed_name_that_nothing_determines_is_one_name() -> None:
    f = main(from_onnx(model([N("Relu", ["x"], ["y"])], [x("past + 1")], ["y"])))
    past = f.params[0].tensor.shape[0]
    assert isinstance(past, Var) and past.name == "past___1"
    assert f.attrs["dim_names"] == ((past, "past + 1"),)


def test_names_become_identifiers() -> None:
    names = ["a/b", "a.b", "0", "a_b"]
    model_proto = model(
        [N("Sum", names, ["out:0"])], [value(n, np.float32, [2]) for n in names], ["out:0"]
    )
    f = main(from_onnx(model_proto))
    assert f.attrs["input_names"] == tuple(names)
    assert f.attrs["output_names"] == ("out:0",)
    made_names = [p.name for p in f.params]
    assert len(set(made_names)) == 4 and all(n.isidentifier() for n in made_names)


def heads(target: Sequence[str | int]) -> onnx.ModelProto:
    """[b, s, 12] -> Reshape to a shape put together from Shape, Gather, Unsqueeze, Concat."""
    nodes = [N("Shape", ["x"], ["sh"])]
    parts = []
    for k, entry in enumerate(target):
        if isinstance(entry, int):
            nodes.append(N("Constant", [], [f"p{k}"], value_ints=[entry]))
        else:
            axis = "bs".index(entry)
            nodes.append(N("Constant", [], [f"c{k}"], value_int=axis))
            nodes.append(N("Gather", ["sh", f"c{k}"], [f"g{k}"], axis=0))
            nodes.append(N("Unsqueeze", [f"g{k}", "zero"], [f"p{k}"]))
        parts.append(f"p{k}")
    nodes.append(N("Concat", parts, ["t"], axis=0))
    nodes.append(N("Reshape", ["x", "t"], ["y"]))
    return model(nodes, [x("b", "s", 12)], ["y"], consts={"zero": i(0)})


@pytest.mark.parametrize(
    "target", [["b", "s", 3, -1], ["b", -1, 4], [-1, 12], ["s", "b", 12], [0, 0, -1, 6], ["b", -1]]
)
def test_reshape_by_a_computed_shape(target: list[str | int]) -> None:
    model_proto = heads(target)
    module = agree(model_proto, {"x": rand(2, 5, 12)})
    f = main(module)
    assert operators(f) in (["reshape"], ["identity"])
    frozen = main(from_onnx(model_proto, freeze={"b": 2, "s": 5}))
    assert frozen.result.tensor.static_shape() == ours(module, {"x": rand(2, 5, 12)})[0].shape


def test_minus_one_of_a_symbolic_reshape_is_exact() -> None:
    f = main(from_onnx(heads(["b", "s", 3, -1])))
    assert int_value(f.result.tensor.shape[3]) == 4


def test_slice_of_a_table_by_a_symbolic_length() -> None:
    """The assumption that makes the shapes fit is on record."""
    nodes = [
        N("Shape", ["x"], ["sh"], start=1, end=2),
        N("Slice", ["table", "zero", "sh", "one"], ["t"]),
        N("Add", ["x", "t"], ["y"]),
    ]
    consts = {"table": rand(1, 16), "zero": i(0), "one": i(1)}
    module = agree(model(nodes, [x("b", "s")], ["y"], consts=consts), {"x": rand(2, 5)})
    ((cond, reason),) = main(module).attrs["assumes"]
    assert (cond.op, cond.a.name, int_value(cond.b)) == ("le", "s", 16)
    assert reason == "Slice:t"


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(1, 2**63 - 1, 1), (-3, 2**63 - 1, 1), (0, -1, 1), (2, 9, 3), (-1, -(2**63), -1), (4, 0, -2)],
)
@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_slice_of_a_symbolic_dimension(start: int, end: int, step: int, length: int) -> None:
    consts = {"a": i(start), "b": i(end), "c": i(0), "d": i(step)}
    model_proto = model(
        [N("Slice", ["x", "a", "b", "c", "d"], ["y"])], [x("s", 2)], ["y"], consts=consts
    )
    agree(model_proto, {"x": rand(length, 2)})


def test_slice_from_a_symbolic_end() -> None:
    """table[:, -s:]"""
    nodes = [
        N("Shape", ["x"], ["sh"], start=1, end=2),
        N("Neg", ["sh"], ["minus"]),
        N("Slice", ["table", "minus", "far", "one"], ["y"]),
    ]
    consts = {"table": rand(1, 16), "far": i(2**63 - 1), "one": i(1)}
    agree(model(nodes, [x("b", "s")], ["y"], consts=consts), {"x": rand(2, 5)})


def test_tile_by_a_symbolic_count() -> None:
    nodes = [N("Shape", ["x"], ["sh"]), N("Tile", ["x", "sh"], ["y"])]
    agree(model(nodes, [x("b", "s")], ["y"]), {"x": rand(2, 5)})


def test_expand_of_a_mask() -> None:
    """ConstantOfShape, Equal and Where over shapes, as the legacy exporter writes them."""
    nodes = [
        N("Shape", ["x"], ["sh"]),
        N("Shape", ["sh"], ["rank"]),
        N("Concat", ["sh", "minus"], ["want"], axis=0),
        N("Slice", ["want", "zero", "rank"], ["cut"]),
        N("ConstantOfShape", ["rank"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
        N("Equal", ["cut", "minus"], ["none"]),
        N("Where", ["none", "ones", "cut"], ["target"]),
        N("Expand", ["row", "target"], ["y"]),
    ]
    consts = {"minus": i(-1), "zero": i(0), "row": rand(1, 1)}
    module = agree(model(nodes, [x("b", "s")], ["y"], consts=consts), {"x": rand(2, 5)})
    assert operators(main(module)) == ["broadcast_to"]


def test_range_and_positions() -> None:
    nodes = [
        N("Shape", ["x"], ["sh"], start=1),
        N("Squeeze", ["sh"], ["n"]),
        N("Range", ["zero", "n", "one"], ["r"]),
        N("Cast", ["r"], ["f"], to=1),
        N("Add", ["x", "f"], ["y"]),
    ]
    consts = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    module = agree(model(nodes, [x("b", "s")], ["y"], consts=consts), {"x": rand(2, 5)})
    assert operators(main(module)) == ["arange", "cast", "add"]


def test_a_shape_used_as_data() -> None:
    nodes = [
        N("Shape", ["x"], ["sh"]),
        N("Cast", ["sh"], ["f"], to=1),
        N("ReduceProd", ["sh"], ["n"], keepdims=0),
        N("Mul", ["f", "f"], ["y"]),
    ]
    model_proto = model(nodes, [x("b", 3, "s")], ["y", "n", "sh"])
    feeds = {"x": rand(2, 3, 5)}
    module = from_onnx(model_proto)
    for a, b in zip(ours(module, feeds), theirs(model_proto, feeds), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_if_by_a_known_condition() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([N(op, ["x"], ["o"])], op, [], [onnx.ValueInfoProto(name="o")])

    nodes = [
        N("Shape", ["x"], ["sh"]),
        N("Size", ["sh"], ["rank"]),
        N("Equal", ["rank", "two"], ["is2"]),
        N("If", ["is2"], ["y"], then_branch=branch("Relu"), else_branch=branch("Abs")),
    ]
    model_proto = model(nodes, [x("b", "s")], ["y"], consts={"two": np.array(2, np.int64)})
    assert operators(main(agree(model_proto, {"x": rand(2, 5)}))) == ["relu"]


def test_functions_are_inlined() -> None:
    """With an attribute of the call, a default, and an operand left out."""
    body = [
        N("LeakyRelu", ["a"], ["c"]),
        N("Clip", ["c", "", "hi"], ["b"]),
    ]
    ref = body[0].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    assert ref.ref_attr_name == "slope"
    f = helper.make_function(
        "me",
        "F",
        ["a", "hi"],
        ["b"],
        body,
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    nodes = [
        N("F", ["x"], ["p"], domain="me", name="f1", slope=0.25),
        N("F", ["p", "top"], ["y"], domain="me", name="f2"),
    ]
    model_proto = model(
        nodes,
        [x(2, 3)],
        ["y"],
        consts={"top": np.array(0.5, np.float32)},
        functions=[f],
        domains={"me": 1},
    )
    module = from_onnx(model_proto)
    data = rand(2, 3)
    want = np.where(data < 0, data * 0.25 * 0.5, data).clip(max=0.5)
    np.testing.assert_allclose(ours(module, {"x": data})[0], want, rtol=1e-6)
    assert [b.value.span for b in main(module).bindings] == [
        "f1/LeakyRelu:c",
        "f2/LeakyRelu:c",
        "f2/Clip:b",
    ]


def test_outputs_that_nothing_uses_are_not_computed() -> None:
    """Here the indices of MaxPool, and the statistics of a norm."""
    nodes = [
        N("MaxPool", ["x"], ["p", "indices"], kernel_shape=[2, 2]),
        N("LayerNormalization", ["p", "w"], ["y", "mean", "inverse"]),
    ]
    model_proto = model(nodes, [x(1, 2, 4, 4)], ["y"], consts={"w": rand(3)})
    assert operators(main(agree(model_proto, {"x": rand(1, 2, 4, 4)}))) == [
        "max_pool2d",
        "layer_norm",
    ]
    model_proto.graph.output.append(onnx.ValueInfoProto(name="indices"))
    assert "argmax" in operators(main(agree(model_proto, {"x": rand(1, 2, 4, 4)})))


def test_nodes_in_any_order_and_results_that_are_inputs() -> None:
    nodes = [N("Relu", ["a"], ["y"], name="second"), N("Abs", ["x"], ["a"], name="first")]
    model_proto = model(nodes, [x(2)], ["y", "x", "w"], consts={"w": rand(3)})
    module = from_onnx(model_proto)
    outputs = ours(module, {"x": rand(2)})
    np.testing.assert_array_equal(outputs[0], abs(rand(2)))
    np.testing.assert_array_equal(outputs[1], rand(2))
    np.testing.assert_array_equal(outputs[2], rand(3))
    assert [b.value.span for b in main(module).bindings[:2]] == ["first", "second"]


def test_inputs_with_initializers_are_no_parameters() -> None:
    model_proto = model(
        [N("Add", ["x", "w"], ["y"])],
        [x(3), value("w", np.float32, [3])],
        ["y"],
        consts={"w": rand(3)},
    )
    assert main(from_onnx(model_proto)).attrs["input_names"] == ("x",)


@settings(max_examples=60)
@given(st.data())
def test_integer_chains(data: st.DataObject) -> None:
    """Random arithmetic on extents has ONNX Runtime's value for any size."""
    nodes = [N("Shape", ["x"], ["v0"]), N("Constant", [], ["v1"], value_ints=[3, 2])]
    for k in range(2, data.draw(st.integers(3, 7))):
        op = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min", "Div", "Concat"]))
        a, b = (f"v{data.draw(st.integers(0, k - 1))}" for _ in range(2))
        if op == "Concat":
            is_even = data.draw(st.integers(0, 1))
            nodes.append(N("Concat", [a, b], [f"c{k}"], axis=0))
            nodes.append(N("Gather", [f"c{k}", "even" if is_even else "odd"], [f"v{k}"]))
        elif op == "Div":
            nodes.append(N("Abs", [b], [f"c{k}"]))
            nodes.append(N("Add", [f"c{k}", "one"], [f"d{k}"]))
            nodes.append(N("Div", [a, f"d{k}"], [f"v{k}"]))
        else:
            nodes.append(N(op, [a, b], [f"v{k}"]))
        last = f"v{k}"
    consts = {"even": i(0, 2), "odd": i(3, 1), "one": i(1)}
    model_proto = model(nodes, [x("b", "s")], [last], consts=consts, opset=13)
    assert check_onnx(model_proto) == ()
    module = from_onnx(model_proto)
    for shape in ((1, 1), (2, 7), (5, 3)):
        feeds = {"x": np.zeros(shape, np.float32)}
        np.testing.assert_array_equal(ours(module, feeds)[0], theirs(model_proto, feeds)[0])


MODES = [
    *(
        ("nearest", c, r)
        for c in ("half_pixel", "asymmetric", "align_corners")
        for r in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        ("linear", c, "floor")
        for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
]


@pytest.mark.parametrize(("mode", "coordinates", "rounding"), MODES)
def test_resize_of_symbolic_dimensions(mode: str, coordinates: str, rounding: str) -> None:
    """To sizes that follow from shapes, and by whole and broken factors."""
    resize_attrs = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": rounding,
    }
    for times, by, addend in ((2, 1, 0), (1, 2, 1), (3, 2, 0), (1, 1, 4)):
        nodes = [
            N("Shape", ["x"], ["s"], start=2, end=3),
            N("Mul", ["s", "times"], ["m"]),
            N("Div", ["m", "by"], ["d"]),
            N("Add", ["d", "more"], ["e"]),
            N("Shape", ["x"], ["nc"], start=0, end=2),
            N("Concat", ["nc", "e", "w"], ["z"], axis=0),
            N("Resize", ["x", "", "", "z"], ["y"], **resize_attrs),
        ]
        consts = {"times": i(times), "by": i(by), "more": i(addend), "w": i(7)}
        model_proto = model(nodes, [x("b", 3, "h", 5)], ["y"], consts=consts)
        for h in (4, 5, 8, 13):
            agree(model_proto, {"x": rand(2, 3, h, 5)}, rtol=1e-4, atol=1e-4)
    for scale in (0.5, 1.5, 2.0, 3.0):
        consts = {"s": np.array([1, 1, scale, 2], np.float32)}
        nodes = [N("Resize", ["x", "", "s"], ["y"], **resize_attrs)]
        model_proto = model(nodes, [x("b", 3, "h", 5)], ["y"], consts=consts)
        # Where an extent is broken, ONNX Runtime aligns other corners than the standard.
        whole = coordinates == "align_corners"
        for h in (4, 8) if whole else (4, 5, 8, 13):
            agree(model_proto, {"x": rand(2, 3, h, 5)}, rtol=1e-4, atol=1e-4)


@cache
def pyramid() -> tuple[onnx.ModelProto, Executor]:
    """A picture halved, and one halved twice and doubled: added, joined, multiplied."""
    pool = {"kernel_shape": [2, 1], "strides": [2, 1]}
    nodes = [
        N("MaxPool", ["x"], ["a"], **pool),
        N("MaxPool", ["a"], ["b"], **pool),
        N(
            "Resize",
            ["b", "", "twice"],
            ["c"],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        N("Add", ["a", "c"], ["sum"]),
        N("Concat", ["c", "a"], ["both"], axis=1),
        N("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]),
        N("MatMul", ["t", "c"], ["product"]),
    ]
    consts = {"twice": np.array([1, 1, 2, 1], np.float32)}
    model_proto = model(nodes, [x(1, 2, "h", 3)], ["sum", "both", "product"], consts=consts)
    return model_proto, Executor(compile_module(from_onnx(model_proto)), cpu())


@pytest.mark.parametrize("h", [4, 5, 8, 12, 13])
def test_extents_that_meet_for_some_sizes(h: int) -> None:
    model_proto, run = pyramid()
    feeds = {"x": rand(1, 2, h, 3)}
    for a, b in zip(run["main"](feeds["x"]), theirs(model_proto, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("h", [6, 7, 10, 11])
def test_sizes_for_which_they_do_not_are_refused_by_the_call(h: int) -> None:
    _, run = pyramid()
    with pytest.raises(UserError, match=r"main: .*h // 2.*h // 4"):
        run["main"](rand(1, 2, h, 3))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_groups_are_of_whole_channels(channels: int) -> None:
    inputs = [value("x", np.float32, [1, "c", 4]), value("s", np.float32, ["c"])]
    node = helper.make_node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=2)
    run = Executor(compile_module(from_onnx(model([node], inputs, ["y"], opset=21))), cpu())["main"]
    x, s = np.random.default_rng(0).random((1, channels, 4), "f"), np.ones(channels, "f")
    if channels % 2:
        with pytest.raises(UserError, match="c is .*; expected .*c"):
            run(x, s)
        return
    rows = x.reshape(2, -1) - x.reshape(2, -1).mean(1, keepdims=True)
    expected = (rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5)).reshape(x.shape) + 1
    np.testing.assert_allclose(run(x, s), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("spatial", [(5,), (5, 5), (3, 4, 5)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize(("c", "d"), [("c", "d"), ("c", 2), (4, "d")])
def test_channels_of_groups_agree(c: int | str, d: int | str, spatial: tuple[int, ...]) -> None:
    """Those of the operand are those of the weights of all groups."""
    taps = (3,) * len(spatial)
    inputs = [x(1, c, *spatial), value("w", np.float32, [4, d, *taps])]
    model_proto = model([N("Conv", ["x", "w"], ["y"], name="node", group=2)], inputs, ["y"])
    run = compile_module(from_onnx(model_proto))
    for channels, of_group in [(4, 2), (2, 1), (6, 3), (3, 1), (2, 2), (1, 1)]:
        if c not in ("c", channels) or d not in ("d", of_group):
            continue
        feeds = {"x": rand(1, channels, *spatial), "w": rand(4, of_group, *taps)}
        if channels == 2 * of_group:
            want = theirs(model_proto, feeds)[0]
            np.testing.assert_allclose(np.asarray(run(**feeds)), want, rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(UserError, match=r"expected [cd] == .*node"):
                run(**feeds)


def test_names_that_nothing_connects_broadcast_or_are_equal() -> None:
    model_proto = model(
        [N("Add", ["x", "z"], ["y"])], [x("a"), value("z", np.float32, ["b"])], ["y"]
    )
    run = Executor(compile_module(from_onnx(model_proto)), cpu())["main"]
    for a, b in ((3, 3), (1, 3), (3, 1)):
        left_operand, right = rand(a), rand(b)
        np.testing.assert_array_equal(np.asarray(run(left_operand, right)), left_operand + right)
    with pytest.raises(ValueError, match="a is 2, b is 3; expected"):
        run(rand(2), rand(3))


def test_tensors_without_elements_are_results() -> None:
    """A library whose only constants are empty."""
    nodes = [N("Shape", ["x"], ["y"], start=2, end=1), N("Identity", ["none"], ["z"])]
    consts = {"none": np.zeros((0, 3), np.float32)}
    model_proto = model(nodes, [x(2, 3, 4)], ["y", "z"], consts=consts, opset=19)
    run = Executor(compile_module(from_onnx(model_proto)), cpu())
    outputs = run["main"](rand(2, 3, 4))
    assert [np.asarray(v).shape for v in outputs] == [(0,), (0, 3)]


ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
TERMS = ("n", "m", "below", "above", "three", "minus_two")


def arithmetic_model() -> onnx.ModelProto:
    """Each operator on every two of: dimensions, differences of both signs, constants."""
    nodes = [
        N("Shape", ["x"], ["shape"]),
        N("Split", ["shape"], ["n", "m"], num_outputs=2),
        N("Sub", ["n", "five"], ["below"]),
        N("Sub", ["five", "m"], ["above"]),
    ]
    for term in ("below", "above"):  # as divisors: odd, so never 0
        nodes += [
            N("Add", [term, term], [f"twice_{term}"]),
            N("Sub", [f"twice_{term}", "one"], [f"odd_{term}"]),
        ]
    results: dict[str, list[str]] = {"numbers": [], "truths": []}

    def add(kind: str, op: str, *operands: str) -> None:
        results[kind].append("_".join((op, *operands)))
        nodes.append(N(op, operands, [results[kind][-1]]))

    for a in TERMS:
        add("numbers", "Neg", a)
        add("numbers", "Abs", a)
        for b in TERMS:
            divisor = f"odd_{b}" if b in ("below", "above") else b
            for op in ARITHMETIC:
                add("numbers", op, a, divisor if op in ("Div", "Mod") else b)
            for op in COMPARISONS:
                add("truths", op, a, b)
    nodes += [N("Concat", names, [kind], axis=0) for kind, names in results.items()]
    consts = {"five": i(5), "one": i(1), "three": i(3), "minus_two": i(-2)}
    return model(nodes, [x("n", "m")], list(results), consts=consts, opset=18)


def test_arithmetic_of_sizes() -> None:
    """Div rounds towards zero and Mod down, whatever signs the operands have."""
    model_proto = arithmetic_model()
    imported = from_onnx(model_proto)
    for n in (1, 2, 4, 5, 7, 12):
        for m in (1, 3, 5, 6, 9):
            feeds = {"x": np.zeros((n, m), np.float32)}
            for want, output in zip(theirs(model_proto, feeds), ours(imported, feeds), strict=True):
                np.testing.assert_array_equal(output, want, f"{n} x {m}")


def test_conditions_on_sizes_are_data() -> None:
    model_proto = model(
        [
            N("Shape", ["x"], ["shape"]),
            N("Split", ["shape"], ["n", "m"], num_outputs=2),
            N("Less", ["n", "m"], ["less"]),
            N("Div", ["five", "n"], ["fifth"]),
        ],
        [x("n", "m")],
        ["less", "fifth"],
        consts={"five": i(-5)},
        opset=18,
    )
    run = Executor(compile_module(from_onnx(model_proto), "native"), cpu())["main"]
    for n, m in ((1, 1), (1, 2), (2, 1), (3, 3), (7, 9)):
        feeds = {"x": np.zeros((n, m), np.float32)}
        for want, output in zip(theirs(model_proto, feeds), run(feeds["x"]), strict=True):
            assert output.dtype == want.dtype
            np.testing.assert_array_equal(output.numpy(), want, f"{n} x {m}")


@pytest.mark.parametrize("code", [onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64])
def test_outputs_of_element_types_that_nobody_computes(code: int) -> None:
    """An initializer that is an output itself: no node reads it."""
    model_proto = model([N("Relu", ["x"], ["y"])], [x(2)], ["y", "c"])
    model_proto.graph.initializer.append(
        helper.make_tensor("c", code, (1,), [b"a" if code == 8 else 1])
    )
    (issue,) = check_onnx(model_proto)
    assert "'c' has element type" in issue.message
    with pytest.raises(UnsupportedError, match="'c' has element type"):
        from_onnx(model_proto)
