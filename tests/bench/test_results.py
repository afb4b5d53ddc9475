"""The page of results, from made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from bench.report import best_peer, ratio, result_lines, summary_lines
from bench.results import page


def latency(model: str, threads: int, machine: str = "cpu", **ms: float) -> dict[str, Any]:
    rows = [
        {
            "name": n,
            "label": n,
            "version": "1",
            "status": "ok",
            "count": 1 if v > 1000 else 9,
            "min_ms": v,
            "median_ms": 2 * v,
            "prepare_s": 0.0,
        }
        for n, v in ms.items()
    ]
    return {
        "kind": "latency",
        "model": model,
        "threads": threads,
        "machine": machine,
        "run": "2026-01-01 00:00 abc",
        "clock": "wall",
        "rows": rows,
    }


RECORDS = [
    latency("mlp", 1, ours=0.5, ort=1.0, openvino=2.0, tvm=5000.0),
    latency("bert", 1, ours=8.0, ort=4.0),
    latency("mlp", 1, "other", ours=1.0, ort=4.0),
]


def test_ratios_are_to_the_best_peer() -> None:
    assert best_peer(RECORDS[0], "min_ms") == ("ort", 1.0)
    assert ratio(RECORDS[0], "min_ms") == 0.5 and ratio(latency("x", 1, ort=1.0), "min_ms") is None


def test_a_summary_row_per_machine_and_thread_count() -> None:
    text = page(RECORDS, "## What is left\n\nNothing.")
    assert "| A | float32 | 1 | 2 | 1.000 | bert |" in text
    assert "| B | float32 | 1 | 1 | 0.250 | none |" in text
    assert "## Latency, machine A" in text and "## Latency, machine B" in text
    assert text.rstrip().endswith("Nothing.")


def test_every_row_names_its_run_and_what_was_too_slow() -> None:
    lines = summary_lines(RECORDS[:2], run=True)
    assert lines[2].startswith("| mlp | 1 | float32 | 0.500 (1.000) | 1.000 (2.000) |")
    assert "5000 (once)" in lines[2] and lines[2].endswith("| wall | 2026-01-01 00:00 abc |")
    assert "not asked for" in lines[3]
    assert lines[-1].endswith("1.000 over 2 of 2 models")


@pytest.mark.parametrize(
    "kind", ["memory", "loading", "overhead", "compile", "roofline", "convolutions"]
)
def test_sections_appear_with_their_records(kind: str) -> None:
    data: dict[str, Any] = {
        "memory": {"rows": [{"label": "ours", "status": "ok", "run_bytes": 3 << 20,
                             "planned_bytes": 7, "workspace_bytes": 7}]},
        "loading": {"rows": [{"model": "mlp", "weights_bytes": 1 << 20, "export_s": 0.25,
                              "cold_s": 0.002, "warm_s": 0.0005, "loaded_bytes": 1 << 19,
                              "run_bytes": 3 << 20}]},
        "overhead": {"rows": {"tvm-ffi, empty, no arguments": [0.1, 0.2], "ours": [0.5, 0.7]}},
        "compile": {"rows": [{"model": "mlp", "kind": "cold", "status": "ok", "total_s": 1.25}]},
        "convolutions": {"peak": 100.0, "rows": [{"threads": 2, "filters": [1, 3], "layers": 4,
                                                  "flops": 1e6, "micros": 20.0}]},
        "roofline": {"whole": 9.0, "limits": {"peaks": {"float32": 1e2}, "gbytes": [[1024, 50.0]]},
                     "rows": [{"kernel": "k", "op_class": "loops", "calls": 1, "flops": 1e6,
                               "bytes": 10.0, "micros": 20.0, "limit": 10.0, "bound": "compute"}]},
    }  # fmt: skip
    record = {"kind": kind, "model": "mlp", "threads": 1, "machine": "cpu", "run": "r"}
    text = page([{**record, **data[kind]}, latency("mlp", 1, ours=2.0, ort=1.0)], "")
    expected = {
        "memory": "| mlp | ours | 3.0 | planned 7 B, in the executor 7 B |",
        "loading": "| mlp | 1 | 0.25 | 2.00 | 0.50 | 0.5 | 3.0 |",
        "overhead": "| ours | 0.50 | 0.70 | 0.40 | 0.50 |",
        "compile": "| mlp | cold | 1.25 |",
        "convolutions": "| mlp | 1x1 and 3x3 | 4 | 2 | 1 | 0.02 | 50.0 | 25% |",
        "roofline": "| mlp | 0.02 | 0.01 | 50% | 0.01 | 50.0 | `k` 10 µs |",
    }
    assert expected[kind] in text


def test_lower_precisions_are_rows_of_their_own() -> None:
    """They are compared among themselves, and have a table of errors."""
    lower = {**latency("mlp", 1, ours=0.25, openvino=0.5), "precision": "bfloat16"}
    for row, error in zip(lower["rows"], (1e-3, 2e-3), strict=True):
        row["error"], row["mean_error"] = error, error / 4
    text = page([*RECORDS, lower], "")
    assert "| A | bfloat16 | 1 | 1 | 0.500 | none |" in text
    assert "| A | float32 | 1 | 2 | 1.000 | bert |" in text
    assert "| mlp | bfloat16 | 1.0e-03 (2.5e-04) | 2.0e-03 (5.0e-04) |" in text
    assert "error 1.0e-03" in "".join(result_lines(lower))


def test_what_was_measured_of_units_and_of_decoding_is_a_row() -> None:
    peaks = {"float32": 100.0, "bfloat16": 200.0}
    limits = {"peaks": peaks, "gbytes": [[1 << 15, 300.0], [1 << 28, 15.0]]}
    common = {"machine": "cpu", "run": "2026-01-01 00:00 abc", "model": "", "threads": 1}
    times = {"min_ms": 2.0, "median_ms": 4.0, "weights": 1e8, "memory_gbytes": [50.0, 40.0]}
    rows = [
        {**common, "kind": "units", "limits": limits},
        {**common, "kind": "decoding", "precision": "bfloat16", **times},
    ]
    text = page([*RECORDS, *rows], "")
    assert "| A | 100 (1.00) | 200 (2.00) | 300 | - | - | 15 |" in text
    assert "## Decoding, machine A" in text
    assert "|  | bfloat16 | 1 | 100 | 2.00 (4.00) | 50.0 (25.0) | 100% (62%) |" in text
