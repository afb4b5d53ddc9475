"""The results of scoring a table. It needs pyarrow only when rows are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row without a result: its file (empty if the rows are not in files), its number in that
    file or else among all rows, from 0, and the reason."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    @property
    def place(self) -> str:
        """The file, if there is one, and the number."""
        return f"{self.file}: row {self.row}" if self.file else f"row {self.row}"


class BadRow(UserError):
    """A row failed, and the call does not report failures (code `bad-row`)."""

    failure: RowFailure


def bad_row(failure: RowFailure) -> BadRow:
    """The error for a row. It can be pickled, as all errors can."""
    hint = "on_error='report' goes on with the others"
    error = BadRow(failure.reason, code="bad-row", where=failure.place, hint=hint)
    error.failure = failure
    return error


@dataclass(frozen=True)
class Scores:
    """The files that were written: Parquet files in the order of the rows, the number of rows in
    them, and how many of these failed. `done_before` of the files existed already, from a run that
    was interrupted."""

    folder: Path
    files: tuple[Path, ...]
    rows: int
    failed: int
    done_before: int
    _error_column: str = "error"

    def failures(self) -> Iterator[RowFailure]:
        """The rows that failed, read from the files one by one."""
        from tensorkiln.scale import tables

        for path in self.files:
            summary = tables.about(path) or {}
            if summary.get("failed"):
                first, file = int(summary.get("first", 0)), str(summary.get("file", ""))
                for row, reason in tables.reasons_in(path, self._error_column):
                    yield RowFailure(file, first + row, reason)


class ScoredBatches:
    """An iterator of RecordBatches with results, computed as it is consumed. `failures` are those
    in the batches consumed so far. `close`, or the end of a `with` block, stops the workers
    early."""

    def __init__(self, schema: Any, batches: Iterator[Any], failures: list[RowFailure]):
        self.schema = schema
        self.failures = failures
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __next__(self) -> Any:
        return next(self._batches)

    def reader(self) -> Any:
        """A RecordBatchReader of the remaining batches."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def table(self) -> Any:
        """The remaining batches, as a Table in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self._batches), schema=self.schema)

    def close(self) -> None:
        """Stop the workers."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> ScoredBatches:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
