"""kiln bench: latency of a library, or of a model with ONNX Runtime's beside it.

A model is compiled first (the kernel cache applies). Both run in turns in one fresh process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tensorkiln.base.config import available_cpus, read_config
from tensorkiln.cli.compare import Answer, Request, compare_fresh
from tensorkiln.cli.options import add_target, model_file, read_dims, stderr_progress
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln bench`."""
    parser.add_argument("subject", type=Path, help="a library made by kiln, or an ONNX model")
    parser.add_argument("--model", type=Path, help="the model a library was made from")
    parser.add_argument("--threads", type=int, default=0, help="default: as many as CPUs")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each; default 3")
    parser.add_argument(
        "--dim", metavar="DIM=N", action="append", default=[], help="size of a symbolic dimension"
    )
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 when results differ from ONNX Runtime's."""
    subject = model_file(args.subject)
    dims = read_dims(args.dim, "--dim")
    threads = args.threads or read_config().num_threads or available_cpus()
    if subject.suffix == ".onnx":
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
            library = Path(folder) / (subject.stem + ".so")
            _compile(subject, library, args.target)
            answer = _compare(library, subject, dims, threads, args.seconds)
    else:
        model = model_file(args.model) if args.model is not None else None
        answer = _compare(subject, model, dims, threads, args.seconds)
    if args.json:
        report = {"subject": str(subject), "threads": threads, **asdict(answer)}
        print(json.dumps({**report, "agrees": answer.agrees}, indent=1))
    else:
        Screen(args.color).report(answer_text(answer, threads))
    return 0 if answer.agrees else 1


def _compile(model: Path, library: Path, target: str) -> None:
    import tensorkiln as tk

    progress = stderr_progress()
    module = tk.frontend.from_onnx(model)
    tk.compile(module, tk.Target(target), progress=progress).export_library(library)
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


def answer_text(answer: Answer, threads: int) -> str:
    """Times as a table, then whether the results agree."""
    rows = [(f"{threads} thread(s)", "MIN", "MEDIAN", "CALLS")]
    for name, times in (("tensorkiln", answer.ours), ("ONNX Runtime", answer.peer)):
        if times is not None:
            figures = f"{times.min_ms:.3f} ms", f"{times.median_ms:.3f} ms"
            rows.append((name, *figures, str(times.count)))
    lines = [columns(rows)]
    if answer.peer is not None:
        ratio = answer.ours.median_ms / answer.peer.median_ms
        state = "agree" if answer.agrees else "DIFFER"
        lines.append(f"  median is {ratio:.2f}x of ONNX Runtime's")
        lines.append(
            f"  results {state}: largest difference {answer.max_error:.3g} where outputs reach "
            f"{answer.scale:.3g}, on {answer.trials} random inputs"
        )
    return "\n".join(lines)
