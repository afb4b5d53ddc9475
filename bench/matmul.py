"""`python -m bench.matmul`: the matrix product of docs/schedules.md beside the peak of one core.

Both on one thread and in the same run, taking turns; the time is that of the thread, so that
neighbours on the machine count as little as they can. The peak is measured, not looked up: chains
of multiply-adds that stay in registers.
"""

from __future__ import annotations

import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.limits import compiled, fma_peak, least

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


def main() -> None:
    """Print both in GFLOP/s, and the share of the peak."""
    a, b = np.random.default_rng(0).normal(size=(2, 1024, 1024)).astype(np.float32)
    c = np.zeros_like(a)
    (peak, operations), product = fma_peak(), compiled(product_of_page())
    times = [(least(peak), least(lambda: product(a, b, c))) for _ in range(30)]
    top = operations / min(t for t, _ in times) / 1e9
    reached = 2 * 1024**3 / min(t for _, t in times) / 1e9
    print(f"FMA peak of one core   {top:7.1f} GFLOP/s")
    print(f"1024^3 matrix product  {reached:7.1f} GFLOP/s, {reached / top:.0%} of it")


if __name__ == "__main__":
    main()
