"""Arithmetic of constants: C computes an int of two small literals, the language 64 bits."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.script import from_source

# Of a type: a number whose square is beyond 32 bits, or beyond the type.
LARGE = {"uint64": 100_000, "int64": 100_000, "uint32": 70_000, "int32": 40_000}


def forms(dtype: str) -> list[tuple[str, int]]:
    """Expressions that are constants in C, whole or in part, and their values for n = 7."""
    x = LARGE[dtype]
    return [
        (f"T.{dtype}({x})", x),
        (f"T.{dtype}(3)", 3),
        (f"T.Cast('{dtype}', T.int32({x}))", x),
        (f"T.Cast('{dtype}', T.uint16(50000))", 50_000),
        (f"T.select(n > 0, T.{dtype}({x}), T.{dtype}(5))", x),
        (f"T.max(T.{dtype}({x}), T.{dtype}(3))", x),
        (f"T.Cast('{dtype}', n)", 7),
    ]


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("dtype", LARGE)
def test_constants_wrap_around_as_their_type_does(dtype: str) -> None:
    rows: list[tuple[str, int]] = []
    for (a, x), (b, y) in product(forms(dtype), repeat=2):
        rows += [(f"{a} * {b}", x * y), (f"{a} + {b}", x + y), (f"{a} - {b}", x - y)]
        rows.append((f"T.Cast('{dtype}', {a} - {b} > {a})", 0))  # the wanted value is set below
        difference = np.array(x - y).astype(dtype)
        rows[-1] = (rows[-1][0], int(difference > np.array(x).astype(dtype)))
    rows += [(f"{a} << T.{dtype}(20)", x << 20) for a, x in forms(dtype)]
    rows += [(f"-({a})", -x) for a, x in forms(dtype)]
    rows += [(f"{a} ^ {b}", x ^ y) for (a, x), (b, y) in product(forms(dtype), repeat=2)]
    lines = "".join(f"    p[{i}] = {text}\n" for i, (text, _) in enumerate(rows))
    head = f'@T.prim_func\ndef f(n: T.int32, p: T.Buffer(({len(rows)},), "{dtype}")):\n'
    outputs = np.zeros(len(rows), dtype)
    tk.compile(from_source(head + lines), "c")["f"](7, outputs)
    bits = np.dtype(dtype).itemsize * 8
    for (text, value), output in zip(rows, outputs, strict=True):
        assert int(output) % (1 << bits) == value % (1 << bits), (dtype, text)


def source(target: dict[str, object], *lines: str, dtype: str = "int32") -> str:
    """What a kernel with these lines is printed as."""
    body = "".join(f"        {line}\n" for line in lines)
    text = (
        f'@T.prim_func\ndef f(x: T.Buffer((4,), "{dtype}"), y: T.Buffer((4,), "{dtype}")):\n'
        f"    for i in range(4):\n{body}"
    )
    artifacts = tk.compile(from_source(text), target).artifacts
    return "\n".join(a.text() for a in artifacts if a.file_name.endswith((".c", ".cl", ".fmt")))


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
def test_a_constant_is_no_power() -> None:
    """clang warns of `2 ^ 2`."""
    assert "2 ^ 2" not in source({"kind": "c"}, "y[i] = x[(T.int64(2) ^ T.int64(2)) + i]")


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_a_choice_of_narrow_integers_has_their_type(dtype: str) -> None:
    """`?:` computes an int of two, and gcc may warn when that becomes an element."""
    line = f"y[i] = T.select(x[i] > T.{dtype}(3), x[i] * x[i], x[3 - i] ^ x[i])"
    text = source({"kind": "c"}, line, dtype=dtype)
    assert re.search(rf"= \({dtype}_t\)\(\w+ > 3 \?", text)
