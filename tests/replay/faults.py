"""Which planted faults the tests catch, before and after a change:

    python -m tests.replay.faults [BASE]

runs the tests that plant faults, once in the tree of commit BASE (the last commit where none is
named) and once in the working tree, and prints those that pass there and not here. Exit code 1 if
there are any. A test that was renamed on purpose is told too: look at what took its place.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from tests.replay.__main__ import ROOT, commit_of, work_tree

# Tests that plant a fault in a pass, a kernel, the code of a device or a trial, and look for it.
PLANTING = (
    "tests/campaign/test_campaign.py",
    "tests/cuda/test_planted_faults.py",
    "tests/tuning/test_faults.py",
    "tests/transform/test_check_races.py",
    "tests/verification/test_planted.py",
)


def caught_by(tree: Path) -> set[str]:
    """The tests of PLANTING that pass in `tree`."""
    files = [name for name in PLANTING if (tree / name).exists()]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *files]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=tree, env=environment, check=False, stdout=subprocess.DEVNULL)
        cases = ET.parse(report).iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if not any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, compare, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.faults", description=__doc__)
    parser.add_argument("base", nargs="?", default="HEAD", help="a commit")
    options = parser.parse_args(arguments)
    with work_tree(commit_of(options.base)) as tree:
        before = caught_by(tree)
    now = caught_by(ROOT)
    for name in sorted(before - now):
        print(f"no longer caught: {name}")
    print(f"{len(before)} caught before, {len(now)} now, {len(before & now)} of them the same")
    return int(bool(before - now))


if __name__ == "__main__":
    raise SystemExit(main())
