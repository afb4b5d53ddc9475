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
    ("X[0] = 1", "0", "2 dimensions, but 1 indices", ""),
    ("X[0, 1.5] = 1", "1.5", "an index is an integer, not float32", ""),
    ("X[0, 0] = n", "n", "X takes float32 here, but the value is int64", "T.Cast"),
    ("X[0, 0] = X[0, 0] + n", "n", "int64 against float32", "T.Cast"),
    ("X[0, n + 1.5] = 1", "1.5", "a float where int64", ""),
    ("X[0, 0] = T.expp(X[0, 0])", "T.expp", "unknown function T.expp", "'exp'"),
    ("X[0, 0] = T.fma(X[0, 0], 1.0)", "T.fma(X[0, 0], 1.0)", "takes 3 arguments, got 2", ""),
    ("X[0, 0] = print(1)", "print", "not a function of this language", "T."),
    ("X[0, 0] = [1][0]", "[1]", "expected the name of a buffer", ""),
    ("X[0, 0] = (lambda: 1)", "lambda: 1", "Lambda is not an expression", ""),
    ("X[0, 0] = 1 if 0 < n < 4 else 2", "0 < n < 4", "chained comparison", "and"),
    ("for i in T.paralel(4):\n        pass", "T.paralel", "unknown kind of loop", "'parallel'"),
    ("for i in [1, 2]:\n        pass", "[1, 2]", "expected a range", "T.serial"),
    ("n = n + 1", "n", "'n' is already bound here", "another name"),
    ("while n < 3:\n        pass", "while n < 3:", "not a statement of tensor programs", "loops"),
    ("import os", "import os", "not a statement", ""),
    ("return X", "return X", "not a statement", ""),
    ('b = T.alloc_buffer((4,), "float31")', '"float31"', "not a dtype: 'float31'", "float32"),
    ('b = T.alloc_buffer((4,), "int8", scope="cache")', '"cache"', "unknown scope", "register"),
    ('b = T.alloc_buffer((4,), "int8", size=3)', "3", "unknown option 'size'", ""),
    ("X[0, 0] = T.int8(300)", "300", "300 does not fit int8", ""),
    ("x: T.int32 = n", "n", "'x' is int32, but the value is int64", ""),
    ("X[0, T.Ramp(0, 1, 4)] = T.Broadcast(X[0, 0], 8)", "T.Broadcast(X[0, 0], 8)", "float32x4", ""),
]
WRONG_GRAPH = [
    ("y = R.relu(x)\n    return y", "R.relu(x)", "type of this result is not known", "write it"),
    ("return y", "y", "unknown name 'y'", ""),
    ("y = x\n    y = x\n    return y", "y", "'y' is already bound", ""),
    ("pass", "@R.function", "", ""),
    ("return x + x", "x + x", "not a graph value", "R.add"),
    ('return R.const("w", "float32", (64,))', '"w"', "no constant 'w' was given", "constants="),
    ('return R.const([1, 2], "float32", (3,))', "R.const", "2 elements", ""),
    ("return x[0]", "x[0]", "no item 0", ""),
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
    assert info.value.where == "net.py:3"
    assert message in info.value.message
    assert underlined(info.value.message) == place
    assert hint in info.value.hint


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
        ("def f(x):\n    pass\n", "has no level"),
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
    with pytest.raises(UserError, match="another type"):
        from_source(text + "    return x\n")


def test_constants_are_checked_against_their_digest() -> None:
    array = np.arange(32, dtype="float32")
    body = '    return R.const("w", "float32", (32,), sha256="00")\n'
    with pytest.raises(UserError, match="bytes given for 'w'"):
        from_source(GRAPH + body, {"w": array})
    body = '    return R.const("w", "float32", (16, 2))\n'
    with pytest.raises(UserError, match=r"float32\[32\], expected \[16, 2\]"):
        from_source(GRAPH + body, {"w": array})


def test_carets_stand_below_wide_and_tabbed_text() -> None:
    with pytest.raises(UserError) as info:
        from_source(f'{HEAD}    X[0, 0] = T.exp("日本" , Ω)\n')
    line, carets = info.value.message.split("\n")[1:3]
    assert line.strip().startswith("X[0, 0]") and len(carets) == len(line) + 2
