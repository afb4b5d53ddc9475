"""narrow_indices: loop variables and indices of 32 bits where they provably fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, seq
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import substitute_stmt, walk_stmt
from tensorkiln.pipeline import tir_passes
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.narrow_indices import narrow_function, narrow_indices
from tensorkiln.transform.tir.skip_empty_loops import skip_empty_loops
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.transform.graphs import check_text

FUNCTION = """
    @T.prim_func
    def f({parameters}):
{body}
"""
F32 = 'X: T.Buffer((16, 8), "float32"), Y: T.Buffer((16, 8), "float32")'
I64 = 'X: T.Buffer((16, 8), "int64"), Y: T.Buffer((16, 8), "int64")'
# what it shows: (parameters, before, after)
TEXTS = {
    "indices, and arithmetic of values": (
        F32,
        """
        for i in range(16):
            for j in range(8):
                Y[i, j] = X[i // 2 * 2, (j + 3) % 8] * T.Cast("float32", i * 8 - j)
        """,
        """
        for i in range(T.int32(16)):
            for j in range(T.int32(8)):
                Y[i, j] = X[i // T.int32(2) * T.int32(2), (j + T.int32(3)) % T.int32(8)] \
* T.Cast("float32", i * T.int32(8) - j)
        """,
    ),
    "parallel and unrolled loops, limits of outer variables": (
        F32,
        """
        for i in T.parallel(16):
            for k in T.unrolled(2):
                for j in range(T.min(i, 3), T.min(i, 3) + 5 - T.min(i, 3)):
                    Y[i, j] = X[i, T.min(j + k, 7)]
        """,
        """
        for i in T.parallel(T.int32(16)):
            for k in T.unrolled(T.int32(2)):
                for j in range(T.min(i, T.int32(3)), T.min(i, T.int32(3)) + T.int32(5) \
- T.min(i, T.int32(3))):
                    Y[i, j] = X[i, T.min(j + k, T.int32(7))]
        """,
    ),
    "negative offsets, variables, conditions": (
        F32,
        """
        for i in range(-8, 8):
            at: T.int64 = i * 3 - 5
            if at >= 0:
                Y[i + 8, 0] = T.select(at % 7 < 4 - i, X[at, 1], X[0, -(i - 8) // 4])
        """,
        """
        for i in range(T.int32(-8), T.int32(8)):
            at: T.int32 = i * T.int32(3) - T.int32(5)
            if at >= T.int32(0):
                Y[i + T.int32(8), 0] = T.select(at % T.int32(7) < T.int32(4) - i, X[at, 1], \
X[0, -(i - T.int32(8)) // T.int32(4)])
        """,
    ),
    "stored and loaded numbers keep their type": (
        I64,
        """
        for i in range(16):
            for j in range(8):
                Y[i, j] = X[i, j] + i * 8 + j
                Y[X[i, j], j] = i
        """,
        """
        for i in range(T.int32(16)):
            for j in range(T.int32(8)):
                Y[i, j] = X[i, j] + T.Cast("int64", i * T.int32(8)) + T.Cast("int64", j)
                Y[X[i, j], j] = T.Cast("int64", i)
        """,
    ),
    "scalar parameters are of any size": (
        I64 + ", k: T.int64",
        """
        for i in range(T.min(k, 4)):
            Y[i, 0] = k
        for i in range(16):
            Y[(i + k) % 16, 0] = X[i, 0]
        """,
        """
        for i in range(T.min(k, 4)):
            Y[i, 0] = k
        for i in range(T.int32(16)):
            Y[(T.Cast("int64", i) + k) % 16, 0] = X[i, 0]
        """,
    ),
    "symbolic sizes": (
        'X: T.Buffer(("n", 8), "float32"), Y: T.Buffer(("n", 8), "float32"), n: T.int64',
        """
        for i in range(n):
            for j in range(8):
                Y[i, j] = X[n - 1 - i, 7 - j]
        """,
        """
        for i in range(n):
            for j in range(T.int32(8)):
                Y[i, j] = X[n - 1 - i, T.int32(7) - j]
        """,
    ),
    "division by what may be 0 or less": (
        F32,
        """
        for i in range(16):
            for j in range(8):
                Y[i, j] = X[i // (j - 3), j % (i + 1)]
        """,
        """
        for i in range(T.int32(16)):
            for j in range(T.int32(8)):
                Y[i, j] = X[T.Cast("int64", i) // T.Cast("int64", j - T.int32(3)), \
j % (i + T.int32(1))]
        """,
    ),
}


def module(parameters: str, body: str) -> str:
    text = "\n".join(line.replace("\n", "") for line in body.strip("\n").splitlines())
    whole = FUNCTION.format(parameters=parameters, body=text)
    return f'@tk.script.ir_module(name="m")\nclass M:\n{whole}'


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    parameters, before, after = TEXTS[name]
    check_text(narrow_indices, module(parameters, before), module(parameters, after))


def loops(mod: IRModule) -> dict[str, str]:
    """The types of loop variables by name."""
    (f,) = mod.prim_funcs
    return {s.var.name: str(s.var.dtype) for s in walk_stmt(f.body) if isinstance(s, For)}


@pytest.mark.parametrize(
    ("lo", "extent", "narrow"),
    [
        (0, (1 << 30) - 1, True),
        (0, 1 << 30, False),
        (0, 1 << 31, False),
        (0, 1 << 40, False),
        ((1 << 30) - 9, 8, True),
        ((1 << 30) - 8, 8, False),
        (1 - (1 << 30), 8, True),
        (-(1 << 30), 8, False),
        (-(1 << 40), 1 << 40, False),
        (0, 0, True),
    ],
)
def test_limits_of_loops(lo: int, extent: int, narrow: bool) -> None:
    text = f"""
        for i in range({lo}, {lo + extent}):
            Y[i % 16, 0] = X[0, 0]
    """
    narrowed = narrow_indices(from_source(module(F32, text)))
    verify(narrowed)
    assert loops(narrowed) == {"i": "int32" if narrow else "int64"}


@pytest.mark.parametrize(
    ("index", "narrow"),
    [
        ("i * 65536", True),
        ("i * 65536 * 17 - i * 65536 * 16", False),  # the difference would fit
        ("i * 1049601", True),
        ("i * 1049602", False),
        ("(i - 1024) * 1048575", True),
        ("(i - 1025) * 1048576", False),
        ("i * 1099511627776 // 1099511627776", False),
        ("i * 4294967296 % 7", False),
        ("T.min(i, 4294967296)", False),
        ("i + 1073740800", True),
        ("i + 1073740801", False),
    ],
)
def test_limits_of_expressions(index: str, narrow: bool) -> None:
    """Every part fits, or the whole is computed as it was."""
    parameters = 'Y: T.Buffer((4, 1073741824), "int8")'
    text = f"""
        for i in range(1024):
            Y[0, {index}] = T.int8(1)
    """
    narrowed = narrow_indices(from_source(module(parameters, text)))
    verify(narrowed)
    assert loops(narrowed) == {"i": "int32"}
    assert ("int64" in narrowed.script()) is not narrow


def test_a_variable_may_be_bound_again() -> None:
    """What a loop narrowed is not what a later loop with the same variable means."""
    text = """
        for i in range(16):
            Y[i, 0] = X[i, 1]
        for i in range(n):
            Y[i, 1] = X[i, 0]
    """
    mod = from_source(module(F32 + ", n: T.int64", text))
    (f,) = mod.prim_funcs
    first, second = (s for s in walk_stmt(f.body) if isinstance(s, For))
    assert isinstance(first, For) and isinstance(second, For)
    body = substitute_stmt(second.body, {second.var: first.var})
    again = IRModule((replace(f, body=seq(first, replace(second, var=first.var, body=body))),))
    verify(again)
    narrowed = narrow_indices(again)
    verify(narrowed)
    types = [s.var.dtype.name for s in walk_stmt(narrowed.prim_funcs[0].body) if isinstance(s, For)]
    assert types == ["int32", "int64"]


def test_variables_in_shapes_of_buffers_stay() -> None:
    text = """
        for i in range(16):
            V = T.match_buffer(Y[i, 0], (8 - i // 4,), "float32")
            V[0] = X[i, 0]
    """
    mod = from_source(module(F32, text))
    narrowed = narrow_indices(mod)
    verify(narrowed)
    assert loops(narrowed) == {"i": "int64"}


def test_vectors_of_indices() -> None:
    text = """
        for i in range(4):
            for j in T.vectorized(4):
                Y[i, j * 2] = X[i + j, 7]
    """
    mod = vectorize_loops(from_source(module(F32, text)))
    narrowed = narrow_indices(mod)
    verify(narrowed)
    assert "X[T.Ramp(i, T.int32(1), 4), 7]" in narrowed.script()
    assert "Y[i, T.Ramp(0, 2, 4)]" in narrowed.script()


def test_nothing_to_narrow_is_the_same_object() -> None:
    text = """
        for i in range(n):
            Y[i, 1] = X[i, 0]
    """
    mod = from_source(module(F32 + ", n: T.int64", text))
    assert narrow_indices(mod) is mod
    assert narrow_function(mod.prim_funcs[0]) is mod.prim_funcs[0]


@pytest.mark.parametrize(
    ("triple", "runs"),
    [
        ("thumbv7em-none-eabi", True),
        ("thumbv6m-none-eabi", True),
        ("armv7-linux-gnueabihf", True),
        ("riscv32-unknown-none-elf", True),
        ("riscv64-unknown-none-elf", False),
        ("aarch64-linux-gnu", False),
        ("x86_64-linux-gnu", False),
        ("wasm32-unknown-unknown", False),
    ],
)
def test_it_runs_for_processors_of_32_bits(triple: str, runs: bool) -> None:
    passes = tir_passes(Target({"kind": "c", "mtriple": triple}))
    expected: list[Callable[..., IRModule]] = [lower_blocks, vectorize_loops]
    narrowing = [narrow_indices] if runs else []
    assert passes[1:] == [*expected, *narrowing, skip_empty_loops]
