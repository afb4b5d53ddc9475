"""Scripts that are wrong: the error names the line, underlines the place and hints."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.script import from_source

HEAD = '@T.prim_func\ndef f(X: T.Buffer((4, 4), "float32"), n: T.int64):\n'
GRAPH = '@R.function\ndef main(x: R.Tensor((4,), "float32")):\n'

# script, the text underlined, a part of the message, a part of the hint
WRONG_TIR = [
    ("X[0, 0] = Z[0]", "Z", "unknown name 'Z'", ""),
    ("X[0, 0] = XX[0, 0]", "XX", "unknown name 'XX'", "'X'"),
    ("X[0] = 1", "0", "2 dimensions, received 1 indices", ""),
    ("X[0, 1.5] = 1", "1.5", "an index is an integer, not float32", ""),
    ("X[0, 0] = n", "n", "X takes float32 here, but the value is int64", "T.Cast"),
    ("X[0, 0] = X[0, 0] + n", "n", "int64 against float32", "T.Cast"),
    ("X[0, n + 1.5] = 1", "1.5", "a float where int64", ""),
    ("X[0, 0] = T.expp(X[0, 0])", "T.expp", "unknown function T.expp", "'exp'"),
    ("X[0, 0] = T.fma(X[0, 0], 1.0)", "T.fma(X[0, 0], 1.0)", "takes 3 arguments, got 2", ""),
    ("X[0, 0] = print(1)", "print", "not a function of the script language", "T."),
    ("X[0, 0] = [1][0]", "[1]", "expected the name of a buffer", ""),
    ("X[0, 0] = (lambda: 1)", "lambda: 1", "expression is not allowed", ""),
    ("X[0, 0] = 1 if 0 < n < 4 else 2", "0 < n < 4", "chained comparison", "and"),
    ("for i in T.paralel(4):\n        pass", "T.paralel", "unknown kind of loop", "'parallel'"),
    ("for i in [1, 2]:\n        pass", "[1, 2]", "expected a range", "T.serial"),
    ("n = n + 1", "n", "'n' is already bound here", "another name"),
    (
        "try:\n        pass\n    finally:\n        pass",
        "try:",
        "not a statement of tensor",
        "loops",
    ),
    ("while n:\n        pass\n    else:\n        pass", "while n:", "not a statement of", "loops"),
    ("X[0, 0:n] = 1", "0:n", "a slice that is read or stored has a constant width", "loop"),
    ("X[0, 0:4] = X[0:2, 0]", "X[0:2, 0]", "X takes float32x4 here", "T.Cast"),
    ("X[0, 0] = T.address_of(X)", "X", "expected an element of a buffer", "T.address_of(A[i, j])"),
    ('T.call_extern("void")', 'T.call_extern("void")', "takes at least 2 arguments, got 1", ""),
    ('T.call_extern("void", "a b")', '"a b"', "'a b' is not the name of a C function", ""),
    ('T.call_extern("flaot32", "f")', '"flaot32"', "not a dtype: 'flaot32'", "float"),
    (
        'x = T.call_extern("void", "f")',
        'T.call_extern("void", "f")',
        "returns nothing",
        "statement",
    ),
    ("T.evaluate(n)", "T.evaluate(n)", "only a call of a C function has an effect", "call_extern"),
    ("T.evalate(n)", "T.evalate(n)", "not a statement", "'evaluate'"),
    ("T.reads(X[0, 0])", "T.reads(X[0, 0])", "stands at the beginning of a block", ""),
    ("with T.init():\n        pass", "T.init()", "T.init stands in a block", ""),
    ("with T.block(X):\n        pass", "X", "expected a literal value", ""),
    ('with T.block("b") as c:\n        pass', 'T.block("b")', "expected one name", "T.block"),
    ('with T.bloc("b"):\n        pass', 'T.bloc("b")', "expected `with ... as name:`", ""),
    (
        "v = T.match_buffer(X, (4,))",
        "T.match_buffer(X, (4,))",
        "expected a part of a buffer",
        "A[i",
    ),
    ("v = T.match_buffer(X[0, 0:4], (2,))", "X[0, 0:4]", "the slices and the shape", "strides="),
    (
        'v = T.match_buffer(X[0, 0:4], (4,), "int8")',
        'T.match_buffer(X[0, 0:4], (4,), "int8")',
        "a view of float32 as int8",
        "",
    ),
    ("v = T.match_buffer(X[0], (4,))", "0", "dimensions, received 1 ranges", ""),
    ("b = T.alloc_buffer((4, 4), strides=(1,))", "(1,)", "1 strides for 2 dimensions", ""),
    (
        "for i in T.thread_binding(4):\n        pass",
        "T.thread_binding(4)",
        "names its thread",
        "block",
    ),
    ('for i in T.serial(4, thread="a"):\n        pass', 'T.serial(4, thread="a")', "no other", ""),
    ("for i in T.serial(4, annotations=3):\n        pass", "3", "attributes as a dict", "{"),
    ("for i in T.serial(4, annotations={1: 2}):\n        pass", "1", "names are strings", ""),
    (
        "for i in range(4):\n        pass\n    else:\n        pass",
        "for i in range(4):",
        "no else",
        "",
    ),
    ("for i in X:\n        pass", "X", "expected a range", "T.meta.unroll"),
    ("for i in T.meta.unroll(n):\n        pass", "T.meta.unroll(n)", "Var is not iterable", ""),
    (
        "for i in T.meta.unroll(range(99999999)):\n        pass",
        "T.meta.unroll(range(99999999))",
        "more than 65536 items",
        "",
    ),
    (
        "for i, j in T.meta.unroll([1, 2]):\n        pass",
        "T.meta.unroll([1, 2])",
        "int is not iterable",
        "",
    ),
    ("x = X.size", "X.size", "a Buffer has no attribute 'size'", ""),
    ("x = X.__class__", "X.__class__", "a Buffer has no attribute '__class__'", ""),
    ('x = "a".format', '"a".format', "a str has no attribute 'format'", ""),
    ("x, y = n", "x, y", "one value for several names", ""),
    ("X[0, 0] = len(n)", "len(n)", "in Python: TypeError", ""),
    ("X[0, 0] = X", "X", "'X' is a buffer, not a number", "index it"),
    ("print(1)", "print(1)", "not a statement of tensor programs", ""),
    ("import os", "import os", "not a statement", ""),
    ("return X", "return X", "not a statement", ""),
    ('b = T.alloc_buffer((4,), "float31")', '"float31"', "not a dtype: 'float31'", "float32"),
    ('b = T.alloc_buffer((4,), "int8", scope="cache")', '"cache"', "unknown scope", "register"),
    ('b = T.alloc_buffer((4,), "int8", size=3)', "3", "unknown option 'size'", ""),
    ("X[0, 0] = T.int8(300)", "300", "300 does not fit int8", ""),
    ("x: T.int32 = n", "n", "'x' is int32, but the value is int64", ""),
    ("X[0, T.Ramp(0, 1, 4)] = T.Broadcast(X[0, 0], 8)", "T.Broadcast(X[0, 0], 8)", "float32x4", ""),
]
# The head and the body of a block around `X[vi, 0] = 1`.
WRONG_BLOCKS = [
    ("vi = T.axis.spatal(4, n)", "T.axis.spatal", "unknown kind of axis 'spatal'", "'spatial'"),
    ("vi = T.axis.spatial(4)", "T.axis.spatial(4)", "expected T.axis.spatial(extent, value)", ""),
    ("vi = T.axis.spatial(4, 1.5)", "T.axis.spatial(4, 1.5)", "an axis of float32", ""),
    ("vi, vj = T.axis.spatial(4, n)", "vi, vj", "expected one name", ""),
    ('vi = T.axis.remap("X", [n])', '"X"', "kinds 'X'", "S spatial"),
    ('vi = T.axis.remap("SR", [n])', 'T.axis.remap("SR", [n])', "1 names, 2 kinds and 1 loops", ""),
    ('vi = T.axis.remap("S", [n])', "n", "takes loop variables", "T.axis.spatial(extent"),
    ("n = T.axis.spatial(4, n)", "n", "'n' is already bound", ""),
    ("vi = T.axis.spatial(4, n)\n        T.reads(X)", "X", "expected a part of a buffer", "A[i"),
    ("vi = T.axis.spatial(4, n)\n        T.reads(X[0])", "0", "dimensions, received 1 ranges", ""),
    ("vi = T.axis.spatial(4, n)\n        T.reads(X[0:4:2, 0])", "0:4:2", "has no step", ""),
    (
        "vi = T.axis.spatial(4, n)\n        T.writes()\n        T.writes()",
        "T.writes()",
        "second",
        "",
    ),
    (
        "vi = T.axis.spatial(4, n)\n        X[vi, 0] = 2\n        T.block_attr({})",
        "T.block_attr({})",
        "stands at the beginning",
        "",
    ),
]
WRONG_GRAPH = [
    ("y = R.rleu(x)\n    return y", "R.rleu(x)", "no operator 'rleu'", "relu"),
    ("return y", "y", "unknown name 'y'", ""),
    ("y = x\n    y = x\n    return y", "y", "'y' is already bound", ""),
    ("pass", "@R.function", "", ""),
    ("return x + x", "x + x", "not a graph value", "R.add"),
    ('return R.const("w", "float32", (64,))', '"w"', "no constant 'w' was given", "constants="),
    ('return R.const([1, 2], "float32", (3,))', "R.const", "2 elements", ""),
    ("return x[0]", "x[0]", "items are those of tuples", "R.take"),
    ("return open(x)", "open", "not an operator", "R.name"),
    ('y: R.Tensor((4,), "float32", layout="Q") = R.a(x)\n    return y', '"Q"', "not a layout", ""),
]


def underlined(message: str) -> str:
    """The part of the source line above the carets."""
    lines = message.split("\n")
    at = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
    start = len(lines[at]) - len(lines[at].lstrip())
    return lines[at - 1][start : len(lines[at])]


@pytest.mark.parametrize(("body", "place", "message", "hint"), WRONG_TIR)
def test_wrong_tensor_programs(body: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as info:
        from_source(f"{HEAD}    {body}\n", file="net.py")
    check(info.value, f"{HEAD}    {body}\n", place, message, hint)


@pytest.mark.parametrize(("body", "place", "message", "hint"), WRONG_BLOCKS)
def test_wrong_blocks(body: str, place: str, message: str, hint: str) -> None:
    text = f'{HEAD}    with T.block("b"):\n        {body}\n        X[vi, 0] = 1\n'
    with pytest.raises(UserError) as info:
        from_source(text, file="net.py")
    check(info.value, text, place, message, hint)


def check(error: UserError, text: str, place: str, message: str, hint: str) -> None:
    """The error is at `place`: by line and column, and by the carets."""
    file, line, column = error.where.split(":")
    assert file == "net.py"
    assert text.split("\n")[int(line) - 1][int(column) - 1 :].startswith(place)
    assert underlined(error.message) == place
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(("body", "place", "message", "hint"), WRONG_GRAPH)
def test_wrong_graphs(body: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as info:
        from_source(f"{GRAPH}    {body}\n", file="net.py")
    assert message in info.value.message
    assert underlined(info.value.message).startswith(place) or place == "@R.function"
    assert hint in info.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "not Python"),
        ("x = open('/etc/passwd')\n", "expected a class or a function"),
        ("", "expected one ir_module class"),
        ("def f(x):\n    pass\n", "one known decorator"),
        ("@T.prim_func\ndef f(x):\n    pass\n", "needs a type"),
        ("@T.prim_func\ndef f(x: T.int64 = 3):\n    pass\n", "plain names with a type"),
        ("@T.prim_func(outptus=1)\ndef f(n: T.int64):\n    pass\n", "unknown option 'outptus'"),
        ("@ir_module\nclass M:\n    x = 3\n", "a module holds functions only"),
        ("class M:\n    pass\n", "not decorated with ir_module"),
        ("@T.prim_func\ndef f(n: T.int64):\n    x = " + "(" * 300 + "\n", "not Python"),
        ("\0", "not Python"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_source(text)


def test_deep_nesting_is_an_error_of_the_user() -> None:
    text = f"{HEAD}    X[0, 0] = X[0, 0]" + " + X[0, 0]" * 3000 + "\n"
    with pytest.raises(UserError, match="nested too deeply|not Python"):
        from_source(text)


def test_unknown_callee_names_the_nearest() -> None:
    text = """@ir_module
class Net:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        Y[0] = X[0]

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return Net.add_on(x)
"""
    with pytest.raises(UserError) as info:
        from_source(text)
    assert "no function 'add_on'" in info.value.message
    assert "'add_one'" in info.value.hint


def test_result_annotation_is_checked() -> None:
    text = '@R.function\ndef main(x: R.Tensor((4,), "float32")) -> R.Tensor((5,), "float32"):\n'
    with pytest.raises(UserError, match="not of the declared type"):
        from_source(text + "    return x\n")


def test_constants_are_checked_against_their_digest() -> None:
    array = np.arange(32, dtype="float32")
    body = '    return R.const("w", "float32", (32,), sha256="00")\n'
    with pytest.raises(UserError, match="bytes given for 'w'"):
        from_source(GRAPH + body, {"w": array})
    body = '    return R.const("w", "float32", (16, 2))\n'
    with pytest.raises(UserError, match=r"float32\[32\], expected \[16, 2\]"):
        from_source(GRAPH + body, {"w": array})


def test_all_lines_of_a_long_expression_are_underlined() -> None:
    text = f"{HEAD}    X[0, 0] = T.fma(\n        X[0, 0],\n        n  # why\n    )\n"
    with pytest.raises(UserError) as info:
        from_source(text, file="net.py")
    assert info.value.where == "net.py:3:15"
    assert info.value.message.split("\n")[1:] == [
        "        X[0, 0] = T.fma(",
        "                  ^^^^^^",
        "            X[0, 0],",
        "            ^^^^^^^^",
        "            n  # why",
        "            ^^^^^^^^",
        "        )",
        "        ^",
    ]


def test_only_the_first_lines_of_a_very_long_expression_are_shown() -> None:
    text = f"{HEAD}    X[0, 0] = T.fma(\n" + "        1,\n" * 9 + "    )\n"
    with pytest.raises(UserError) as info:
        from_source(text, file="net.py")
    lines = info.value.message.split("\n")
    assert lines[-1] == "    ..." and sum("^" in line for line in lines) == 5


def test_carets_stand_below_wide_and_tabbed_text() -> None:
    with pytest.raises(UserError) as info:
        from_source(f'{HEAD}    X[0, 0] = T.exp("日本" , Ω)\n')
    line, carets = info.value.message.split("\n")[1:3]
    assert line.strip().startswith("X[0, 0]") and len(carets) == len(line) + 2
