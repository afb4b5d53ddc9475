"""kiln cache: how much the kernel cache holds; removes what was not used for longest."""

from __future__ import annotations

import argparse

from tensorkiln.base.cache import user_cache
from tensorkiln.base.config import byte_count
from tensorkiln.base.errors import UserError
from tensorkiln.base.text import size_text
from tensorkiln.cli.options import option, refuse_together
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln cache`."""
    parser.add_argument(
        "--prune",
        metavar="SIZE",
        type=option(byte_count),
        help="remove what was not used for longest, until less than SIZE (such as 500M) is left",
    )
    parser.add_argument("--clear", action="store_true", help="remove everything")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Remove what was asked for, and print what is there now."""
    refuse_together({"--prune": args.prune is not None, "--clear": args.clear})
    cache = user_cache()
    if cache is None:
        raise UserError("there is no cache: KILN_CACHE=0 turns it off", code="no-cache")
    if refusal := cache.refusal():
        raise UserError(refusal, code="no-cache")
    before, _ = cache.usage()
    removes = args.clear or args.prune is not None
    freed = cache.prune(args.prune or 0) if removes else 0
    entries, size = cache.usage()
    removed = before - entries

    def text() -> str:
        rows = [
            ("folder", str(cache.root)),
            ("entries", str(entries)),
            ("size", f"{size_text(size)} of at most {size_text(cache.limit)}"),
        ]
        if removes:
            rows.append(("removed", f"{removed} entries, {size_text(freed)}"))
        return columns(rows, indent="")

    screen.answer(
        lambda: {
            "folder": cache.root,
            "entries": entries,
            "bytes": size,
            "limit": cache.limit,
            "removed": removed,
            "freed": freed,
        },
        text,
    )
    return 0
