"""kiln verify: where a compiled model begins to differ from the model, node by node.

A model is compiled first, with the results of all kernels kept. Of a library, these are compared if
it was made by `kiln compile --debug`; of others only the outputs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tensorkiln.base.config import whole
from tensorkiln.base.errors import UserError
from tensorkiln.cli.library import given_inputs, graph_function
from tensorkiln.cli.options import (
    add_dim,
    add_precision,
    add_quiet,
    add_shape,
    add_target,
    array,
    dims,
    folder,
    number,
    option,
    plain_file,
    refuse_together,
    shapes,
    sizes,
    source,
    stderr_progress,
    word,
)
from tensorkiln.cli.screen import Screen

if TYPE_CHECKING:
    from tensorkiln.executable import Executable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln verify`."""
    parser.add_argument("subject", type=source, help="a library made by kiln, or an ONNX model")
    parser.add_argument("--model", type=source, help="the model a library was made from")
    parser.add_argument(
        "--freeze",
        metavar="DIM=N",
        type=dims,
        action="append",
        default=[],
        help="as for kiln compile: a symbolic dimension of the model has a fixed size",
    )
    add_shape(parser)
    parser.add_argument(
        "--function", type=word, default="main", help="graph function; default: main"
    )
    parser.add_argument(
        "--input",
        type=array,
        metavar="[NAME=]X.npy",
        action="append",
        default=[],
        help="an input, by name or in order; may be repeated; others are random",
    )
    parser.add_argument(
        "--seed", type=option(whole(0, 2**64 - 1)), help="seed of the random values; default 0"
    )
    add_dim(parser, " of random inputs")
    parser.add_argument(
        "--reference",
        choices=("float64", "onnxruntime"),
        default="float64",
        help="the model's operators in float64 (default), or what ONNX Runtime computes",
    )
    for name, kind in (("rtol", "relative"), ("atol", "absolute")):
        parser.add_argument(
            f"--{name}",
            type=option(number(0, 1e30)),
            help=f"{kind} tolerance, in the place of what rounding may do",
        )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=folder,
        help="write the report, and the first node that diverges, with a script, to this folder",
    )
    add_target(parser)
    add_precision(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Compare and print; exit code 1 if what was compiled diverges."""
    import tensorkiln as tk

    subject = plain_file(args.subject)
    is_model = subject.suffix == ".onnx"
    options: dict[str, Any] = {
        "freeze": sizes(args.freeze, "--freeze"),
        "shapes": shapes(args.shape),
    }
    if is_model:
        refuse_together({"a model": subject, "--model": args.model})
        model = subject
        compiled: Any = _compile(args, options)
        info = next((f.info for f in compiled.functions if f.info.name == args.function), None)
    else:
        for name, option_value in (("--target", args.target), ("--precision", args.precision)):
            refuse_together({"a library": subject, name: option_value})
        if args.model is None:
            raise UserError(
                "a library is compared with the model that it was made from",
                code="missing-argument",
                hint=f"kiln verify {subject} --model model.onnx",
            )
        model, compiled = plain_file(args.model), subject
        info = graph_function(subject, args.function)
    verification = tk.verify(
        compiled,
        model,
        None if info is None else given_inputs(info, args),
        reference=args.reference,
        rtol=args.rtol,
        atol=args.atol,
        **options,
        function=args.function,
        output=args.output,
    )
    screen.answer(lambda: {"subject": subject, **verification.to_json()}, lambda: str(verification))
    code: int = verification.exit_code
    return code


def _compile(args: argparse.Namespace, options: dict[str, Any]) -> Executable:
    import tensorkiln as tk

    progress = stderr_progress(args.quiet)
    executable = tk.compile(
        tk.frontend.from_onnx(args.subject, **options),
        tk.Target(args.target or "native"),
        precision=args.precision,
        progress=progress,
        debug=True,
    )
    progress.finish()
    return executable
