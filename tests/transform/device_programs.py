"""Device functions for tests: their bodies as text, what barriers they need, arrays to run them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc, Stmt, Sync, seq
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import map_stmt, walk_stmt
from tensorkiln.script import from_source

HEAD = """
@ir_module
class Module:
    @T.prim_func(private=True)
    def f({parameters}):
        T.func_attr({{"device_function": True}})
        for b in T.thread_binding({blocks}, thread="blockIdx.x"):
{body}
"""
X = 'X: T.Buffer((2, 8), "int32"), Y: T.Buffer((2, 8), "int32")'


def threads(body: str, count: int = 8, index: str = "x") -> str:
    """A nest over threadIdx: `t` for x, `u` for y."""
    var = {"x": "t", "y": "u"}[index]
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f'for {var} in T.thread_binding({count}, thread="threadIdx.{index}"):\n{lines}'


def loop(head: str, *parts: str) -> str:
    """A statement with a body of several parts."""
    return "\n".join([head, *(textwrap.indent(p, "    ") for p in parts)])


def shared(name: str = "s", size: str = "8", dtype: str = "int32") -> str:
    return f'{name} = T.alloc_buffer(({size},), "{dtype}", scope="shared")'


SYNC = 'T.sync("block")'


def text_of(*parts: str, parameters: str = X, blocks: str = "2") -> str:
    """The text of a module with the device function f, whose blocks run `parts`."""
    body = textwrap.indent("\n".join(parts), " " * 12)
    return HEAD.format(parameters=parameters, blocks=blocks, body=body)


def device(*parts: str, parameters: str = X, blocks: str = "2") -> PrimFunc:
    """A verified device function whose blocks run `parts`."""
    mod = from_source(text_of(*parts, parameters=parameters, blocks=blocks))
    verify(mod)
    f = mod["f"]
    assert isinstance(f, PrimFunc)
    return f


def barriers(f: PrimFunc) -> int:
    return sum(isinstance(s, Sync) for s in walk_stmt(f.body))


def without_barrier(f: PrimFunc, barrier_index: int) -> PrimFunc:
    """`f` without one of its barriers, counted in program text order."""
    sync_index = -1

    def cut(s: Stmt) -> Stmt:
        nonlocal sync_index
        if isinstance(s, Sync):
            sync_index += 1
            return seq() if sync_index == barrier_index else s
        return map_stmt(s, lambda e: e, cut)

    changed = PrimFunc(f.name, f.params, cut(f.body), f.outputs, attrs=f.attrs)
    verify(IRModule((changed,)))
    return changed


def arrays_of(f: PrimFunc, seed: int = 0, **sizes: int) -> dict[str, Any]:
    """Small integers for every buffer; -1 for outputs, so that what is not written shows."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = dict(sizes)
    outputs = f.buffers[len(f.buffers) - f.outputs :]
    for b in f.buffers:
        shape = [sizes.get(getattr(d, "name", ""), getattr(d, "value", 0)) for d in b.shape]
        values = rng.integers(0, 50, shape) if b not in outputs else np.full(shape, -1)
        arrays[b.name] = values.astype(b.dtype.name)
    return arrays


@dataclass(frozen=True)
class Case:
    """`parts`: the function without barriers; `with_barriers`: the same with those it needs."""

    parts: tuple[str, ...]
    with_barriers: tuple[str, ...]
    parameters: str = X
    blocks: str = "2"


IN = threads("s[t] = X[b, t]")
REVERSED = threads("Y[b, t] = s[7 - t]")
KEPT = threads("Y[b, t] = s[t]")
ADDED = threads("Y[b, t] = Y[b, t] + s[7 - t]")
ZERO = threads("Y[b, t] = 0")
NEXT = threads("s[t] = X[b, (t + k) % 8]")
GLOBAL = 'X: T.Buffer((2, 8), "int32"), Z: T.Buffer((2, 8), "int32"), Y: T.Buffer((2, 8), "int32")'
SYMBOLIC = 'X: T.Buffer(("n", 8), "int32"), Y: T.Buffer(("n", 8), "int32"), n: T.int64, m: T.int64'
HALVES = [
    threads(f"""
        if t < {h}:
            s[t] = s[t] + s[t + {h}]
        """)
    for h in (4, 2, 1)
]
HALF = threads("""
    if t < (4 >> k):
        s[t] = s[t] + s[t + (4 >> k)]
    """)
COUNT = threads("s[0] = s[0] + 1", count=1)
OUT = threads("Y[b, t] = s[0]", count=1)
FILL = threads("s[t + 8 * ((k + 1) % 2)] = X[b, (t + k) % 8]")
USE = threads("Y[b, t] = Y[b, t] + s[7 - t + 8 * (k % 2)]")
STEP = threads("s[t] = s[t] + 1")
SHIFT = threads("r[t] = s[(t + 1) % 8]")
BACK = threads("s[t] = r[t]")

CASES = {
    "one thread's element": Case((shared(), IN, KEPT), (shared(), IN, KEPT)),
    "another thread's element": Case((shared(), IN, REVERSED), (shared(), IN, SYNC, REVERSED)),
    "one thread": Case(
        (shared(), threads("s[t] = X[b, t]", 1), threads("Y[b, t] = s[0]", 1)),
        (shared(), threads("s[t] = X[b, t]", 1), threads("Y[b, t] = s[0]", 1)),
    ),
    "a barrier that is there": Case((shared(), IN, SYNC, REVERSED), (shared(), IN, SYNC, REVERSED)),
    "only reads": Case(
        (ZERO, threads("Y[b, t] = X[b, 7 - t]")), (ZERO, threads("Y[b, t] = X[b, 7 - t]"))
    ),
    "a tile per round": Case(
        (shared(), ZERO, loop("for k in range(3):", NEXT, ADDED)),
        (shared(), ZERO, loop("for k in range(3):", NEXT, SYNC, ADDED, SYNC)),
    ),
    "two tiles in turn": Case(
        (shared(size="16"), ZERO, IN, loop("for k in range(4):", FILL, USE)),
        (shared(size="16"), ZERO, IN, loop("for k in range(4):", SYNC, FILL, USE)),
    ),
    "two buffers in turn": Case(
        (shared(), shared("r"), IN, loop("for k in range(3):", SHIFT, BACK), KEPT),
        (shared(), shared("r"), IN, loop("for k in range(3):", SYNC, SHIFT, SYNC, BACK), KEPT),
    ),
    "a sum as a tree": Case(
        (shared(), IN, *HALVES, OUT),
        (shared(), IN, SYNC, HALVES[0], SYNC, HALVES[1], SYNC, HALVES[2], OUT),
    ),
    "a sum as a tree of any depth": Case(  # the distance 4 >> k is not affine: one is assumed
        (shared(), IN, loop("for k in range(3):", HALF), OUT),
        (shared(), IN, loop("for k in range(3):", SYNC, HALF), OUT),
    ),
    "global memory": Case(
        (threads("Z[b, t] = X[b, t]"), threads("Y[b, t] = Z[b, 7 - t]")),
        (threads("Z[b, t] = X[b, t]"), SYNC, threads("Y[b, t] = Z[b, 7 - t]")),
        GLOBAL,
    ),
    "a barrier outside of a loop": Case(
        (shared(), IN, ZERO, loop("for k in range(3):", ADDED)),
        (shared(), IN, ZERO, SYNC, loop("for k in range(3):", ADDED)),
    ),
    "carried by an outer loop": Case(
        (
            shared(),
            ZERO,
            loop("for k in range(2):", NEXT, loop("for j in range(3):", ADDED)),
        ),
        (
            shared(),
            ZERO,
            loop("for k in range(2):", NEXT, SYNC, loop("for j in range(3):", ADDED), SYNC),
        ),
    ),
    "a branch that all take": Case(
        (shared(), IN, loop("if b == 0:", REVERSED), loop("else:", KEPT)),
        (shared(), IN, SYNC, loop("if b == 0:", REVERSED), loop("else:", KEPT)),
    ),
    "within a branch": Case(
        (shared(), ZERO, loop("if b == 0:", IN, REVERSED)),
        (shared(), ZERO, loop("if b == 0:", IN, SYNC, REVERSED)),
    ),
    "a condition that reads shared memory": Case(
        (shared(), IN, loop("if s[0] < 25:", KEPT)),
        (shared(), IN, SYNC, loop("if s[0] < 25:", KEPT)),
    ),
    "a condition that all read before each round": Case(
        (shared(), threads("s[t] = 0"), loop("while s[0] < 3:", COUNT), KEPT),
        (shared(), threads("s[t] = 0"), SYNC, loop("while s[0] < 3:", SYNC, COUNT, SYNC), KEPT),
    ),
    "rounds of a number that is not known": Case(
        (shared(), ZERO, loop("for k in range(m):", NEXT, ADDED)),
        (shared(), ZERO, loop("for k in range(m):", NEXT, SYNC, ADDED, SYNC)),
        SYMBOLIC,
        "n",
    ),
    "a loop that may not run": Case(
        (shared(), IN, loop("for k in range(m):", STEP, SYNC), REVERSED),
        (shared(), IN, loop("for k in range(m):", STEP, SYNC), SYNC, REVERSED),
        SYMBOLIC,
        "n",
    ),
    "a loop that certainly runs": Case(
        (shared(), IN, loop("for k in range(2):", STEP, SYNC), REVERSED),
        (shared(), IN, loop("for k in range(2):", STEP, SYNC), REVERSED),
    ),
    "fewer threads than the block has": Case(
        (shared(), IN, threads("Y[b, t] = s[t + 4]", 4)),
        (shared(), IN, SYNC, threads("Y[b, t] = s[t + 4]", 4)),
    ),
    "two indices": Case(
        (
            shared(),
            threads(threads("s[4 * u + t] = X[b, 4 * u + t]", 4), 2, "y"),
            threads(threads("Y[b, 4 * u + t] = s[4 * (1 - u) + t]", 4), 2, "y"),
        ),
        (
            shared(),
            threads(threads("s[4 * u + t] = X[b, 4 * u + t]", 4), 2, "y"),
            SYNC,
            threads(threads("Y[b, 4 * u + t] = s[4 * (1 - u) + t]", 4), 2, "y"),
        ),
    ),
    "a nest that leaves out an index": Case(
        (
            shared(),
            threads(threads("s[4 * u + t] = X[b, 4 * u + t]", 4), 2, "y"),
            threads("Y[b, t] = s[t]", 4),
        ),
        (
            shared(),
            threads(threads("s[4 * u + t] = X[b, 4 * u + t]", 4), 2, "y"),
            threads("Y[b, t] = s[t]", 4),
        ),
    ),
}


def function(case: Case, whole: bool) -> PrimFunc:
    """The device function of a case, with its barriers if `whole`."""
    parts = case.with_barriers if whole else case.parts
    return device(*parts, parameters=case.parameters, blocks=case.blocks)
