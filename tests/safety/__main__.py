"""`python -m tests.safety --seed N --minutes M [--sanitizer address|undefined|thread]`.

Calls everything that a library shows, from C and from Python, with tensors and objects of every
legal kind, while what the system does fails: c/ holds the C part, cases.py and surroundings.py the
Python part. The same seed makes the same cases. Every finding is printed with the line that runs it
alone: `--part c|python --case K [--count N]`; a race may need several runs, a leak the cases before
it, and a crash of memory written long ago all of its batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.safety.build import build_checked, build_libraries
from tests.safety.loop import Tally, run_cases

ROOT = Path(__file__).resolve().parents[2]
# Of sanitizers: leaks, races and undefined behaviour do not end a program, so that more is found.
OPTIONS = {
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1:handle_abort=1",
    "TSAN_OPTIONS": "halt_on_error=0:die_after_fork=0:report_signal_unsafe=0",
}
NOT_UNDER = {"thread": ("fork", "nested")}  # TSan knows neither
KINDS = (
    "call",
    "failing",
    "values",
    "nested",
    "packed",
    "loaders",
    "opening",
    "lives",
    "threads",
    "fork",
    "elsewhere",
    "metadata",
    "newer",
    "environment",
    "ending",
)
EVER = 1 << 40


def c_cases(
    folder: Path,
    sanitizer: str,
    seed: int,
    first: int,
    count: int,
    deadline: float,
    kinds: str = "",
) -> Tally:
    """Cases of the C driver, which is built first where it is not there."""
    if not (folder / "driver").exists():
        build_checked(folder, sanitizer)
    left_out = NOT_UNDER.get(sanitizer, ())
    chosen = kinds or ",".join(k for k in KINDS if k not in left_out)

    def command(first_case: int, size: int) -> Sequence[str]:
        return ["./driver", str(seed), str(first_case), str(size), chosen]

    return run_cases(command, first, count, folder=folder, environ=OPTIONS, deadline=deadline)


def python_cases(
    folder: Path, seed: int, first: int, count: int, deadline: float, kinds: str = ""
) -> Tally:
    """Cases of Python callers."""
    if not (folder / "loaders.so").exists():
        build_libraries(folder)

    def command(first_case: int, size: int) -> Sequence[str]:
        words = ["-m", "tests.safety.child", str(folder), str(seed), str(first_case), str(size)]
        return [sys.executable, *words, *([kinds] if kinds else [])]

    path = os.pathsep.join([str(ROOT), *sys.path])
    environ = {"PYTHONPATH": path}
    return run_cases(command, first, count, folder=ROOT, environ=environ, deadline=deadline)


def _options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.safety", None, __doc__, formatter_class=raw)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--minutes", type=float, default=5)
    add("--sanitizer", choices=("address", "undefined", "thread", "none"), default="address")
    add("--part", choices=("c", "python", "both"), default="both")
    add("--case", type=int, help="the first case, or the only one")
    add("--count", type=int, help="how many cases; with --case 1, else without end")
    add("--kinds", default="", help="kinds of cases, joined by commas")
    add("--folder", type=Path, help="keeps what is built there, and uses it again")
    return parser.parse_args()


def main() -> int:
    """Run for some minutes, or one case; 1 when something was found."""
    o = _options()
    sanitizer = {"none": "", "address": "address,undefined"}.get(o.sanitizer, o.sanitizer)
    first, count = o.case or 0, o.count or (EVER if o.case is None else 1)
    parts = ("c", "python") if o.part == "both" else (o.part,)
    finding_count = 0
    with tempfile.TemporaryDirectory() as temporary:
        for part in parts:
            name = f"c-{o.sanitizer}" if part == "c" else "python"
            folder = (o.folder or Path(temporary)).resolve() / name
            folder.mkdir(parents=True, exist_ok=True)
            c = partial(c_cases, folder, sanitizer)
            run = c if part == "c" else partial(python_cases, folder)
            deadline = time.monotonic() + o.minutes * 60 / len(parts)
            tally = run(o.seed, first, count, deadline, o.kinds)
            words = ["python -m tests.safety --seed", o.seed, "--part", part]
            words += ["--sanitizer", o.sanitizer] if part == "c" else []
            words += ["--kinds", o.kinds] if o.kinds else []
            line = " ".join(map(str, words))
            print(f"\n-- {line}\n{tally.text(f'{line} --case {{}}'.format)}")
            finding_count += len(tally.findings)
    return 1 if finding_count else 0


if __name__ == "__main__":
    raise SystemExit(main())
