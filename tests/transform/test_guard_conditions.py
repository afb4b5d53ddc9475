"""`and` and `or` guard what follows, for every code generator: against Python, on memory of which
the pages before and behind cannot be read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.script import from_source
from tensorkiln.transform.tir.guard_conditions import guard_conditions

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

# What a program makes of n numbers A: loops of i, whose statements are Python's too.
CASES = {
    "if": "if i > 0 and A[i - 1] > 0:\n            B[i] = A[i - 1]",
    "else": "if i > 0 and A[i - 1] > 0:\n            B[i] = 1\n        else:\n            B[i] = 2",
    "or": "if i == 0 or A[i - 1] > 0:\n            B[i] = 3",
    "or else": "if i < 1 or A[i-1] > 0:\n            B[i] = 4\n        else:\n            B[i] = 5",
    "behind": "if i < n - 2 and A[i + 2] > 0:\n            B[i] = A[i + 2]",
    "three": "if i > 0 and i < n - 1 and A[i - 1] < A[i + 1]:\n            B[i] = 6",
    "guarded by a guarded one": (
        "if i > 0 and A[i - 1] > 0 and i > 1 and A[i - 2] > 0:\n            B[i] = 7"
    ),
    "mixed": "if (i == 0 or A[i - 1] > 0) and (i == n - 1 or A[i + 1] > 0):\n            B[i] = 8",
    "a mixed right side": "if i > 1 and (A[i - 1] > 0 or A[i - 2] > 0):\n            B[i] = 9",
    "not": "if not (i > 0 and A[i - 1] > 0):\n            B[i] = 10",
    "a value": "B[i] = T.Cast('float32', i > 0 and A[i - 1] > 0) + A[i]",
    "two values": (
        "B[i] = T.Cast('float32', i > 0 and A[i - 1] > 0) "
        "+ 2 * T.Cast('float32', i == n - 1 or A[i + 1] > 0)"
    ),
    "a variable": "c = i > 0 and A[i - 1] > 0\n        B[i] = T.Cast('float32', c)",
    "a condition of a choice": "B[i] = T.if_then_else(i > 0 and A[i - 1] > 0, 11.0, A[i])",
    "inside": "if A[i] > 0 and A[n - 1 - i] > 0:\n            B[i] = 12",
}
PROGRAM = """
    @T.prim_func
    def f{k}(A: T.Buffer(("n",), "float32"), B: T.Buffer(("n",), "float32")):
        for i in range(n):
            B[i] = 0.0
        for i in range(n):
        {body}
"""
WHILE = """
    @T.prim_func
    def last(A: T.Buffer(("n",), "float32"), B: T.Buffer((1,), "float32")):
        j = T.alloc_buffer((1,), "int64", scope="local")
        j[0] = 0
        while j[0] < n and A[j[0]] > 0:
            j[0] = j[0] + 1
        B[0] = T.Cast("float32", j[0])
"""


def _expected(body: str, a: np.ndarray) -> np.ndarray:
    """What Python does, whose indices below 0 are errors here as well."""
    words: Any = type("T", (), {})
    words.Cast = staticmethod(lambda dtype, x: float(x))
    words.if_then_else = staticmethod(lambda c, x, y: x if c else y)

    class Strict(list[float]):
        def __getitem__(self, i: Any) -> Any:
            assert 0 <= i < len(self), f"index {i}"
            return super().__getitem__(i)

    out = np.zeros_like(a)
    for i in range(len(a)):
        namespace = {"A": Strict(map(float, a)), "B": out, "i": i, "n": len(a), "T": words}
        exec(body.replace("\n        ", "\n"), namespace)
    return out


class _Fenced:
    """Arrays that end, or begin, where memory that cannot be read begins or ends."""

    def __init__(self, count: int) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, 3 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for address in (start, start + 2 * page):
            assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0) == 0
        self.first = self._array(start + page, count)
        self.last = self._array(start + 2 * page - 4 * count, count)

    def _array(self, address: int, count: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


@pytest.mark.parametrize("kind", ["llvm", "c", "llvmjit"])
def test_conditions_guard(kind: str) -> None:
    bodies = [body.replace("\n", "\n    ") for body in CASES.values()]
    texts = [PROGRAM.format(k=k, body=f"    {body}") for k, body in enumerate(bodies)]
    mod = from_source("@tk.script.ir_module\nclass Module:" + "".join(texts) + WHILE)
    lib = tk.compile(mod, kind).jit()
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 7):
        fenced = _Fenced(count)
        for a in (fenced.first, fenced.last):
            a[:] = rng.normal(size=count)
            for k, (name, body) in enumerate(CASES.items()):
                b = np.empty(count, np.float32)
                lib[f"f{k}"](a, b)
                np.testing.assert_array_equal(b, _expected(body, a), err_msg=f"{name} {count}")
            for values in (a.copy(), np.ones(count, np.float32)):
                a[:] = values
                output = np.zeros(1, np.float32)
                lib["last"](a, output)
                assert output[0] == next((i for i, x in enumerate(a) if x <= 0), count)


INSIDE = """
@T.prim_func
def f(A: T.Buffer(("n", 8), "bool"), B: T.Buffer(("n", 8), "bool"), C: T.Buffer(("n", 8), "bool")):
    for i in range(A.shape[0]):
        for j in T.vectorized(8):
            C[i, j] = A[i, j] and B[i, j] or A[i, 7 - j]
"""


def test_what_is_within_its_buffer_stays_as_it_is() -> None:
    mod = from_source(INSIDE)
    assert guard_conditions(mod) is mod
    mod = from_source("@tk.script.ir_module\nclass Module:" + WHILE.replace("A[j[0]]", "A[0]"))
    assert guard_conditions(mod) is not mod  # which an empty tensor lacks


def test_a_vectorized_loop_refuses_them() -> None:
    text = INSIDE.replace("A[i, 7 - j]", "j > 0 and A[i, j - 1]")
    with pytest.raises(UnsupportedError, match="make this loop serial"):
        tk.compile(from_source(text), "llvm")
