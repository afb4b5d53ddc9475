"""`python -m bench.roofline MODEL`: every kernel of a model against the limits of this machine.

Per kernel: its work by definition (bench/work.py), the time its calls took inside whole runs, and
the least time that the FMA peak and the bandwidths of the same run allow. Weights count at the
bandwidth for all that one inference reads, activations at that for what the kernel touches.
MODEL is a name of the zoo, or a file; dimensions of a file are given as NAME=N.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.limits import Limits, measure_limits
from bench.models import MODELS
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
    rng, made = np.random.default_rng(0), {}
    for p in graph_function(exe, function).info.inputs:
        sizes = p.shape or ()
        if not all(isinstance(d, int) for d in sizes):
            raise UserError(f"input {p.name} has symbolic dimensions", hint="NAME=N after MODEL")
        shape, dtype = tuple(int(d) for d in sizes), dtype_named(p.dtype)
        real = dtype.kind not in "iub"
        made[p.name] = rng.standard_normal(shape).astype(dtype) if real else np.ones(shape, dtype)
    return made


def roofline(mod: tk.IRModule, seconds: float, inputs: Mapping[str, Array] = {}) -> Roofline:
    """Compiles a module, measures limits and calls on one thread, and joins the two."""
    groups = Groups()
    exe = tk.compile(mod, instruments=[groups])
    limits = measure_limits()
    taken = time_calls(exe, inputs or random_inputs(exe), seconds)
    work = {name: work_of(f) for name, f in groups.found.items()}
    rows = _rows(exe, taken, work, limits)
    return Roofline(tuple(sorted(rows, key=lambda r: -r.micros)), taken.micros, limits)


def _rows(exe: Executable, taken: RunTime, work: Mapping[str, Work], limits: Limits) -> list[Row]:
    classes = {k.symbol: k.kernel_class for k in exe.kernels}
    plan = graph_function(exe, "main").calls
    cold = sum(_weights(call, work[call.symbol]) for call in plan)
    found: dict[str, Row] = {}
    for call, time in zip(plan, taken.calls, strict=True):
        w, k = work[call.symbol], call.symbol
        weights = _weights(call, w)
        warm = sum(w.reads) + w.writes - weights
        compute = w.flops / limits.gflops / 1e3
        memory = (weights / limits.bandwidth(cold) + warm / limits.bandwidth(warm)) / 1e3
        old = found.get(k, Row(k, classes[k], 0, 0, 0, 0, 0, ""))
        found[k] = Row(
            k,
            classes[k],
            old.calls + 1,
            old.flops + w.flops,
            old.bytes + weights + warm,
            old.micros + time.micros,
            old.limit + max(compute, memory),
            "compute" if compute >= memory else "memory",
        )
    return list(found.values())


def _weights(call: KernelCall, work: Work) -> float:
    """Bytes of the operands that lie among the weights."""
    pointers = [a for a in call.args if isinstance(a, Ptr)]
    return sum(n for a, n in zip(pointers, work.reads, strict=False) if a.base == "weights")


def table(found: Roofline, top: int) -> list[str]:
    """Markdown: `top` rows, the rest as one, the totals."""
    lines = [
        "| kernel | class | calls | MFLOP | MB | µs | GFLOP/s | bound | of limit | share "
        "| lost µs |",
        "|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    lines += [_line(found, f"`{r.kernel}`", [r]) for r in found.rows[:top]]
    rest = found.rows[top:]
    if rest:
        lines.append(_line(found, f"{len(rest)} more", rest))
    return [*lines, _line(found, "**all kernels**", found.rows)]


def _line(found: Roofline, name: str, rows: Any) -> str:
    micros, limit = sum(r.micros for r in rows), sum(r.limit for r in rows)
    flops, moved = sum(r.flops for r in rows), sum(r.bytes for r in rows)
    one = rows[0] if len(rows) == 1 else None
    op_class, bound = (one.op_class, one.bound) if one else ("", "")
    return (
        f"| {name} | {op_class} | {sum(r.calls for r in rows)} | {flops / 1e6:.1f} | "
        f"{moved / 1e6:.2f} | {micros:.0f} | {flops / micros / 1e3:.1f} | {bound} | "
        f"{limit / micros:.0%} | {micros / found.micros:.1%} | {sum(r.lost for r in rows):.0f} |"
    )


def limits_line(limits: Limits) -> str:
    """The machine's limits in a sentence."""
    sizes = ", ".join(f"{rate:.0f} GB/s of {size >> 10} KiB" for size, rate in limits.gbytes)
    return f"FMA peak of one core {limits.gflops:.1f} GFLOP/s; read {sizes}."


def module_of(model: str, dims: Mapping[str, int]) -> tuple[tk.IRModule, dict[str, Array]]:
    """A model of the zoo with its inputs, or of a file without."""
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    if model in EXPORTS:
        from tests.zoo.export import model_path

        found = inputs(NETWORKS[EXPORTS[model].network], seed=0)
        return tk.frontend.from_onnx(model_path(model)), found
    return tk.frontend.from_onnx(Path(model), freeze=dict(dims) or None), {}


def record(model: str, found: Roofline) -> None:
    """Keeps the figures for bench/RESULTS.md."""
    limits = {"gflops": found.limits.gflops, "gbytes": found.limits.gbytes}
    rows = [asdict(r) for r in found.rows]
    add("roofline", model, 1, {"whole": found.whole, "limits": limits, "rows": rows})


def restored(kept: Mapping[str, Any]) -> Roofline:
    """What `record` kept."""
    limits = kept["limits"]
    rates = tuple((int(size), float(rate)) for size, rate in limits["gbytes"])
    rows = tuple(Row(**row) for row in kept["rows"])
    return Roofline(rows, kept["whole"], Limits(limits["gflops"], rates))


def main(arguments: list[str] | None = None) -> None:
    """Compile, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.roofline", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--seconds", type=float, default=3.0, help="of whole runs, per model")
    parser.add_argument("--top", type=int, default=TOP, help="rows to show")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    options = parser.parse_args(arguments)
    dims = {k: int(n) for k, _, n in (m.partition("=") for m in options.models) if n}
    for model in (m for m in options.models if "=" not in m):
        mod, inputs = module_of(model, dims)
        found = roofline(mod, options.seconds, inputs)
        if options.record:
            record(model, found)
        print(f"\n## {model}\n\n{limits_line(found.limits)}\n")
        print("\n".join(table(found, options.top)))
        print(
            f"\nKernels {found.micros / 1e3:.3f} ms, at the limit {found.limit / 1e3:.3f} ms "
            f"({found.limit / found.micros:.0%}); the whole call {found.whole / 1e3:.3f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
