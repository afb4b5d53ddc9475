"""kiln demo: ResNet-18 compiled, exported, run in a fresh process, held against ONNX Runtime.

Exit code 1 when the results differ. Everything it makes stays in one folder, to be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorkiln.base.config import read_config
from tensorkiln.base.files import atomic_write, made_folder
from tensorkiln.base.packages import require_package
from tensorkiln.base.text import size_text
from tensorkiln.cli.bench import answer_text
from tensorkiln.cli.compare import Request, compare_fresh
from tensorkiln.cli.options import add_seconds, add_target, path, stderr_progress
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln demo`."""
    parser.add_argument("--folder", type=path, default=Path("kiln-demo"), help="default: kiln-demo")
    add_seconds(parser, 5)
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Build the model, compile, export, compare; exit code 1 if the results differ."""
    for package in ("onnx", "onnxruntime"):  # one makes the model, the other runs it
        require_package(package, "kiln demo")
    folder = made_folder(args.folder)
    model, library = folder / "resnet18.onnx", folder / "resnet18.so"
    print("ResNet-18, 224 x 224, random weights")
    count = _compile(model, library, folder / "artifacts", args.target or "native")
    print("fresh process, in turns with ONNX Runtime")
    request = Request(
        str(library.resolve()),
        str(model.resolve()),
        threads=read_config().num_threads,
        seconds=args.seconds,
    )
    answer = compare_fresh(request)
    Screen(args.color).report(answer_text(answer))
    print("to read")
    print(
        columns(
            [
                (str(model), size_text(model.stat().st_size), "the model"),
                (str(library), size_text(library.stat().st_size), f"kiln inspect {library}"),
                (
                    f"{folder / 'artifacts'}/",
                    f"{count} files",
                    "kernels; host/plan.txt",
                ),
            ]
        )
    )
    print("PASS" if answer.agrees else "FAIL: results differ from ONNX Runtime's")
    return 0 if answer.agrees else 1


def _compile(model: Path, library: Path, artifacts: Path, target: str) -> int:
    """Build the model, compile it, write library and artifacts; return the number of artifacts."""
    import tensorkiln as tk
    from tensorkiln.cli.demo_model import resnet18

    progress = stderr_progress()
    progress.phase("build model")
    atomic_write(model, resnet18().SerializeToString())
    progress.phase("read model")
    module = tk.frontend.from_onnx(model)
    executable = tk.compile(module, tk.Target(target), progress=progress)
    progress.phase("write artifacts")
    executable.artifacts.save(artifacts)
    progress.phase("link")
    executable.export_library(library)
    progress.finish()
    return len(executable.artifacts)
