"""kiln compile: a model becomes one shared library, or an archive to build firmware from.

What is asked for is written last and whole: an error leaves no file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tensorkiln.artifact.weights_file import weights_beside
from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import Progress
from tensorkiln.base.text import size_text
from tensorkiln.cli.options import (
    add_denormals,
    add_indices,
    add_model,
    add_optimize,
    add_precision,
    add_quiet,
    add_records,
    add_target,
    add_workspace,
    external,
    folder,
    path,
    plain_file,
    refuse_together,
    shapes,
    sizes,
    stderr_progress,
    word,
    writable_parent,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.stdin import NAME

if TYPE_CHECKING:
    from tensorkiln.executable import Executable
    from tensorkiln.ir.module import IRModule
    from tensorkiln.target import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln compile`."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        help="the library, or the archive; default: the model's name with .so or .tar",
    )
    parser.add_argument(
        "--format",
        choices=("library", "mlf"),
        help="library (default): .so, .a, .o, or .tar of artifacts; mlf: Model Library Format, to "
        "build programs from, a .tar or a folder",
    )
    add_target(parser)
    add_precision(parser)
    add_optimize(parser)
    add_indices(parser)
    add_denormals(parser)
    parser.add_argument(
        "--name",
        type=word,
        help="what C entries and the header begin with; default: the output's name",
    )
    parser.add_argument(
        "--keep", metavar="DIR", type=folder, help="also write every artifact to this folder"
    )
    parser.add_argument(
        "--weights",
        choices=("embedded", "beside"),
        help="in the library (default), or in a file beside it: net.safetensors for net.so",
    )
    parser.add_argument(
        "--headers",
        metavar="DIR",
        type=folder,
        help="also write the library's C header, those for hosts in C and C++, what CMake and "
        "pkg-config find them by, and the crate for Rust, to this folder",
    )
    add_workspace(parser)
    parser.add_argument(
        "--external",
        metavar="NAME",
        type=external,
        action="append",
        default=[],
        help="use this external code generator, too (repeatable: the first one that can)",
    )
    for verb, meaning in (
        ("allow", "only dependencies under this license"),
        ("deny", "none under it"),
    ):
        parser.add_argument(
            f"--{verb}-license",
            metavar="SPDX",
            type=word,
            action="append",
            default=[],
            help=f"{meaning}; fail if the model needs others (repeatable)",
        )
    parser.add_argument(
        "--bundle",
        metavar="NAME=PATH",
        type=word,
        action="append",
        default=[],
        help="put the source of a dependency, a folder or file, into the archive (-o net.tar)",
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="functions also return what each kernel computes, for kiln verify",
    )
    add_records(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Compile, export, and print where the files are."""
    import tensorkiln as tk
    from tensorkiln.codegen.c_text.names import library_name
    from tensorkiln.library.export import check_library_name
    from tensorkiln.link.headers import write_headers

    started = time.perf_counter()
    model = plain_file(args.model)
    as_archive = args.format == "mlf"
    for name in ("weights", "headers"):  # these are about the library, which is not made
        refuse_together({f"--{name}": getattr(args, name), "--format mlf": as_archive})
    suffix = ".tar" if as_archive else ".so"
    if args.output is None and str(model) in screen.names:
        raise UserError(
            f"a model from {NAME} has no name, after which the output could be called",
            code="missing-argument",
            hint=f"-o net{suffix}",
        )
    output = args.output or Path(model.with_suffix(suffix).name)
    writable_parent(output, folder=as_archive and not output.suffix)
    if not as_archive:
        check_library_name(output)
    freeze = sizes(args.freeze, "--freeze")
    bundle = _bundle(args.bundle)
    progress = stderr_progress(args.quiet)
    target = tk.Target(args.target or "native")
    progress.phase("read model")
    module = tk.frontend.from_onnx(model, freeze=freeze or None, shapes=shapes(args.shape))
    name = library_name(output.stem) if args.name is None else args.name
    executable = _compiled(args, module, target, name, progress)
    if args.keep is not None:
        progress.phase("write artifacts")
        executable.artifacts.save(args.keep)
    if as_archive:
        progress.phase("write archive")
        executable.export_model_library_format(output, bundle=bundle)
    else:
        progress.phase("link")
        executable.export_library(output, weights=args.weights or "embedded", bundle=bundle)
    if args.headers is not None:
        write_headers(args.headers, {f"{executable.name}.h": executable.header()})
    progress.finish()
    seconds = time.perf_counter() - started
    written = [output, *([weights_beside(output)] if args.weights == "beside" else ())]
    sizes_of = {file: bytes_of(file) for file in written}
    if not args.quiet:
        about = f", {_machines(target)}, {seconds:.1f} s"
        for file, size in sizes_of.items():
            print(f"{file}: {size_text(size)}{about}", file=sys.stderr)
            about = ""
        if args.keep is not None:
            print(f"{args.keep}: {len(executable.artifacts)} artifacts", file=sys.stderr)
    screen.document(
        {
            "model": model,
            "output": output,
            "format": args.format or "library",
            "name": name,
            "target": target.to_json(),
            "bytes": sizes_of,
            "artifacts": len(executable.artifacts),
            "keep": args.keep,
            "headers": args.headers,
            "seconds": seconds,
            "phases": dict(progress.phases),
            "notes": progress.notes,
        }
    )
    return 0


def _compiled(
    args: argparse.Namespace, module: IRModule, target: Target, name: str, progress: Progress
) -> Executable:
    """The module, compiled as the options say, while the runtime of its library is."""
    import tensorkiln as tk
    from tensorkiln.link.shared import runtime_ahead
    from tensorkiln.target import cpu_target

    triple = cpu_target(target).mtriple
    with nullcontext() if args.format == "mlf" else runtime_ahead(triple):
        return tk.compile(
            module,
            target,
            precision=args.precision,
            optimize=args.optimize,
            indices=args.indices,
            denormals=args.denormals,
            progress=progress,
            name=name,
            max_workspace=args.max_workspace,
            externals=args.external,
            allow_licenses=args.allow_license,
            deny_licenses=args.deny_license,
            debug=args.debug,
            records=args.records,
        )


def _machines(target: Target) -> str:
    """What a library is for: the processors, or the architectures of GPUs and their host."""
    from tensorkiln.target import cpu_target, devices_of, with_host

    if target.levels:
        return ", ".join(level.mcpu for level in target.levels)
    archs = dict[str, None]()
    for device in devices_of(with_host(target)).values():
        if device.kind == "cuda":
            also = device["also"]
            archs |= dict.fromkeys(
                [str(device["arch"]), *(also if isinstance(also, tuple) else ())]
            )
    host = cpu_target(target).mcpu
    return f"{', '.join(archs)}, host {host}" if archs else host


def bytes_of(output: Path) -> int:
    """The size of a file, or of all files below a folder."""
    files = [p for p in output.rglob("*") if p.is_file()] if output.is_dir() else [output]
    return sum(file.stat().st_size for file in files)


def _bundle(texts: Sequence[str]) -> dict[str, str]:
    """The path of each `--bundle NAME=PATH`. UserError (code `bad-bundle`) for another form, and
    for two paths of one name."""
    path_of_name: dict[str, str] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not name or not equals or not place:
            raise UserError(f"--bundle {text!r}: expected NAME=PATH", code="bad-bundle")
        if path_of_name.setdefault(name, place) != place:
            raise UserError(f"--bundle: {name!r} is given two paths", code="bad-bundle")
    return path_of_name
