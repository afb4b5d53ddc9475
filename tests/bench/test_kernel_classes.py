"""Classes of kernels below their limit have a reason."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from bench import kernel_classes
from bench.kernel_classes import ENOUGH, class_times, lines
from bench.roofline import Row
from bench.store import load


def record(*rows: tuple[str, float, float], **fields: str) -> dict[str, Any]:
    """A roofline of kernels of (class, micros, limit)."""
    table_rows = [
        asdict(Row(f"k{i}", name, 1, 1.0, 1.0, micros, limit, "memory"))
        for i, (name, micros, limit) in enumerate(rows)
    ]
    limits = {"peaks": {"float32": 100.0}, "gbytes": [[1024, 50.0]]}
    return {
        "kind": "roofline",
        "model": "m",
        "whole": 1.0,
        "limits": limits,
        "rows": table_rows,
        **fields,
    }


def test_classes_add_up_their_kernels() -> None:
    roofline_record = record(("a", 60, 30), ("a", 20, 50), ("b", 19, 19), ("c", 1, 0.1))
    assert [(c.name, c.share, c.reached) for c in class_times([roofline_record])] == [
        ("a", 0.8, 1.0),
        ("b", 0.19, 1.0),
    ]


def test_those_below_are_rows_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"b": "of all", "b int8": "of bytes"}
    monkeypatch.setattr(kernel_classes, "REASONS", reasons)
    rows = ("a", 50, 40), ("b", 50, 20)
    text = "\n".join(lines([record(*rows), record(*rows, precision="int8", target="x86-64-v2")]))
    assert "2 of 4 reach 75% or more" in text
    assert "| b | m | float32 | native | 50.0% | 40% | of all |" in text
    assert "| b | m | int8 | x86-64-v2 | 50.0% | 40% | of bytes |" in text


def test_every_class_that_was_measured_below_has_a_reason() -> None:
    classes = list(class_times(r for r in load() if r["kind"] == "roofline"))
    assert classes
    silent = {(c.name, c.precision) for c in classes if c.reached < ENOUGH and not c.reason}
    assert not silent
