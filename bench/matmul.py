"""`python -m bench.matmul`: the matrix product of docs/schedules.md beside the peak of one core.

Both on one thread and in the same run, taking turns; the time is that of the thread, so that
neighbours on the machine count as little as they can. The peak is measured, not looked up: chains
of multiply-adds that stay in registers.
"""

from __future__ import annotations

import re
import runpy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.script import T

PAGE = Path(__file__).resolve().parents[1] / "docs" / "schedules.md"
SECTION = "## A fast matrix product"
STEPS, CHAINS = 1_000_000, 16


def peak_program(lanes: int, chains: int) -> Any:
    """`chains` registers of `lanes` numbers, each multiplied and added to STEPS times."""

    @T.prim_func
    def peak(X: T.Buffer((lanes,), "float32"), Y: T.Buffer((lanes,), "float32")) -> None:
        acc = T.alloc_buffer((chains, lanes), "float32", scope="register")
        for r in T.unroll(chains):
            for v in T.vectorized(lanes):
                acc[r, v] = X[v]
        for _step in range(STEPS):
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    acc[r, v] = T.fma(acc[r, v], X[v], X[v])
        for r in T.unroll(chains):
            for v in T.vectorized(lanes):
                Y[v] = Y[v] + acc[r, v]

    return peak


def product_of_page() -> Any:
    """The scheduled program that the page arrives at."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    section = re.findall(r"```python\n(.*?)```", text[text.index(SECTION) :], re.S)
    with tempfile.TemporaryDirectory() as folder:  # scripts are read from their file
        file = Path(folder) / "page.py"
        imports = [line for line in blocks[0].splitlines() if " import " in f" {line}"]
        file.write_text("\n".join(imports) + "\n" + "".join(section[:2]), encoding="utf-8")
        return runpy.run_path(str(file))["s"].func


def compiled(func: Any) -> Callable[..., object]:
    """The function of a library that holds only it."""
    return tk.compile(tk.IRModule((func,)), "native", relax_pipeline=None).jit()[func.name]


def least(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    """Print both in GFLOP/s, and the share of the peak."""
    lanes = tk.Target("native").vector_lanes("float32")
    chains = CHAINS if tk.Target("native").num_vector_registers >= 32 else 12
    x, y = np.full(lanes, 0.5, np.float32), np.zeros(lanes, np.float32)
    a, b = np.random.default_rng(0).normal(size=(2, 1024, 1024)).astype(np.float32)
    c = np.zeros_like(a)
    peak, product = compiled(peak_program(lanes, chains)), compiled(product_of_page())
    times = [(least(lambda: peak(x, y)), least(lambda: product(a, b, c))) for _ in range(30)]
    top = 2 * lanes * chains * STEPS / min(t for t, _ in times) / 1e9
    reached = 2 * 1024**3 / min(t for _, t in times) / 1e9
    print(f"FMA peak of one core   {top:7.1f} GFLOP/s")
    print(f"1024^3 matrix product  {reached:7.1f} GFLOP/s, {reached / top:.0%} of it")


if __name__ == "__main__":
    main()
