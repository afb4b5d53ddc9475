"""Type rules: what does not fit is refused with the operand, what was expected and what came."""

from __future__ import annotations

import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import RVar, ShapeValue, TensorType, tensor
from tensorkiln.ops.rules import show_type

N, M = Var("N"), Var("M")
Operand = tuple[tuple[Expr | int, ...], str]


def t(*shape: Expr | int, dtype: str = "float32") -> Operand:
    return shape, dtype


def infer(op: str, operands: list[Operand], attrs: dict[str, object]) -> TensorType:
    args = [RVar(f"x{k}", tensor(shape, dtype)) for k, (shape, dtype) in enumerate(operands)]
    return ops.infer(ops.call(op, *args, span="node7", **attrs))


POOL = {"kernel": (3, 3)}
# operator, operands, attributes, error code, words its message must hold
REFUSED: list[tuple[str, list[Operand], dict[str, object], str, list[str]]] = [
    ("relu", [], {}, "operand-count", ["expected 1 operand(s) (x)", "received 0"]),
    ("relu", [t(2), t(2)], {}, "operand-count", ["received 2"]),
    ("conv2d", [t(1)], {}, "operand-count", ["expected 2 to 3 operand(s) (x, w, bias?)"]),
    ("concat", [], {"axis": 0}, "operand-count", ["'xs'", "one or more", "none"]),
    ("relu", [t(2)], {"alpa": 1}, "unknown-attribute", ["'alpa'"]),
    ("reshape", [t(2)], {}, "missing-attribute", ["shape"]),
    ("exp", [t(2, dtype="int32")], {}, "dtype-mismatch", ["'x'", "float", "int32"]),
    ("neg", [t(2, dtype="uint8")], {}, "dtype-mismatch", ["'x'", "signed", "uint8"]),
    ("logical_not", [t(2)], {}, "dtype-mismatch", ["'x'", "bool", "float32"]),
    ("gelu", [t(2)], {"approximate": "fast"}, "bad-attribute", ["'approximate'", "'fast'"]),
    ("clip", [t(2)], {"min": "0"}, "bad-attribute", ["'min'", "a number or None", "'0'"]),
    ("clip", [t(2, dtype="int32")], {"max": 0.5}, "bad-attribute", ["'max'", "int32", "0.5"]),
    ("cast", [t(2)], {"dtype": "float31"}, "bad-attribute", ["'dtype'", "'float31'"]),
    ("add", [t(2, 3), t(2, 4)], {}, "shape-mismatch", ["'b'", "3 (as in 'a')", "[2, 4]"]),
    ("add", [t(N), t(M)], {}, "shape-mismatch", ["'b'", "N (as in 'a')", "[M]"]),
    ("add", [t(N), t(4)], {}, "shape-mismatch", ["'b'", "N", "[4]"]),
    ("add", [t(2), t(2, dtype="float64")], {}, "dtype-mismatch",
     ["'b'", "float32 like operand 'a'", "float64"]),
    ("add", [t(2, dtype="bool"), t(2, dtype="bool")], {}, "dtype-mismatch", ["'a'", "bool"]),
    ("mod", [t(2), t(2)], {}, "dtype-mismatch", ["integer", "fmod=0", "float32"]),
    ("mod", [t(2), t(2)], {"fmod": 2}, "bad-attribute", ["'fmod'", "0 or 1", "2"]),
    ("where", [t(2), t(2), t(2)], {}, "dtype-mismatch", ["'cond'", "bool", "float32"]),
    ("where", [t(2, dtype="bool"), t(2), t(2, dtype="int8")], {}, "dtype-mismatch",
     ["'b'", "float32", "int8"]),
    ("reshape", [t(2, 3)], {"shape": (4, 2)}, "element-count", ["'x'", "8", "float32[2, 3]"]),
    ("reshape", [t(N, 3)], {"shape": (N, 4)}, "element-count", ["'x'", "[N, 4]", "[N, 3]"]),
    ("reshape", [t(2, 3)], {"shape": (-1, 2)}, "bad-attribute", ["'shape'", "(-1, 2)"]),
    ("transpose", [t(2, 3)], {"axes": (0, 0)}, "bad-attribute", ["'axes'", "2 axes", "(0, 0)"]),
    ("broadcast_to", [t(2, 3)], {"shape": (2, 4)}, "shape-mismatch", ["'x'", "[2, 3]"]),
    ("broadcast_to", [t(2, 3)], {"shape": (1, 3)}, "shape-mismatch", ["'x'", "[1, 3]", "[2, 3]"]),
    ("slice", [t(5)], {"begin": (0,), "strides": (0,), "shape": (1,)}, "bad-attribute",
     ["'strides'", "other than 0"]),
    ("slice", [t(5)], {"begin": (0, 0), "strides": (1,), "shape": (1,)}, "bad-attribute",
     ["'begin'", "1 value(s)"]),
    ("slice", [t(5)], {"begin": (3,), "strides": (1,), "shape": (3,)}, "out-of-range",
     ["'x'", "3 to 5", "float32[5]"]),
    ("slice", [t(5)], {"begin": (1,), "strides": (-1,), "shape": (3,)}, "out-of-range",
     ["'x'", "1 to -1"]),
    ("concat", [t(2, 3), t(3, 3)], {"axis": 1}, "shape-mismatch", ["'xs[1]'", "[2, 3]", "[3, 3]"]),
    ("concat", [t(2), t(2, dtype="int8")], {"axis": 0}, "dtype-mismatch", ["'xs[1]'", "int8"]),
    ("concat", [t(2), t(2)], {"axis": 1}, "bad-attribute", ["'axis'", "from -1 to 0", "1"]),
    ("take", [t(2, 3), t(1)], {}, "dtype-mismatch", ["'indices'", "integer", "float32"]),
    ("take", [t(0, 3), t(1, dtype="int64")], {}, "out-of-range", ["'x'", "non-empty", "[0, 3]"]),
    ("pad", [t(3)], {"before": (1,), "after": (1,), "mode": "wrap"}, "bad-attribute",
     ["'mode'", "'wrap'"]),
    ("pad", [t(3)], {"before": (-1,), "after": (1,)}, "bad-attribute", ["'before'", "(-1,)"]),
    ("pad", [t(3)], {"before": (3,), "after": (0,), "mode": "reflect"}, "shape-mismatch",
     ["'x'", "4 or more", "reflect", "float32[3]"]),
    ("pad", [t(0)], {"before": (1,), "after": (0,), "mode": "edge"}, "shape-mismatch",
     ["'x'", "1 or more", "float32[0]"]),
    ("tile", [t(2, 3)], {"repeats": (2,)}, "bad-attribute", ["'repeats'", "2 repeats", "[2]"]),
    ("full", [], {"shape": (2,), "value": 0, "dtype": "int7"}, "bad-attribute", ["'int7'"]),
    ("arange", [], {"start": 0, "step": 1, "count": -1}, "bad-attribute", ["'count'", "-1"]),
    ("relayout", [t(2, 3)], {"layout": "A Q"}, "bad-attribute", ["'layout'", "'A Q'"]),
    ("relayout", [t(2, 3)], {"layout": "A B C"}, "bad-attribute", ["2 dimension(s)", "'A B C'"]),
    ("sum", [t(2, 3)], {"axes": (2,)}, "bad-attribute", ["'axes'", "from -2 to 1", "2"]),
    ("sum", [t(2, 3)], {"axes": (1, -1)}, "bad-attribute", ["'axes'", "distinct", "(1, -1)"]),
    ("mean", [t(2, dtype="bool")], {"axes": (0,)}, "dtype-mismatch", ["'x'", "numeric", "bool"]),
    ("argmax", [t(2, 0)], {"axis": 1}, "shape-mismatch", ["'x'", "non-empty", "[2, 0]"]),
    ("conv2d", [t(1, 3, 8, 8, dtype="uint8"), t(4, 3, 3, 3, dtype="uint8")], {}, "dtype-mismatch",
     ["'x'", "float", "uint8"]),
    ("conv2d", [t(1, 3, 8, 8, dtype="uint8"), t(4, 3, 3, 3, dtype="int8"), t(4)], {},
     "dtype-mismatch", ["'bias'", "int32", "float32"]),
    ("linear", [t(2, 3, dtype="int8"), t(3, 4, dtype="uint8")], {}, "dtype-mismatch",
     ["'x'", "int8"]),
    ("matmul", [t(2, 3), t(3, 4)], {"wide": True}, "bad-attribute", ["'wide'", "float32"]),
    ("quantize", [t(2, 3), t(), t()], {}, "dtype-mismatch", ["'zero'", "uint8, int8", "float32"]),
    ("quantize", [t(2, 3, dtype="float16"), t(dtype="float16"), t(dtype="uint8")], {},
     "dtype-mismatch", ["'x'", "float32", "float16"]),
    ("quantize", [t(2, 3), t(2, 2, 3), t(dtype="int8")], {}, "shape-mismatch",
     ["'scale'", "broadcasts to [2, 3]", "[2, 2, 3]"]),
    ("dequantize", [t(2, 3, dtype="uint8"), t(), t(dtype="int8")], {}, "dtype-mismatch",
     ["'zero'", "uint8", "int8"]),
    ("dequantize", [t(2, 3, dtype="int64"), t(), t(dtype="int64")], {}, "dtype-mismatch",
     ["'x'", "int32", "int64"]),
    ("conv2d", [t(1, 3, 8), t(4, 3, 3, 3)], {}, "rank-mismatch", ["'x'", "4", "[1, 3, 8]"]),
    ("conv2d", [t(1, 3, 8, 8), t(4, 2, 3, 3)], {}, "shape-mismatch",
     ["'x'", "2 channels", "float32[1, 3, 8, 8]"]),
    ("conv2d", [t(1, 4, 8, 8), t(3, 2, 3, 3)], {"groups": 2}, "shape-mismatch",
     ["'w'", "multiple of 2", "[3, 2, 3, 3]"]),
    ("conv2d", [t(1, 3, 8, 8), t(4, 3, 3, 3), t(3)], {}, "shape-mismatch",
     ["'bias'", "[4]", "float32[3]"]),
    ("conv2d", [t(1, 3, 2, 8), t(4, 3, 3, 3)], {}, "shape-mismatch",
     ["'x'", "height of 3 or more", "[1, 3, 2, 8]"]),
    ("conv2d", [t(1, 3, 8, 8), t(4, 3, M, 3)], {}, "shape-mismatch", ["'w'", "known height"]),
    ("conv2d", [t(1, 3, 8, 8), t(4, 3, 3, 3)], {"strides": (0, 1)}, "bad-attribute",
     ["'strides'", "of 1 to 2^47", "(0, 1)"]),
    ("conv2d", [t(1, 3, 8, 8), t(4, 3, 3, 3)], {"padding": (1, 1)}, "bad-attribute",
     ["'padding'", "4 integer(s)", "(1, 1)"]),
    ("conv2d_transpose", [t(1, 3, 8), t(3, 4, 3, 3)], {}, "rank-mismatch", ["'x'", "[1, 3, 8]"]),
    ("conv2d_transpose", [t(1, 3, 8, 8), t(4, 3, 3, 3)], {}, "shape-mismatch",
     ["'x'", "4 channels", "float32[1, 3, 8, 8]"]),
    ("conv2d_transpose", [t(1, 3, 8, 8), t(3, 4, 3, 3)], {"groups": 2}, "shape-mismatch",
     ["'w'", "multiple of 2", "[3, 4, 3, 3]"]),
    ("conv2d_transpose", [t(1, 3, 8, 8), t(3, 4, 3, 3), t(3)], {}, "shape-mismatch",
     ["'bias'", "[4]", "float32[3]"]),
    ("conv2d_transpose", [t(1, 3, 2, 8), t(3, 4, 3, 3)], {"cut": (2, 0, 2, 0)}, "shape-mismatch",
     ["'x'", "height", "cut=(2, 0, 2, 0)"]),
    ("conv2d_transpose", [t(1, 3, 8, 8), t(3, 4, M, 3)], {}, "shape-mismatch",
     ["'w'", "known height"]),
    ("conv2d_transpose", [t(1, 3, 8, 8, dtype="int32"), t(3, 4, 3, 3, dtype="int32")], {},
     "dtype-mismatch", ["'x'", "float", "int32"]),
    ("conv2d", [t(1, 3, 8, 8, dtype="int8"), t(4, 3, 3, 3, dtype="int8")], {}, "dtype-mismatch",
     ["'x'", "float", "int8"]),
    ("max_pool2d", [t(1, 3, 8, 8)], {**POOL, "padding": (3, 0, 0, 0)}, "bad-attribute",
     ["'padding'", "less than the kernel", "(3, 0, 0, 0)"]),
    ("avg_pool2d", [t(1, 3, 8)], POOL, "rank-mismatch", ["'x'", "4 dimension(s)", "[1, 3, 8]"]),
    ("avg_pool2d", [t(1, 3, 8, 2)], POOL, "shape-mismatch", ["'x'", "width of 3", "[1, 3, 8, 2]"]),
    ("batch_norm", [t(1, 3, 2), t(3), t(4), t(3), t(3)], {}, "shape-mismatch",
     ["'beta'", "[3]", "float32[4]"]),
    ("layer_norm", [t(2, 3, 4), t(3)], {}, "shape-mismatch", ["'gamma'", "[4]", "float32[3]"]),
    ("layer_norm", [t(2, 4), t(4), t(2, 4)], {}, "shape-mismatch", ["'beta'", "[4]", "[2, 4]"]),
    ("softmax", [t(2, 3)], {"axis": 2}, "bad-attribute", ["'axis'", "from -2 to 1", "2"]),
    ("lrn", [t(2, 3)], {"size": 0}, "bad-attribute", ["'size'", "1 or more"]),
    ("matmul", [t(2, 3), t(4, 5)], {}, "shape-mismatch",
     ["'b'", "3 rows", "float32[2, 3]", "float32[4, 5] with 4"]),
    ("matmul", [t(2, 2, 3), t(3, 3, 5)], {}, "shape-mismatch", ["'b'", "2 (as in 'a')", "[3]"]),
    ("matmul", [t(), t(4)], {}, "rank-mismatch", ["'a'", "1 or more", "float32[]"]),
    ("matmul", [t(4), t(4)], {"transpose_b": True}, "rank-mismatch", ["'b'", "2 or more"]),
    ("linear", [t(2, 3), t(4, 5)], {}, "shape-mismatch", ["'x'", "4 to meet 'w'", "[2, 3]"]),
    ("linear", [t(2, 4), t(4, 5), t(4)], {}, "shape-mismatch", ["'bias'", "[5]", "[4]"]),
    ("linear", [t(2, 4), t(4)], {}, "rank-mismatch", ["'w'", "2 dimension(s) (K, N)", "[4]"]),
    ("attention", [t(1, 2, 3, 4), t(1, 2, 5, 3), t(1, 2, 5, 4)], {"scale": 1.0},
     "shape-mismatch", ["'k'", "[1, 2, 5, 4]", "[1, 2, 5, 3]"]),
    ("attention", [t(1, 2, 3, 4), t(1, 2, 5, 4), t(1, 2, 6, 4)], {"scale": 1.0},
     "shape-mismatch", ["'v'", "[1, 2, 5, 4]", "[1, 2, 6, 4]"]),
    ("attention", [t(1, 2, 3, 4)] * 3 + [t(2, 3)], {"scale": 1.0}, "shape-mismatch",
     ["'mask'", "[1, 2, 3, 3]", "float32[2, 3]"]),
    ("attention", [t(1, 2, 3, 4)] * 3 + [t(3, 3, dtype="int64")], {"scale": 1.0},
     "dtype-mismatch", ["'mask'", "float32", "int64"]),
    ("attention", [t(1, 2, 3, 4)] * 3, {}, "missing-attribute", ["scale"]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attrs", "code", "words"), REFUSED)
def test_refused(
    op: str, operands: list[Operand], attrs: dict[str, object], code: str, words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        infer(op, operands, attrs)
    error = caught.value
    assert error.code == code
    assert error.where == "node7"
    assert op in error.message
    missing = [w for w in words if w not in error.message]
    assert not missing, f"{missing} not in {error.message!r}"


# operator, operands, attributes, result
ACCEPTED: list[tuple[str, list[Operand], dict[str, object], str]] = [
    ("isnan", [t(N, 2)], {}, "bool[N, 2]"),
    ("cast", [t(N)], {"dtype": "int8"}, "int8[N]"),
    ("add", [t(N, 1), t(4)], {}, "float32[N, 4]"),
    ("add", [t(N + 1), t(1 + N)], {}, "float32[(N + 1)]"),
    ("less", [t(2), t(3, 1)], {}, "bool[3, 2]"),
    ("reshape", [t(N, 12, M)], {"shape": (M, N * 3, 4)}, "float32[M, (N * 3), 4]"),
    ("concat", [t(2, 3), t(2, 0), t(2, 4)], {"axis": -1}, "float32[2, 7]"),
    ("take", [t(5, 6, 7), t(2, N, dtype="int32")], {"axis": 1}, "float32[5, 2, N, 7]"),
    ("full", [], {"shape": (N,), "value": 1, "dtype": "int64"}, "int64[N]"),
    ("arange", [], {"start": 0, "step": 1, "count": N}, "int64[N]"),
    ("argmax", [t(2, 3, 4)], {"axis": -2, "keepdims": True}, "int64[2, 1, 4]"),
    ("sum", [t(2, 3, N)], {"axes": (0, -1)}, "float32[3]"),
    (
        "conv2d",
        [t(N, 3, 224, 224), t(64, 3, 7, 7)],
        {"strides": (2, 2), "padding": (3, 3, 3, 3)},
        "float32[N, 64, 112, 112]",
    ),
    (
        "max_pool2d",
        [t(N, 64, 112, 112)],
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
        "float32[N, 64, 56, 56]",
    ),
    (
        "max_pool2d",
        [t(1, 1, 6, 5)],
        {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True},
        "float32[1, 1, 3, 2]",
    ),
    ("matmul", [t(N, 12, M, 64), t(N, 12, 64, M)], {}, "float32[N, 12, M, M]"),
    ("matmul", [t(3), t(N, 3, 4)], {}, "float32[N, 4]"),
    ("linear", [t(N, M, 768), t(768, 3072), t(3072)], {}, "float32[N, M, 3072]"),
    (
        "attention",
        [t(N, 12, 1, 64), t(N, 12, M, 64), t(N, 12, M, 32), t(1, M, dtype="bool")],
        {"scale": 0.125},
        "float32[N, 12, 1, 32]",
    ),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "want"), ACCEPTED)
def test_accepted(op: str, operands: list[Operand], attrs: dict[str, object], want: str) -> None:
    assert show_type(infer(op, operands, attrs)) == want


def test_ceil_mode_of_a_symbolic_extent_is_the_static_rule() -> None:
    """One expression for every extent: the last window must start inside."""
    from tensorkiln.ir.expr import IntImm, int_value
    from tensorkiln.ir.visit import substitute

    attrs = {"kernel": (2, 2), "strides": (3, 3), "padding": (1, 1, 1, 1), "ceil_mode": True}
    symbolic = infer("max_pool2d", [t(1, 1, N, 8)], attrs).shape[2]
    for extent in range(1, 30):
        static = infer("max_pool2d", [t(1, 1, extent, 8)], attrs).shape[2]
        assert int_value(substitute(symbolic, {N: IntImm(extent)})) == int_value(static)


def test_layouts_of_operands_do_not_matter() -> None:
    """A type rule speaks of logical tensors: its result is row-major."""
    packed = tensor((1, 8, 4, 4), "float32").with_layout(Layout.parse("A B/4 C D B%4"))
    out = ops.infer(ops.call("relu", RVar("x", packed)))
    assert out == tensor((1, 8, 4, 4), "float32")
    back = ops.infer(ops.call("relayout", RVar("x", packed), layout="A B C D"))
    assert back.layout is None
    again = ops.infer(ops.call("relayout", RVar("x", back), layout="A B/4 C D B%4"))
    assert again == packed


def test_unknown_operator_names_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        ops.call("conv2", RVar("x", tensor((1,), "float32")))
    assert caught.value.code == "unknown-operator"
    assert "'conv2d'" in caught.value.hint


def test_unknown_attribute_names_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        ops.call("softmax", RVar("x", tensor((1,), "float32")), axes=1)
    assert caught.value.code == "unknown-attribute"
    assert "'axis'" in caught.value.hint


def test_a_shape_is_not_a_tensor() -> None:
    with pytest.raises(UserError) as caught:
        ops.infer(ops.call("relu", ShapeValue((N,)), span="n1"))
    assert caught.value.code == "operand-kind"
    assert "'x'" in caught.value.message
    assert "ShapeType" in caught.value.message


def test_the_table_is_consistent() -> None:
    for name, op in ops.OPS.items():
        assert op.name == name
        assert op.pattern in ops.PATTERNS
        optional = [n.endswith("?") for n in op.inputs]
        assert optional == sorted(optional), f"{name}: optional operands come last"
        assert all(not n.endswith("*") for n in op.inputs[:-1]), f"{name}: variadic comes last"
    alone = [n for n, op in ops.OPS.items() if op.program is None]
    places = ["tree_leaves", "top_k", "scatter", "coupled"]
    products = ["attention", "winograd_conv2d", "strassen_parts", "strassen_linear"]
    assert alone == [*products, *places]
