"""kiln bench: latency and throughput of a library or a model, on request beside ONNX Runtime's.

A model is compiled first (the kernel cache applies). Both run in turns in one fresh process.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensorkiln.base.config import available_cpus, read_config, whole
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_write
from tensorkiln.base.packages import require_package
from tensorkiln.base.trust import private_temporary
from tensorkiln.cli.compare import Answer, Request, compare_fresh
from tensorkiln.cli.options import (
    add_denormals,
    add_dim,
    add_indices,
    add_optimize,
    add_precision,
    add_quiet,
    add_seconds,
    add_target,
    option,
    path,
    plain_file,
    refuse_together,
    sizes,
    source,
    stderr_progress,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns

if TYPE_CHECKING:
    from tensorkiln.executable import Executable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln bench`."""
    parser.add_argument("subject", type=source, help="a library made by kiln, or an ONNX model")
    parser.add_argument("--model", type=source, help="the model a library was made from")
    parser.add_argument(
        "--threads",
        type=option(whole(0, available_cpus())),
        help="default: KILN_NUM_THREADS; 0: all that this process may use",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also run the model in ONNX Runtime, and compare results and times",
    )
    parser.add_argument(
        "--streams",
        type=option(whole(1, 4096)),
        metavar="N",
        help="also measure the throughput of N executors of one library at a time, each on "
        "--threads threads (then by default 1)",
    )
    parser.add_argument(
        "--profile",
        type=path,
        metavar="FILE",
        help="write the time, bytes and operations of each kernel as a trace for Chrome or "
        "Perfetto; for a model",
    )
    add_seconds(parser, 3)
    add_dim(parser)
    add_target(parser)
    add_precision(parser)
    add_optimize(parser)
    add_indices(parser)
    add_denormals(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Measure and print; exit code 1 if results differ from those of ONNX Runtime."""
    subject = plain_file(args.subject)
    model = None if args.model is None else plain_file(args.model)
    threads = read_config().num_threads if args.threads is None else args.threads
    if args.streams is not None and args.threads is None:
        threads = 1
    request = Request(
        library=str(subject.resolve()),
        dims=sizes(args.dim, "--dim"),
        threads=threads,
        seconds=args.seconds,
        streams=args.streams or 0,
    )
    if args.compare:
        require_package("onnxruntime", "--compare")
    if subject.suffix == ".onnx":
        refuse_together({"a model": subject, "--model": model})
        with private_temporary("kiln-bench-") as folder:
            library = Path(folder) / (subject.stem + ".so")
            executable = _compile(subject, library, args)
            if args.profile is not None:
                _write_profile(executable, args.profile, request, args.quiet)
            peer = str(subject.resolve()) if args.compare else ""
            reason = "--compare was not given"
            answer = compare_fresh(
                replace(request, library=str(library), model=peer, why_alone=reason)
            )
    else:
        for name in ("target", "precision", "optimize", "indices", "denormals", "profile"):
            refuse_together({"a library": subject, f"--{name}": getattr(args, name)})
        if args.compare and model is None:
            raise UserError(
                "--compare needs the model that the library was made from",
                code="missing-input",
                hint="--model net.onnx",
            )
        if model is not None:
            require_package("onnxruntime", "--model")
            request = replace(request, model=str(model.resolve()))
        answer = compare_fresh(request)
    screen.answer(lambda: {"subject": subject, **answer.to_json()}, lambda: answer_text(answer))
    return 1 if answer.agrees is False else 0


def _compile(model: Path, library: Path, args: argparse.Namespace) -> Executable:
    import tensorkiln as tk

    progress = stderr_progress(args.quiet)
    executable = tk.compile(
        model,
        tk.Target(args.target or "native"),
        precision=args.precision,
        optimize=args.optimize,
        indices=args.indices,
        denormals=args.denormals,
        progress=progress,
    )
    executable.export_library(library)
    progress.finish()
    return executable


def _write_profile(executable: Executable, path: Path, request: Request, quiet: bool) -> None:
    from tensorkiln.measure.kernels import time_kernels
    from tensorkiln.measure.trace import trace_of

    kernel_seconds = min(0.05, request.seconds / max(1, len(executable.kernels)))
    times = time_kernels(executable, kernel_seconds, max(1, request.threads), request.dims)
    atomic_write(path, json.dumps(trace_of(executable, times), indent=1))
    if not quiet:
        print(f"{path}: {len(times)} kernels", file=sys.stderr)


def answer_text(answer: Answer) -> str:
    """A table of times, then whether the results agree, or why they were not compared."""
    rows: list[tuple[str, ...]] = [
        (f"{answer.threads} thread(s)", "MIN", "MEDIAN", "P90", "P99", "CALLS")
    ]
    for name, times in (("tensorkiln", answer.ours), ("ONNX Runtime", answer.peer)):
        if times is not None:
            latencies = times.min_ms, times.median_ms, times.p90_ms, times.p99_ms
            rows.append((name, *(f"{ms:.3f} ms" for ms in latencies), str(times.count)))
    lines = [columns(rows)]
    names = {"ours": "tensorkiln", "peer": "ONNX Runtime"}
    for name, rate in answer.per_second.items():
        lines.append(
            f"  {names[name]}: {rate:,.1f} calls per second with {answer.streams} at a time, "
            f"{answer.threads} thread(s) each"
        )
    difference = answer.difference
    if difference is None or answer.peer is None:
        return "\n".join([*lines, f"  results not compared: {answer.not_compared}"])
    ratio = answer.ours.median_ms / answer.peer.median_ms
    state = "agree" if answer.agrees else "DIFFER"
    lines.append(f"  median is {ratio:.2f}x of ONNX Runtime's")
    rounded = "" if answer.precision == "float32" else f" as far as {answer.precision} goes"
    lines.append(
        f"  results {state}{rounded}: largest difference {difference.max_error:.3g} where outputs "
        f"reach {difference.scale:.3g}, on {difference.trials} random inputs"
    )
    return "\n".join(lines)
