"""`python -m bench.roofline MODEL`: every kernel of a model against the limits of this machine.

Per kernel: its work by definition (bench/work.py), the time its calls took inside whole runs, and
the least time that the peak of its products (of float32, bfloat16 or bytes, each by the
instructions of the target) and the bandwidths of the same run allow, the larger of both. Weights
come from where they lie when an inference comes back to them: at the bandwidth of a walk over all
that one inference reads, each once. Activations count at that for what the kernel touches.
MODEL is a name of the zoo, or a file; dimensions of a file are given as NAME=N.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.contenders import target_of
from bench.limits import Limits, measure_limits
from bench.models import MODELS, QUANTISED
from bench.report import PRECISIONS
from bench.store import add
from bench.work import Groups, Work, work_of
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.host.function import KernelCall, Ptr
from tensorkiln.executable import Executable
from tensorkiln.measure.calls import RunTime, graph_function, time_calls
from tensorkiln.runtime.tensor import Array, dtype_named

TOP = 30


@dataclass(frozen=True, slots=True)
class Row:
    """All calls of one kernel in one inference: microseconds taken, and the least possible."""

    kernel: str
    op_class: str
    calls: int
    flops: float
    bytes: float
    micros: float
    limit: float
    bound: str  # what sets the limit: "compute" or "memory"

    @property
    def reached(self) -> float:
        """Fraction of the binding limit."""
        return self.limit / self.micros if self.micros else 1.0

    @property
    def lost(self) -> float:
        """Microseconds above the limit."""
        return max(0.0, self.micros - self.limit)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rows, costliest first; `whole` is the fastest call from Python, in microseconds."""

    rows: tuple[Row, ...]
    whole: float
    limits: Limits

    @property
    def micros(self) -> float:
        """Of all kernels."""
        return sum(r.micros for r in self.rows)

    @property
    def limit(self) -> float:
        """The least possible."""
        return sum(r.limit for r in self.rows)


def random_inputs(exe: Executable, function: str = "main") -> dict[str, Array]:
    """Normal numbers, and ones for integers. UserError when a dimension is symbolic."""
    rng, arrays = np.random.default_rng(0), {}
    for p in graph_function(exe, function).info.inputs:
        sizes = p.shape or ()
        if not all(isinstance(d, int) for d in sizes):
            raise UserError(f"input {p.name} has symbolic dimensions", hint="NAME=N after MODEL")
        shape, dtype = tuple(int(d) for d in sizes), dtype_named(p.dtype)
        real = dtype.kind not in "iub"
        arrays[p.name] = rng.standard_normal(shape).astype(dtype) if real else np.ones(shape, dtype)
    return arrays


def roofline(
    mod: tk.IRModule,
    seconds: float,
    inputs: Mapping[str, Array] = {},
    precision: str = "float32",
    cpu: str = "native",
) -> Roofline:
    """Compiles a module for a processor, measures limits and calls on one thread, and joins the
    two."""
    groups, target = Groups(), tk.Target(target_of(cpu))
    exe = tk.compile(mod, target, precision=precision, instruments=[groups])
    limits = measure_limits(target=target)
    run_time = time_calls(exe, inputs or random_inputs(exe), seconds)
    work = {name: work_of(f) for name, f in groups.functions.items()}
    rows = _rows(exe, run_time, work, limits)
    return Roofline(tuple(sorted(rows, key=lambda r: -r.micros)), run_time.micros, limits)


def _rows(
    exe: Executable, run_time: RunTime, work: Mapping[str, Work], limits: Limits
) -> list[Row]:
    classes = {k.symbol: k.kernel_class for k in exe.kernels}
    plan = graph_function(exe, "main").calls
    cold = weight_bytes(plan, work)
    row_of_kernel: dict[str, Row] = {}
    for call, time in zip(plan, run_time.calls, strict=True):
        w, k = work[call.symbol], call.symbol
        weights = sum(n for _, n in _weights(call, w))
        warm = sum(w.reads) + w.writes - weights
        compute = w.flops / limits.peak(w.unit) / 1e3
        memory = (weights / limits.bandwidth(cold) + warm / limits.bandwidth(warm)) / 1e3
        old = row_of_kernel.get(k, Row(k, classes[k], 0, 0, 0, 0, 0, ""))
        row_of_kernel[k] = Row(
            k,
            classes[k],
            old.calls + 1,
            old.flops + w.flops,
            old.bytes + weights + warm,
            old.micros + time.micros,
            old.limit + max(compute, memory),
            "compute" if compute >= memory else "memory",
        )
    return list(row_of_kernel.values())


def weight_bytes(plan: Sequence[KernelCall], work: Mapping[str, Work]) -> float:
    """The bytes of weights that an inference reads at least once; `work` is that of kernels."""
    weights = {place: n for call in plan for place, n in _weights(call, work[call.symbol])}
    return sum(weights.values())


def _weights(call: KernelCall, work: Work) -> list[tuple[Ptr, float]]:
    """The operands that lie among the weights, and their bytes."""
    pointers = [a for a in call.args if isinstance(a, Ptr)]
    return [(a, n) for a, n in zip(pointers, work.reads, strict=False) if a.base == "weights"]


def table(figures: Roofline, top: int) -> list[str]:
    """Markdown: `top` rows, the rest as one, the totals."""
    lines = [
        "| kernel | class | calls | MFLOP | MB | µs | GFLOP/s | bound | of limit | share "
        "| lost µs |",
        "|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    lines += [_line(figures, f"`{r.kernel}`", [r]) for r in figures.rows[:top]]
    tail = figures.rows[top:]
    if tail:
        lines.append(_line(figures, f"{len(tail)} more", tail))
    return [*lines, _line(figures, "**all kernels**", figures.rows)]


def _line(figures: Roofline, name: str, rows: Any) -> str:
    micros, limit = sum(r.micros for r in rows), sum(r.limit for r in rows)
    flops, moved = sum(r.flops for r in rows), sum(r.bytes for r in rows)
    row = rows[0] if len(rows) == 1 else None
    op_class, bottleneck = (row.op_class, row.bound) if row else ("", "")
    return (
        f"| {name} | {op_class} | {sum(r.calls for r in rows)} | {flops / 1e6:.1f} | "
        f"{moved / 1e6:.2f} | {micros:.0f} | {flops / micros / 1e3:.1f} | {bottleneck} | "
        f"{limit / micros:.0%} | {micros / figures.micros:.1%} | {sum(r.lost for r in rows):.0f} |"
    )


def limits_line(limits: Limits) -> str:
    """The machine's limits in a sentence."""
    sizes = ", ".join(f"{rate:.0f} GB/s of {size >> 10} KiB" for size, rate in limits.gbytes)
    peaks = ", ".join(f"{rate:.1f} of {unit}" for unit, rate in limits.peaks.items())
    return f"Peak of one core in GFLOP/s: {peaks}; read {sizes}."


def module_of(
    model: str, dims: Mapping[str, int], quantised: bool = False
) -> tuple[tk.IRModule, dict[str, Array]]:
    """A model of the zoo with its inputs, or of a file without."""
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    if model in EXPORTS:
        from tests.zoo.export import model_path
        from tests.zoo.quantise import compared_path

        arrays = inputs(NETWORKS[EXPORTS[model].network], seed=0)
        path = compared_path(model) if quantised else model_path(model)
        return tk.frontend.from_onnx(path), arrays
    return tk.frontend.from_onnx(Path(model), freeze=dict(dims) or None), {}


def record(model: str, figures: Roofline, precision: str = "float32", target: str = "") -> None:
    """Keeps the figures for bench/RESULTS.md."""
    data = {
        "whole": figures.whole,
        "limits": asdict(figures.limits),
        "rows": [asdict(r) for r in figures.rows],
    }
    add("roofline", model, 1, data, precision=precision, target=target)


def restored(record: Mapping[str, Any]) -> Roofline:
    """What `record` kept."""
    limits = record["limits"]
    rates = tuple((int(size), float(rate)) for size, rate in limits["gbytes"])
    rows = tuple(Row(**row) for row in record["rows"])
    return Roofline(rows, record["whole"], Limits(limits["peaks"], rates))


def main(arguments: list[str] | None = None) -> None:
    """Compile, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.roofline", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all that `make bench` measures")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--cpu", default="native", help="such as x86-64-v2 (native)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of whole runs, per model")
    parser.add_argument("--top", type=int, default=TOP, help="rows to show")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    options = parser.parse_args(arguments)
    quantised = options.precision == "int8"
    precision = "float32" if quantised else options.precision
    target = "" if options.cpu == "native" else options.cpu
    dims = {k: int(n) for k, _, n in (m.partition("=") for m in options.models) if n}
    names = [m for m in options.models if "=" not in m]
    for model in names or (QUANTISED if quantised else MODELS):
        mod, inputs = module_of(model, dims, quantised)
        figures = roofline(mod, options.seconds, inputs, precision, options.cpu)
        if options.record:
            record(model, figures, options.precision, target)
        print(f"\n## {model}\n\n{limits_line(figures.limits)}\n")
        print("\n".join(table(figures, options.top)))
        print(
            f"\nKernels {figures.micros / 1e3:.3f} ms, at the limit {figures.limit / 1e3:.3f} ms "
            f"({figures.limit / figures.micros:.0%}); the whole call {figures.whole / 1e3:.3f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
