"""`make zoo`: run rows of the gallery, each in a process of its own, and print what was found."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatch

from tests.gallery.case import ROUTES, Outcome, run
from tests.gallery.rows import ROWS

SECONDS = 420  # for one row by one route
GOOD = ("right", "refused")
MARK = "outcome: "


def alone(job: tuple[str, str]) -> Outcome:
    """Run a row in a process of its own."""
    name, route = job
    command = [sys.executable, "-m", "tests.gallery", name, "--route", route, "--here"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome(name, route, "hangs", f"more than {SECONDS} s")
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return Outcome(**json.loads(line.removeprefix(MARK)))
    return Outcome(name, route, "crashes", f"exit code {done.returncode}: {done.stderr[-500:]}")


def line(o: Outcome) -> str:
    """A row of the table."""
    ratio = "" if o.ratio is None else f"{o.ratio:.2f}"
    what = " ".join(o.what.split())[:240]
    figures = f"{o.error:8.0e} {o.compiled:7.1f} {ratio:>6}" if o.kind == "right" else ""
    return f"{o.name:32} {o.route:7} {o.kind:9} {figures}{what}".rstrip()


def summary(found: Sequence[Outcome]) -> str:
    """Networks by what was found, the worst route of each; then routes."""
    worst: dict[str, str] = {}
    for o in found:
        if o.kind not in GOOD or o.name not in worst:
            worst[o.name] = o.kind
    networks = Counter(worst.values())
    runs = Counter(o.kind for o in found)
    said = ", ".join(f"{n} {kind}" for kind, n in networks.most_common())
    return f"{len(worst)} networks: {said}; of {len(found)} imports {runs['right']} right"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 unless all rows are right, or refused as they say."""
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows, also as patterns: 'gpt*'")
    parser.add_argument("--route", choices=ROUTES, action="append", help="only this route")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="names, packages and routes only")
    parser.add_argument("--here", action="store_true", help="one row, in this process")
    args = parser.parse_args(argv)
    if args.here:
        print(MARK + json.dumps(asdict(run(ROWS[args.names[0]], args.route[0]))))
        return 0
    chosen = [
        (name, route)
        for name, row in ROWS.items()
        if not args.names or any(fnmatch(name, n) for n in args.names)
        for route in row.routes
        if not args.route or route in args.route
    ]
    if args.list:
        for name, route in chosen:
            print(f"{name:32} {ROWS[name].package:14} {route}")
        return 0
    print(f"{'network':32} {'route':7} {'found':9} {'error':>8} {'compile':>7} {'to ORT':>6}")
    found = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for o in pool.map(alone, chosen):
            found.append(o)
            print(line(o), flush=True)
    print(summary(found))
    return 0 if found and all(o.kind in GOOD for o in found) else 1


if __name__ == "__main__":
    sys.exit(main())
