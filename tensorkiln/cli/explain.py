"""kiln explain: what the compiler does with a model, as one page to look at.

The page shows the graph, every pass, every kernel and the memory; it needs no network.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import size_text
from tensorkiln.cli.options import (
    add_dim,
    add_model,
    add_quiet,
    add_target,
    folder,
    is_folder,
    plain_file,
    shapes,
    sizes,
    stderr_progress,
)
from tensorkiln.cli.screen import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln explain`."""
    add_model(parser)
    parser.add_argument(
        "-o", "--output", type=folder, default=Path("report"), help="folder; default: report"
    )
    add_dim(parser, ", for times and memory; default 1")
    parser.add_argument("--no-times", action="store_true", help="measure nothing")
    add_target(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Compile, gather the data, write the page, and print where it is."""
    import tensorkiln as tk

    model = plain_file(args.model)
    if os.path.lexists(args.output) and not is_folder(args.output):
        raise UserError(f"{str(args.output)!r} is not a folder", code="cannot-write")
    freeze, dims = sizes(args.freeze, "--freeze"), sizes(args.dim, "--dim")
    progress = stderr_progress(args.quiet)
    progress.phase("read model")
    module = tk.frontend.from_onnx(model, freeze=freeze or None, shapes=shapes(args.shape))
    progress.phase("compile and measure")
    seconds = 0.0 if args.no_times else 0.02
    target = tk.Target(args.target or "native")
    report = tk.explain(module, target, name=model.name, sizes=dims, seconds=seconds)
    progress.phase("write page")
    page = report.save(args.output)
    progress.finish()
    size = page.stat().st_size
    if not args.quiet:
        print(f"{page}: {size_text(size)}", file=sys.stderr)
    screen.document(
        {
            "model": model,
            "page": page,
            "bytes": size,
            "target": target.to_json(),
            "kernels": [
                {"name": k.name, "nodes": k.nodes, "micros": None if args.no_times else k.micros}
                for k in report.story.kernels
            ],
        }
    )
    return 0
