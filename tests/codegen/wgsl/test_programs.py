"""Device functions one statement or type at a time, as WGSL, beside NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.codegen.c_like.wgsl import MOST_BLOCKS, WgslFunction, emit_wgsl
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.script import from_source
from tests.codegen.wgsl.device import Program
from tests.schedule.gpu.runner import WEBGPU, Kernels

TYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")
FLOATS = ("float16", "bfloat16", "float32")


def emitted(source: str) -> tuple[Kernels, tuple[WgslFunction, ...]]:
    """The kernels of a script, and their device functions as WGSL."""
    kernels = Kernels(from_source(source).prim_funcs, WEBGPU)
    functions = [f for f in kernels.mod.prim_funcs if isinstance(f, PrimFunc) and f.is_device]
    return kernels, emit_wgsl(functions, WEBGPU)


def run(source: str, sizes: dict[str, int], *arrays: np.ndarray) -> None:
    """Run the only kernel of a script on its buffers."""
    kernels, _ = emitted(source)
    kernels.run(kernels.names[0], sizes, *arrays)


def numbers(dtype: str, n: int, seed: int = 0) -> np.ndarray:
    """Numbers of a type, its least and greatest among them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype in FLOATS:
        return rng.normal(size=n).astype(getattr(ml_dtypes, dtype, dtype))
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, n, dtype, endpoint=True)
    x[:2] = info.min, info.max
    return x


MOVED = """
@T.prim_func
def moved(X: T.Buffer((67,), "{dtype}"), Y: T.Buffer((67,), "{dtype}")):
    for i in T.thread_binding(3, thread="blockIdx.x"):
        for j in T.thread_binding(32, thread="threadIdx.x"):
            if i * 32 + j < 67:
                Y[66 - (i * 32 + j)] = X[i * 32 + j]
"""


@pytest.mark.parametrize("dtype", [*TYPES, *FLOATS])
def test_threads_write_neighbours_of_every_type(dtype: str) -> None:
    """Elements of 8 and 16 bits share words, and threads of several blocks write one."""
    x, y = numbers(dtype, 67), np.zeros_like(numbers(dtype, 67))
    run(MOVED.format(dtype=dtype), {}, x, y)
    assert y.tobytes() == x[::-1].tobytes()


def test_every_float16_is_read_and_written() -> None:
    """All 65536 bit patterns; of subnormal numbers too, which float32 may lack on a device."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(np.float16)
    source = """
@T.prim_func
def widened(X: T.Buffer((65536,), "float16"), Y: T.Buffer((65536,), "float32"),
            Z: T.Buffer((65536,), "float16")):
    for i in T.thread_binding(256, thread="blockIdx.x"):
        for j in T.thread_binding(256, thread="threadIdx.x"):
            Y[i * 256 + j] = T.Cast("float32", X[i * 256 + j])
            Z[i * 256 + j] = T.Cast("float16", T.Cast("float32", X[i * 256 + j]))
"""
    y, z = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float16)
    run(source, {}, x, y, z)
    assert np.array_equal(y, x.astype(np.float32), equal_nan=True)
    assert np.array_equal(z, x, equal_nan=True)


def test_numbers_of_every_type_are_passed() -> None:
    source = """
@T.prim_func
def passed(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32"), on: T.bool, a: T.int8,
           b: T.uint16, c: T.int64, d: T.float16, e: T.bfloat16, f: T.float32):
    for i in T.thread_binding(1, thread="blockIdx.x"):
        for j in T.thread_binding(8, thread="threadIdx.x"):
            Y[j] = (X[j] + T.Cast("float32", a) + T.Cast("float32", b) + T.Cast("float32", c)
                    + T.Cast("float32", d) + T.Cast("float32", e) + f
                    + T.select(on, T.float32(1000), T.float32(0)))
"""
    _, (f,) = emitted(source)
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    numbers = [np.bool_(True), np.int8(-3), np.uint16(60000), np.int64(-70000), np.float16(0.5)]
    numbers += [ml_dtypes.bfloat16(0.25), np.float32(2.125)]
    assert [dtype for _, dtype in f.numbers] == [
        *("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32")
    ]
    Program([f]).run(f.name, (1, 1, 1), (8, 1, 1), [x, y, *numbers])
    np.testing.assert_array_equal(y, x - 3 + 60000 - 70000 + 0.5 + 0.25 + 2.125 + 1000)


BLOCKS = """
@T.prim_func
def blocks(X: T.Buffer(({n},), "int32"), Y: T.Buffer(({n},), "int32")):
    for i in T.thread_binding({n}, thread="blockIdx.x"):
        tile = T.alloc_buffer((2,), "int32", scope="shared")
        for j in T.thread_binding(2, thread="threadIdx.x"):
            tile[j] = X[i] + T.Cast("int32", j)
        for j in T.thread_binding(2, thread="threadIdx.x"):
            if j == 0:
                Y[i] = tile[1]
"""


@pytest.mark.parametrize("count", [MOST_BLOCKS, MOST_BLOCKS + 1, 2 * MOST_BLOCKS + 7])
@pytest.mark.parametrize("symbolic", [False, True])
def test_more_blocks_than_a_dimension_has(count: int, symbolic: bool) -> None:
    x, y = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    source = BLOCKS.format(n='"n"' if symbolic else count).replace('binding("n"', "binding(n")
    run(source, {"n": count}, x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_loops_arrays_and_views() -> None:
    """A loop with a condition, memory of a thread, a view that begins inside of a buffer."""
    source = """
@T.prim_func
def steps(X: T.Buffer((4, 8), "float16"), Y: T.Buffer((4, 8), "float16")):
    for b in T.thread_binding(2, thread="blockIdx.x"):
        for j in T.thread_binding(4, thread="threadIdx.x"):
            mine = T.alloc_buffer((8,), "float16", scope="local")
            row = T.match_buffer(X[j, 0], (8,))
            left = T.alloc_buffer((1,), "int32", scope="register")
            left[0] = 7
            while left[0] >= 0:
                mine[7 - left[0]] = row[left[0]]
                left[0] = left[0] - 1
            for k in range(4):
                Y[j, b * 4 + k] = mine[b * 4 + k]
"""
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float16)
    y = np.zeros_like(x)
    run(source, {}, x, y)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_vectors_are_computed_by_lane() -> None:
    """A vector that is stored where it was read, turned around; a sum of lanes; narrow products."""
    source = """
@T.prim_func
def lanes(X: T.Buffer((8,), "float32"), A: T.Buffer((16,), "uint8"), B: T.Buffer((16,), "int8"),
          Y: T.Buffer((9,), "float32"), Z: T.Buffer((4,), "int32")):
    for b in T.thread_binding(1, thread="blockIdx.x"):
        for j in T.thread_binding(1, thread="threadIdx.x"):
            Y[T.Ramp(0, 1, 8)] = X[T.Ramp(0, 1, 8)]
            Y[T.Ramp(0, 1, 8)] = Y[T.Ramp(7, -1, 8)]
            Y[8] = T.vector_reduce("sum", X[T.Ramp(0, 1, 8)])
            Z[T.Ramp(0, 1, 4)] = T.dot4(
                T.Broadcast(T.int32(5), 4), A[T.Ramp(0, 1, 16)], B[T.Ramp(0, 1, 16)])
"""
    x = np.random.default_rng(0).normal(size=8).astype(np.float32)
    a, b = numbers("uint8", 16), numbers("int8", 16)
    y, z = np.zeros(9, np.float32), np.zeros(4, np.int32)
    run(source, {}, x, a, b, y, z)
    np.testing.assert_array_equal(y[:8], x[::-1])
    half = x[:4] + x[4:]
    assert y[8] == (half[0] + half[2]) + (half[1] + half[3])
    products = a.astype(np.int32) * b
    np.testing.assert_array_equal(z, 5 + products.reshape(4, 4).sum(1))
