"""`python -m bench.overhead`: what a call from Python costs, on an addition of one element.

Microseconds of processor time, the least of many rounds. The measure is an empty function of
tvm-ffi that is given the same arguments; our library is called through tvm-ffi as any of its
libraries is, and through our own runtime, which needs no extension module.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
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


def micros(call: Callable[[], object]) -> float:
    """Of one call: the least over rounds of the mean over CALLS."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, time.thread_time() - start)
    return best / CALLS * 1e6


def calls(path: Path) -> dict[str, Callable[[], object]]:
    """Every road to the addition, and the empty calls; those of tvm-ffi where it is installed."""
    x, y, z = (np.ones(1, np.float32) for _ in range(3))
    library = tk.runtime.load_module(path)
    add_one, main = library["add"], tk.runtime.Executor(library)["main"]
    found: dict[str, Callable[[], object]] = {
        "runtime, tensor function, NumPy": lambda: add_one(x, y, z),
        "runtime, graph function, NumPy, new result": lambda: main(x, y),
        "runtime, graph function, NumPy, out=": lambda: main(x, y, out=z),
    }
    try:
        import tvm_ffi
    except ImportError:
        return found
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
        **found,
    }


def main() -> None:
    """Measure, keep, print."""
    with tempfile.TemporaryDirectory(prefix="kiln-overhead-") as folder:
        path = tk.compile(One, "native").export_library(Path(folder) / "one.so")
        rows = {name: micros(call) for name, call in calls(path).items()}
    add("overhead", "add of one element", 1, {"rows": rows})
    print("\n".join(lines(rows)))


def lines(rows: dict[str, float]) -> list[str]:
    """A Markdown table; what is above the empty call without arguments in the last column."""
    empty = rows.get("tvm-ffi, empty, no arguments")
    made = ["| call | µs | above an empty tvm-ffi call |", "|---|--:|--:|"]
    for name, value in rows.items():
        above = f"{value - empty:.2f}" if empty is not None else "tvm-ffi is not installed"
        made.append(f"| {name} | {value:.2f} | {above} |")
    return made


if __name__ == "__main__":
    main()
