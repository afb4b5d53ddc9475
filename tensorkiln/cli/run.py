"""kiln run: calls a compiled library once.

Inputs come from .npy files, or are random; outputs are summed up, and written with --output-dir.
"""

from __future__ import annotations

import argparse
import io
import re
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from tensorkiln.base.config import whole
from tensorkiln.base.folders import write_files
from tensorkiln.cli.library import (
    Array,
    given_inputs,
    graph_function,
    open_function,
    output_names,
)
from tensorkiln.cli.options import add_dim, array, folder, option, plain_file, source, word
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns, dims_text, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln run`."""
    parser.add_argument("library", type=source, help="a library made by kiln")
    parser.add_argument(
        "--function", type=word, default="main", help="graph function; default: main"
    )
    parser.add_argument(
        "--input",
        type=array,
        metavar="[NAME=]X.npy",
        action="append",
        default=[],
        help="an input, by name or in order, or - for standard input; may be repeated",
    )
    parser.add_argument("--random", action="store_true", help="random values for other inputs")
    parser.add_argument(
        "--seed", type=option(whole(0, 2**64 - 1)), help="seed of the random values; default 0"
    )
    add_dim(parser, " of random inputs")
    parser.add_argument(
        "--sha256",
        type=word,
        metavar="HEX",
        help="refuse any other file, before anything of it runs",
    )
    parser.add_argument("--output-dir", type=folder, help="write each output there as NAME.npy")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Call the function once, print a summary of its outputs, and write them if asked to."""
    library = plain_file(args.library)
    function = graph_function(library, args.function)
    inputs = given_inputs(function, args, needs="" if args.random else "--random")
    call, threads = open_function(library, args.function, args.sha256 or None)
    started = time.perf_counter()
    outputs = call(*(inputs[tensor.name] for tensor in function.inputs))
    seconds = time.perf_counter() - started
    names = output_names(function, len(outputs))
    named = dict(zip(names, outputs, strict=True))
    files = [] if args.output_dir is None else _write(args.output_dir, names, outputs)
    screen.answer(
        lambda: {
            "library": library,
            "function": function.name,
            "threads": threads,
            "seconds": seconds,
            "outputs": [
                {"name": name, "dtype": str(x.dtype), "shape": x.shape, **_figures(x), "file": file}
                for (name, x), file in zip_longest(named.items(), files)
            ],
        },
        lambda: "\n".join([_summary(named), f"first call {time_text(seconds)}", *map(str, files)]),
    )
    return 0


def _figures(x: Array) -> dict[str, float | None]:
    """The least and largest value and the mean; None where there are none, or no numbers."""
    if x.dtype.isbuiltin != 1:
        x = x.astype(np.float32)
    if not x.size or x.dtype.kind not in "fiub":
        return dict.fromkeys(("min", "max", "mean"))
    return {"min": float(x.min()), "max": float(x.max()), "mean": float(x.mean())}


def _summary(outputs: dict[str, Array]) -> str:
    """One row per output: name, type, shape, range, mean."""
    rows = [("OUTPUT", "TYPE", "SHAPE", "MIN", "MAX", "MEAN")]
    for name, x in outputs.items():
        lowest, highest, mean = ("-" if f is None else f"{f:.6g}" for f in _figures(x).values())
        rows.append((name, str(x.dtype), dims_text(x.shape), lowest, highest, mean))
    return columns(rows)


def _write(folder: Path, names: list[str], outputs: list[Array]) -> Sequence[Path]:
    """The files that were written, one per output."""
    files: dict[str, bytes] = {}
    for index, (name, x) in enumerate(zip(names, outputs, strict=True)):
        # A name from a model may contain slashes and dots, and must not lead out of the folder.
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or f"output{index}"
        while f"{plain}.npy" in files:
            plain = f"{plain}_{index}"
        stream = io.BytesIO()
        # NumPy's files have no names for types of others: such elements are raw bytes there.
        plain_type = x if x.dtype.isbuiltin == 1 else x.view(f"V{x.dtype.itemsize}")
        np.save(stream, plain_type, allow_pickle=False)
        files[f"{plain}.npy"] = stream.getvalue()
    return write_files(folder, files)
