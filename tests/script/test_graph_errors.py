"""Graphs that are wrong: branches, loops, closures, casts, calls and types, each with its place."""

from __future__ import annotations

import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.script import from_source

from .test_script_errors import underlined

HEAD = """@ir_module
class Net:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def half(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        return R.neg(x)

    @R.function
    def main(
        x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool"), any: R.Tensor(ndim=1, dtype="int64"),
        t: R.Tuple(R.Tensor((2,), "int64"), R.String), f: R.Callable((R.Shape(1),), R.Object),
        o: R.Object, k: R.Prim("int64"), m: R.Tensor(("n", 4), "float32")
    ):
"""

# body, the text underlined (its first line), a part of the message, a part of the hint
WRONG = [
    # conditions
    ("if x:\n    y = x\nelse:\n    y = x", "x", "a condition is one bool, not float32[4]", "n > 4"),
    ("if k:\n    y = x", "k", "a condition is one bool, not number int64", "n > 4"),
    ("if n + 1 > 4 > 2:\n    y = x", "n + 1 > 4 > 2", "chained comparison", "and"),
    ("while any:\n    x = R.neg(x)", "any", "a condition is one bool, not int64[?]", ""),
    # branches
    (
        "if c:\n    y = x\nelse:\n    y = R.neg(m)\nreturn y",
        "y = R.neg(m)",
        "'y' is float32[4] in one branch, float32[n, 4] in the other",
        "y: R.Tensor(ndim=..., dtype=...)",
    ),
    (
        "if c:\n    y = x\nelse:\n    y = t\nreturn y",
        "y = t",
        "'y' is float32[4] in one branch, (int64[2], string) in the other",
        "y: R.Object",
    ),
    ("if c:\n    y = x\nreturn y", "y", "unknown name 'y'", ""),
    ("if c:\n    return x\nreturn m", "if c:", "one branch returns float32[4], the other", "->"),
    ("if c:\n    return x\nelse:\n    return x\nreturn x", "return x", "nothing may follow", ""),
    ("for i in range(3):\n    y = x", "for i in range(3):", "not a statement of graphs", "while"),
    ("with R.dataflow():\n    return x", "return x", "return may only end", "both branches"),
    # loops
    ("while c:\n    y = x", "while c:", "assigns nothing that was bound before it", "x = f(x)"),
    (
        "while c:\n    x = R.nonzero(x)",
        "x = R.nonzero(x)",
        "'x' is float32[4] before the loop, int64[?, ?] after it",
        "x: R.Tensor(ndim=..., dtype=...) = ...",
    ),
    ("y = R.while_loop(c, f, x)", "c", "bool[] is not a function", ""),
    ("y = R.while_loop(f, f, x)", "f", "a condition is one bool, not object", ""),
    ("y = R.while_loop(f)", "R.while_loop(f)", "expected R.while_loop(cond, body, state", ""),
    ("while c:\n    c = c\nelse:\n    y = x", "y = x", "a loop has no else", ""),
    # functions
    ("def inner(a: R.Shape(1)):\n    return a", "def inner", "one known decorator", "@R.function"),
    ("@R.function\ndef inner(a):\n    return a", "a", "parameter 'a' needs a type", "x: R.Tensor"),
    ("y = o(x)", "o", "object is not a function", "R.match_cast(f, R.Callable(...))"),
    ("y = f(x)", "x", "shape of 1 expected, float32[4] given", "R.match_cast"),
    ("y = f(R.shape([1]), x)", "f(R.shape([1]), x)", "f takes 1 operands, got 2", ""),
    ("y = cls.half(x)", "x", "float32[n, 4] expected, float32[4] given", "R.match_cast"),
    ("y = cls.half(any)", "any", "float32[n, 4] expected, int64[?] given", "R.match_cast"),
    ("y = cls.half()", "cls.half()", "half takes 1 operands, got 0", ""),
    ("y = cls.main(x, c, any, t, f, o, k, m)", "cls.main", "not known before its text", "->"),
    ("y = cls.haf(m)", "cls.haf", "no function 'haf'", "'half'"),
    ("y = g(x)", "g", "not an operator", "R.name"),
    # casts and types
    ('y = R.match_cast(x, R.Tensor((5,), "float32"))', "R.Tensor", "float32[4] can never be", ""),
    ('y = R.match_cast(x, R.Tensor(ndim=2, dtype="float32"))', "R.Tensor", "can never be", ""),
    ("y = R.match_cast(x)", "R.match_cast(x)", "expected R.match_cast(value, type)", ""),
    ('y: R.Tensor((4,), "int64") = x', "R.Tensor", "the variable is int64[4], its value", "cast"),
    ('y: R.Tensor((2,), "int64") = any', "R.Tensor", "its value int64[?]", "R.match_cast"),
    ("y: R.Tensr = x", "R.Tensr", "not a type", "'R.Tensor'"),
    ("y: R.Shape = o", "R.Shape", "expected the number of extents", "R.Shape(ndim=2)"),
    ('y: R.Tensor((4,), "float32", ndim=1) = x', "1", "a shape says how many dimensions", ""),
    ('y: R.Tensor(dtyp="float32") = x', '"float32"', "unknown option 'dtyp'", "'dtype'"),
    ("y: R.Callable(x, R.Object) = f", "x", "expected the types of the parameters", "R.Callable("),
    ('y: R.Prim("float32x4") = k', "R.Prim", "is a vector, not one number", ""),
    # values
    ("y = t[2]", "t[2]", "no item 2: 2 items in this value", ""),
    ("y = o[0]", "o[0]", "items are those of tuples, not of object", "R.match_cast"),
    ("y = R.shape([1.5])", "1.5", "an extent is an integer, not float32", ""),
    ("y = R.shape([q])", "q", "unknown name 'q'", ""),
    ("y = n", "n", "'n' is a number, not a tensor", "R.prim_value(n)"),
    ("y = R.str(n)", "n", "expected a literal value", ""),
    ("y = R.prim_value(n, n)", "R.prim_value(n, n)", "R.prim_value takes one argument", ""),
    ("y = R.add(x, 3)", "R.add(x, 3)", "expected a tensor, received PrimType", ""),
    ("y = R.add(x, any)", "R.add(x, any)", "expected a tensor, received AnyTensorType", ""),
    # calls of what is registered by name, and in place
    ("y = R.call_packed(x)", "x", "graph value, not a number", ""),
    ("y = R.call_packed()", "R.call_packed()", 'expected R.call_packed("name", args...)', ""),
    ('y = R.call_packed("f", x, name="g")', '"g"', "'name' is given by position", ""),
    ('y = R.call_dps_packed("f", [x])', "R.call_dps_packed", "type of this result is not", "write"),
    ("y = R.call_tir_inplace(cls.half, [x], [0])", "cls.half", "half is not a tensor program", ""),
    ("y = R.call_tir_inplace(cls.add_one, [x, x])", "R.call_tir", "indices of", "inplace_indices"),
    ("y = R.call_tir_inplace(cls.add_one, [x, x], [2])", "[2]", "indices of the 2 operands", ""),
    ("y = R.call_tir_inplace(cls.add_one, [x], [-1])", "R.call_tir", "not known here", "out_type="),
    ("y = R.call_tir(x, [x])", "x", "expected a function of this module", "cls.add_one"),
]


@pytest.mark.parametrize(("body", "place", "message", "hint"), WRONG)
def test_wrong_graphs(body: str, place: str, message: str, hint: str) -> None:
    indented = "".join(f"        {line}\n" for line in body.split("\n"))
    end = "" if "return" in body else "        return x\n"
    with pytest.raises(UserError) as info:
        from_source(f"{HEAD}{indented}{end}", file="net.py", infer=ops.infer)
    assert info.value.code == "script"
    assert info.value.where.startswith("net.py:")
    assert message in info.value.message
    assert underlined(info.value.message).startswith(place)
    line = int(info.value.where.split(":")[1])
    assert line > HEAD.count("\n"), "the place is in the body"
    assert hint in info.value.hint


def test_the_result_is_what_is_declared() -> None:
    text = """@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((5,), "float32"):
    return x
"""
    with pytest.raises(UserError, match="the result is not of the declared type") as info:
        from_source(text)
    assert info.value.where.startswith("<script>:2")
    assert "it is float32[4], not float32[5]" in info.value.hint
