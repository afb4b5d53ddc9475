"""`make zoo`: run rows of the gallery, each in a process of its own, and print what was found."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from tests.gallery.case import KINDS, ROUTES, Outcome
from tests.gallery.processes import alone
from tests.gallery.rows import ROWS

LONG = 30  # seconds to compile that are said
GOOD = ("right", "refused")


def line(o: Outcome) -> str:
    """A row of the table."""
    ratios = "".join(f"{r:7.2f}" for r in o.ratios or ())
    details = " ".join(o.details.split())[:300]
    slow = "  compiled slowly" if o.compiled > LONG else ""
    figures = f"{o.error:8.0e} {o.compiled:7.1f} {ratios}{slow}" if o.kind == "right" else ""
    return f"{o.name:36} {o.route:7} {o.kind:12} {figures}{details}".rstrip()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Networks by what was found, the worst route of each; then routes."""
    worst: dict[str, str] = {}
    for o in outcomes:
        worst[o.name] = max(worst.get(o.name, o.kind), o.kind, key=KINDS.index)
    networks = Counter(worst.values())
    right = sum(o.kind == "right" for o in outcomes)
    counts_text = ", ".join(f"{networks[kind]} {kind}" for kind in KINDS if networks[kind])
    return f"{len(worst)} networks: {counts_text}; of {len(outcomes)} imports {right} right"


PAGE = """# Networks that were run

Found by `make zoo` (`tests/gallery/`), which builds each network in a small configuration with
random weights, compiles it, and compares its results with torch's in float64; graphs that are ONNX
from the start with ONNX Runtime's. A result is right if it is at most 16 times as far from float64
as torch's own in float32. "torch" is `tk.frontend.from_torch`; "dynamo" and "script" are torch's
two exporters of ONNX.

Summary: {summary}.

| network | from | read by | found | error, of the largest element |
| --- | --- | --- | --- | --- |
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The results as a page of the documentation."""
    text = PAGE.format(summary=summary(outcomes))
    for o in outcomes:
        error = f"{o.error:.0e}" if o.kind == "right" else " ".join(o.details.split())[:200]
        cells = (o.name, ROWS[o.name].package, o.route, o.kind, error.replace("|", "/"))
        text += f"| {' | '.join(cells)} |\n"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 unless all rows are right, or refused as they say."""
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows, also as patterns: 'gpt*'")
    parser.add_argument("--route", choices=ROUTES, action="append", help="only this route")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="beside ONNX Runtime; one job only")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a page of the results")
    parser.add_argument("--list", action="store_true", help="names, packages and routes only")
    args = parser.parse_args(argv)
    if args.times and args.jobs > 1:
        parser.error("--times needs the machine for itself: --jobs 1")
    for name in args.names:
        if not any(fnmatch(row, name) for row in ROWS):
            near = get_close_matches(name, ROWS, 3)
            parser.error(
                f"no row is named {name!r}" + (f"; near: {', '.join(near)}" if near else "")
            )
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
    print(f"{'network':36} {'route':7} {'found':12} {'error':>8} {'compile':>7}  to ORT")
    outcomes = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for o in pool.map(lambda job: alone(job[0], job[1], args.times), chosen):
            outcomes.append(o)
            print(line(o), flush=True)
    print(summary(outcomes))
    if args.record:
        args.record.write_text(page(outcomes))
    return 0 if outcomes and all(o.kind in GOOD for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
