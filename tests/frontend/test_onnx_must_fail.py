"""Bad models: one clear error with place and hint, all issues at once, never a foreign trace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tensorkiln.base.errors import Issue, UnsupportedError, UserError
from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import model, node_model, value

X = value("x", np.float32, [2, 3])
RELU = helper.make_node("Relu", ["x"], ["y"], name="relu")


def issue(model_proto: onnx.ModelProto, **options: Any) -> Issue:
    """The only issue of a model; `from_onnx` raises the same."""
    (only_issue,) = check_onnx(model_proto, **options)
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(model_proto, **options)
    assert caught.value.issues == (only_issue,)
    return only_issue


def test_ten_nodes_ten_issues() -> None:
    """Different kinds at once; users of what failed say nothing more."""
    nodes = [
        helper.make_node("NonMaxSupression", ["x"], ["a0"], name="n0"),
        helper.make_node("Frobnicate", ["x"], ["a1"], name="n1", domain="com.acme"),
        helper.make_node("Relu", ["x"], ["a2"], name="n2", alpha=1.0),
        helper.make_node("Relu", ["x", "x"], ["a3"], name="n3"),
        helper.make_node("LeakyRelu", ["x"], ["a4"], name="n4", alpha=1),
        helper.make_node("MatMul", ["x", "x"], ["a5"], name="n5"),
        helper.make_node("Add", ["x", "nowhere"], ["a6"], name="n6"),
        helper.make_node("Cast", ["x"], ["a7"], name="n7", to=TensorProto.STRING),
        helper.make_node("Mish", ["x"], ["a8"], name="n8"),
        helper.make_node("Softmax", ["x"], ["a9"], name="n9", axis=5),
        *(helper.make_node("Relu", [f"a{i}"], [f"b{i}"], name=f"user{i}") for i in range(10)),
    ]
    model_proto = model(nodes, [X], [f"b{i}" for i in range(10)], opset=17, domains={"com.acme": 1})
    issues = check_onnx(model_proto)
    assert [i.node for i in issues] == [f"n{i}" for i in range(10)]
    assert [i.kind for i in issues] == [
        "operator",
        "operator",
        "attribute",
        "malformed",
        "malformed",
        "malformed",
        "malformed",
        "dtype",
        "opset",
        "malformed",
    ]
    assert "'LeakyRelu'" not in issues[0].hint
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(model_proto)
    assert caught.value.issues == issues
    for i in range(10):
        assert f"n{i}" in str(caught.value)


def test_unsupported_operators_behind_each_other_are_all_named() -> None:
    nodes = [
        helper.make_node("Frob", ["x"], ["a"], name="first"),
        helper.make_node("Nicate", ["a"], ["y"], name="second"),
    ]
    assert [i.node for i in check_onnx(model(nodes, [X], ["y"]))] == ["first", "second"]


def test_misspelt_operator_names_the_near_one() -> None:
    model_proto, _ = node_model("Sofmax", [np.zeros((2, 3), np.float32)])
    assert "'Softmax'" in issue(model_proto).hint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"not a model at all", "not an ONNX model"),
        (b"<html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04rest of an archive", "zip"),
        (b"\x08\x07", "holds no graph"),
        (bytes(range(256)) * 4, "not an ONNX model"),
    ],
)
def test_garbage_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        from_onnx(path)
    assert caught.value.code == "bad-model"
    assert caught.value.where == str(path)
    assert says in str(caught.value)


def test_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match="no such file") as caught:
        from_onnx(tmp_path / "resnet.onx")
    assert caught.value.code == "missing-file"
    assert "'resnet.onnx'" in caught.value.hint


def test_folder_and_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is a folder"):
        from_onnx(tmp_path)
    with pytest.raises(UserError, match="got int"):
        from_onnx(3)


def small() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Slice", ["h", "lo", "hi"], ["s"], name="cut"),
        helper.make_node("Softmax", ["s"], ["y"], name="soft", axis=-1),
    ]
    consts = {
        "w": np.ones((3, 4), np.float32),
        "lo": np.array([0, 1], np.int64),
        "hi": np.array([2, 9], np.int64),
    }
    model_proto = model(nodes, [value("x", np.float32, ["n", 3])], ["y"], consts=consts)
    return model_proto.SerializeToString()


SMALL = small()


def survives(data: bytes) -> None:
    """Either an import, or an error of ours that is not a bug report."""
    with contextlib.suppress(UserError):
        check_onnx(data)


def test_truncated_at_every_byte() -> None:
    """Never a crash; nearly always an error, since few prefixes are whole messages."""
    imported = 0
    for end in range(len(SMALL)):
        try:
            imported += not check_onnx(SMALL[:end])
        except UserError as error:
            assert error.code == "bad-model"
    assert imported <= 3


@settings(max_examples=300)
@given(st.data())
def test_any_changed_bytes(data: st.DataObject) -> None:
    changed = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(SMALL) - 1))
        changed[position] = data.draw(st.integers(0, 255))
    survives(bytes(changed))


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes(data: bytes) -> None:
    survives(data)


# -- graphs that the standard does not allow ----------------------------------------------------


def test_no_outputs() -> None:
    assert issue(model([RELU], [X], [])).message == "the graph has no outputs"


def test_undefined_operand_and_output() -> None:
    node = helper.make_node("Add", ["x", "ghost"], ["y"], name="sum")
    only_issue = issue(model([node], [X], ["y"]))
    assert (only_issue.kind, only_issue.node, only_issue.op) == ("malformed", "sum", "Add")
    assert "'ghost'" in only_issue.message
    assert "'z'" in issue(model([RELU], [X], ["z"])).message


def test_value_made_twice() -> None:
    twin = helper.make_node("Abs", ["x"], ["y"], name="abs")
    only_issue = issue(model([RELU, twin], [X], ["y"]))
    assert (only_issue.node, "made twice" in only_issue.message) == ("abs", True)


def test_cycle() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="two"),
    ]
    only_issue = issue(model(nodes, [X], ["b"]))
    assert "cycle through 'one', 'two'" in only_issue.message


def test_function_that_calls_itself() -> None:
    f = helper.make_function(
        "me",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("F", ["a"], ["b"], domain="me", name="again")],
        [helper.make_opsetid("", 17), helper.make_opsetid("me", 1)],
    )
    node = helper.make_node("F", ["x"], ["y"], domain="me", name="start")
    model_proto = model([node], [X], ["y"], functions=[f], domains={"me": 1})
    assert "calls itself" in issue(model_proto).message


@pytest.mark.parametrize(("opset", "hint"), [(6, "7 to 28"), (99, "version_converter")])
def test_opset(opset: int, hint: str) -> None:
    only_issue = issue(model([RELU], [X], ["y"], opset=opset))
    assert (only_issue.kind, str(opset) in only_issue.message, hint in only_issue.hint) == (
        "opset",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "says"),
    [
        ("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, ""),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3)], {}, "the weights have 3 dimensions"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"pads": [1, 1]}, "pads=[1, 1]"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"auto_pad": "SOME"}, "auto_pad='SOME'"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"kernel_shape": [5, 5]}, "kernel_shape=[5, 5]"),
        ("MaxPool", [(1, 3, 8, 8)], {}, "'kernel_shape' is missing"),
        ("MaxPool", [(3, 8)], {"kernel_shape": [2]}, "2 dimensions"),
        ("Gemm", [(2, 3, 4), (4, 5)], {}, "3 and 2 dimensions"),
        ("MatMul", [(2, 3), (4, 5)], {}, ""),
        ("Add", [(2, 3), (4,)], {}, ""),
        ("Concat", [(2, 3), (4, 5)], {"axis": 0}, ""),
        ("Transpose", [(2, 3)], {"perm": [0, 0]}, "not a permutation"),
        ("Flatten", [(2, 3)], {"axis": 7}, "axis=7"),
        ("Gather", [(2, 3), (2,)], {}, ""),
        ("Squeeze", [(2, 3)], {"axes": [0]}, ""),
        ("DepthToSpace", [(1, 5, 2, 2)], {"blocksize": 2}, "blocksize=2"),
        ("Trilu", [(3,)], {}, "2 or more dimensions"),
        ("Split", [()], {}, "a scalar"),
        ("Gather", [(), (1,)], {}, ""),
        ("LayerNormalization", [(2, 3), (5,)], {}, ""),
    ],
)
def test_operands_that_do_not_fit(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], says: str
) -> None:
    model_proto, _ = node_model(op, [np.zeros(s, np.float32) for s in shapes], **attrs)
    only_issue = issue(model_proto)
    assert (only_issue.node, only_issue.op) == ("it", op)
    assert only_issue.kind in ("malformed", "dtype", "attribute")
    assert says in only_issue.message


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ([5, -1], "6 elements do not divide into rows of 5"),
        ([-1, -1], "2 entries of -1"),
        ([4], "6 elements cannot take a shape of 4"),
        ([1, 1, 0], "entry 2 copies a dimension"),
    ],
)
def test_reshape(shape: list[int], says: str) -> None:
    operands = [np.zeros((2, 3), np.float32), np.array(shape, np.int64)]
    model_proto, _ = node_model("Reshape", operands, fixed=(1,))
    assert says in issue(model_proto).message


@pytest.mark.parametrize("index", [3, -4])
def test_constant_index_outside_of_a_shape(index: int) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "at"], ["y"], name="pick"),
    ]
    model_proto = model(
        nodes, [value("x", np.float32, ["n", 2, 3])], ["y"], consts={"at": np.array(index)}
    )
    only_issue = issue(model_proto)
    assert (only_issue.node, f"index {index} is outside" in only_issue.message) == ("pick", True)


def test_attention_of_other_ranks() -> None:
    for shapes in ([(2, 3, 4), (2, 3, 4), (3, 4)], [(1, 2, 3, 4)] * 3 + [None, (3, 4), (3, 4)]):
        operands = [None if s is None else np.zeros(s, np.float32) for s in shapes]
        heads = {"q_num_heads": 1, "kv_num_heads": 1} if len(shapes[0]) == 3 else {}
        model_proto, _ = node_model("Attention", operands, opset=23, **heads)
        assert "4 dimensions" in issue(model_proto).message


def test_shape_from_data_says_so() -> None:
    x, shape = np.zeros((1, 4, 2), np.float32), np.array([3, 3], np.int64)
    model_proto, _ = node_model("Col2Im", [x, shape, np.array([2, 2], np.int64)], opset=18)
    only_issue = issue(model_proto)
    assert "computed from data" in only_issue.message
    assert "constants" in only_issue.hint


def test_bad_initializers() -> None:
    short = TensorProto(name="w", data_type=1, dims=[2, 3], raw_data=b"\0" * 20)
    wrong = TensorProto(name="w", data_type=77, dims=[1])
    for tensor, says in ((short, "needs 24 bytes, got 20"), (wrong, "element type 77")):
        model_proto = model([helper.make_node("Add", ["x", "w"], ["y"], name="sum")], [X], ["y"])
        model_proto.graph.initializer.append(tensor)
        assert says in issue(model_proto).message


def test_inputs_that_are_no_plain_tensors() -> None:
    model_proto = model([RELU], [helper.make_tensor_sequence_value_info("x", 1, [2])], ["y"])
    assert "not a tensor" in issue(model_proto).message
    open_rank = value("x", np.float32, None)
    assert "declares no shape" in issue(model([RELU], [open_rank], ["y"])).message
    assert "string" in issue(model([RELU], [value("x", TensorProto.STRING, [2])], ["y"])).message


def test_freeze_of_an_unknown_name() -> None:
    model_proto = model([RELU], [value("x", np.float32, ["batch", None])], ["y"])
    with pytest.raises(UserError) as caught:
        from_onnx(model_proto, freeze={"bacth": 1})
    assert caught.value.code == "unknown-dimension"
    assert "'batch', 'x_d1'" in caught.value.message
    assert "'batch'" in caught.value.hint
    with pytest.raises(UserError, match="non-negative integer"):
        from_onnx(model_proto, freeze={"batch": -1})


# -- external data ------------------------------------------------------------------------------


def external(folder: Path, location: str, **further_entries: str) -> Path:
    """A model in `folder` whose weights are said to lie at `location`."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=1)
    for key, text in {"location": location, **further_entries}.items():
        w.external_data.add(key=key, value=text)
    model_proto = model([helper.make_node("Add", ["x", "w"], ["y"], name="sum")], [X], ["y"])
    model_proto.graph.initializer.append(w)
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(model_proto.SerializeToString())
    return path


def weights(path: Path) -> Path:
    path.write_bytes(np.arange(3, dtype=np.float32).tobytes())
    return path


def test_external_data_beside_the_model_is_a_view(tmp_path: Path) -> None:
    weights(tmp_path / "w.bin")
    module = from_onnx(external(tmp_path, "w.bin"))
    array = module["main"].bindings[0].value.args[1].array  # type: ignore[union-attr]
    assert array.tolist() == [0, 1, 2]
    assert not array.flags.owndata and not array.flags.writeable


@pytest.mark.parametrize("location", ["../w.bin", "a/../../w.bin", "/etc/passwd", ""])
def test_external_data_elsewhere(tmp_path: Path, location: str) -> None:
    weights(tmp_path / "w.bin")
    with pytest.raises(UserError) as caught:
        from_onnx(external(tmp_path / "m", location))
    assert caught.value.code == "unsafe-path"


@pytest.mark.parametrize("kind", ["symlink", "hardlink"])
def test_external_data_by_a_link(tmp_path: Path, kind: str) -> None:
    secret = weights(tmp_path / "w.bin")
    path = external(tmp_path / "m", "w.bin")
    link = path.parent / "w.bin"
    link.symlink_to(secret) if kind == "symlink" else link.hardlink_to(secret)
    with pytest.raises(UserError) as caught:
        from_onnx(path)
    assert caught.value.code == "unsafe-path"
    assert caught.value.hint


def test_external_data_in_a_granted_folder(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    weights(tmp_path / "pool" / "w.bin")
    path = external(tmp_path / "m", "w.bin")
    with pytest.raises(UserError) as caught:
        from_onnx(path)
    assert (caught.value.code, "external_roots" in caught.value.hint) == ("missing-file", True)
    assert from_onnx(path, external_roots=[tmp_path / "pool"])
    proto = onnx.load(path, load_external_data=False)
    assert from_onnx(proto, external_roots=[tmp_path / "pool"])
    with pytest.raises(UserError, match="has no folder"):
        from_onnx(proto)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"offset": "8"}, "needs bytes 8 to 20"),
        ({"offset": "-4"}, "needs bytes -4"),
        ({"length": "99999999999999999999"}, "holds 12"),
    ],
)
def test_short_external_file(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    weights(tmp_path / "w.bin")
    with pytest.raises(UserError) as caught:
        from_onnx(external(tmp_path, "w.bin", **entries))
    assert caught.value.code == "short-file"
    assert says in str(caught.value)


def test_malformed_external_entries(tmp_path: Path) -> None:
    weights(tmp_path / "w.bin")
    for entries, says in (
        ({"offset": "four"}, "not an integer"),
        ({"length": "8"}, "needs 12 bytes"),
    ):
        (issue,) = check_onnx(external(tmp_path, "w.bin", **entries))
        assert says in issue.message
