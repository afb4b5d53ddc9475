"""`python -m bench.many_cores MODEL`: how far the tasks of a model's kernels let more cores help.

The time of each kernel's call on one thread is divided among its loops by their operations and
stores; the chunks of each parallel loop are then claimed by simulated threads, as crt/pool.c cuts
and hands them out. Cores are alike and share nothing: bandwidth, caches and the clock's frequency
are not simulated, so a speed-up is a bound from above, and what it lacks is the schedule's own
fault.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorkiln as tk
from bench.models import MODELS
from bench.roofline import module_of, random_inputs
from bench.store import Record, add
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, PrimFunc, Seq, Stmt, Store
from tensorkiln.measure.calls import graph_function, time_calls
from tensorkiln.measure.kernels import flops, size_of
from tensorkiln.passes import Instrument, Step
from tensorkiln.runtime.tensor import Array

CORES = (2, 4, 8, 16, 32)
CHUNKS_PER_THREAD = 8  # crt/pool.c
# Microseconds: to publish a loop and see all threads arrive; to claim a chunk of it.
START, CLAIM = 0.7, 0.05


@dataclass(frozen=True, slots=True)
class Loop:
    """A part of a kernel: its iterations that threads share, 1 if none do; operations in all."""

    iterations: int
    work: float


@dataclass(frozen=True, slots=True)
class CallOnCores:
    """One call: microseconds on one thread, and its loops."""

    kernel: str
    micros: float
    loops: tuple[Loop, ...]

    def on(self, cores: int) -> float:
        """Microseconds on so many cores."""
        work = sum(loop.work for loop in self.loops)
        shares = [loop.work / work if work else 1 / len(self.loops) for loop in self.loops]
        return sum(
            makespan(loop.iterations, self.micros * share, cores)
            for loop, share in zip(self.loops, shares, strict=True)
        )


def makespan(iterations: int, micros: float, cores: int) -> float:
    """Microseconds until all iterations, which take `micros` in all, are done by so many cores."""
    threads = min(cores, iterations)
    if threads < 2:
        return micros
    chunks = min(iterations, threads * CHUNKS_PER_THREAD)
    free = [0.0] * threads
    for chunk in range(chunks):
        size = iterations * (chunk + 1) // chunks - iterations * chunk // chunks
        heapq.heappush(free, heapq.heappop(free) + CLAIM + micros * size / iterations)
    return START + max(free)


def loops_of(func: PrimFunc) -> tuple[Loop, ...]:
    """What a kernel does one after the other: its parallel loops, and the rest between them."""
    loops: list[Loop] = []

    def visit(s: Stmt | None, times: int) -> None:
        match s:
            case For(kind="parallel", extent=extent):
                n = size_of(extent, {}) or 1
                loops.extend([Loop(n, _work(s))] * times)
            case For(extent=extent, body=body) if _shares(body):
                visit(body, times * (size_of(extent, {}) or 1))
            case Seq(stmts):
                for part in stmts:
                    visit(part, times)
            case Let(body=body) | Alloc(body=body) | Block(body=body) if _shares(body):
                visit(body, times)
            case None:
                pass
            case _:
                loops.append(Loop(1, times * _work(s)))

    visit(func.body, 1)
    return tuple(loops)


def _shares(s: Stmt | None) -> bool:
    """Whether there is a parallel loop in a statement."""
    match s:
        case For(kind=kind, body=body):
            return kind == "parallel" or _shares(body)
        case Seq(stmts):
            return any(map(_shares, stmts))
        case If(_, then, orelse):
            return _shares(then) or _shares(orelse)
        case Let(body=body) | Alloc(body=body) | Block(body=body):
            return _shares(body)
    return False


def _work(s: Stmt) -> float:
    """Floating point operations, and elements stored."""
    return flops(s, {}) + _stores(s)


def _stores(s: Stmt | None) -> float:
    match s:
        case For(extent=extent, body=body):
            return (size_of(extent, {}) or 1) * _stores(body)
        case Seq(stmts):
            return sum(map(_stores, stmts))
        case Store(value=value):
            return value.dtype.lanes
        case If(_, then, orelse):
            return _stores(then) + _stores(orelse)
        case Let(body=body) | Alloc(body=body) | Block(body=body):
            return _stores(body)
    return 0.0


@dataclass(slots=True)
class Programs(Instrument):
    """Collects kernels by name, as they are when loops have their final form."""

    functions: dict[str, PrimFunc] = field(default_factory=dict)

    def after(self, step: Step) -> None:
        """Keep the last form of each."""
        for f in step.before.functions:
            if isinstance(f, PrimFunc):
                self.functions[f.name] = f


def calls_of(mod: tk.IRModule, inputs: Mapping[str, Array], seconds: float) -> list[CallOnCores]:
    """Every call of an inference, timed on one thread."""
    programs = Programs()
    exe = tk.compile(mod, instruments=[programs])
    run_time = time_calls(exe, inputs or random_inputs(exe), seconds)
    plan = graph_function(exe, "main").calls
    return [
        CallOnCores(c.symbol, t.micros, loops_of(programs.functions[c.symbol]))
        for c, t in zip(plan, run_time.calls, strict=True)
    ]


def slowest(calls: Sequence[CallOnCores], cores: int, count: int = 3) -> list[tuple[str, float]]:
    """The kernels that lose most beside an even division: names, and microseconds lost."""
    loss_of_kernel: dict[str, float] = {}
    for c in calls:
        loss_of_kernel[c.kernel] = (
            loss_of_kernel.get(c.kernel, 0.0) + c.on(cores) - c.micros / cores
        )
    return sorted(loss_of_kernel.items(), key=lambda item: -item[1])[:count]


HEAD = (
    "Speed-up by the tasks of the kernels alone, simulated (bench/many_cores.py): a bound from "
    "above. Lost: microseconds beside an even division among 16 cores.\n",
    f"| model | ms on one | {' | '.join(f'on {n}' for n in CORES)} | lost on 16 |",
    "|---|--:|" + "--:|" * len(CORES) + "---|",
)


def record_of(calls: Sequence[CallOnCores]) -> dict[str, object]:
    """The figures of one model."""
    one_core = sum(c.micros for c in calls)
    ups = [one_core / sum(c.on(n) for c in calls) for n in CORES]
    return {"micros": one_core, "speedups": ups, "lost": slowest(calls, 16)}


def line(r: Record) -> str:
    """A row of the table."""
    ups = " | ".join(f"{x:.1f}" for x in r["speedups"])
    loss_text = ", ".join(f"`{name}` {micros:.0f}" for name, micros in r["lost"])
    return f"| {r['model']} | {r['micros'] / 1e3:.2f} | {ups} | {loss_text} |"


def main(arguments: list[str] | None = None) -> None:
    """Compile, measure, simulate, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_cores", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all that `make bench` measures")
    parser.add_argument("--seconds", type=float, default=2.0, help="of whole runs, per model")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    options = parser.parse_args(arguments)
    print("\n".join(HEAD))
    for model in options.models or MODELS:
        mod, inputs = module_of(model, {})
        figures = record_of(calls_of(mod, inputs, options.seconds))
        if options.record:
            add("many_cores", model, 1, figures)
        print(line({"model": model, **figures}), flush=True)


if __name__ == "__main__":
    main()
