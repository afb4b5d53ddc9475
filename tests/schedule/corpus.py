"""Tensor programs to schedule: what people write, with and without dependences that matter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Block, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives import compose_reduction
from tensorkiln.schedule.primitives.tensorize import wrapped
from tensorkiln.schedule.tree.program import open_loop
from tensorkiln.script import T


def as_block(f: PrimFunc, loop: str) -> PrimFunc:
    """`f` with one block, named after the first one in it, of a loop and everything in it."""
    place, s = open_loop(f, loop, "as_block")
    name = next(t.name for t in walk_stmt(s) if isinstance(t, Block))
    return place.close(wrapped(place, s, f"{name}_o", Attrs()))


@dataclass(frozen=True)
class Case:
    """A program; values of its symbolic sizes; the ends of its integer inputs.

    Data are small whole numbers, so sums come out the same in any order; `exact` is False where
    something else is computed.
    """

    func: PrimFunc
    sizes: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    exact: bool = True

    @property
    def name(self) -> str:
        return self.func.name

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Fresh arguments; outputs begin with the same rubbish every time."""
        rng = np.random.default_rng(seed)
        out = {}
        for b in self.func.buffers:
            shape = [self._size(d) for d in b.shape]
            high = self.below.get(b.name, 4)
            low = 0 if b.name in self.below else -3
            out[b.name] = rng.integers(low, high, shape).astype(b.dtype.name)
        return out

    def _size(self, d: object) -> int:
        number = int_value(d)  # type: ignore[arg-type]
        return self.sizes[d.name] if number is None else number  # type: ignore[attr-defined]


# ---- elementwise -------------------------------------------------------------------------------


@T.prim_func
def add(A: T.Buffer((12,)), B: T.Buffer((12,)), C: T.Buffer((12,))) -> None:
    for i in range(12):
        C[i] = A[i] + B[i]


@T.prim_func
def scale_symbolic(A: T.Buffer(("n", 6)), C: T.Buffer(("n", 6))) -> None:
    for i, j in T.grid(n, 6):  # noqa: F821
        C[i, j] = A[i, j] * T.float32(3)


@T.prim_func
def bias(A: T.Buffer((5, 8)), b: T.Buffer((8,)), C: T.Buffer((5, 8))) -> None:
    for i, j in T.grid(5, 8):
        C[i, j] = T.max(A[i, j] + b[j], T.float32(0))


@T.prim_func
def transpose(A: T.Buffer((6, 8)), C: T.Buffer((8, 6))) -> None:
    for i, j in T.grid(6, 8):
        C[j, i] = A[i, j]


@T.prim_func
def permute(A: T.Buffer((3, 4, 5)), C: T.Buffer((5, 3, 4))) -> None:
    for i, j, k in T.grid(5, 3, 4):
        C[i, j, k] = A[j, k, i]


@T.prim_func
def reshape(A: T.Buffer((4, 9)), C: T.Buffer((6, 6))) -> None:
    for i in range(36):
        C[i // 6, i % 6] = A[i // 9, i % 9]


@T.prim_func
def flat(A: T.Buffer((48,)), C: T.Buffer((48,))) -> None:
    for i, j in T.grid(6, 8):
        C[i * 8 + j] = A[i * 8 + j] + A[47 - (i * 8 + j)]


@T.prim_func
def every_other(A: T.Buffer((13,)), C: T.Buffer((13,))) -> None:
    for i in range(7):
        C[2 * i] = A[2 * i]
    for i in range(6):
        C[2 * i + 1] = A[i] - A[2 * i + 1]


@T.prim_func
def lanes(A: T.Buffer((6, 8)), C: T.Buffer((6, 8))) -> None:
    for i, j in T.grid(6, 2):
        C[i, T.Ramp(j * 4, 1, 4)] = A[i, T.Ramp(j * 4, 1, 4)] + T.Broadcast(A[i, j], 4)


# ---- contractions ------------------------------------------------------------------------------


@T.prim_func
def matmul(A: T.Buffer((6, 5)), B: T.Buffer((5, 8)), C: T.Buffer((6, 8))) -> None:
    for i, j in T.grid(6, 8):
        C[i, j] = T.float32(0)
        for k in range(5):
            C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def matmul_apart(A: T.Buffer((6, 8)), B: T.Buffer((8, 4)), C: T.Buffer((6, 4))) -> None:
    for i, j in T.grid(6, 4):
        C[i, j] = T.float32(0)
    for i, j, k in T.grid(6, 4, 8):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def matmul_symbolic(A: T.Buffer(("m", "q")), B: T.Buffer(("q", 4)), C: T.Buffer(("m", 4))) -> None:
    for i, j in T.grid(m, 4):  # noqa: F821
        C[i, j] = T.float32(0)
    for k, i, j in T.grid(q, m, 4):  # noqa: F821
        C[i, j] = A[i, k] * B[k, j] + C[i, j]


@T.prim_func
def matmul_bias(
    A: T.Buffer((4, 6)), B: T.Buffer((6, 4)), b: T.Buffer((4,)), C: T.Buffer((4, 4))
) -> None:
    t = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        t[i, j] = T.float32(0)
        for k in range(6):
            t[i, j] = t[i, j] + A[i, k] * B[k, j]
    for i, j in T.grid(4, 4):
        C[i, j] = T.max(t[i, j] + b[j], T.float32(0))


@T.prim_func
def batch_matmul(A: T.Buffer((2, 3, 4)), B: T.Buffer((2, 4, 3)), C: T.Buffer((2, 3, 3))) -> None:
    for b, i, j in T.grid(2, 3, 3):
        C[b, i, j] = T.float32(0)
        for k in range(4):
            C[b, i, j] = C[b, i, j] + A[b, i, k] * B[b, k, j]


@T.prim_func
def matvec(A: T.Buffer((7, 6)), x: T.Buffer((6,)), y: T.Buffer((7,))) -> None:
    for i in range(7):
        y[i] = T.float32(0)
        for j in range(6):
            y[i] = y[i] + A[i, j] * x[j]


@T.prim_func
def conv1d(A: T.Buffer((12,)), W: T.Buffer((3,)), C: T.Buffer((10,))) -> None:
    for i in range(10):
        C[i] = T.float32(0)
        for r in range(3):
            C[i] = C[i] + A[i + r] * W[r]


@T.prim_func
def conv2d(A: T.Buffer((2, 6, 6)), W: T.Buffer((3, 2, 3, 3)), C: T.Buffer((3, 4, 4))) -> None:
    for o, y, x in T.grid(3, 4, 4):
        C[o, y, x] = T.float32(0)
    for o, y, x in T.grid(3, 4, 4):
        for c, r, s in T.grid(2, 3, 3):
            C[o, y, x] = C[o, y, x] + A[c, y + r, x + s] * W[o, c, r, s]


@T.prim_func
def max_pool(A: T.Buffer((2, 8)), C: T.Buffer((2, 4))) -> None:
    for c, x in T.grid(2, 4):
        C[c, x] = T.float32(-100)
        for r in range(2):
            C[c, x] = T.max(C[c, x], A[c, x * 2 + r])


# ---- reductions and statistics -----------------------------------------------------------------


@T.prim_func
def row_sum(A: T.Buffer(("n", 8)), C: T.Buffer(("n",))) -> None:
    for i in range(n):  # noqa: F821
        C[i] = T.float32(0)
    for j in range(8):
        for i in range(n):  # noqa: F821
            C[i] = C[i] + A[i, j]


@T.prim_func
def least(A: T.Buffer((4, 6)), C: T.Buffer((1,))) -> None:
    C[0] = T.float32(100)
    for i, j in T.grid(4, 6):
        C[0] = T.min(A[i, j], C[0])


@T.prim_func
def softmax(A: T.Buffer((4, 6)), C: T.Buffer((4, 6))) -> None:
    for i in range(4):
        m = T.alloc_buffer((1,), "float32", scope="local")
        s = T.alloc_buffer((1,), "float32", scope="local")
        m[0] = A[i, 0]
        for j in range(1, 6):
            m[0] = T.max(m[0], A[i, j])
        s[0] = T.float32(0)
        for j in range(6):
            C[i, j] = T.exp(A[i, j] - m[0])
        for j in range(6):
            s[0] = s[0] + C[i, j]
        for j in range(6):
            C[i, j] = C[i, j] / s[0]


@T.prim_func
def centred(A: T.Buffer((5, 4)), C: T.Buffer((5, 4))) -> None:
    mean = T.alloc_buffer((5,), "float32")
    for i in range(5):
        mean[i] = T.float32(0)
        for j in range(4):
            mean[i] = mean[i] + A[i, j]
    for i, j in T.grid(5, 4):
        C[i, j] = A[i, j] * T.float32(4) - mean[i]


@T.prim_func
def largest_at(A: T.Buffer((4, 7)), P: T.Buffer((4,), "int64"), C: T.Buffer((4,))) -> None:
    for i in range(4):
        C[i] = T.float32(-100)
        P[i] = 0
        for j in range(7):
            better = A[i, j] > C[i]
            P[i] = T.select(better, j, P[i])
            C[i] = T.select(better, A[i, j], C[i])


@T.prim_func
def histogram(A: T.Buffer((12,), "int64"), C: T.Buffer((5,))) -> None:
    for b in range(5):
        C[b] = T.float32(0)
    for i in range(12):
        C[A[i]] = C[A[i]] + T.float32(1)


@T.prim_func
def parts_of_histogram(A: T.Buffer((12,), "int64"), C: T.Buffer((6,), "int64")) -> None:
    for p in range(3):
        for i in range(12):
            if A[i] >= p * 2 and A[i] < p * 2 + 2:
                C[T.max(T.min(A[i], p * 2 + 1), p * 2)] = A[i]


@T.prim_func
def overlapping_parts(A: T.Buffer((12,), "int64"), C: T.Buffer((7,), "int64")) -> None:
    for p in range(3):
        for i in range(12):
            if A[i] >= p * 2 and A[i] < p * 2 + 3:
                C[T.max(T.min(A[i], p * 2 + 2), p * 2)] = A[i]


# ---- dependences that matter -------------------------------------------------------------------


@T.prim_func
def prefix_sum(A: T.Buffer((12,)), C: T.Buffer((12,))) -> None:
    C[0] = A[0]
    for i in range(1, 12):
        C[i] = C[i - 1] + A[i]


@T.prim_func
def running_total(A: T.Buffer((3, 8)), C: T.Buffer((3, 8))) -> None:
    for i in range(3):
        s = T.alloc_buffer((1,), "float32", scope="local")
        s[0] = T.float32(0)
        for j in range(8):
            s[0] = s[0] + A[i, j]
            C[i, j] = s[0]


@T.prim_func
def smooth(A: T.Buffer((14,)), C: T.Buffer((12,))) -> None:
    for i in range(12):
        C[i] = A[i] + A[i + 1] + A[i + 2]


@T.prim_func
def seidel(A: T.Buffer((6, 6)), C: T.Buffer((6, 6))) -> None:
    for i, j in T.grid(6, 6):
        C[i, j] = A[i, j]
    for i in range(1, 5):
        for j in range(1, 5):
            C[i, j] = C[i - 1, j] + C[i, j - 1] - C[i, j + 1]


@T.prim_func
def wavefront(A: T.Buffer((5, 6)), C: T.Buffer((6, 7))) -> None:
    for i in range(6):
        C[i, 0] = T.float32(0)
    for j in range(7):
        C[0, j] = T.float32(0)
    for i, j in T.grid(5, 6):
        C[i + 1, j + 1] = T.max(C[i, j] + A[i, j], T.max(C[i, j + 1], C[i + 1, j]))


@T.prim_func
def shortest(A: T.Buffer((5, 5)), C: T.Buffer((5, 5))) -> None:
    for i, j in T.grid(5, 5):
        C[i, j] = A[i, j] * A[i, j]
    for k, i, j in T.grid(5, 5, 5):
        C[i, j] = T.min(C[i, j], C[i, k] + C[k, j])


@T.prim_func
def skewed(A: T.Buffer((6, 8)), C: T.Buffer((6, 8))) -> None:
    for i, j in T.grid(6, 8):
        C[i, j] = A[i, j]
    for i in range(1, 6):
        for j in range(7):
            C[i, j] = C[i - 1, j + 1] + T.float32(1)


@T.prim_func
def overwrite(A: T.Buffer((8,)), I: T.Buffer((8,), "int64"), C: T.Buffer((6,))) -> None:  # noqa: E741
    for i in range(6):
        C[i] = T.float32(0)
    for i in range(8):
        C[I[i]] = A[i]


@T.prim_func
def last_row_wins(A: T.Buffer((4, 6)), C: T.Buffer((6,))) -> None:
    for i, j in T.grid(4, 6):
        C[j] = A[i, j]


@T.prim_func
def reverse_pairs(A: T.Buffer((8,)), C: T.Buffer((8,))) -> None:
    for i in range(8):
        C[i] = A[i]
    for i in range(4):
        t = C[i]
        C[i] = C[7 - i]
        C[7 - i] = t


# ---- control flow and scratch ------------------------------------------------------------------


@T.prim_func
def lower(A: T.Buffer((7, 7)), C: T.Buffer((7, 7))) -> None:
    for i, j in T.grid(7, 7):
        C[i, j] = T.float32(0)
    for i in range(7):
        for j in range(i + 1):
            C[i, j] = A[i, j] + A[j, i]


@T.prim_func
def triangle_sum(A: T.Buffer(("n", "n")), C: T.Buffer(("n",))) -> None:
    for i in range(n):  # noqa: F821
        C[i] = T.float32(0)
        for j in range(i, n):  # noqa: F821
            C[i] = C[i] + A[i, j]


@T.prim_func
def padded(A: T.Buffer((4, 5)), C: T.Buffer((6, 7))) -> None:
    for i, j in T.grid(6, 7):
        if i >= 1 and i < 5 and j >= 1 and j < 6:
            C[i, j] = A[i - 1, j - 1]
        else:
            C[i, j] = T.float32(0)


@T.prim_func
def where(A: T.Buffer((6, 4)), M: T.Buffer((6,)), C: T.Buffer((6, 4))) -> None:
    for i in range(6):
        if M[i] > T.float32(0):
            for j in range(4):
                C[i, j] = A[i, j]
        else:
            for j in range(4):
                C[i, j] = T.float32(0)


@T.prim_func
def gathered(A: T.Buffer((5, 4)), I: T.Buffer((7,), "int64"), C: T.Buffer((7, 4))) -> None:  # noqa: E741
    for i in range(7):
        row = I[i]
        for j in range(4):
            C[i, j] = A[row, j]


@T.prim_func
def blur_twice(A: T.Buffer((14,)), C: T.Buffer((10,))) -> None:
    t = T.alloc_buffer((12,), "float32")
    for i in range(12):
        t[i] = A[i] + A[i + 1] + A[i + 2]
    for i in range(10):
        C[i] = t[i] + t[i + 1] + t[i + 2]


@T.prim_func
def rows_of_scratch(A: T.Buffer((6, 8)), C: T.Buffer((6, 8))) -> None:
    for i in range(6):
        t = T.alloc_buffer((8,), "float32", scope="local")
        for j in range(8):
            t[j] = A[i, j] * A[i, j]
        for j in range(8):
            C[i, j] = t[7 - j]


@T.prim_func
def three_stages(A: T.Buffer((5, 6)), C: T.Buffer((5, 6))) -> None:
    s = T.alloc_buffer((5, 6), "float32")
    t = T.alloc_buffer((5, 6), "float32")
    for i, j in T.grid(5, 6):
        s[i, j] = A[i, j] + T.float32(1)
    for i, j in T.grid(5, 6):
        t[i, j] = s[i, j] * T.float32(2)
    for i, j in T.grid(5, 6):
        C[i, j] = t[i, j] - s[i, j]


# ---- blocks, stages, instructions --------------------------------------------------------------


@T.prim_func
def matmul_relu(
    A: T.Buffer((4, 6)), B: T.Buffer((6, 8)), b: T.Buffer((8,)), C: T.Buffer((4, 8))
) -> None:
    s = T.alloc_buffer((4, 8), "float32")
    t = T.alloc_buffer((4, 8), "float32")
    for i, j in T.grid(4, 8):
        s[i, j] = b[j]
        for k in range(6):
            s[i, j] = s[i, j] + A[i, k] * B[k, j]
    for i, j in T.grid(4, 8):
        t[i, j] = s[i, j] * T.float32(2)
    for i, j in T.grid(4, 8):
        C[i, j] = T.max(t[i, j], T.float32(0))


@T.prim_func
def rows_times(A: T.Buffer((3, 4)), B: T.Buffer((4, 8)), C: T.Buffer((3, 8))) -> None:
    for i, j in T.grid(3, 8):
        C[i, j] = T.float32(0)
    for i, k, j in T.grid(3, 4, 8):
        C[i, j] = A[i, k] * B[k, j] + C[i, j]


@T.prim_func
def bytes_dot(
    A: T.Buffer((3, 8), "int8"), B: T.Buffer((5, 8), "int8"), C: T.Buffer((3, 5), "int32")
) -> None:
    for i, j in T.grid(3, 5):
        C[i, j] = T.int32(0)
    for i, j, k, q in T.grid(3, 5, 2, 4):
        C[i, j] = C[i, j] + T.Cast("int32", A[i, k * 4 + q]) * T.Cast("int32", B[j, k * 4 + q])


@T.prim_func
def stencil_chain(A: T.Buffer((20,)), C: T.Buffer((14,))) -> None:
    s = T.alloc_buffer((18,), "float32")
    t = T.alloc_buffer((16,), "float32")
    for i in range(18):
        s[i] = A[i] + A[i + 2]
    for i in range(16):
        t[i] = s[i] - s[i + 1] + s[i + 2]
    for i in range(14):
        C[i] = t[i] + t[i + 2] * T.float32(2)


CASES = (
    Case(replace(compose_reduction(matmul_relu, "s", "s_1"), name="matmul_relu_block")),
    Case(replace(compose_reduction(matmul, "C", "C_1"), name="matmul_block")),
    Case(matmul_relu),
    Case(rows_times),
    Case(bytes_dot),
    Case(stencil_chain),
    Case(add),
    Case(scale_symbolic, {"n": 7}),
    Case(bias),
    Case(transpose),
    Case(permute),
    Case(reshape),
    Case(flat),
    Case(every_other),
    Case(lanes),
    Case(matmul),
    Case(matmul_apart),
    Case(matmul_symbolic, {"m": 5, "q": 7}),
    Case(matmul_bias),
    Case(batch_matmul),
    Case(matvec),
    Case(conv1d),
    Case(conv2d),
    Case(max_pool),
    Case(row_sum, {"n": 9}),
    Case(least),
    Case(softmax, exact=False),
    Case(centred),
    Case(largest_at),
    Case(histogram, below={"A": 5}),
    Case(prefix_sum),
    Case(running_total),
    Case(smooth),
    Case(seidel),
    Case(wavefront),
    Case(shortest),
    Case(skewed),
    Case(overwrite, below={"I": 6}),
    Case(last_row_wins),
    Case(reverse_pairs),
    Case(lower),
    Case(triangle_sum, {"n": 8}),
    Case(padded),
    Case(where),
    Case(gathered, below={"I": 5}),
    Case(blur_twice),
    Case(rows_of_scratch),
    Case(three_stages),
)
