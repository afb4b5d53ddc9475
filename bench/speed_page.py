"""docs/speed.md and the table of the README: the main figures of bench/RESULTS.md.

`python -m bench.results` writes them with that page, from the same records; nothing is measured
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers import PEERS
from bench.report import best_peer, geometric_mean, grouped, precision, ratio
from bench.store import ROOT, Record

PAGE = ROOT / "docs" / "speed.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- Written by `python -m bench.results`: -->\n", "<!-- Until here. -->"

_HEAD = """# Speed

Written by `python -m bench.results` from the records in `bench/results.jsonl`; do not edit. The
tables are a part of [all measurements](../bench/RESULTS.md), where each row names its run: date,
time and commit.

## How it was measured

- **What**: the time of one inference, called from Python with NumPy arrays, in milliseconds. The
  networks have random weights. Preparing, loading and the first call are not part of it.
- **Beside whom**: {engines}, as their packages come, on the same inputs
  and the same number of threads. Results are compared first; an engine with other results has no
  time.
- **How**: all engines of a row take turns in one process, so that what else the machine does hits
  all of them, with a pause before each turn, in which the threads of the one before go to sleep.
  The tables show least times; medians are in [all measurements](../bench/RESULTS.md).
- **Where**: machines with two processors. Other processors, and more threads, were not measured.
  To measure your own model on your own machine: `kiln bench model.onnx --compare` ([measure
  speed](howto/measure.md)).

The ratio is our time by that of the fastest other engine of the row: below 1 Tensorkiln is
faster. Not all engines were measured on all machines, so a row names the fastest of those that
were.
"""


def engines(records: list[Record]) -> str:
    """The other engines that have a time in some row, as a sentence names them."""
    timed = {
        row["name"]
        for r in records
        if r["kind"] == "latency"
        for row in r["rows"]
        if row["status"] == "ok"
    }
    *names, last = [peer.label for peer in PEERS.values() if peer.name in timed]
    return f"{', '.join(names)} and {last}" if names else last


def summary(records: list[Record]) -> list[str]:
    """A row per machine, precision and number of threads: the geometric mean of the ratios."""
    lines = [
        "| processor | precision | threads | networks | our time / fastest other engine's "
        "| slower in |",
        "|---|---|--:|--:|--:|---|",
    ]
    for (machine, kind, threads), group in _groups(records):
        ratios = {r["model"]: v for r in group if (v := ratio(r, "min_ms")) is not None}
        if ratios:
            slower = ", ".join(name for name, value in ratios.items() if value > 1) or "none"
            mean = geometric_mean([*ratios.values()])
            head = f"| {processor(machine)} | {kind} | {threads} | {len(ratios)}"
            lines.append(f"{head} | {mean:.3f} | {slower} |")
    return lines


# Of a virtual machine that shows a model without the tiles that it has, none is known.
GENERATIONS = {
    "family 25 model 1": "Zen 3",
    "family 25 model 17": "Zen 4",
    "family 26 model 2": "Zen 5",
    "family 6 model 207": "Emerald Rapids",
}
VECTORS = {"amx": "AMX", "avx512": "AVX-512", "": "AVX2"}


def processor(machine: str) -> str:
    """A machine of the records in the words of the tables: its name, generation and vectors."""
    name, _, tail = machine.partition(";")[0].partition(",")
    family, _, features = tail.strip().partition(",")
    generation = GENERATIONS.get(family, "" if "amx" in features else family)
    vectors = next(v for k, v in VECTORS.items() if k in features)
    return ", ".join(
        filter(None, [name.replace("(R)", "").removesuffix(" Processor"), generation, vectors])
    )


def speed_page(records: list[Record]) -> str:
    """The whole page."""
    parts = [_HEAD.format(engines=engines(records)), "## In short\n", *summary(records), ""]
    machines = dict.fromkeys(machine for (machine, _, _), _ in _groups(records))
    for machine in machines:
        parts += [f"## {processor(machine)}\n", *_latencies(records, machine), ""]
    parts += [
        "## What else was measured\n",
        "[All measurements](../bench/RESULTS.md) also has compile time and memory, memory of a",
        "run, time to load, cost of a call, errors of lower precisions, firmware, devices, each",
        "kernel against the limits of the machine, and what is left on the table, and why.",
    ]
    return "\n".join(parts) + "\n"


def _latencies(records: list[Record], machine: str) -> Iterator[str]:
    """A row per network and precision: ours, the best other engine's and the ratio, by threads."""
    latencies = [r for r in records if r["kind"] == "latency" and r["machine"] == machine]
    counts = sorted({r["threads"] for r in latencies})
    heads = [f"{head}, {n} thread{'s' * (n > 1)}" for n in counts for head in ("ms", "best other")]
    yield (
        "| network | precision | "
        + " | ".join(f"{h} | ratio" if "best" in h else h for h in heads)
        + " |"
    )
    yield "|---|---|" + "--:|---|--:|" * len(counts)
    rows: dict[tuple[str, str], dict[int, Record]] = {}
    for r in latencies:
        rows.setdefault((r["model"], precision(r)), {})[r["threads"]] = r
    for (model, kind), record_of_threads in rows.items():
        cells = [cell for n in counts for cell in _cells(record_of_threads.get(n))]
        yield f"| {model} | {kind} | {' | '.join(cells)} |"


def _cells(record: Record | None) -> tuple[str, str, str]:
    if record is None:
        return "-", "-", "-"
    our_row = next((row for row in record["rows"] if row["name"] == "ours"), None)
    best, value = best_peer(record, "min_ms"), ratio(record, "min_ms")
    return (
        _ms(our_row["min_ms"]) if our_row and our_row["status"] == "ok" else "-",
        f"{best[0]} {_ms(best[1])}" if best else "-",
        f"{value:.2f}" if value is not None else "-",
    )


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _groups(records: list[Record]) -> list[tuple[tuple[str, str, int], list[Record]]]:
    return grouped(r for r in records if r["kind"] == "latency")


def with_table(readme: str, records: list[Record]) -> str:
    """The README with its table of speed."""
    before, _, tail = readme.partition(BEGIN)
    _, end, after = tail.partition(END)
    assert end, "README.md has no place for the table of speed"
    table = "\n".join(summary(records))
    sentence = f"The other engines are {engines(records)}."
    return f"{before}{BEGIN}\n{table}\n\n{sentence}\n\n{END}{after}"


def write(records: list[Record], page: Path = PAGE, readme: Path = README) -> list[Any]:
    """Write both; their paths."""
    page.write_text(speed_page(records), encoding="utf-8")
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), records), encoding="utf-8")
    return [page, readme]
