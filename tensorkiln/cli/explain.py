"""kiln explain: what the compiler does with a model, as one page to look at.

The page shows the graph, every pass, every kernel and the memory; it needs no network.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.cli.options import add_model, add_target, model_file, read_dims, stderr_progress
from tensorkiln.cli.tables import size_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln explain`."""
    add_model(parser)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report"), help="folder; default: report"
    )
    parser.add_argument(
        "--dim",
        metavar="DIM=N",
        action="append",
        default=[],
        help="size of a symbolic dimension, for times and memory; default 1",
    )
    parser.add_argument("--no-times", action="store_true", help="measure nothing")
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Compile, gather, write the page, say where it is."""
    import tensorkiln as tk

    model = model_file(args.model)
    if args.output.exists() and not args.output.is_dir():
        raise UserError(f"{str(args.output)!r} is no folder", code="cannot-write")
    freeze, sizes = read_dims(args.freeze, "--freeze"), read_dims(args.dim, "--dim")
    progress = stderr_progress()
    progress.phase("read model")
    module = tk.frontend.from_onnx(model, freeze=freeze or None)
    progress.phase("compile and measure")
    seconds = 0.0 if args.no_times else 0.02
    report = tk.explain(module, tk.Target(args.target), sizes=sizes, seconds=seconds)
    progress.phase("write page")
    page = report.save(args.output)
    progress.finish()
    print(f"{page}: {size_text(page.stat().st_size)}", file=sys.stderr)
    return 0
