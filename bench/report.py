"""Tables and ratios out of the results of `bench.measure`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

Result = dict[str, Any]


def best_peer(result: Result, key: str) -> tuple[str, float] | None:
    """(label, ms) of the fastest peer that produced times."""
    peer_times = [(row["label"], row[key]) for row in timed(result) if row["name"] != "ours"]
    return min(peer_times, key=lambda item: item[1]) if peer_times else None


def timed(result: Result) -> list[dict[str, Any]]:
    """Rows with times."""
    return [row for row in result["rows"] if row["status"] == "ok" and row["count"]]


def ratio(result: Result, key: str) -> float | None:
    """Ours / best peer by `key`; None when either side has no times."""
    our_times = [row[key] for row in timed(result) if row["name"] == "ours"]
    best = best_peer(result, key)
    return our_times[0] / best[1] if our_times and best else None


def geometric_mean(values: list[float]) -> float:
    """exp of the mean log."""
    return math.exp(sum(map(math.log, values)) / len(values))


def result_lines(result: Result) -> list[str]:
    """The block of one model at one thread count."""
    lines = [f"{result['model']}, {result['threads']} thread(s), {precision(result)}"]
    for row in result["rows"]:
        head = f"  {row['label']:<14}{row['version']:<13} "
        if row["status"] != "ok":
            lines.append(f"{head}{row['status']}")
        else:
            lines.append(
                f"{head}min {row['min_ms']:9.3f} ms   median {row['median_ms']:9.3f} ms"
                f"   n {row['count']:<6} prepared in {row['prepare_s']:.1f} s{_error(row)}"
            )
    return [*lines, ratio_line(result)]


def precision(result: Result) -> str:
    """What all contenders were asked for."""
    return str(result.get("precision", "float32"))


PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def grouped(results: Iterable[Result]) -> list[tuple[tuple[str, str, int], list[Result]]]:
    """Results by machine, precision and threads: by precision, then in the order of machines."""
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for r in results:
        groups.setdefault((r["machine"], precision(r), r["threads"]), []).append(r)
    machines = list(dict.fromkeys(machine for machine, _, _ in groups))

    def place(key: tuple[str, str, int]) -> tuple[int, int, int]:
        return PRECISIONS.index(key[1]), machines.index(key[0]), key[2]

    return [(key, groups[key]) for key in sorted(groups, key=place)]


def _error(row: dict[str, Any]) -> str:
    return f"   error {row['error']:.1e}" if row.get("error") else ""


def ratio_line(result: Result) -> str:
    """Ours against the best peer, or who is best when ours has no times."""
    best, by_min, by_median = (
        best_peer(result, "min_ms"),
        ratio(result, "min_ms"),
        ratio(result, "median_ms"),
    )
    if best is None:
        return "  no peer has times"
    if by_min is None or by_median is None:
        return f"  best peer: {best[0]}"
    return f"  ours / best peer ({best[0]}): {by_min:.3f} by min, {by_median:.3f} by median"


def summary_lines(results: list[Result], run: bool = False) -> list[str]:
    """A Markdown table of minima (medians in brackets), and geometric means per thread count.

    With `run` each row names its clock and run.
    """
    labels = list(dict.fromkeys(row["label"] for result in results for row in result["rows"]))
    heads = ["model", "threads", "precision", *labels, "best peer", "ours / best"]
    heads += ["clock", "run"] if run else []
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for result in results:
        rows = {row["label"]: row for row in result["rows"]}
        cells = [cell(rows[label]) if label in rows else "not asked for" for label in labels]
        best, value = best_peer(result, "min_ms"), ratio(result, "min_ms")
        cells += [best[0] if best else "-", f"{value:.3f}" if value is not None else "-"]
        cells += [result["clock"], result["run"]] if run else []
        cells = [result["model"], str(result["threads"]), precision(result), *cells]
        lines.append("| " + " | ".join(cells) + " |")
    for name, threads in sorted({(precision(r), r["threads"]) for r in results}):
        group = [r for r in results if (precision(r), r["threads"]) == (name, threads)]
        ratios = [value for result in group if (value := ratio(result, "min_ms")) is not None]
        if ratios:
            lines.append(
                f"\nGeometric mean of ours / best peer in {name} at {threads} thread(s): "
                f"{geometric_mean(ratios):.3f} over {len(ratios)} of {len(group)} models"
            )
    return lines


def cell(row: dict[str, Any]) -> str:
    """`min (median)` in ms, or the reason there is none."""
    if row["status"] != "ok":
        return str(row["status"]).replace("|", "\\|")
    if row["count"] == 1:
        return f"{row['min_ms']:.0f} (once)"
    return f"{row['min_ms']:.3f} ({row['median_ms']:.3f})"


_FIGURES = ("flash", "code", "ram", "stack", "instructions")


def firmware_lines(records: list[Result]) -> list[str]:
    """A table of `bench.firmware`: a line per model, processor and generator; in brackets ours by
    the peer's."""
    lines = [
        "| model | processor | generator | flash | of it code | RAM | of it stack | instructions |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        our_row, *peer_rows = record["rows"]
        peer = next((row for row in peer_rows if row["status"] == "ok"), None)
        for row in record["rows"]:
            head = f"| {record['model'].replace(' on ', ' | ')} | {row['label']} {row['version']}"
            if "flash" not in row:
                lines.append(f"{head}: {row['status']} | | | | | |")
                continue
            cells = [f"{row[key]:,}" for key in _FIGURES]
            if row is our_row and peer is not None:
                pairs = zip(cells, _FIGURES, strict=True)
                cells = [f"{cell} ({row[key] / peer[key]:.2f})" for cell, key in pairs]
            note = "" if row["status"] == "ok" else f": {row['status']}"
            lines.append(f"{head}{note} | {' | '.join(cells)} |")
    return lines


NORMAL, FLUSHED = "normal", "flushed"
DENORMALS_HEAD = [
    "Microseconds with normal numbers, and how many times as long with denormal ones as inputs, as "
    "weights, and as what is computed from normal numbers (bench/denormals.py); the dearest of "
    'these with `denormals="flush"`. One thread.\n',
    "| kernel | µs | inputs | weights | on the way | flushed |",
    "|---|--:|--:|--:|--:|--:|",
]


def denormal_lines(record: Mapping[str, Any]) -> list[str]:
    """The rows of a record; masks stand by their values."""
    table = []
    for name, times in record["rows"].items():
        base = times[NORMAL]

        def cell(kind: str, times: Mapping[str, float] = times, base: float = base) -> str:
            return f"{times[kind] / base:.2f}" if kind in times else ""

        masks = [f"{k}: {cell(k)}" for k in times if k.startswith("mask")]
        intermediates = ", ".join(masks) or cell("on the way")
        cells = [f"{base:.1f}", cell("inputs"), cell("weights"), intermediates, cell(FLUSHED)]
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table
