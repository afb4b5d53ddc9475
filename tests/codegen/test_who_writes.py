"""Every way to write a buffer reaches the caller's array, wherever that lies; and none a read-only
one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.script import from_source
from tests.codegen.test_random_programs import placed

N = 8
HEAD = """
import tensorkiln as tk
from tensorkiln.script import R, T

@tk.script.ir_module
class Module:
    @T.prim_func(private=True)
    def twice(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            B[i] = A[i] * 2.0

    @T.prim_func(private=True)
    def through(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        T.call(Module.twice, A, B)

    @T.prim_func(private=True)
    def copied(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        T.call_extern("void", "memcpy", T.address_of(B[0]), T.address_of(A[0]), T.uint64(32))
"""
COPY = "T.address_of({to}), T.address_of({of}), T.uint64({bytes})"
# name -> the body, and what Y is afterwards; X is never written
WAYS: dict[str, tuple[list[str], Any]] = {
    "store": (["for i in range(8):", "    Y[i] = X[i] * 2.0"], lambda x: x * 2),
    "some": (["Y[3] = X[3]"], lambda x: np.where(np.arange(N) == 3, x, -1)),
    "vector": (["Y[0:8] = X[0:8] * 2.0"], lambda x: x * 2),
    "parallel": (["for i in T.parallel(8):", "    Y[i] = X[i] * 2.0"], lambda x: x * 2),
    "branch": (["if X[0] > -100.0:", "    Y[0:8] = X[0:8]"], lambda x: x),
    "block": (["for i in range(8):", "    with T.block('b'):", "        v = T.axis.spatial(8, i)",
               "        with T.init():", "            Y[v] = X[v]", "        Y[v] = Y[v] + 1.0"],
              lambda x: x + 1),
    "view": (["V = T.match_buffer(Y[0:8], (8,))", "V[0:8] = X[0:8]"], lambda x: x),
    "view_of_view": (["V = T.match_buffer(Y[2], (3,), strides=(2,))",
                      "W = T.match_buffer(V[1], (1,), strides=(1,))", "W[0] = X[0]"],
                     lambda x: np.where(np.arange(N) == 4, x[0], -1)),
    "call": (["T.call(Module.twice, X, Y)"], lambda x: x * 2),
    "call_at": (["T.call(Module.twice, T.address_of(X[0]), T.address_of(Y[0]))"], lambda x: x * 2),
    "call_of_call": (["T.call(Module.through, X, Y)"], lambda x: x * 2),
    "call_of_extern": (["T.call(Module.copied, X, Y)"], lambda x: x),
    "c_whole": ([f"T.call_extern('void', 'memcpy', {COPY.format(to='Y[0]', of='X[0]', bytes=32)})"],
               lambda x: x),
    "c_part": ([f"T.call_extern('void', 'memcpy', {COPY.format(to='Y[2]', of='X[1]', bytes=8)})"],
                  lambda x: np.concatenate([[-1, -1], x[1:3], [-1] * 4])),
    "c_view": (["V = T.match_buffer(Y[4:8], (4,))",
                     f"T.call_extern('void', 'memcpy', "
                     f"{COPY.format(to='V[0]', of='X[0]', bytes=16)})"],
                    lambda x: np.concatenate([[-1] * 4, x[:4]])),
    "c_value": (["Y[0] = T.call_extern('float32', 'frexpf', X[1], T.address_of(E[0]))"],
                     lambda x: np.where(np.arange(N) == 0, np.frexp(x[1])[0], -1)),
    "through_local": (["t = T.alloc_buffer((8,), 'float32', scope='local')",
                       "T.call(Module.twice, X, t)", "Y[0:8] = t[0:8] + t[0]"],
                      lambda x: x * 2 + x[0] * 2),
    "repeat": (["n = T.alloc_buffer((1,), 'int64', scope='local')", "n[0] = 0", "while n[0] < 8:",
               "    Y[n[0]] = X[n[0]]", "    n[0] += 1"], lambda x: x),
}  # fmt: skip
# Buffers of `c_value`: C writes E, which stands before Y.
EXTRA = {"c_value": [("E", "int32")]}


def text(name: str) -> str:
    """One function per way."""
    extra = "".join(f'{b}: T.Buffer((1,), "{d}"), ' for b, d in EXTRA.get(name, ()))
    head = f'    @T.prim_func\n    def {name}(X: T.Buffer((8,), "float32"), {extra}'
    body = "".join(f"        {line}\n" for line in WAYS[name][0])
    return f'\n{head}Y: T.Buffer((8,), "float32")):\n{body}'


@pytest.fixture(scope="module")
def library() -> Any:
    return tk.compile(from_source(HEAD + "".join(map(text, WAYS)))).jit()


def given(name: str, memory_kind: str) -> list[np.ndarray]:
    x = np.arange(1, N + 1, dtype="float32")
    extra_arrays = [np.zeros(1, d) for _, d in EXTRA.get(name, ())]
    return [placed(a, memory_kind) for a in (x, *extra_arrays, np.full(N, -1, "float32"))]


@pytest.mark.parametrize("memory_kind", ["aligned", "misaligned", "strided"])
@pytest.mark.parametrize("name", WAYS)
def test_what_is_written_arrives(library: Any, name: str, memory_kind: str) -> None:
    arrays = given(name, memory_kind)
    x = arrays[0].copy()
    want = WAYS[name][1](x)
    library[name](*arrays)
    np.testing.assert_array_equal(arrays[-1], want)
    np.testing.assert_array_equal(arrays[0], x)
    if name == "c_value":
        assert arrays[1].tolist() == [np.frexp(x[1])[1]]


@pytest.mark.parametrize("memory_kind", ["aligned", "misaligned", "strided"])
@pytest.mark.parametrize("name", WAYS)
def test_what_is_read_only_stays(library: Any, name: str, memory_kind: str) -> None:
    for k in range(1, 2 + len(EXTRA.get(name, ()))):
        arrays = given(name, memory_kind)
        arrays[k].flags.writeable = False
        before = [a.copy() for a in arrays]
        with pytest.raises(UserError, match="is read-only and cannot be filled"):
            library[name](*arrays)
        for a, b in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(a, b)


# C functions may write whatever they are given an address of; other programs say what they write.
MAYBE = ("call_of_extern", "c_whole", "c_part", "c_view")


@pytest.mark.parametrize("name", WAYS)
def test_roles(library: Any, name: str) -> None:
    roles = [p.role for p in library[name].info.inputs]
    first = "out" if name in MAYBE else "in"
    assert roles == [first, *("out" for _ in EXTRA.get(name, ())), "out"]
    x, *further_arrays = given(name, "aligned")
    x.flags.writeable = False
    if first == "in":
        library[name](x, *further_arrays)
    else:
        with pytest.raises(UserError, match="argument 'X' is read-only"):
            library[name](x, *further_arrays)


def test_outputs_says_what_a_c_function_only_reads() -> None:
    body = text("c_whole").replace("@T.prim_func", "@T.prim_func(outputs=1)")
    mod = from_source(HEAD + body)
    assert isinstance(mod, IRModule) and "outputs=1" in mod.script()
    lib = tk.compile(from_source(mod.script())).jit()
    x, y = given("c_whole", "misaligned")
    x.flags.writeable = False
    lib["c_whole"](x, y)
    assert [p.role for p in lib["c_whole"].info.inputs] == ["in", "out"]
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("view", [False, True])
def test_a_call_may_not_write_what_is_only_read(view: bool) -> None:
    lines = ["V = T.match_buffer(X[0:8], (8,))", "T.call(Module.twice, Y, V)"]
    body = "".join(
        f"        {line}\n" for line in (lines if view else ["T.call(Module.twice, Y, X)"])
    )
    head = '\n    @T.prim_func(outputs=1)\n    def f(X: T.Buffer((8,), "float32"), '
    mod = from_source(HEAD + head + 'Y: T.Buffer((8,), "float32")):\n' + body)
    with pytest.raises(UserError, match=f"twice writes B, which is {'V' if view else 'X'}") as info:
        tk.compile(mod)
    assert "stores go to Y" in info.value.hint
