"""`python -m tests.campaign NAME --executor EXECUTOR`: long checks on many machines.

A campaign is divided into shards, which an executor runs: this machine's processes, Ray or Dask.
Each machine has a checkout of the repository of the same commit, with the same changes, and its
root in PYTHONPATH; another is refused by name. Failures that mean the same are one finding, with
its seed and a command that repeats it. A shard that was finished is not run again in the same
folder. Exit status: 0 without findings, 1 with some, 2 where the campaign cannot be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import make_progress
from tensorkiln.scale.executors import FORMS, executor_of
from tests.campaign.campaigns import (
    CAMPAIGNS,
    COUNT,
    SHARDS,
    Plan,
    campaign_of,
    chosen,
    run_campaign,
    with_end,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign; what it found is printed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.campaign", None, __doc__, formatter_class=raw)
    add = parser.add_argument
    add("name", metavar="NAME", help=f"one of {', '.join(CAMPAIGNS)}")
    add("only", nargs="*", metavar="ITEM", help="only these tests or networks, also as patterns")
    add("--executor", default="local", help=f"{FORMS}; default: local")
    add("--shards", type=int, default=SHARDS, help=f"parts for each seed; default: {SHARDS}")
    add("--seed", type=int, help="the first seed; default: 1")
    add("--seeds", type=int, help="how many seeds; default: 1")
    add("--minutes", type=float, help="begin nothing later; take seeds as long as there is time")
    add("--out", type=Path, help="the folder of reports; default: build/campaigns/NAME")
    add("--test-seconds", type=float, default=1800.0, help="a test that is silent longer hangs")
    add("--count", type=int, help=f"random graphs of a seed; default: {COUNT}")
    add("--list", action="store_true", help="print the items and run none")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    campaign = campaign_of(args.name)
    for option in ("shards", "seeds", "minutes", "test_seconds", "count"):
        value = getattr(args, option)
        if value is not None and not value > 0:
            raise UserError(f"--{option.replace('_', '-')} is {value}, expected more than 0")
    for option in ("seed", "seeds"):
        if getattr(args, option) is not None and not campaign.seeded:
            raise UserError(f"--{option}: {campaign.name} runs the same for every seed")
    if args.seeds is not None and args.minutes is not None:
        raise UserError("--seeds and --minutes: one of the two says when it ends")
    if args.seed is not None and args.seed < 0:
        raise UserError(f"--seed is {args.seed}, expected 0 or more")
    if args.count is not None and campaign.runner != "random-graphs":
        raise UserError(f"--count: only random-graphs has one, {campaign.name} has not")
    items = chosen(campaign.items(args.count or COUNT), args.only)
    if args.list:
        print(*items, sep="\n")
        return 0
    plan = Plan(args.shards, 1 if args.seed is None else args.seed, args.seeds or 1)
    plan = with_end(Plan(plan.shards, plan.seed, plan.seeds, args.test_seconds), args.minutes)
    out = args.out or Path("build/campaigns") / campaign.name
    with executor_of(args.executor) as executor:
        progress = make_progress(sys.stderr)
        result = run_campaign(campaign, items, executor, out, plan, progress=progress)
    print(f"{result.text()}\n{out / 'findings.json'}")
    return 1 if result.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
