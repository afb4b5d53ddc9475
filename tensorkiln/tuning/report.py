"""`Tuned`: the result of a search, with the outcome of each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorkiln.base.record import JsonRecord
from tensorkiln.kernels.knobs import text_of
from tensorkiln.kernels.records import Records
from tensorkiln.runtime.timing import OK
from tensorkiln.tuning.search import Effort
from tensorkiln.tuning.workloads import FixedKernel


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that failed: its state ("crash", "hang", "wrong", "error", "lost"), its knobs,
    and what happened."""

    state: str
    knobs: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        return f"{self.state} with {text_of(self.knobs) or 'untuned'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TunedRow(JsonRecord):
    """One workload: its kernel's name and family, the model's nodes that it computes, and its calls
    in a run. `untuned` and `best` are measurements in `unit`, and `ratio` is best / untuned.
    `knobs` is the best choice; it is empty, and the ratio 1, where nothing was better than the
    untuned kernel. `tried` is the number of candidates measured, `choices` the size of the space.
    `problem` is the reason why the workload could not be tuned."""

    name: str
    family: str
    nodes: tuple[str, ...]
    calls: int
    untuned: float | None
    best: float | None
    ratio: float
    unit: str
    knobs: Mapping[str, int]
    tried: int
    choices: int
    failures: tuple[Failed, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` returns: `records` for `compile(records=)`, and a row for each workload, the
    costliest first. `others` are the model's kernels without knobs."""

    records: Records
    rows: tuple[TunedRow, ...]
    others: tuple[FixedKernel, ...] = field(default=(), repr=False)

    @property
    def failures(self) -> tuple[tuple[str, Failed], ...]:
        """Candidates that failed, with the names of their kernels."""
        return tuple((row.name, f) for row in self.rows for f in row.failures)

    def save(self, path: str | Path) -> Path:
        """Write the records to a file, whole or not at all; return its path."""
        return self.records.write(path)

    def table(self) -> str:
        """The rows as text, then what failed and what could not be tuned."""
        if not self.rows:
            return "no kernel of this model has knobs"
        head = ("KERNEL", "FAMILY", "CALLS", "UNTUNED", "BEST", "RATIO", "TRIED", "KNOBS")
        cells = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        lines += [f"{row.name}: not tuned: {row.problem}" for row in self.rows if row.problem]
        lines += [f"{name}: {failed}" for name, failed in self.failures]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def _cells(row: TunedRow) -> tuple[str, ...]:
    def number(x: float | None) -> str:
        return "-" if x is None else f"{x:.4g} {row.unit}"

    return (
        row.name,
        row.family,
        str(row.calls),
        number(row.untuned),
        number(row.best),
        f"{row.ratio:.3f}",
        f"{row.tried}/{row.choices}",
        text_of(row.knobs) or "-",
    )


def tuned_of(efforts: Sequence[Effort], fixed_kernels: Sequence[FixedKernel]) -> Tuned:
    """The report on all efforts of a search."""
    records = [record for e in efforts if (record := e.record()) is not None]
    return Tuned(Records(tuple(records)), tuple(map(_row, efforts)), tuple(fixed_kernels))


def _row(e: Effort) -> TunedRow:
    w, won = e.workload, e.winner()
    untuned_entry = e.untuned if e.untuned is not None and e.untuned.state == OK else None
    untuned = best = None if untuned_entry is None else untuned_entry.untuned
    ratio, knobs = 1.0, {}
    if won is not None:
        choice, entry = won
        untuned, best, ratio, knobs = entry.untuned, entry.value, entry.ratio, w.chosen(choice)
    failures = tuple(
        Failed(x.state, dict(x.knobs), x.reason)
        for x in (*e.tried.values(), *e.confirmed.values())
        if x.state != OK
    )
    return TunedRow(
        w.name,
        w.family.op_class,
        w.nodes,
        w.calls,
        untuned,
        best,
        ratio,
        "" if untuned_entry is None else untuned_entry.unit,
        knobs,
        len(e.tried),
        e.space.size - 1,
        failures,
        e.problem,
    )
