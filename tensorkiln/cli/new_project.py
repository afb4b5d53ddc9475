"""kiln new-project: a project that builds firmware from an archive in Model Library Format."""

from __future__ import annotations

import argparse
import sys

from tensorkiln.cli.options import path, writable_parent
from tensorkiln.mlf.project import TEMPLATES, new_project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln new-project`."""
    parser.add_argument("archive", type=path, help="what `kiln compile --format mlf` wrote")
    parser.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        default="cmake",
        help="the build system; default: cmake, for a computer",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=path, required=True, help="the project's folder"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing")


def run(args: argparse.Namespace) -> int:
    """Write the project, and say where it is."""
    writable_parent(args.output, folder=True)
    new_project(args.archive, args.output, args.template)
    if not args.quiet:
        print(f"{args.output}: a project for {args.template}", file=sys.stderr)
    return 0
