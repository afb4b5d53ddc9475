"""kiln demo: ResNet-18 compiled, exported, run in a fresh process, held against ONNX Runtime.

Exit code 1 when the results differ. Everything it makes stays in one folder, to be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorkiln.base.config import read_config
from tensorkiln.base.files import atomic_write, made_folder
from tensorkiln.base.packages import require_package
from tensorkiln.base.progress import Progress
from tensorkiln.base.text import size_text
from tensorkiln.cli.bench import answer_text
from tensorkiln.cli.compare import Request, compare_fresh
from tensorkiln.cli.options import (
    add_quiet,
    add_seconds,
    add_target,
    folder,
    stderr_progress,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln demo`."""
    parser.add_argument(
        "--folder", type=folder, default=Path("kiln-demo"), help="default: kiln-demo"
    )
    add_seconds(parser, 5)
    add_target(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Build the model, compile, export, compare; exit code 1 if the results differ."""
    for package in ("onnx", "onnxruntime"):  # one makes the model, the other runs it
        require_package(package, "kiln demo")
    folder = made_folder(args.folder)
    model, library, artifacts = (
        folder / name for name in ("resnet18.onnx", "resnet18.so", "artifacts")
    )
    progress = stderr_progress(args.quiet)
    progress.note("ResNet-18, 224 x 224, random weights")
    count = _compile(model, library, artifacts, args.target or "native", progress)
    progress.phase("compare")
    request = Request(
        str(library.resolve()),
        str(model.resolve()),
        threads=read_config().num_threads,
        seconds=args.seconds,
    )
    answer = compare_fresh(request)
    progress.finish()
    sizes = {file: file.stat().st_size for file in (model, library)}
    rows = [
        (str(model), size_text(sizes[model]), "the model"),
        (str(library), size_text(sizes[library]), f"kiln inspect {library}"),
        (f"{artifacts}/", f"{count} files", "kernels; host/plan.txt"),
    ]
    verdict = "PASS" if answer.agrees else "FAIL: results differ from ONNX Runtime's"
    screen.answer(
        lambda: {
            "model": model,
            "library": library,
            "artifacts": {"folder": artifacts, "count": count},
            **answer.to_json(),
        },
        lambda: "\n".join([answer_text(answer), "to read", columns(rows), verdict]),
    )
    return 0 if answer.agrees else 1


def _compile(model: Path, library: Path, artifacts: Path, target: str, progress: Progress) -> int:
    """Build the model, compile it, write library and artifacts; return the number of artifacts."""
    import tensorkiln as tk
    from tensorkiln.cli.demo_model import resnet18
    from tensorkiln.link.shared import runtime_ahead
    from tensorkiln.target import cpu_target

    progress.phase("build model")
    atomic_write(model, resnet18().SerializeToString())
    progress.phase("read model")
    module = tk.frontend.from_onnx(model)
    described = tk.Target(target)
    with runtime_ahead(cpu_target(described).mtriple):
        executable = tk.compile(module, described, progress=progress)
    progress.phase("write artifacts")
    executable.artifacts.save(artifacts)
    progress.phase("link")
    executable.export_library(library)
    return len(executable.artifacts)
