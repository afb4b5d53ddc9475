"""kiln compile: a model becomes one shared library.

The library is written last and whole: an error leaves no file.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tensorkiln.artifact.weights_file import weights_beside
from tensorkiln.cli.options import (
    add_model,
    add_target,
    path,
    plain_file,
    refuse_together,
    sizes,
    stderr_progress,
    word,
    writable_parent,
)
from tensorkiln.cli.tables import size_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln compile`."""
    add_model(parser)
    parser.add_argument(
        "-o", "--output", type=path, help="the library; default: the model's name with .so"
    )
    add_target(parser)
    parser.add_argument(
        "--name",
        type=word,
        help="what C entries and the header begin with; default: the output's name",
    )
    parser.add_argument(
        "--keep", metavar="DIR", type=path, help="also write every artifact to this folder"
    )
    parser.add_argument(
        "--weights",
        choices=("embedded", "beside"),
        help="in the library (default), or in a file beside it: net.safetensors for net.so",
    )
    parser.add_argument(
        "--headers",
        metavar="DIR",
        type=path,
        help="also write the library's C header and those for hosts in C and C++ to this folder",
    )
    parser.add_argument(
        "--stripped",
        metavar="DIR",
        type=path,
        help="write objects and C for a program that manages memory itself, and no library",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Compile, export, and print where the files are."""
    import tensorkiln as tk
    from tensorkiln.codegen.host.function import c_name
    from tensorkiln.link.headers import write_headers
    from tensorkiln.target import cpu_target

    started = time.perf_counter()
    model = plain_file(args.model)
    for name in ("output", "weights", "headers"):  # these are about the library, which is not made
        refuse_together({f"--{name}": getattr(args, name), "--stripped": args.stripped})
    output = writable_parent(args.output or Path(model.with_suffix(".so").name))
    freeze = sizes(args.freeze, "--freeze")
    progress = stderr_progress(args.quiet)
    target = tk.Target(args.target or "native")
    progress.phase("read model")
    module = tk.frontend.from_onnx(model, freeze=freeze or None)
    name = c_name(output.stem) if args.name is None else args.name
    executable = tk.compile(module, target, progress=progress, name=name)
    if args.keep is not None:
        progress.phase("write artifacts")
        executable.artifacts.save(args.keep)
    if args.stripped is not None:
        progress.phase("write stripped form")
        executable.export_stripped(args.stripped)
        progress.finish()
        return 0
    progress.phase("link")
    executable.export_library(output, weights=args.weights or "embedded")
    if args.headers is not None:
        write_headers(args.headers, {f"{executable.name}.h": executable.header()})
    progress.finish()
    if not args.quiet:
        seconds = time.perf_counter() - started
        size = size_text(output.stat().st_size)
        print(f"{output}: {size}, {cpu_target(target).mcpu}, {seconds:.1f} s", file=sys.stderr)
        if args.weights == "beside":
            beside = weights_beside(output)
            print(f"{beside}: {size_text(beside.stat().st_size)}", file=sys.stderr)
        if args.keep is not None:
            print(f"{args.keep}: {len(executable.artifacts)} artifacts", file=sys.stderr)
    return 0
