"""kiln bench: latency of a library, or of a model with ONNX Runtime's beside it.

A model is compiled first (the kernel cache applies). Both run in turns in one fresh process.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tensorkiln.base.config import available_cpus, read_config, whole
from tensorkiln.base.trust import private_temporary
from tensorkiln.cli.compare import Answer, Request, compare_fresh
from tensorkiln.cli.options import (
    add_dim,
    add_optimize,
    add_precision,
    add_seconds,
    add_target,
    option,
    path,
    plain_file,
    refuse_together,
    require_package,
    sizes,
    stderr_progress,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln bench`."""
    parser.add_argument("subject", type=path, help="a library made by kiln, or an ONNX model")
    parser.add_argument("--model", type=path, help="the model a library was made from")
    parser.add_argument(
        "--threads",
        type=option(whole(0, available_cpus())),
        help="default: KILN_NUM_THREADS; 0: all that this process may use",
    )
    add_seconds(parser, 3)
    add_dim(parser)
    add_target(parser)
    add_precision(parser)
    add_optimize(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 if results differ from those of ONNX Runtime."""
    subject = plain_file(args.subject)
    model = None if args.model is None else plain_file(args.model)
    dims = sizes(args.dim, "--dim")
    threads = read_config().num_threads if args.threads is None else args.threads
    if subject.suffix == ".onnx":
        refuse_together({"a model": subject, "--model": model})
        with private_temporary("kiln-bench-") as folder:
            library = Path(folder) / (subject.stem + ".so")
            _compile(subject, library, args)
            answer = _compare(library, subject, dims, threads, args.seconds)
    else:
        for name in ("target", "precision", "optimize"):
            refuse_together({"a library": subject, f"--{name}": getattr(args, name)})
        if model is not None:
            require_package("onnxruntime", "--model")
        answer = _compare(subject, model, dims, threads, args.seconds)
    if args.json:
        print(json.dumps({"subject": str(subject), **answer.to_json()}, indent=1))
    else:
        Screen(args.color).report(answer_text(answer))
    return 1 if answer.agrees is False else 0


def _compile(model: Path, library: Path, args: argparse.Namespace) -> None:
    import tensorkiln as tk

    progress = stderr_progress()
    module = tk.frontend.from_onnx(model)
    made = tk.compile(
        module,
        tk.Target(args.target or "native"),
        precision=args.precision,
        optimize=args.optimize,
        progress=progress,
    )
    made.export_library(library)
    progress.finish()


def _compare(
    library: Path, model: Path | None, dims: dict[str, int], threads: int, seconds: float
) -> Answer:
    return compare_fresh(
        Request(
            library=str(library.resolve()),
            model=str(model.resolve()) if model is not None else "",
            dims=dims,
            threads=threads,
            seconds=seconds,
        )
    )


def answer_text(answer: Answer) -> str:
    """A table of times, then whether the results agree, or why they were not compared."""
    rows = [(f"{answer.threads} thread(s)", "MIN", "MEDIAN", "CALLS")]
    for name, times in (("tensorkiln", answer.ours), ("ONNX Runtime", answer.peer)):
        if times is not None:
            figures = f"{times.min_ms:.3f} ms", f"{times.median_ms:.3f} ms"
            rows.append((name, *figures, str(times.count)))
    lines = [columns(rows)]
    difference = answer.difference
    if difference is None or answer.peer is None:
        return f"{lines[0]}\n  results not compared: {answer.not_compared}"
    ratio = answer.ours.median_ms / answer.peer.median_ms
    state = "agree" if answer.agrees else "DIFFER"
    lines.append(f"  median is {ratio:.2f}x of ONNX Runtime's")
    rounded = "" if answer.precision == "float32" else f" as far as {answer.precision} goes"
    lines.append(
        f"  results {state}{rounded}: largest difference {difference.max_error:.3g} where outputs "
        f"reach {difference.scale:.3g}, on {difference.trials} random inputs"
    )
    return "\n".join(lines)
