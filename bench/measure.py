"""One model at one thread count: every contender in this process, round-robin on the same inputs.

Run by `bench.__main__` as a fresh process whose CPU affinity and thread variables are set before
anything is imported: `python -m bench.measure SPEC.json RESULT.json`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.contenders import OURS, PEERS, Array, Case, Contender, Runner
from tensorkiln.tune.measure import measure

RTOL, ATOL = 1e-3, 1e-4


@dataclass(slots=True)
class Row:
    """What became of one contender. `status` is "ok" or the reason why there are no times."""

    name: str
    label: str
    version: str
    status: str = "ok"
    prepare_s: float = 0.0
    min_ms: float = 0.0
    median_ms: float = 0.0
    count: int = 0


def prepare(contenders: list[Contender], case: Case, threads: int) -> dict[str, tuple[Row, Runner]]:
    """Compiles every contender for the case; one that fails keeps a row with the reason."""
    prepared: dict[str, tuple[Row, Runner]] = {}
    for contender in contenders:
        row = Row(contender.name, contender.label, contender.version())
        row.status = contender.missing() or "ok"
        runner: Runner = tuple
        if row.status == "ok":
            start = time.perf_counter()
            try:
                runner = contender.prepare(case, threads)
            except Exception as error:  # The table reports it, whatever it is.
                row.status = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            row.prepare_s = time.perf_counter() - start
        prepared[contender.name] = (row, runner)
    return prepared


def check(prepared: dict[str, tuple[Row, Runner]]) -> None:
    """Compares every contender's outputs with the first peer's; wrong ones are not timed."""
    names = [name for name, (row, _) in prepared.items() if row.status == "ok"]
    reference_name = next((n for n in ("ort", "openvino", "torch") if n in names), None)
    if reference_name is None:
        return
    reference = [np.array(a) for a in prepared[reference_name][1]()]
    for name in names:
        row, runner = prepared[name]
        difference = mismatch(reference, list(runner()))
        if difference:
            row.status = f"wrong result: {difference}"


def mismatch(expected: list[Array], received: list[Array]) -> str:
    """Empty when all outputs agree to RTOL, ATOL x scale; else a short sentence."""
    if len(expected) != len(received):
        return f"{len(received)} outputs, expected {len(expected)}"
    for index, (want, have) in enumerate(zip(expected, received, strict=True)):
        if want.shape != have.shape:
            return f"output {index} has shape {have.shape}, expected {want.shape}"
        scale = float(np.abs(want).max())
        if not np.allclose(have, want, rtol=RTOL, atol=ATOL * scale):
            worst = float(np.abs(have.astype(np.float64) - want).max())
            return f"output {index} is off by {worst:.3g} at scale {scale:.3g}"
    return ""


def interleave(prepared: dict[str, tuple[Row, Runner]], reps: int, seconds: float) -> None:
    """Round-robin turns until every contender has `reps` calls and `seconds` have passed."""
    active = {name: run for name, (row, run) in prepared.items() if row.status == "ok"}
    for name, timing in measure(active, reps=reps, seconds=seconds / max(1, len(active))).items():
        row = prepared[name][0]
        row.min_ms, row.median_ms, row.count = timing.min_ms, timing.median_ms, timing.count


def main(spec_path: str, result_path: str) -> None:
    """Runs one spec: network, path, threads, contenders, reps, seconds."""
    from tests.zoo.registry import NETWORKS, inputs

    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    network = NETWORKS[spec["network"]]
    case = Case(network.name, Path(spec["path"]), inputs(network, seed=0))
    everyone = {OURS.name: OURS, **PEERS}
    prepared = prepare([everyone[name] for name in spec["contenders"]], case, spec["threads"])
    check(prepared)
    interleave(prepared, spec["reps"], spec["seconds"])
    result = {
        "network": network.name,
        "threads": spec["threads"],
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "rows": [asdict(row) for row, _ in prepared.values()],
    }
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
