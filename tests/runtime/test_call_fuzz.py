"""Random calls, right and wrong: no crash, no conversion in silence, the model's bytes.

`make fuzz SEED=7` makes 20,000 other calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.script import from_source
from tests.runtime.call_fuzz import call_number, expected
from tests.runtime.call_programs import functions, module_text

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("FUZZ_SEED", "1"))
CALLS, PARTS = 20_000, 8
MOST_CRASHES = 20  # then it is not worth going on


@dataclass
class Tally:
    """What came of a number of calls."""

    calls: int = 0
    taken: int = 0
    crashes: int = 0
    findings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The closing line."""
        refused = self.calls - self.taken
        return (
            f"{self.calls} calls: {self.taken} taken with the model's bytes, {refused} refused, "
            f"{self.crashes} crashes, {len(self.findings)} findings"
        )


def run_calls(folder: Path, seed: int, programs: int, calls: int) -> Tally:
    """Calls of a library of that many random functions, in processes of their own: one that dies is
    a finding, and the next one goes on behind the call that ended it."""
    mod = from_source(module_text(functions(seed, programs)), infer=ops.infer)
    library = tk.compile(mod, tk.Target("native")).export_library(folder / f"calls{seed}.so")
    tally, first = Tally(), 0
    while first < calls and tally.crashes < MOST_CRASHES:
        numbers = map(str, (seed, programs, first, calls - first))
        command = [sys.executable, "-m", "tests.runtime.call_fuzz", str(library), *numbers]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        process = subprocess.run(
            command,
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        first = _read(process.stdout.splitlines(), process, tally, first)
    return tally


def _read(
    lines: list[str], process: subprocess.CompletedProcess[str], tally: Tally, first: int
) -> int:
    """Add what a process said; the call after its last one."""
    last = first - 1
    for i, line in enumerate(lines):
        if line.startswith("!"):
            tally.findings.append("\n".join(lines[i : i + 2]))
        elif line.startswith("= "):
            tally.taken += int(line.split()[1])
        elif line.isdigit():
            last = int(line)
    tally.calls += last + 1 - first
    if process.returncode != 0:
        assert last >= first, process.stderr
        tally.crashes += 1
        tally.findings.append(
            f"! {last}: ended with {process.returncode}: {process.stderr[-2000:]}"
        )
    return last + 1


def test_some_calls(tmp_path: Path) -> None:
    tally = run_calls(tmp_path, 0, 12, 600)
    assert tally.findings == [], "\n".join(tally.findings)
    assert (tally.calls, tally.crashes) == (600, 0) and 150 < tally.taken < 450


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_twenty_thousand_calls(part: int, tmp_path: Path) -> None:
    seed = SEED * 1000 + part
    tally = run_calls(tmp_path, seed, 32, CALLS // PARTS)
    print(f"\ncalls, part {part}, seed {seed}: {tally.text()}")
    assert tally.findings == [], "\n".join(tally.findings)
    assert tally.calls == CALLS // PARTS


def _kinds() -> Iterator[tuple[str, bool]]:
    functions_drawn = functions(0, 12)
    for k in range(600):
        call = call_number(k, 0, functions_drawn)
        yield call.function.kind, expected(call) is not None


def test_calls_are_of_every_kind() -> None:
    """Both kinds of functions, taken and refused, often."""
    kinds_of_calls = list(_kinds())
    for kind in ("tensor", "graph"):
        for is_accepted in (True, False):
            assert kinds_of_calls.count((kind, is_accepted)) > 40
