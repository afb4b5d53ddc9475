"""kiln inspect: what a library, a container or a folder holds, read without running any of it.

Without further options: a report. Inspectors (`tensorkiln.inspectors`) look into single artifacts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.errors import UserError
from tensorkiln.cli.colour import (
    add_colour,
    paint_report,
    paint_source,
    paint_table,
    wants_colour,
)
from tensorkiln.cli.library_report import report_text, some
from tensorkiln.cli.tables import columns, size_text
from tensorkiln.inspectors import Inspector, Inspectors, Subject, known_inspectors, open_subject
from tensorkiln.inspectors.extract import extract
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.inspectors.registry import Shown, unknown_inspector
from tensorkiln.inspectors.subject import files_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln inspect`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE",
        help="a library, a container, a folder of artifacts or of --stripped, .a, .tar, or any "
        "one artifact",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="the artifacts, and what shows them")
    parser.add_argument("--artifact", metavar="NAME", default="", help="show this one")
    parser.add_argument(
        "--as", dest="inspector", metavar="INSPECTOR", default="", help="how; --list names them"
    )
    parser.add_argument(
        "--extract", type=Path, metavar="DIR", help="write artifacts and texts into a folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with everything")
    parser.add_argument("--all", action="store_true", help="list every kernel and artifact")
    add_colour(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is asked for."""
    subject = open_subject(args.file)
    inspectors = known_inspectors(_warn)
    chosen = _chosen(subject, args.artifact)
    painted = wants_colour(args.color)
    if args.extract is not None:
        texts = extract(chosen, inspectors, args.extract, only=args.inspector, warn=_warn)
        print(f"{args.extract}: {len(chosen)} artifact(s), {texts} text(s)")
    elif args.json:
        print(json.dumps(_json(subject, chosen, inspectors), indent=1))
    elif args.list:
        _print_report(_list_text(chosen, inspectors), painted)
    elif args.artifact or args.inspector:
        _show(subject, chosen, inspectors, args, painted)
    elif subject.kind == "library":
        text = report_text(inspect_library(args.file), args.all)
        _print_report(f"{text}\n{_inside_text(subject, inspectors, args.all)}", painted)
    elif subject.kind == "file" and subject.itself is not None:
        _print(inspectors.choose(subject.itself), subject.itself, painted)
    else:
        _print_report(_inside_text(subject, inspectors, args.all), painted)
    return 0


def _warn(sentence: str) -> None:
    print(f"kiln: warning: {sentence}", file=sys.stderr)


def _chosen(subject: Subject, name: str) -> ArtifactSet:
    """The artifacts asked for: one, or all."""
    if not name:
        return subject.artifacts
    absent = [a for a in subject.absent if name in (a.name, a.name.rpartition("/")[2])]
    if absent:
        raise UserError(
            f"the bytes of {absent[0].name!r} are not in the library: {absent[0].reason}",
            code="unknown-artifact",
            where=subject.path,
            hint="`kiln compile --keep` keeps every artifact",
        )
    return ArtifactSet((subject.artifacts[name],))


# -- inspectors --------------------------------------------------------------------------------


def _show(
    subject: Subject,
    chosen: ArtifactSet,
    inspectors: Inspectors,
    args: argparse.Namespace,
    painted: bool,
) -> None:
    """What one inspector says: of one artifact; of several together; of the whole file; of each."""
    files = files_of(chosen)
    name, groups = args.inspector, inspectors.groups(files)
    if args.artifact:
        (artifact,) = files
        _print(inspectors.choose(artifact, name), artifact, painted)
        return
    pairs: list[tuple[Inspector, object]] = [(r, f) for r, f in groups if r.is_called(name)]
    if not pairs and subject.itself is not None:
        pairs = [(r, subject.itself) for r in inspectors.of(subject.itself) if r.is_called(name)]
    if not pairs:
        pairs = [(r, a) for a in files for r in inspectors.of(a) if r.is_called(name)]
    if not pairs:
        known = [r for r, _ in groups] + [r for a in files for r in inspectors.of(a)]
        raise unknown_inspector(name, known, subject.path)
    for row, given in pairs:
        if len(pairs) > 1:
            what = given.name if isinstance(given, Artifact) else row.full_name
            _print_report(f"# {what}", painted)
        _print(row, given, painted)


def _print(row: Inspector, given: object, painted: bool) -> None:
    """What an inspector says, piece by piece."""
    shown: Shown = row.show(given)
    for i, piece in enumerate([shown] if isinstance(shown, str) else shown):
        text = piece
        if painted and row.language:
            text = paint_source(piece, row.language)
        elif painted:
            text = paint_table(piece, head=i == 0)
        sys.stdout.write(text)


def _print_report(text: str, painted: bool) -> None:
    print(paint_report(text) if painted else text)


# -- tables ------------------------------------------------------------------------------------


def _inside_text(subject: Subject, inspectors: Inspectors, everything: bool) -> str:
    """What can be looked at, and how it is shown."""
    rows = [(a.name, size_text(a.size), a.loader, inspectors.choose(a).name) for a in subject.files]
    parts = [f"inside {subject.path} ({subject.kind})", some(rows, everything) or "  nothing"]
    together = _names(row for row, _ in inspectors.groups(subject.files))
    if together:
        parts += ["together", columns([("--as", together)])]
    imports = subject.artifacts.imports
    if imports:
        pairs = [(_group_text(above), _group_text(below)) for above, below in imports]
        parts += ["imports", columns(pairs)]
    return "\n".join(parts)


def _group_text(group: tuple[str, str]) -> str:
    loader, target_key = group
    return f"{loader} ({target_key})" if target_key else loader


def _list_text(chosen: ArtifactSet, inspectors: Inspectors) -> str:
    """Every artifact with its inspectors, the default first; where there is one artifact, a line
    for each inspector."""
    files = files_of(chosen)
    groups = inspectors.groups(files)
    if len(files) == 1:
        (artifact,) = files
        rows = [(r.name, r.full_name, r.owner) for r in inspectors.of(artifact)]
        parts = [artifact.name, columns(rows)]
    else:
        parts = ["artifacts"]
        parts += [columns([(a.name, _names(inspectors.of(a))) for a in files]) or "  none"]
    if groups:
        parts += ["together", columns([(r.name, r.full_name, r.owner) for r, _ in groups])]
    return "\n".join(parts)


def _names(rows: Iterable[Inspector]) -> str:
    return ", ".join(dict.fromkeys(row.name for row in rows))


def _json(subject: Subject, chosen: ArtifactSet, inspectors: Inspectors) -> dict[str, object]:
    """Plain values: of a library its report too."""
    report = inspect_library(subject.path).to_json() if subject.kind == "library" else {}
    return {
        **report,
        "path": subject.path,
        "kind": subject.kind,
        "artifacts": [
            {
                "name": a.name,
                "codegen_id": a.codegen_id,
                "loader": a.loader,
                "target_key": a.target_key,
                "bytes": a.size,
                "inspectors": [row.full_name for row in inspectors.of(a)],
            }
            for a in files_of(chosen)
        ],
        "imports": subject.artifacts.imports,
        "together": [row.full_name for row, _ in inspectors.groups(files_of(chosen))],
        "absent": {a.name: a.reason for a in subject.absent},
    }
