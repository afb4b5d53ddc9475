"""`python -m bench.compare`: fails when a kernel executes more instructions than recorded.

Counts (bench/instructions.py) are the same on every run, which times are not. A kernel is known by
the first node of the model that it computes, so that renumbered kernels stay who they are. What
grows by more than 3% needs a note in bench/instructions.json, `"notes": {"model/node": "why"}`;
`--record` writes the counts of now, and drops the notes that have done their service.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorkiln as tk
from bench.instructions import TARGET, count_instructions
from bench.models import MODELS
from bench.store import ROOT

RECORD = ROOT / "bench" / "instructions.json"
ALLOWED = 1.03
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Change:
    """One kernel that differs: `before` is 0 for a new one, `now` for one that is gone."""

    key: str
    before: int
    now: int
    note: str = ""

    @property
    def fails(self) -> bool:
        """Whether it grew by more than is allowed, and nobody says why."""
        return bool(self.before) and self.now > ALLOWED * self.before and not self.note

    def text(self) -> str:
        """One line."""
        if not self.before:
            return f"  new    {self.key}: {self.now:,}"
        if not self.now:
            return f"  gone   {self.key}: {self.before:,}"
        mark = "FAILS " if self.fails else "grows " if self.now > self.before else "shrank"
        note = f"  ({self.note})" if self.note else ""
        growth = self.now / self.before - 1
        return f"  {mark} {self.key}: {self.before:,} -> {self.now:,} ({growth:+.1%}){note}"


def changes(model: str, before: Counts, now: Counts, notes: Mapping[str, str]) -> list[Change]:
    """What differs between two counts of a model; the whole model is an entry of its own.

    Kernels that come and go change what others do, so the sum is what is held to the limit then.
    """
    keys = dict.fromkeys([*before, *now])
    pairs = {f"{model}/{key}": (before.get(key, 0), now.get(key, 0)) for key in keys}
    pairs[model] = sum(before.values()), sum(now.values())
    return [Change(k, a, b, notes.get(k, "")) for k, (a, b) in pairs.items() if a != b]


def load(path: Path = RECORD) -> dict[str, Any]:
    """The record; an empty one when there is no file."""
    if not path.exists():
        return {"target": TARGET, "models": {}, "notes": {}}
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def recorded(record: Mapping[str, Any], model: str, counts: Counts) -> dict[str, Any]:
    """The record with the counts of one model in place of its old ones, and without its notes."""
    notes = {k: v for k, v in record["notes"].items() if k.partition("/")[0] != model}
    models = {**record["models"], model: dict(counts)}
    return {"target": TARGET, "models": dict(sorted(models.items())), "notes": notes}


def check(record: Mapping[str, Any], model: str, counts: Counts) -> list[Change]:
    """Changes of one model against the record. Unknown models have none: they are new."""
    before = record["models"].get(model, {})
    return changes(model, before, counts, record["notes"]) if before else []


def main(arguments: list[str] | None = None) -> int:
    """Count, compare, print; exit code 1 when a kernel grew."""
    from tests.zoo.export import model_path

    record = load()
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--record", action="store_true", help="write the counts of now")
    options = parser.parse_args(arguments)
    failed = 0
    for model in filter(None, options.models.split(",")):
        counts = count_instructions(tk.frontend.from_onnx(model_path(model)))
        changes = check(record, model, counts)
        failed += sum(c.fails for c in changes)
        new = "" if model in record["models"] else ", not recorded before"
        print(f"{model}: {sum(counts.values()):,} instructions of {len(counts)} kernels{new}")
        print("\n".join(c.text() for c in changes), end="\n" if changes else "", flush=True)
        if options.record:
            record = recorded(record, model, counts)
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if failed and not options.record:
        print(f"{failed} grew by more than {ALLOWED - 1:.0%}: make them smaller, or add notes")
    return int(failed > 0 and not options.record)


if __name__ == "__main__":
    raise SystemExit(main())
