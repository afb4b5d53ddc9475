"""`python -m bench.overhead`: what a call from Python costs, on an addition of one element.

Microseconds of processor time, the least and the median of many rounds. The measure is an empty
function of tvm-ffi that is given the same arguments; our library is called through tvm-ffi as any
of its libraries is, and through our own runtime in every way that it has.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import tensorkiln as tk
from bench.store import add
from tensorkiln.script import R, T

ROUNDS, CALLS = 25, 2000


@tk.script.ir_module
class One:
    @T.prim_func
    def add(
        X: T.Buffer((1,), "float32"), Y: T.Buffer((1,), "float32"), Z: T.Buffer((1,), "float32")
    ) -> None:
        for i in range(1):
            Z[i] = X[i] + Y[i]

    @R.function
    def main(x: R.Tensor((1,), "float32"), y: R.Tensor((1,), "float32")) -> R.Tensor(
        (1,), "float32"
    ):
        z = R.add(x, y)
        return z

    @R.function
    def any_length(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")) -> R.Tensor(
        ("n",), "float32"
    ):
        z = R.add(x, y)
        return z


def micros(calls: Mapping[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """Of one call each: the least and the median over rounds of the mean over CALLS. They take
    turns, so that all see the same machine."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            samples[name].append((time.thread_time() - start) / CALLS * 1e6)
    return {name: (min(times), statistics.median(times)) for name, times in samples.items()}


def calls(path: Path) -> dict[str, Callable[[], object]]:
    """Every road to the addition, and the empty calls; those of tvm-ffi where it is installed."""
    x, y, z = (np.ones(1, np.float32) for _ in range(3))
    library = tk.runtime.load_module(path)
    executor, bound_executor = tk.runtime.Executor(library), tk.runtime.Executor(library)
    add_one, main, any_length = library["add"], executor["main"], executor["any_length"]
    for e in (executor, bound_executor):
        e.set_input("main", x, y)
    bound_executor.set_output("main", 0, z)
    tx, ty, tz = (tk.runtime.Tensor(a) for a in (x, y, z))
    roads: dict[str, Callable[[], object]] = {
        "runtime, tensor function, NumPy": lambda: add_one(x, y, z),
        "runtime, tensor function looked up, NumPy": lambda: library["add"](x, y, z),
        "runtime, tensor function, its tensors": lambda: add_one(tx, ty, tz),
        "executor, NumPy, new result": lambda: main(x, y),
        "executor, NumPy, by name": lambda: main(x=x, y=y),
        "executor, NumPy, out=": lambda: main(x, y, out=z),
        "executor, its tensors, new result": lambda: main(tx, ty),
        "executor, its tensors, out=": lambda: main(tx, ty, out=tz),
        "executor, function looked up, NumPy, new result": lambda: executor["main"](x, y),
        "executor, any length, NumPy, new result": lambda: any_length(x, y),
        "executor, invoke, new result": lambda: executor.invoke("main"),
        "executor, invoke, output bound": lambda: bound_executor.invoke("main"),
    }
    try:
        import tvm_ffi
    except ImportError:
        return roads
    u, v, w = (tvm_ffi.from_dlpack(a) for a in (x, y, z))
    loaded, empty = tvm_ffi.load_module(str(path)), tvm_ffi.get_global_func("testing.nop")
    ffi_add, ffi_main = loaded["add"], loaded["main"]
    return {
        "tvm-ffi, empty, no arguments": lambda: empty(),
        "tvm-ffi, empty, its tensors": lambda: empty(u, v, w),
        "tvm-ffi, empty, NumPy": lambda: empty(x, y, z),
        "tvm-ffi, tensor function, its tensors": lambda: ffi_add(u, v, w),
        "tvm-ffi, tensor function, NumPy": lambda: ffi_add(x, y, z),
        "tvm-ffi, graph function, its tensors, result given": lambda: ffi_main(u, v, w),
        "tvm-ffi, graph function, its tensors, new result": lambda: ffi_main(u, v),
        **roads,
    }


def main() -> None:
    """Measure, keep, print."""
    with tempfile.TemporaryDirectory(prefix="kiln-overhead-") as folder:
        path = tk.compile(One, "native").export_library(Path(folder) / "one.so")
        rows = micros(calls(path))
    add("overhead", "add of one element", 1, {"rows": rows})
    print("\n".join(lines(rows)))


def lines(rows: Mapping[str, Sequence[float]]) -> list[str]:
    """A Markdown table; the last columns are what is above the empty call without arguments."""
    empty = rows.get("tvm-ffi, empty, no arguments")
    table = [
        "| call | min µs | median µs | above an empty call: min | median |",
        "|---" + "|--:" * 4 + "|",
    ]
    for name, pair in rows.items():
        cells = [f"{value:.2f}" for value in pair]
        if empty is not None:
            cells += [f"{value - nothing:.2f}" for value, nothing in zip(pair, empty, strict=True)]
        else:
            cells += ["tvm-ffi is not installed"] * 2
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table


if __name__ == "__main__":
    main()
