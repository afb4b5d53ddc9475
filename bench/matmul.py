"""`python -m bench.matmul`: matrix products of 1024^3 beside the peak of one core.

That of docs/schedules.md, and what the compiler makes of `a @ b` by itself: of a constant b by
direct sums and by what it chooses, and of a computed one. All on one thread and in the same run,
taking turns; the time is that of the thread, so that neighbours on the machine count as little as
they can. The peak is measured, not looked up: chains of multiply-adds that stay in registers.
"""

from __future__ import annotations

import re
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.limits import compiled, fma_peak, least
from tensorkiln.ir.relax import constant, tensor
from tensorkiln.ops.builder import GraphBuilder

SIZE = 1024
PAGE = Path(__file__).resolve().parents[1] / "docs" / "schedules.md"
SECTION = "## A fast matrix product"


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


def product_of_graph(b: np.ndarray | None, strassen: bool = False) -> Callable[..., object]:
    """`a @ b` compiled untuned, on one thread: a call of (a, out), or of (a, b, out)."""
    g = GraphBuilder()
    a = g.param("a", tensor((SIZE, SIZE), "float32"))
    right = g.param("b", tensor((SIZE, SIZE), "float32")) if b is None else constant(b)
    target = tk.Target("native").replace(strassen=strassen)
    mod = tk.IRModule((g.finish(g.emit("matmul", a, right)),))
    library = tk.compile(mod, target).jit()
    library.set_num_threads(1)
    run = tk.runtime.Executor(library)["main"]
    return lambda *arrays: run(*arrays[:-1], out=arrays[-1])


def main() -> None:
    """Print all in GFLOP/s, and their shares of the peak."""
    a, b = np.random.default_rng(0).normal(size=(2, SIZE, SIZE)).astype(np.float32)
    c = np.zeros_like(a)
    peak, operations = fma_peak()
    page, computed_b = compiled(product_of_page()), product_of_graph(None)
    direct, seven = product_of_graph(b), product_of_graph(b, strassen=True)
    calls: dict[str, Callable[[], object]] = {
        "docs/schedules.md": lambda: page(a, b, c),
        "compiled": lambda: direct(a, c),
        "compiled, strassen": lambda: seven(a, c),
        "compiled, b computed": lambda: computed_b(a, b, c),
    }
    best = dict.fromkeys(calls, float("inf"))
    top = float("inf")
    for _ in range(30):
        top = min(top, least(peak))
        best = {name: min(best[name], least(call)) for name, call in calls.items()}
    rate = operations / top / 1e9
    print(f"{'FMA peak of one core':<24}{rate:7.1f} GFLOP/s")
    for name, seconds in best.items():
        reached = 2 * SIZE**3 / seconds / 1e9
        print(f"{name:<24}{reached:7.1f} GFLOP/s, {reached / rate:.0%} of it")


if __name__ == "__main__":
    main()
