"""kiln tune: measures which choices make a model's kernels fast, and records them.

`kiln compile --records` takes the records.
"""

from __future__ import annotations

import argparse

from tensorkiln.base.config import available_cpus, whole
from tensorkiln.cli.options import (
    add_dim,
    add_model,
    add_optimize,
    add_precision,
    add_quiet,
    add_target,
    external,
    number,
    option,
    path,
    plain_file,
    shapes,
    sizes,
    stderr_progress,
    word,
    writable_parent,
)
from tensorkiln.cli.screen import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln tune`."""
    add_model(parser)
    parser.add_argument(
        "--records",
        metavar="FILE",
        type=path,
        required=True,
        help="where records are written; those of a file that is there are tried first, and kept "
        "where they are better",
    )
    parser.add_argument(
        "--seconds",
        type=option(number(0.1, 7 * 86400)),
        default=300,
        help="time for all of it; default 300",
    )
    parser.add_argument(
        "--kernels",
        type=option(whole(1, 4096)),
        metavar="N",
        help="tune only the N costliest kernels",
    )
    parser.add_argument(
        "--journal",
        metavar="FILE",
        type=path,
        help="keep every measurement there; called again, the search goes on where it was",
    )
    for name, meaning in (
        ("executor", "compiles candidates, and measures them unless --measure-executor is given"),
        ("measure-executor", "measures them"),
    ):
        parser.add_argument(
            f"--{name}",
            metavar="WHERE",
            type=word,
            help=f"what {meaning}: local, local:N, ray, ray:HOST:PORT, ray://HOST:PORT, dask or "
            "dask://HOST:PORT; default: this machine, where one at a time is measured",
        )
    parser.add_argument(
        "--measure",
        choices=("time", "instructions"),
        default="time",
        help="time (default), or what an AArch64 library executes in qemu, for lack of a machine",
    )
    parser.add_argument(
        "--search",
        choices=("model", "random"),
        default="model",
        help="model (default): trees that learn from what was measured, of scikit-learn; random",
    )
    parser.add_argument(
        "--trials",
        type=option(whole(1, 10**6)),
        metavar="N",
        help="at most N candidates of each kernel",
    )
    parser.add_argument(
        "--threads",
        type=option(whole(1, available_cpus())),
        default=1,
        help="of a call that is measured; default 1",
    )
    parser.add_argument(
        "--seed", type=option(whole(0, 2**32 - 1)), default=0, help="of the search; default 0"
    )
    parser.add_argument(
        "--external",
        metavar="NAME",
        type=external,
        action="append",
        default=[],
        help="as for kiln compile: this external code generator has what it can",
    )
    add_dim(parser, " for which kernels are measured")
    add_target(parser)
    add_precision(parser)
    add_optimize(parser)
    add_quiet(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Search, write records, and print what was found."""
    import tensorkiln as tk
    from tensorkiln.kernels.records import read_records

    model = plain_file(args.model)
    writable_parent(args.records)
    former_records = read_records(args.records) if args.records.exists() else None
    if args.journal is not None:
        writable_parent(args.journal)
    progress = stderr_progress(args.quiet)
    tuned = tk.tune(
        tk.frontend.from_onnx(
            model, freeze=sizes(args.freeze, "--freeze") or None, shapes=shapes(args.shape)
        ),
        tk.Target(args.target or "native"),
        seconds=args.seconds,
        kernels=args.kernels,
        executor=args.executor,
        measure_executor=args.measure_executor,
        measure=args.measure,
        search=args.search,
        journal=args.journal,
        records=former_records,
        sizes=sizes(args.dim, "--dim"),
        trials=args.trials,
        seed=args.seed,
        threads=args.threads,
        precision=args.precision,
        optimize=args.optimize,
        externals=args.external,
        progress=progress,
    )
    records = tuned.records if former_records is None else former_records.merge(tuned.records)
    records.write(args.records)
    screen.answer(
        lambda: {
            "model": model,
            "records": args.records,
            "count": len(records),
            "kernels": tuned.rows,
            "others": [
                {"name": k.name, "family": k.family, "share": k.share} for k in tuned.others
            ],
        },
        lambda: f"{tuned.table()}\n{args.records}: {len(records)} records",
    )
    return 0
