"""kiln check: every node of a model that cannot be compiled, at once, and whether the target can.

Takes seconds and compiles nothing. Exit code 1 if anything cannot be compiled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from tensorkiln.base.errors import Issue
from tensorkiln.cli.options import add_target, path, plain_file
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln check`."""
    parser.add_argument("model", type=path, help="an ONNX file")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the issues; exit code 0 if there are none, else 1."""
    import tensorkiln as tk

    model = plain_file(args.model)
    target = tk.Target(args.target or "native")
    issues = tk.check(model, target)
    if args.json:
        report = {
            "model": str(model),
            "target": target.to_json(),
            "ok": not issues,
            "issues": [issue.to_json() for issue in issues],
        }
        print(json.dumps(report, indent=1))
    else:
        Screen(args.color).report(issue_table(str(model), issues))
    return 1 if issues else 0


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
