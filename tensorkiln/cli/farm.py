"""kiln farm: many models for many targets, on this machine or a cluster, as a manifest says.

Running it again makes what is missing. Exit code 1 if rows are missing that --policy asks for.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tensorkiln.base.text import size_text
from tensorkiln.cli.options import add_quiet, file, place, stderr_progress, word
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns, time_text
from tensorkiln.scale.farm import counts, farm
from tensorkiln.scale.report import POLICIES, FarmReport, Made

_LINES = 4  # of an error, in the table; farm.json has all of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln farm`."""
    parser.add_argument("manifest", type=file, help="a TOML file: models, targets, options")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PLACE",
        type=place,
        help="a folder, or a URL such as s3://bucket/nets; default: the manifest's name without "
        "its suffix",
    )
    parser.add_argument(
        "--cache",
        metavar="PLACE",
        type=place,
        help="take results from this folder or URL, and keep them there, for all who share it; who "
        "can write there decides what becomes code",
    )
    parser.add_argument(
        "--executor",
        metavar="WHERE",
        type=word,
        default="local",
        help="local (default: processes of this machine), local:N, ray, ray:HOST:PORT, "
        "ray://HOST:PORT, dask, dask://HOST:PORT",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        type=word,
        action="append",
        default=[],
        help="make rows of these names alone, such as 'pi/*' (repeatable)",
    )
    parser.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        default="all",
        help="; ".join(f"{name}: {meaning}" for name, meaning in POLICIES.items())
        + "; else the exit code is 1 (default: all)",
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="begin nothing after the first failure"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what is there and what is not; make nothing"
    )
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Make what is missing, and print the table."""
    started = time.perf_counter()
    progress = stderr_progress(args.quiet)
    report = farm(
        args.manifest,
        args.output or Path(args.manifest.stem),
        cache=args.cache,
        executor=args.executor,
        only=args.only,
        fail_fast=args.fail_fast,
        dry_run=args.dry_run,
        progress=progress,
    )
    progress.finish()
    good = args.dry_run or report.is_good(args.policy)
    screen.answer(
        lambda: {
            "manifest": args.manifest,
            "output": report.output,
            "ok": good,
            **counts(report.rows),
            "rows": report.rows,
            "compiler": dict(report.compiler),
            "seconds": time.perf_counter() - started,
            "phases": dict(progress.phases),
        },
        lambda: table(report),
    )
    return 0 if good else 1


def table(report: FarmReport) -> str:
    """The rows as a table, and a sentence that counts them."""
    lines = [("FILE", "STATE", "SIZE", "TIME", "WHY")]
    lines += [
        (
            row.name,
            row.state.value,
            size_text(row.bytes) if row.files else "-",
            time_text(row.seconds) if row.seconds else "-",
            _why(row),
        )
        for row in report.rows
    ]
    counts_text = ", ".join(
        f"{count} {state}" for state, count in counts(report.rows).items() if count
    )
    return f"{columns(lines)}\n{report.output}: {counts_text}"


def _why(row: Made) -> str:
    if row.failure is None:
        return ""
    lines = [line.strip() for line in row.failure.message.splitlines() if line.strip()]
    tail = f" and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    kind = "" if row.failure.code else f"{row.failure.kind}: "
    prefix = "its worker was lost: " if row.failure.lost else ""
    return f"{prefix}{kind}{' '.join(lines[:_LINES])}{tail}"
