"""kiln check: every node of a model that cannot be compiled, at once, and whether the target can.

With --external also every operator that this code generator has code for and does not take; it is
compiled by Tensorkiln. Takes seconds and compiles nothing. Exit code 1 if anything cannot be
compiled. With --table instead what the standard's node tests say of operators, opsets and element
types: of all that there are, or of those that the model has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tensorkiln.base.errors import Issue, UserError
from tensorkiln.base.text import listed
from tensorkiln.cli.options import (
    add_shape,
    add_target,
    external,
    plain_file,
    refuse_together,
    shapes,
    source,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns

if TYPE_CHECKING:
    from tensorkiln.executable import Refusal
    from tensorkiln.frontend.onnx.coverage import Cell, Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln check`."""
    parser.add_argument(
        "model", nargs="?", type=source, help="an ONNX file, or - for standard input"
    )
    add_shape(parser)
    add_target(parser)
    parser.add_argument(
        "--external",
        metavar="NAME",
        type=external,
        action="append",
        default=[],
        help="also list what this external code generator refuses, and why (repeatable)",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="print which ONNX operators are tested, by opset and element type",
    )
    parser.add_argument(
        "--dims",
        action="store_true",
        help="also print which dimensions are symbolic, what makes them so, and where they end",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Print the issues; exit code 0 if there are none, else 1. With --table, print the table."""
    for option in ("target", "external", "dims", "shape"):
        refuse_together({"--table": args.table, f"--{option}": bool(getattr(args, option))})
    if args.table:
        return _show_coverage(args, screen)
    if args.model is None:
        raise UserError(
            "check needs a model",
            code="missing-argument",
            hint="kiln check model.onnx, or --table for the operators of ONNX",
        )
    import tensorkiln as tk
    from tensorkiln.checks import refusals
    from tensorkiln.frontend.onnx import absent_files

    model = plain_file(args.model)
    target = tk.Target(args.target or "native")
    sizes = shapes(args.shape)
    issues = tk.check(model, target, shapes=sizes)
    absent = absent_files(model)
    if absent:
        _refuse_without_weights(args, absent[0], str(model))
    refused: Sequence[Refusal] = ()
    dims = None
    if not issues and (args.external or args.dims):
        module = tk.frontend.from_onnx(model, shapes=sizes)
        refused = refusals(module, target, args.external) if args.external else ()
        dims = tk.explain_dims(module) if args.dims else None
    report = {
        "model": model,
        "target": target.to_json(),
        "ok": not issues,
        "issues": issues,
        "absent": absent,
    }
    parts = [issue_table(str(model), issues)]
    parts += [f"checked without the weights in {name!r}, which is not there" for name in absent]
    if dims is not None:
        report["dims"] = dims
        parts.append(str(dims))
    elif args.dims:
        parts.append("dimensions are known only of what can be compiled")
    if args.external:
        report["refused"] = refused
        parts += [] if issues else [refusal_table(args.external, refused)]
    screen.answer(lambda: report, lambda: "\n".join(parts))
    return 1 if issues else 0


def _refuse_without_weights(args: argparse.Namespace, file: str, model: str) -> None:
    for name, value in (("--external", args.external), ("--dims", args.dims)):
        if value:
            raise UserError(
                f"{name} needs the model's weights, and {file!r} is not there",
                code="missing-file",
                where=model,
            )


def _show_coverage(args: argparse.Namespace, screen: Screen) -> int:
    from tensorkiln.frontend.onnx.coverage import recorded, rows, rows_of

    model = None if args.model is None else plain_file(args.model)
    coverage = rows() if model is None else rows_of(model)
    version = recorded()["onnx"]
    screen.answer(
        lambda: {
            **({} if model is None else {"model": model}),
            "onnx": version,
            "operators": coverage,
        },
        lambda: coverage_table(coverage, version),
    )
    return 0


def coverage_table(coverage: Sequence[Row], version: str) -> str:
    """The rows as a table, with a line for each result of each type variable, and a closing
    sentence that counts them."""
    lines = [("OPERATOR", "OPSET", "TYPE", "RESULT", "ELEMENT TYPES")]
    for row in coverage:
        about = (row.name, str(row.opset))
        if not row.types:
            lines.append((*about, "-", row.result, "-"))
        for variable, cells in row.types.items():
            for result in ("passed", "refused", "not run"):
                types = ", ".join(_cell(c) for c in cells if c.result == result)
                if types:
                    lines.append((*about, variable, result, types))
    passed, cases = sum(row.passed for row in coverage), sum(row.cases for row in coverage)
    return (
        f"{columns(lines)}\n"
        f"{passed} of {cases} node tests of onnx {version} agree, for {len(coverage)} definition(s)"
    )


def _cell(cell: Cell) -> str:
    """An element type; of one that passed, how many cases did if others were refused."""
    mixed = 0 < cell.passed < cell.cases
    return f"{cell.type} ({cell.passed} of {cell.cases})" if mixed else cell.type


def refusal_table(externals: Sequence[str], refused: Sequence[Refusal]) -> str:
    """What the externals refuse as a table, or a sentence if that is nothing."""
    if not refused:
        return f"{', '.join(externals)}: nothing is refused"
    rows = [("NODE", "EXTERNAL", "REFUSED BECAUSE")]
    return columns([*rows, *((r.node, r.external, r.reason) for r in refused)])


def issue_table(model: str, issues: Sequence[Issue]) -> str:
    """The issues as a table, those that differ only in their node in one row that names the first
    node, with a closing sentence that counts the nodes."""
    if not issues:
        return f"{model}: every node can be compiled"
    alike: dict[tuple[object, ...], list[Issue]] = {}
    for issue in issues:
        plain_issue = replace(issue, node="", place="") if issue.op else issue
        alike.setdefault(tuple(asdict(plain_issue).values()), []).append(issue)
    rows = [("NODE", "COUNT", "OPERATOR", "OPSET", "TYPES", "KIND", "WHAT")]
    for group in alike.values():
        issue = group[0]
        message_has_hint = not issue.hint or issue.hint in issue.message
        problem = issue.message if message_has_hint else f"{issue.message} [{issue.hint}]"
        places = list(dict.fromkeys(i.place for i in group if i.place))
        if places:
            problem += f" (from {listed(places, 4)})"
        rows.append(
            (
                issue.node or "-",
                str(len(group)),
                issue.op or "-",
                issue.opset or "-",
                ", ".join(issue.types) or "-",
                issue.kind,
                problem,
            )
        )
    nodes = sum(bool(issue.op) for issue in issues)
    problem = f"{nodes} node(s) cannot be compiled" if nodes else "cannot be compiled"
    return f"{columns(rows)}\n{model}: {problem}"
