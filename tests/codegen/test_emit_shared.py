"""A program means the same to the emitter however its expressions share objects."""

from __future__ import annotations

import struct

import numpy as np

import tensorkiln as tk
from tensorkiln.codegen.llvm.emit import emit_llvm
from tensorkiln.ir.buffer import AddressOf, buffer
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import CallExtern, FloatImm, IntImm, intrin
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc, Store
from tensorkiln.script import T, from_source
from tests.ir.evaluate import run

TARGET = tk.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
X, Y = buffer("x", (4,)), buffer("y", (4,))
ZERO = IntImm(0)


def test_what_is_one_object_or_many_is_emitted_alike() -> None:
    """A program made node by node shares subexpressions; read from its text it shares none."""
    once = intrin("exp", X[0]) + 1.0
    shared = PrimFunc("f", (X, Y), Store(Y, (ZERO,), once * once + once / X[0]))
    (read,) = from_source(IRModule((shared,)).script()).prim_funcs
    text = emit_llvm(shared, TARGET)
    assert emit_llvm(read, TARGET) == text
    assert text.count("load float") == 1
    assert text.count("fdiv") == 1


def test_each_call_of_a_c_function_is_made_and_loads_follow_it() -> None:
    call = CallExtern("next_one", (AddressOf(X, (ZERO,)),), X.dtype)
    first = X[0]
    value = first * (call + call) * first
    text = emit_llvm(PrimFunc("f", (X, Y), Store(Y, (ZERO,), value), 2), TARGET)
    assert text.count("call float @next_one") == 2
    assert text.count("load float") == 2


def test_a_nan_is_a_sign() -> None:
    """Text and equality tell NaNs by their sign alone; so does the kernel."""
    (odd,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        out = buffer("y", (4,), dtype)
        functions = [
            PrimFunc("f", (out,), Store(out, (ZERO,), FloatImm(v, out.dtype)))
            for v in (odd, float("nan"), -odd)
        ]
        texts = [emit_llvm(f, TARGET) for f in functions]
        assert structural_equal(functions[0], functions[1]) and texts[0] == texts[1]
        assert not structural_equal(functions[0], functions[2]) and texts[0] != texts[2]


def test_an_index_that_a_store_overwrites_is_read_again() -> None:
    """Lanes stored to places that the buffer itself tells, then an element of it."""

    @T.prim_func
    def twice(P: T.Buffer((4,), "int32")):  # noqa: ANN202
        P[T.Broadcast(P[0], 2) & T.Ramp(T.int32(0), T.int32(1), 2)] = T.Broadcast(P[0] + 5, 2)
        P[T.Ramp(2, 1, 2)] = T.Broadcast(P[0], 2)

    x = np.array([1, 2, 3, 4], np.int32)
    tk.compile(IRModule((twice,))).jit()["twice"](x)
    assert x.tolist() == [6, 6, 6, 6]


def test_vectors_are_handed_to_threads_aligned() -> None:
    text = """
@T.prim_func
def f(X: T.Buffer((8,), "int32"), Y: T.Buffer((8, 8), "int32")):
    v: T.int32x8 = X[T.Ramp(0, 1, 8)]
    for i in T.parallel(8):
        Y[i, T.Ramp(0, 1, 8)] = v
"""
    (f,) = from_source(text).prim_funcs
    assert (
        ", align 32\n" in emit_llvm(f, tk.Target("llvm")).partition("call void @kiln_parallel")[0]
    )


# What takes the value of N[0] and is used after N[0] has another, by the lines of a program.
ONCE = {
    "let": ["k: T.int64 = N[0]", "N[0] = 3", "Y[k] = 7"],
    "view": ["V = T.match_buffer(Y[N[0]], (2,))", "N[0] = 3", "V[0] = 7", "V[1] = V[0] + 1"],
    "view_of_one_row": ["V = T.match_buffer(Z[N[0], 0:2], (2,))", "N[0] = 3", "V[1] = 7"],
    "view_with_strides": [
        "V = T.match_buffer(Z[N[0], 0], (2,), strides=(3,))",
        "N[0] = 3",
        "V[1] = 7",
    ],
    "view_of_a_view": [
        "V = T.match_buffer(Y[N[0]], (4,))",
        "N[0] = 2",
        "W = T.match_buffer(V[N[0]], (2,))",
        "N[0] = 0",
        "W[1] = 7",
        "V[0] = 6",
    ],
    "view_read": [
        "V = T.match_buffer(Y[N[0]], (2,))",
        "for i in range(3):",
        "    N[0] = i",
        "    Y[5] = Y[5] + V[0] + V[1]",
    ],
    "view_in_a_loop": [
        "for i in range(3):",
        "    V = T.match_buffer(Y[N[0]], (2,))",
        "    N[0] = N[0] + 1",
        "    V[0] = i + 5",
    ],
    "view_in_lanes": [
        "V = T.match_buffer(Y[N[0]], (2,))",
        "N[0] = 3",
        "V[T.Ramp(0, 1, 2)] = T.Ramp(5, 1, 2)",
    ],
    "block": [
        "with T.block('b'):",
        "    v = T.axis.opaque(8, N[0])",
        "    N[0] = 3",
        "    Y[v] = 7",
    ],
    "extent": ["for i in range(N[0]):", "    N[0] = 5", "    Y[i] = 7"],
    "first": ["for i in T.serial(N[0], extent=2):", "    N[0] = 4", "    Y[i] = 7"],
}
PARAMS = 'N: T.Buffer((2,), "int64"), Y: T.Buffer((8,), "int64"), Z: T.Buffer((4, 3), "int64")'


def test_what_has_a_value_keeps_it() -> None:
    """Whatever is written meanwhile to the memory that the value was read from."""
    texts = "".join(
        f"@T.prim_func(outputs=3)\ndef {name}({PARAMS}):\n" + "".join(f"    {x}\n" for x in lines)
        for name, lines in ONCE.items()
    )
    mod = from_source(texts)
    library = tk.compile(mod).jit()
    for f in mod.prim_funcs:
        memory = {"N": np.array([1, 0]), "Y": np.arange(8) + 20, "Z": np.arange(12).reshape(4, 3)}
        expected = {name: x.copy() for name, x in memory.items()}
        run(f, expected)
        library[f.name](*memory.values())
        for name, x in memory.items():
            np.testing.assert_array_equal(x, expected[name], err_msg=f"{f.name}: {name}")
