"""Reductions that the threads of a block compute together: parts of programs that give each row, or
each element, a block.

Each thread sums every `threads`-th term. The partial sums are added in a tree of few levels. Its
shape depends on the number of threads alone, so equal shapes give equal bits.

    for t in threads:                          role "thread"
        acc = neutral
        for k: acc = acc + x[k * threads + t]
        part[t] = acc                          shared
    for t in threads / 16: part1[t] = part[t] + part[t + threads / 16] + ...
    total[0] = part1[0] + part1[1] + ...
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import REDUCE_BINARY, Expr, IntImm, binary, int_value, neutral
from tensorkiln.ir.stmt import If, Stmt, Store, seq
from tensorkiln.schedule.build import loop, within

THREAD = "thread"  # the role of loops over the threads of a block
_FAN = 16  # most partial sums that one thread adds at a level of the tree
_AT = (IntImm(0),)

Element = Callable[[Expr], Expr]


def each_thread(name: str, extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """A loop over threads of a block."""
    return loop(name, extent, body, THREAD, keep=True)


def strided(name: str, extent: Expr, threads: int, t: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    """The iterations t, t + threads, t + 2 * threads, ... of a loop of `extent`: those of thread t,
    so that neighbouring threads access neighbouring elements."""
    steps = simplify((extent + (threads - 1)) // threads)
    divides = int_value(simplify(extent % threads)) == 0

    def step(k: Expr) -> Stmt:
        j = simplify(k * threads + t)
        return body(j) if divides else If(j < extent, body(j))

    return loop(name, steps, step)


class BlockSum:
    """A reduction of `extent` terms by the threads of a block. `stmt` computes it, `buffers` are
    those that it needs around it, and `value` loads the result in any thread."""

    def __init__(self, name: str, op: str, dtype: DType, extent: Expr, threads: int, term: Element):
        self.op, self.dtype, self.threads = op, dtype, threads
        self.buffers: list[Buffer] = []
        partial = self._shared(f"{name}_part", threads)
        acc = buffer(f"{name}_acc", (1,), dtype, "register")

        def own(t: Expr) -> Stmt:
            def add(j: Expr) -> Stmt:
                return Store(acc, _AT, binary(REDUCE_BINARY[op], Load(acc, _AT), term(j)))

            start = Store(acc, _AT, neutral(op, dtype))
            return within(
                [acc],
                start,
                strided("k", extent, threads, t, add),
                Store(partial, (t,), Load(acc, _AT)),
            )

        steps = [each_thread("thread", threads, own)]
        count = threads
        # Threads wait for each other between levels, so levels are few and wide.
        while count > 1:
            fan = min(_FAN, count)
            count //= fan
            partial, step = self._level(f"{name}_sum", partial, count, fan)
            steps.append(step)
        self.stmt = seq(*steps)
        self.value: Expr = Load(partial, _AT)

    def _shared(self, name: str, size: int) -> Buffer:
        shared_buffer = buffer(name, (size,), self.dtype, "shared")
        self.buffers.append(shared_buffer)
        return shared_buffer

    def _level(self, name: str, partial: Buffer, count: int, fan: int) -> tuple[Buffer, Stmt]:
        """One level of the tree: `count` threads add `fan` partial sums each."""
        into = self._shared(name, count)
        acc = buffer(f"{name}_acc", (1,), self.dtype, "register")

        def own(t: Expr) -> Stmt:
            def add(i: Expr) -> Stmt:
                # Neighbouring threads read neighbouring sums, which are in different banks.
                term = Load(partial, (simplify(i * count + t),))
                return Store(acc, _AT, binary(REDUCE_BINARY[self.op], Load(acc, _AT), term))

            return within(
                [acc],
                Store(acc, _AT, Load(partial, (t,))),
                loop("i", fan - 1, add, lo=1),
                Store(into, (t,), Load(acc, _AT)),
            )

        return into, each_thread("thread", count, own)
