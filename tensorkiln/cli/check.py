"""kiln check: every node of a model that cannot be compiled, at once, and whether the target can.

With --external also every operator that this code generator has code for and does not take; it is
compiled by Tensorkiln. Takes seconds and compiles nothing. Exit code 1 if anything cannot be
compiled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tensorkiln.base.errors import Issue
from tensorkiln.cli.options import add_target, path, plain_file, word
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns

if TYPE_CHECKING:
    from tensorkiln.executable import Refusal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln check`."""
    parser.add_argument("model", type=path, help="an ONNX file")
    add_target(parser)
    parser.add_argument(
        "--external",
        metavar="NAME",
        type=word,
        action="append",
        default=[],
        help="also list what this external code generator refuses, and why (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the issues; exit code 0 if there are none, else 1."""
    import tensorkiln as tk
    from tensorkiln.pipeline import refusals

    model = plain_file(args.model)
    target = tk.Target(args.target or "native")
    issues = tk.check(model, target)
    refused: Sequence[Refusal] = ()
    if args.external and not issues:
        refused = refusals(tk.frontend.from_onnx(model), target, args.external)
    if args.json:
        report = {
            "model": str(model),
            "target": target.to_json(),
            "ok": not issues,
            "issues": [issue.to_json() for issue in issues],
        }
        if args.external:
            report["refused"] = [asdict(r) for r in refused]
        print(json.dumps(report, indent=1))
    else:
        screen = Screen(args.color)
        screen.report(issue_table(str(model), issues))
        if args.external and not issues:
            screen.report(refusal_table(args.external, refused))
    return 1 if issues else 0


def refusal_table(externals: Sequence[str], refused: Sequence[Refusal]) -> str:
    """What the externals refuse as a table, or a sentence if that is nothing."""
    if not refused:
        return f"{', '.join(externals)}: nothing is refused"
    rows = [("NODE", "EXTERNAL", "REFUSED BECAUSE")]
    return columns([*rows, *((r.node, r.external, r.reason) for r in refused)])


def issue_table(model: str, issues: Sequence[Issue]) -> str:
    """The issues as a table, with a closing sentence that counts the nodes."""
    if not issues:
        return f"{model}: every node can be compiled"
    rows = [("NODE", "OPERATOR", "KIND", "WHAT")]
    for issue in issues:
        said = not issue.hint or issue.hint in issue.message
        what = issue.message if said else f"{issue.message} [{issue.hint}]"
        rows.append((issue.node or "-", issue.op or "-", issue.kind, what))
    nodes = sum(bool(issue.op) for issue in issues)
    what = f"{nodes} node(s) cannot be compiled" if nodes else "cannot be compiled"
    return f"{columns(rows)}\n{model}: {what}"
