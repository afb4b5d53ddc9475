"""`python -m bench.results`: bench/RESULTS.md out of bench/results.jsonl and bench/remarks.md; from
the same records docs/speed.md and the README's table (bench/speed_page.py).

Everything in it was measured; each row names its machine and run. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench import (
    beside,
    compile_time,
    convolutions,
    decoding,
    devices,
    kernel_classes,
    loading,
    many_cores,
    memory,
    overhead,
    speed_page,
)
from bench.gpu import table as gpu
from bench.report import (
    DENORMALS_HEAD,
    best_peer,
    denormal_lines,
    firmware_lines,
    geometric_mean,
    grouped,
    precision,
    ratio,
    summary_lines,
)
from bench.roofline import limits_line, restored, table
from bench.store import ROOT, Record, load

RESULTS = ROOT / "bench" / "RESULTS.md"
REMARKS = ROOT / "bench" / "remarks.md"
KERNELS_SHOWN = 12

HEAD = """# Results

Written by `python -m bench.results` from what `make bench` measured, which is kept in
`bench/results.jsonl`; do not edit. Times are milliseconds of one inference from Python, the least
and (in brackets) the median, all contenders taking turns in one process. The ratio is ours by the
best peer's, both least: below 1 Tensorkiln is faster. TVM is untuned: tuning takes hours a model.
"""

FIRMWARE_HEAD = """Bytes, and instructions of one inference under QEMU
(docs/howto/firmware-tests.md), all built by one compiler at `-O2`; in brackets ours by the peer's.
RAM is inputs, outputs, workspace and stack.
"""


def page(records: list[Record], remarks: str) -> str:
    """The whole page."""
    machines = list(dict.fromkeys(r["machine"] for r in records))
    parts = [HEAD, *_summary(records), "## Machines and runs\n", *_machines(records, machines)]
    parts += _units(records, machines)
    for machine in machines:
        of_machine = [r for r in records if r["machine"] == machine]
        letter = _letter(machines.index(machine))
        for title, section in (
            ("Latency", _latency(of_machine)),
            ("Errors of lower precisions", _errors(of_machine)),
            *((_TABLES[name], _beside(of_machine, name)) for name in _TABLES),
            ("Compile time and memory", _compile(of_machine)),
            ("Memory of a run", _memory(of_machine)),
            ("Decoding", _decoding(of_machine)),
            ("Loading", _loading(of_machine)),
            ("Calls", _overhead(of_machine)),
            ("Numbers below the normal ones", _denormals(of_machine)),
            ("Devices", _devices(of_machine)),
            ("GPU", _gpu(of_machine)),
            ("Firmware", _firmware(of_machine)),
            ("Convolutions against the FMA peak", _convolutions(of_machine)),
            ("More cores", _many_cores(of_machine)),
            ("Kernel classes against the limits of the machine", _classes(of_machine)),
            ("Kernels against the limits of the machine", _rooflines(of_machine)),
        ):
            if section:
                parts += [f"## {title}, machine {letter}\n", *section]
    return "\n".join([*parts, remarks.strip(), ""])


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _kind(records: Iterable[Record], kind: str) -> list[Record]:
    return [r for r in records if r["kind"] == kind]


def _summary(records: list[Record]) -> list[str]:
    """The geometric means."""
    lines = [
        "| machine | precision | threads | models | geometric mean of ours / best peer | above 1 |",
        "|---|---|--:|--:|--:|---|",
    ]
    latency = _kind(records, "latency")
    machines = list(dict.fromkeys(r["machine"] for r in records))
    for (machine, name, threads), group in grouped(latency):
        ratios = {r["model"]: v for r in group if (v := ratio(r, "min_ms")) is not None}
        if ratios:
            above = ", ".join(m for m, v in ratios.items() if v > 1) or "none"
            mean = geometric_mean(list(ratios.values()))
            letter = _letter(machines.index(machine))
            lines.append(
                f"| {letter} | {name} | {threads} | {len(ratios)} | {mean:.3f} | {above} |"
            )
    return [*lines, ""]


def _machines(records: list[Record], machines: list[str]) -> list[str]:
    lines = []
    for machine in machines:
        of_machine = [r for r in records if r["machine"] == machine]
        runs = sorted({r["run"] for r in of_machine})
        rows = [row for r in _kind(of_machine, "latency") for row in r["rows"] if row["version"]]
        versions = dict.fromkeys(f"{row['label']} {row['version']}" for row in rows)
        lines.append(f"- **{_letter(machines.index(machine))}**: {machine}")
        lines += [f"  - processor: {_processor(r)}" for r in _kind(of_machine, "processor")[-1:]]
        lines.append(f"  - versions: {', '.join(versions) or 'no peer'}")
        lines.append(f"  - runs (UTC, commit): {'; '.join(runs)}")
    return [*lines, ""]


def _units(records: list[Record], machines: list[str]) -> list[str]:
    """What one core of each processor does at most, by the units that kernels choose among."""
    unit_records = [r for r in _kind(records, "units") if not r.get("target")]
    if not unit_records:
        return []
    rows = [(_letter(machines.index(r["machine"])), r["limits"]) for r in unit_records]
    names = list(dict.fromkeys(unit for _, limits in rows for unit in limits["peaks"]))
    lines = [
        "## Rates of units\n",
        "Of one core, each unit from registers, in GFLOP/s (of int8 Gop/s), in brackets as a "
        "multiple of float32's; and GB/s read of a footprint (`python -m bench.units`).\n",
        f"| machine | {' | '.join(names)} | {' | '.join(_FOOTPRINTS)} |",
        "|---|" + "--:|" * (len(names) + len(_FOOTPRINTS)),
    ]
    for letter, limits in rows:
        peaks, base = limits["peaks"], limits["peaks"]["float32"]
        cells = [f"{peaks[x]:.0f} ({peaks[x] / base:.2f})" if x in peaks else "-" for x in names]
        rates = dict(limits["gbytes"])
        cells += [f"{rates[n]:.0f}" if n in rates else "-" for n in _FOOTPRINTS.values()]
        lines.append(f"| {letter} | {' | '.join(cells)} |")
    return [*lines, ""]


# Of the rates of reading, those of three levels of caches and of memory.
_FOOTPRINTS = {"32 KiB": 1 << 15, "512 KiB": 1 << 19, "8 MiB": 1 << 23, "256 MiB": 1 << 28}


def _processor(record: Record) -> str:
    """What LLVM calls a processor, its caches and features."""
    caches = [f"{n >> 10} KiB level {level}" for level, n in record["caches"].items() if n]
    features = " ".join(record["features"])
    return f"{record['cpu']}; caches {', '.join(caches) or 'unknown'}; {features}"


# Tables of `bench.beside`.
_TABLES = {
    "families": "Families of networks whose kernels are rare",
    "open_sizes": "Networks of open sizes",
    "levels": "Older processors",
}


def _beside(records: list[Record], table: str) -> list[str]:
    of_table = [r for r in _kind(records, "beside") if r["table"] == table]
    head = (
        f"Least milliseconds (`python -m bench.{table}`); in brackets the time of the first column "
        "as a part of it.\n"
    )
    return [head, *beside.lines(of_table)] if of_table else []


def _errors(records: list[Record]) -> list[str]:
    """Errors against float64, of those who were asked for a lower precision, at one thread."""
    latencies = [r for r in _kind(records, "latency") if precision(r) != "float32"]
    latencies = [r for r in latencies if r["threads"] == min(x["threads"] for x in latencies)]
    if not latencies:
        return []
    labels = list(
        dict.fromkeys(row["label"] for r in latencies for row in r["rows"] if row.get("error"))
    )
    lines = [
        "Largest difference of a result from float64, as a part of the largest result; in brackets "
        "the root of the mean square of differences, as a part of that of results.\n",
        "| model | precision | " + " | ".join(labels) + " |",
        "|---|---|" + "--:|" * len(labels),
    ]
    for r in latencies:
        rows = {row["label"]: row for row in r["rows"] if row.get("error")}
        cells = [_error_text(rows[x]) if x in rows else "-" for x in labels]
        lines.append(f"| {r['model']} | {precision(r)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _error_text(row: Record) -> str:
    mean = f" ({row['mean_error']:.1e})" if row.get("mean_error") else ""
    return f"{row['error']:.1e}{mean}"


def _latency(records: list[Record]) -> list[str]:
    latencies = sorted(_kind(records, "latency"), key=lambda r: (precision(r), r["threads"]))
    lines = summary_lines(latencies, run=True) if latencies else []
    if any(r["clock"] == "cpu" for r in latencies):
        lines.append(
            "\nRows of clock `cpu` are processor time: the machine did other work as well."
        )
    return [*lines, ""] if lines else []


def _compile(records: list[Record]) -> list[str]:
    rows = [row for r in _kind(records, "compile") for row in r["rows"]]
    table = [compile_time.row_text(compile_time.Row(**row)) for row in rows]
    return [*compile_time.HEAD, *table, ""] if table else []


def _memory(records: list[Record]) -> list[str]:
    memories = _kind(records, "memory")
    head = [
        "Anonymous memory that running takes, besides weights (bench/memory.py).\n",
        "| model | engine | MiB | |",
        "|---|---|--:|---|",
    ]
    table = [line for r in memories for line in memory.lines(r["model"], r["rows"])]
    return [*head, *table, ""] if table else []


def _decoding(records: list[Record]) -> list[str]:
    decoding_records = _kind(records, "decoding")
    return [*decoding.HEAD, *map(decoding.line, decoding_records), ""] if decoding_records else []


def _loading(records: list[Record]) -> list[str]:
    rows = [loading.row_text(row) for r in _kind(records, "loading") for row in r["rows"]]
    return [*loading.HEAD, *rows, ""] if rows else []


def _firmware(records: list[Record]) -> list[str]:
    firmware = _kind(records, "firmware")
    return [FIRMWARE_HEAD, *firmware_lines(firmware), ""] if firmware else []


def _devices(records: list[Record]) -> list[str]:
    device_records = _kind(records, "devices")
    return [*devices.HEAD, *map(devices.line, device_records), ""] if device_records else []


def _gpu(records: list[Record]) -> list[str]:
    gpu_records = _kind(records, "gpu")
    return gpu.page(gpu_records) if gpu_records else []


def _overhead(records: list[Record]) -> list[str]:
    overheads = _kind(records, "overhead")
    return [*overhead.lines(overheads[-1]["rows"]), ""] if overheads else []


def _denormals(records: list[Record]) -> list[str]:
    denormal_records = _kind(records, "denormals")
    return [*DENORMALS_HEAD, *denormal_lines(denormal_records[-1]), ""] if denormal_records else []


def _convolutions(records: list[Record]) -> list[str]:
    convolution_records = _kind(records, "convolutions")
    table = [
        line
        for r in convolution_records
        for line in convolutions.lines(r["model"], r["peak"], r["rows"])
    ]
    head = "Operations of the direct sums, in the time that layers took (bench/convolutions.py).\n"
    return [head, *convolutions.HEAD, *table, ""] if table else []


def _many_cores(records: list[Record]) -> list[str]:
    core_records = _kind(records, "many_cores")
    return [*many_cores.HEAD, *map(many_cores.line, core_records), ""] if core_records else []


def _classes(records: list[Record]) -> list[str]:
    rooflines = _kind(records, "roofline")
    return kernel_classes.lines(rooflines) if rooflines else []


def _rooflines(records: list[Record]) -> list[str]:
    """In float32, by the instructions of the machine; other precisions and older processors are
    among the classes alone."""
    native = [r for r in _kind(records, "roofline") if not r.get("target")]
    float32_records = [r for r in native if precision(r) == "float32"]
    if not float32_records:
        return []
    lines = [
        "One thread. Work is by definition, so a transformed convolution may exceed the peak;",
        "`lost` is time above the binding limit (bench/roofline.py). Costliest kernels first.\n",
        "`limit / best peer` is the ratio that kernels at their limits would give: less than that",
        "takes other arithmetic (Winograd) or fewer bytes.\n",
        "| model | kernels ms | at the limit ms | of limit | limit / best peer | GFLOP/s "
        "| most lost |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    single = (r for r in _kind(records, "latency") if r["threads"] == 1)
    latency = {r["model"]: r for r in single if precision(r) == "float32"}
    for r in float32_records:
        line = restored(r)
        worst = sorted(line.rows, key=lambda row: -row.lost)[:3]
        names = ", ".join(f"`{row.kernel}` {row.lost:.0f} µs" for row in worst)
        best = best_peer(latency[r["model"]], "min_ms") if r["model"] in latency else None
        peer_ratio = f"{line.limit / 1e3 / best[1]:.2f}" if best else "-"
        rate = sum(row.flops for row in line.rows) / line.micros / 1e3
        lines.append(
            f"| {r['model']} | {line.micros / 1e3:.2f} | {line.limit / 1e3:.2f} | "
            f"{line.limit / line.micros:.0%} | {peer_ratio} | {rate:.1f} | {names} |"
        )
    for r in float32_records:
        line = restored(r)
        lines += [f"\n### {r['model']}\n", limits_line(line.limits), f"Run: {r['run']}.\n"]
        lines += table(line, KERNELS_SHOWN)
    return [*lines, ""]


def write(path: Path = RESULTS) -> Path:
    """Write the page."""
    path.write_text(page(load(), REMARKS.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def main() -> None:
    """Write the pages, and print their names."""
    print(write(), *speed_page.write(load()))


if __name__ == "__main__":
    main()
