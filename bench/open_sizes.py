"""`python -m bench.open_sizes`: networks whose sizes are open, at five sizes each.

One library with open sizes stands beside libraries that were compiled for each size from the same
weights, and beside ONNX Runtime, which gets the file with open sizes; all take turns on the same
inputs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.beside import Options, checked, command, record, times
from bench.contenders import OURS, Case, Contender, Runner
from bench.measure import alone, interleave, mismatch, prepare
from bench.networks.open_shapes import NETWORKS, Network
from bench.peers import PEERS

ORT = PEERS["ort"]


def _open(compiled: dict[str, object], case: Case, threads: int) -> Runner:
    """The library with open sizes, which is compiled once for all sizes."""
    import tensorkiln as tk

    if case.network not in compiled:
        library = tk.compile(tk.frontend.from_onnx(case.path)).jit()
        compiled[case.network] = tk.runtime.Executor(library, tk.cpu())["main"]
    main, arrays = compiled[case.network], tuple(case.inputs.values())
    return lambda: (main(*arrays).numpy(),)  # type: ignore[operator]


def _fixed(case: Case, threads: int) -> Runner:
    """A library for the sizes of this case."""
    return OURS.prepare(Case(case.network, case.folder / "fixed.onnx", case.inputs, case.folder), 1)


def _cases(only: str) -> Iterator[tuple[Network, Sequence[int]]]:
    for network in NETWORKS:
        for size in network.sizes:
            if only.lower() in f"{network.name} {'x'.join(map(str, size))}":
                yield network, size


def measured(options: Options) -> int:
    """Print a line per network and size, and means; return how many failed."""
    compiled: dict[str, object] = {}
    contenders = [
        Contender("open", "open sizes", "tensorkiln", "tensorkiln", partial(_open, compiled)),
        Contender("fixed", "sizes of this row", "tensorkiln", "tensorkiln", _fixed),
        ORT,
    ]
    print(f"\n{options.child} thread(s), ONNX Runtime {ORT.version()}", flush=True)
    print("ms, min and median: open, fixed, ONNX Runtime; ratios of mins and medians", flush=True)
    draw, failed = np.random.default_rng(5), 0
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for network, size in _cases(options.only):
        shape = network.shaped(size)
        inputs = {"x": draw.standard_normal(shape).astype(np.float32)}
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(network.build(network.shape))
            (folder / "fixed.onnx").write_bytes(network.build(shape))
            case = Case(network.name, folder / "model.onnx", inputs, folder)
            prepared = prepare(contenders, case, options.child)
            wrong = checked(prepared, lambda a, b: mismatch(list(b), list(a)))
            if not wrong:
                with alone(options.lock):
                    interleave(prepared, options.reps, options.seconds)
            rows = [row for row, _ in prepared.values()]
        title = f"{network.name} {'x'.join(map(str, size))}"
        if wrong:
            failed += 1
            print(f"{title:24} {wrong}", flush=True)
            continue
        record(options, title, rows)
        our_row, fixed, peer_row = rows
        row_ratios = (
            *(our_row.min_ms / x.min_ms for x in (fixed, peer_row)),
            *(our_row.median_ms / x.median_ms for x in (fixed, peer_row)),
        )
        ratios.setdefault(network.name, []).append(row_ratios)
        ratio_text = (
            f"{row_ratios[0]:5.2f} {row_ratios[2]:5.2f}   {row_ratios[1]:5.2f} {row_ratios[3]:5.2f}"
        )
        print(
            f"{title:24} {times(our_row)} {times(fixed)} {times(peer_row)}   {ratio_text}",
            flush=True,
        )
    for network_name, rows in ratios.items():
        mean, worst = np.exp(np.log(rows).mean(axis=0)), np.max(rows, axis=0)
        print(
            f"{network_name:14} geometric mean of minima {mean[0]:.2f} of fixed, {mean[1]:.2f} of "
            f"ONNX Runtime; worst {worst[0]:.2f} and {worst[1]:.2f}"
        )
    return failed


if __name__ == "__main__":
    command("bench.open_sizes", measured)
