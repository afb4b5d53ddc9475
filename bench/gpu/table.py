"""The table of `make gpu`: a line for each contender of each case, whatever became of it."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
HEAD = [
    "One GPU, beside torch on it, all of a case taking turns: the least time of a run, and (in",
    "brackets) the median, of turns of about 20 ms of queued runs. Operands and results are on the",
    "GPU, data is random, float32 is strict. `share` is the speed of the rival (the copy, cuBLAS,",
    "torch.compile) that we reach, by least times; `goal` the first goal (bench/gpu/).\n",
    "| case | who | ms | rate | share | goal | what became of it | run |",
    "|---|---|--:|--:|--:|--:|---|---|",
]
_SCALES = {"FLOP": (1e12, "TFLOP/s"), "B": (1e9, "GB/s"), "samples": (1.0, "samples/s")}
OURS = "Tensorkiln"


def fails(record: Record) -> bool:
    """Whether one of our rows has no result. A peer that is not there is no failure, nor is a check
    that needs one."""
    our_rows = [row for row in record["rows"] if row["label"].startswith(OURS)]
    return any(row["status"] != "ok" and not is_absent(row) for row in our_rows)


def is_absent(row: Record) -> bool:
    """Whether a row is there to say that something is not."""
    return str(row["status"]).startswith("absent: ")


def share(record: Record) -> float | None:
    """How much of the rival's speed the best of ours reaches; None where one has no times."""
    our_times = [r["min_ms"] for r in record["rows"] if r["count"] and r["label"].startswith(OURS)]
    name = record.get("rival")
    rival = [r["min_ms"] for r in record["rows"] if name and r["count"] and name in r["label"]]
    return min(rival) / min(our_times) if our_times and rival else None


def lines(record: Record) -> list[str]:
    """The lines of a case; our share and goal are in the first of ours with times."""
    reached, goal, table = share(record), record.get("goal"), list[str]()
    best = min(
        (r["min_ms"] for r in record["rows"] if r["count"] and r["label"].startswith(OURS)),
        default=None,
    )
    for row in record["rows"]:
        ms = f"{row['min_ms']:.4g} ({row['median_ms']:.4g})" if row["count"] else ""
        first = row["label"].startswith(OURS) and row["count"] and row["min_ms"] == best
        cells = [record["model"], row["label"], ms, _rate(record, row)]
        cells += [f"{reached:.0%}" if first and reached is not None else ""]
        cells += [f"{goal:.0%}" if first and goal else "", _what(row, first, reached, goal)]
        table.append(
            "| " + " | ".join([*(c.replace("|", "/") for c in cells), record["run"]]) + " |"
        )
    return table


def _rate(record: Record, row: Record) -> str:
    if not row["count"] or not record.get("unit"):
        return ""
    scale, unit = _SCALES[record["unit"]]
    return f"{record['amount'] / row['min_ms'] * 1e3 / scale:.4g} {unit}"


def _what(row: Record, first: bool, reached: float | None, goal: float | None) -> str:
    if row["status"] != "ok" or not first or goal is None:
        return str(row["status"])
    if reached is None:
        return "ok; nothing to compare with"
    return "ok" if reached >= goal else "ok, below the goal"


def page(records: list[Record]) -> list[str]:
    """The lines of all cases; checks that are right are counted only."""
    checks = [r for r in records if not r.get("unit")]
    right = [r for r in checks if all(row["status"] == "ok" for row in r["rows"])]
    count_text = f"{len(right)} of {len(checks)} checks are right; the others are rows.\n"
    visible = [r for r in records if r not in right]
    return [*HEAD[:-2], count_text, *HEAD[-2:], *(line for r in visible for line in lines(r)), ""]
