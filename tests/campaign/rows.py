"""Campaigns that are not tests of pytest: random graphs by number, networks of the
gallery, and node tests of ONNX with symbolic extents.

`python -m tests.campaign.rows RUNNER SEED ITEM...` is the child process of a shard; it prints a
line of JSON for each item. Both have processes of their own for what crashes or hangs.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.campaign.findings import Failure

ROOT = Path(__file__).resolve().parents[2]
MARK = "row: "
GOOD = {
    "random-graphs": ("right", "refused", "no reference"),
    "extents": ("right",),
    "zoo": ("right", "refused"),
}


def random_graphs(count: int) -> list[str]:
    """The numbers of the graphs of a seed."""
    return [str(k) for k in range(count)]


def networks() -> list[str]:
    """Networks and their routes, as `name route`."""
    from tests.gallery.rows import ROWS

    return [f"{name} {route}" for name, row in ROWS.items() for route in row.routes]


def examples() -> list[str]:
    """The node tests of which extents become symbolic."""
    from tests.frontend.extents import examples as cases

    return [case.name for case in cases()]


LISTS = {"extents": examples, "zoo": networks}


def row_command(runner: str, items: Sequence[str], seed: int) -> str:
    """The line that runs items again; its exit status is 1 if one of them fails."""
    if runner == "random-graphs":
        first, last = int(items[0]), int(items[-1])
        words = ["-m", "tests.frontend.test_random_graphs", "--seed", str(seed)]
        words += ["--first", str(first), "--count", str(last - first + 1), "--jobs", "1"]
    elif runner == "extents":
        words = ["-m", "tests.frontend.extents", *items]
    else:
        names, routes = zip(*(item.split() for item in items), strict=True)
        words = ["-m", "tests.gallery", *dict.fromkeys(names)]
        words += [w for route in dict.fromkeys(routes) for w in ("--route", route)]
    return shlex.join(["python", *words])


def run_rows(runner: str, items: Sequence[str], seed: int) -> tuple[Counter[str], list[Failure]]:
    """Run items in a child process, in an empty folder; how many had each outcome, and the
    failures. Items that the child did not come to are one failure."""
    words = [sys.executable, "-m", "tests.campaign.rows", runner, str(seed), *items]
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    with tempfile.TemporaryDirectory(prefix="kc-") as folder:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder}
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed = child.communicate()[0].decode(errors="replace")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    counts, failures, reported = Counter[str](), list[Failure](), set[str]()
    for line in printed.splitlines():
        if line.startswith(MARK):
            item, kind, details = json.loads(line.removeprefix(MARK))
            reported.add(item)
            counts[kind] += 1
            if kind not in GOOD[runner]:
                failures.append(_failure(runner, item, seed, kind, details))
    missing = [item for item in items if item not in reported]
    if missing:
        counts["not run"] += len(missing)
        details = f"exit status {child.returncode}: {printed.strip()[-500:]}"
        failures.append(_failure(runner, missing[0], seed, "Session", details))
    return counts, failures


def _failure(runner: str, item: str, seed: int, kind: str, details: str) -> Failure:
    if runner == "random-graphs":
        test = f"tests/frontend/random_graphs.py[{seed} {item}]"
    elif runner == "extents":
        test = f"tests/frontend/extents.py[{item}]"
    else:
        name, route = item.split()
        test = f"tests/gallery/{name}[{route}]"
    line = row_command(runner, [item], seed)
    return Failure(kind=kind, message=details, test=test, seed=seed, command=line)


def _graphs(seed: str, items: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    from tests.frontend.test_random_graphs import PART, part

    numbers = [int(item) for item in items]
    assert all(b == a + 1 for a, b in pairwise(numbers)), "the numbers of a shard follow each other"
    for start in range(0, len(numbers), PART):
        piece = numbers[start : start + PART]
        for k, result in sorted(part(seed, piece[0], len(piece)).items()):
            yield str(k), result.kind, result.details


def _zoo(seed: str, items: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    from tests.gallery.processes import alone

    for item in items:
        name, route = item.split()
        outcome = alone(name, route, False)
        yield item, outcome.kind, outcome.details


def _extents(seed: str, items: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    from tests.frontend.extents import chosen, outcomes, reason

    for item in items:
        problems = [
            f"{v.places} {row}" for v, row in outcomes(chosen([item])) if not reason(v, row)
        ]
        yield item, "wrong" if problems else "right", "; ".join(problems)


_RUN = {"extents": _extents, "random-graphs": _graphs, "zoo": _zoo}


def main() -> None:
    """Run items and print what was found."""
    from tests.campaign.recorder import end_with_parent

    end_with_parent()
    runner, seed, *items = sys.argv[1:]
    for result in _RUN[runner](seed, items):
        print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
