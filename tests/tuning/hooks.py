"""Ways to measure that are the same each time, for tests; some of them fail on purpose."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.runtime.trial import Trial, WrongResult
from tensorkiln.tuning import Tuned
from tests.transform.graphs import graph

TARGET = {"kind": "llvm", "mcpu": "x86-64-v2"}
_calls = 0


@dataclass(frozen=True)
class Points:
    """A number between 1 and 2 that the bytes of a library decide; `dies` is the call at which the
    process is killed, as from outside."""

    dies: int = 0
    unit: str = "points"
    machine: str = "a table"

    def __call__(self, library: Path, trial: Trial) -> float:
        global _calls
        _calls += 1
        if _calls == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        digest = hashlib.sha256(library.read_bytes()).digest()
        return 1 + int.from_bytes(digest[:4], "big") / 2**32


@dataclass(frozen=True)
class Failing:
    """Does what is said of the call of a number; all others are 1, the first being untuned."""

    unit: str = "points"

    def __call__(self, library: Path, trial: Trial) -> float:
        global _calls
        _calls += 1
        if _calls == 2:
            raise WrongResult("it computed another thing")
        if _calls == 3:
            time.sleep(60)
        if _calls == 4:
            raise OSError("the board is gone")
        if _calls == 5:
            return float("nan")
        return 1.0 if _calls == 1 else 0.5


def model() -> IRModule:
    """Two kernels with knobs."""

    def build(g, x):  # noqa: ANN001, ANN202
        return g.linear(g.relu(g.linear(x, rand(32, 64))), rand(64, 16))

    return graph(build, x=(24, 32))


def tuned(journal: Path | None, dies: int = 0, **options: object) -> Tuned:
    """A search of some candidates, in this process."""
    defaults = {"seconds": 500, "trials": 8, "batch": 3, "measure": Points(dies), "seed": 3}
    with ThreadPoolExecutor(1) as executor:
        return tk.tune(
            model(), TARGET, executor=executor, journal=journal, **{**defaults, **options}
        )


if __name__ == "__main__":
    tuned(Path(sys.argv[1]), int(sys.argv[2]))
