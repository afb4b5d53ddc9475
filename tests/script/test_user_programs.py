"""Programs as users write them: what they mean is what happens, and what cannot be is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError, UnsupportedError, UserError
from tensorkiln.script import R, T, from_source

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

KINDS = ["llvm", "c", "llvmjit"]
COPY = "for i in range(4):\n            Y[i] = X[i]"


def _programs(calls: dict[str, list[str]]) -> str:
    """Tensor programs, each of which copies and calls others."""
    head = '(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):'
    lines = ["@tk.script.ir_module", "class Module:"]
    for name, callees in calls.items():
        lines += ["    @T.prim_func", f"    def {name}{head}", f"        {COPY}"]
        lines += [f"        T.call(cls.{callee}, X, Y)" for callee in callees]
    return "\n".join(lines)


RECURSIVE = {
    "itself": ({"f": ["f"]}, "f calls itself"),
    "each other": ({"f": ["g"], "g": ["f"]}, "f calls itself, through g"),
    "a ring": ({"f": ["g"], "g": ["h"], "h": ["f"]}, "f calls itself, through g, h"),
    "below": ({"f": ["g"], "g": ["h"], "h": ["k"], "k": ["h"]}, "h calls itself, through k"),
    "beside": ({"f": ["g", "h"], "g": [], "h": ["h"]}, "h calls itself"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_call_themselves(kind: str) -> None:
    for calls, says in RECURSIVE.values():
        with pytest.raises(UserError, match=f"{says}\n") as caught:
            tk.compile(from_source(_programs(calls)), kind)
        assert "a loop repeats statements" in caught.value.hint
    fine = {"f": ["g", "h"], "g": ["h"], "h": []}  # twice, but not itself
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    tk.compile(from_source(_programs(fine)), kind).jit()["f"](x, y)
    np.testing.assert_array_equal(x, y)


# -- constants -------------------------------------------------------------------------------------

CONSTANTS: list[tuple[Any, str, bool]] = [
    (values, dtype, fits)
    for dtype, values, fits in [
        ("int32", [1.5, -2.7], False),
        ("int32", 1.5, False),
        ("int32", [1.0, -2.0], True),
        ("int8", [127, -128], True),
        ("int8", [128], False),
        ("int8", 127.5, False),
        ("uint8", -1, False),
        ("uint8", [255.0], True),
        ("int64", [2**62, 2**53 + 1], True),
        ("uint64", 2**63, True),
        ("int64", 2**63, False),
        ("int32", float("nan"), False),
        ("int32", float("inf"), False),
        ("bool", [0, 1, True], True),
        ("bool", [2], False),
        ("bool", 0.5, False),
        ("float32", 0.1, True),
        ("float32", 1e400, True),
        ("float16", [1, 2.5], True),
    ]
]


def test_constants_are_what_is_written_or_refused() -> None:
    for values, dtype, fits in CONSTANTS:
        written = repr(values).replace("inf", 'float("inf")').replace("nan", 'float("nan")')
        text = f"""
@R.function
def main() -> R.Tensor({np.shape(values)!r}, "{dtype}"):
    y = R.const({written}, "{dtype}")
    return y
"""
        if fits:
            found = from_source(text)["main"].bindings[0].value.data
            np.testing.assert_array_equal(found, np.array(values, dtype))
            continue
        with pytest.raises(UserError, match=f"not {dtype} data"):
            from_source(text)


# -- words that Python evaluates -------------------------------------------------------------------

WORDS = """
T.Buffer[(4,), "float32"] ; R.Tensor[(4,)] ; T.Buffer((4,), "float32")[0] ; T.handle[0] ; R.Tuple[0]
-T.float32 ; T.Buffer + 1 ; 1 - T.x ; T.y * T.z ; T.y / 2 ; 2 // T.y ; T.a % 2 ; T.a >= T.b
T.Buffer | None ; [*T.grid] ; T.prim_func(1) ; T.prim_func("name") ; R.function(3) ; T.macro(2)
tk.script.ir_module(2) ; T.macro(hygienic=False) ; tk.script.ir_module(len) ; T.macro(hygienic=1)
"""


def test_words_in_python_are_typed_errors() -> None:
    for text in WORDS.replace("\n", ";").strip(";").split(";"):
        with pytest.raises(TensorkilnError) as caught:
            eval(text.strip(), {"T": T, "R": R, "tk": tk})
        assert "hint" in str(caught.value) or "[" in str(caught.value), text


def test_a_macro_with_options() -> None:
    @T.macro(hygienic=True)
    def store(A: Any, i: Any, v: Any) -> None:
        A[i] = v

    @T.prim_func
    def f(X: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            store(X, i, 2.5)

    x = np.zeros(4, np.float32)
    tk.compile(f).jit()["f"](x)
    assert (x == 2.5).all()


# -- devices ---------------------------------------------------------------------------------------


def test_one_cpu_runs_a_library() -> None:
    exe = tk.compile(from_source(_programs({"f": []})))
    for devices in (tk.cpu(), [tk.cpu()], [tk.cpu(3)], {"": tk.cpu()}, None):
        assert len(tk.runtime.Executor(exe, devices).devices) == 1
    for several in ([tk.cpu(), tk.cpu()], [tk.cpu(0), tk.cpu(1)], {"": [tk.cpu(), tk.cpu()]}):
        with pytest.raises(UserError, match=r"has no code for cpu|too many devices"):
            tk.runtime.Executor(exe, several)


# -- dataflow --------------------------------------------------------------------------------------

FLOW = """
@R.function
def main(x: R.Tensor((2,), "float32")):
    with R.dataflow():
        y = R.exp(x)
        z = R.neg(y)
        OUTPUT
    return RESULT
"""


@pytest.mark.parametrize(
    ("output", "result", "says"),
    [
        ("R.output(z)", "z", ""),
        ("R.output(y, z)", "R.add(y, z)", ""),
        ("R.output((y, z))", "(y, z)", ""),
        ("pass", "y", ""),  # as in the proposal's example
        ("R.output(z)", "y", "'y' is a value inside R.dataflow, which its R.output does not list"),
        ("R.output(z)", "R.add(y, z)", "'y' is a value inside R.dataflow"),
        ("R.output()", "z", "'z' is a value inside R.dataflow"),
        ("R.output(w)", "z", "unknown name 'w'"),
    ],
)
def test_what_leaves_a_dataflow_block(output: str, result: str, says: str) -> None:
    text = FLOW.replace("OUTPUT", output).replace("RESULT", result)
    if says:
        with pytest.raises(UserError, match=says):
            from_source(text)
    else:
        assert from_source(text)["main"].bindings


# -- numbers ---------------------------------------------------------------------------------------

NUMBERS = """
@tk.script.ir_module
class Module:
    @T.prim_func(private=True)
    def add(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32"), k: T.int64, m: T.int64):
        for i in range(4):
            Y[i] = X[i] + T.Cast("float32", k * 100 + m)

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Prim("int64"), j: R.Prim("DTYPE")):
        STATEMENTS
        return RESULT
"""
# Statements, result, and what Python makes of n, k and j.
_CASES: list[tuple[str, str, Any]] = [
    ("m = k * 3 + 1", "m", lambda n, k, j: k * 3 + 1),
    ("m = k // 2 - j % 5", "m", lambda n, k, j: k // 2 - j % 5),
    ("m = k * n + j", "(m, k)", lambda n, k, j: (k * n + j, k)),
    ("m = k * 3\n        p = m + m * j", "p", lambda n, k, j: k * 3 + k * 3 * j),
    ("m = -k", "m", lambda n, k, j: -k),
    ("m = T.max(k, j) + T.min(k, n)", "m", lambda n, k, j: max(k, j) + min(k, n)),
    ("m = k > 3", "m", lambda n, k, j: k > 3),
    ("m = R.shape([k + 1, j])", "m", lambda n, k, j: (k + 1, j)),
    (
        "if k > 3:\n            m = k + 1\n        else:\n            m = j * 2",
        "m",
        lambda n, k, j: k + 1 if k > 3 else j * 2,
    ),
    (
        "if k > 3 and j < k:\n            y = R.exp(x)\n        else:\n            y = R.neg(x)",
        "y",
        lambda n, k, j: np.full(n, np.exp(1.0) if k > 3 and j < k else -1.0, np.float32),
    ),
    (
        "m = k\n        while m < 50:\n            m = m * 2 + 1",
        "m",
        lambda n, k, j: _repeated(k),
    ),
    (
        "y = R.call_tir(cls.add, (x,), R.Tensor((4,), 'float32'), tir_vars=[k, j])",
        "y",
        lambda n, k, j: np.full(4, 1 + k * 100 + j, np.float32),
    ),
    (
        "y = R.call_tir(cls.add, (x,), R.Tensor((4,), 'float32'), tir_vars=R.shape([k + 1, n]))",
        "y",
        lambda n, k, j: np.full(4, 1 + (k + 1) * 100 + n, np.float32),
    ),
    (
        "m = k * 2\n        y = R.call_tir(cls.add, (x, m, j), R.Tensor((4,), 'float32'))",
        "y",
        lambda n, k, j: np.full(4, 1 + k * 200 + j, np.float32),
    ),
]


def _repeated(m: int) -> int:
    while m < 50:
        m = m * 2 + 1
    return m


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_arithmetic_on_numbers(dtype: str) -> None:
    parts, want = [], []
    for i, (statements, result, value) in enumerate(_CASES):
        text = NUMBERS.replace("STATEMENTS", statements).replace("RESULT", result)
        whole = from_source(text.replace("DTYPE", dtype))
        assert from_source(whole.script()).script() == whole.script()
        exe = tk.compile(whole, name=f"case{i}")
        parts.append(tk.runtime.Executor(exe)["main"])
        want.append(value)
    x = np.ones(4, np.float32)
    for k, j in ((4, 2), (0, 0), (3, 7), (9, 1), (1, 100)):
        for (statements, *_), run, value in zip(_CASES, parts, want, strict=True):
            have, expected = run(x, k, j), value(4, k, j)
            shown = have.numpy() if hasattr(have, "numpy") else have
            np.testing.assert_allclose(shown, expected, rtol=1e-6, err_msg=statements)


WRONG_NUMBERS = {
    "m = x + 1": r"operators are calls: R.add\(x, y\)",
    "m = x > 0": "operators are calls",
    "m = f * 2": "arithmetic on a number of float32",
    "m = f > 2": "arithmetic on a number of float32",
    "m = k / 2": "a quotient is not an integer",
    "m = unknown + 1": "unknown name 'unknown'",
}


def test_what_is_no_number() -> None:
    for statement, says in WRONG_NUMBERS.items():
        text = f"""
@R.function
def main(x: R.Tensor((4,), "float32"), k: R.Prim("int64"), f: R.Prim("float32")):
    {statement}
    return m
"""
        with pytest.raises(UserError, match=says):
            from_source(text)


def test_a_named_number() -> None:
    text = """
@R.function
def main(k: R.Prim("int64", value="k_1"), x: R.Tensor(("k_1",), "float32")):
    y: R.Tensor((k_1,), "float32") = R.exp(x)
    return (y, k_1 * 2)
"""
    mod = from_source(text)
    assert from_source(mod.script()).script() == mod.script()
    run = tk.runtime.Executor(tk.compile(mod))["main"]
    y, twice = run(3, np.zeros(3, np.float32))
    assert twice == 6 and (y.numpy() == 1).all()
    with pytest.raises((ValueError, UnsupportedError, UserError)):
        run(4, np.zeros(3, np.float32))
