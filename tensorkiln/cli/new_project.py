"""kiln new-project: a project that builds firmware from an archive in Model Library Format."""

from __future__ import annotations

import argparse
import sys

from tensorkiln.cli.options import folder, source, writable_parent
from tensorkiln.cli.screen import Screen
from tensorkiln.mlf.project import TEMPLATES, new_project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln new-project`."""
    parser.add_argument("archive", type=source, help="what `kiln compile --format mlf` wrote")
    parser.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        default="cmake",
        help="the build system; default: cmake, for a computer",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=folder, required=True, help="the project's folder"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Write the project, and say where it is."""
    writable_parent(args.output, folder=True)
    new_project(args.archive, args.output, args.template)
    if not args.quiet:
        print(f"{args.output}: a project for {args.template}", file=sys.stderr)
    files = sorted(p.relative_to(args.output) for p in args.output.rglob("*") if p.is_file())
    screen.document(
        {
            "archive": args.archive,
            "template": args.template,
            "output": args.output,
            "files": files,
        }
    )
    return 0
