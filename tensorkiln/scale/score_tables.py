"""Tables through a library: by threads of this process, or in parts by the jobs of an executor.

Threads take batches in order; jobs take parts of files. The metadata of each part of the output
says to which call it belongs, so a folder of results needs no index, and a run that is repeated
skips the parts that exist. Imported only where tables are scored, since it needs pyarrow.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import made_folder
from tensorkiln.base.folders import atomic_dir, file_hash
from tensorkiln.base.progress import Progress
from tensorkiln.runtime.loaded import LoadedModel
from tensorkiln.scale.jobs import Job, run_jobs
from tensorkiln.scale.scorer import Scored, Scorer, Scoring
from tensorkiln.scale.scores import BadRow, RowFailure, ScoredBatches, Scores, bad_row
from tensorkiln.scale.tables import (
    PART_BYTES,
    Files,
    PartWriter,
    Stream,
    TablePart,
    about,
    part_name,
    parts_in,
    read_part,
    schema_of,
)

_T = TypeVar("_T")
_R = TypeVar("_R")


def key_of(scoring: Scoring, source: Files, parts: Sequence[TablePart]) -> str:
    """A hash of what the results of a call on files depend on: two runs with one key write the same
    parts. A function counts by its name and its bytecode, not by what it calls."""
    function = scoring.preprocess
    code = getattr(function, "__code__", None)
    identity = [
        file_hash(library_file(scoring.library)),
        scoring.function,
        scoring.inputs,
        scoring.outputs,
        scoring.columns,
        [[name, _digest(value)] for name, value in scoring.constants],
        getattr(function, "__qualname__", type(function).__name__),
        [code.co_code.hex(), *map(repr, code.co_consts)] if code else [],
        [scoring.on_error, scoring.error_column],
        source.state(),
        [[p.name, p.file, list(p.groups)] for p in parts],
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def library_file(library: str | LoadedModel) -> Path:
    """The path of a library from which other processes can load it. Raises UnsupportedError if it
    was loaded from a temporary file or from no file."""
    if isinstance(library, LoadedModel):
        library.__reduce__()
        return library.module.path.absolute()
    return Path(library)


def _digest(value: Any) -> str:
    array = np.asarray(value)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


# ---- threads of this process ---------------------------------------------------------------------


def _in_order(
    function: Callable[[_T], _R], work: Iterable[_T], workers: int
) -> Iterator[tuple[_T, _R]]:
    """Each item of `work` with its result, in order, computed by `workers` threads. Only a few
    items are in memory at a time."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="kiln-score")
    pending: deque[tuple[_T, Future[_R]]] = deque()
    try:
        for item in work:
            pending.append((item, pool.submit(function, item)))
            if len(pending) > 2 * workers:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _scored_stream(
    scorer: Scorer, source: Stream, workers: int, monitor: Progress
) -> Generator[tuple[int, Scored]]:
    """The scored batches of a stream, each with the number of its first row."""
    monitor.phase("rows", source.rows)
    first = 0
    for _, scored in _in_order(
        scorer.score, source.batches(scorer.read, scorer.read_rows), workers
    ):
        _require(scorer, scored, "", first)
        yield first, scored
        first += scored.batch.num_rows
        monitor.advance(scored.batch.num_rows)


def _scored_parts(
    scorer: Scorer, parts: Sequence[TablePart], workers: int, monitor: Progress
) -> Generator[tuple[TablePart, int, Scored | None]]:
    """The scored batches of each part, each with the number of its first row in the file; None
    after the last batch of a part."""
    monitor.phase("rows", sum(part.rows for part in parts))

    def read() -> Iterator[tuple[TablePart, int, Any]]:
        for part in parts:
            first = part.first
            for batch in read_part(part, scorer.read, scorer.read_rows):
                yield part, first, batch
                first += batch.num_rows
            yield part, first, None

    def score(item: tuple[TablePart, int, Any]) -> Scored | None:
        return None if item[2] is None else scorer.score(item[2])

    for (part, first, _), scored in _in_order(score, read(), workers):
        if scored is not None:
            _require(scorer, scored, part.file, first)
            monitor.advance(scored.batch.num_rows)
        yield part, first, scored


def _require(scorer: Scorer, scored: Scored, file: str, first: int) -> None:
    """Raise for the first row that failed, unless the call reports failures."""
    if scored.refused and scorer.scoring.on_error == "raise":
        row = min(scored.refused)
        raise bad_row(RowFailure(file, first + row, scored.refused[row]))


def iterated(
    scorer: Scorer, source: Files | Stream, workers: int, monitor: Progress
) -> ScoredBatches:
    """The scored batches as an iterator, computed as it is consumed."""
    failures: list[RowFailure] = []

    def batches() -> Iterator[Any]:
        if isinstance(source, Stream):
            scored_batches = (
                ("", first, s) for first, s in _scored_stream(scorer, source, workers, monitor)
            )
        else:
            parts = source.parts(PART_BYTES)
            steps = _scored_parts(scorer, parts, workers, monitor)
            scored_batches = ((p.file, first, s) for p, first, s in steps if s is not None)
        for file, first, scored in scored_batches:
            rows = sorted(scored.refused.items())
            failures.extend(RowFailure(file, first + row, reason) for row, reason in rows)
            yield scored.batch

    return ScoredBatches(scorer.result_schema, batches(), failures)


def by_threads(
    scorer: Scorer,
    parts: Sequence[TablePart],
    folder: Path,
    key: str,
    workers: int,
    monitor: Progress,
) -> None:
    """Score the parts by threads and write their files, one after the other."""
    steps = _scored_parts(scorer, parts, workers, monitor)
    try:
        for part in parts:
            with _writer(scorer, part, folder, key) as writer:
                for _, _, scored in steps:
                    if scored is None:
                        break
                    writer.write(scored.batch, len(scored.refused))
    finally:
        steps.close()


def _writer(scorer: Scorer, part: TablePart, folder: Path, key: str) -> PartWriter:
    return PartWriter(folder / part.name, scorer.result_schema, key, part.file, part.first)


def streamed_to(
    scorer: Scorer, source: Stream, workers: int, out: Path, part_bytes: int, monitor: Progress
) -> Scores:
    """Write the scored rows of a stream as parts in a folder, which appears when all are
    written."""
    names: list[str] = []
    made_folder(out.parent)
    steps = _scored_stream(scorer, source, workers, monitor)
    try:
        with atomic_dir(out, parts_in) as folder:
            step = next(steps, None)
            while step is not None or not names:
                names.append(part_name(len(names)))
                first = step[0] if step else 0
                path = folder / names[-1]
                with PartWriter(path, scorer.result_schema, "", "", first) as writer:
                    while step is not None and writer.bytes < part_bytes:
                        writer.write(step[1].batch, len(step[1].refused))
                        step = next(steps, None)
    finally:
        steps.close()
    return scores(out, [out / name for name in names], 0, scorer.scoring.error_column)


def scores(folder: Path, files: Sequence[Path], before: int, column: str) -> Scores:
    """The Scores of these files, from the numbers in their metadata."""
    summaries = [about(path) or {} for path in files]
    rows, failed = (sum(int(f.get(name, 0)) for f in summaries) for name in ("rows", "failed"))
    return Scores(folder, tuple(files), rows, failed, before, column)


# ---- jobs of an executor -------------------------------------------------------------------------


def by_jobs(
    scoring: Scoring,
    parts: Sequence[TablePart],
    folder: Path,
    key: str,
    executor: Executor,
    progress: Progress | None,
) -> None:
    """Score and write the parts by jobs of an executor. Raises for the first part that failed, or
    was lost too often."""
    place = str(folder.absolute())
    jobs = [
        Job(f"{key}/{part.name}", score_part, (scoring, part, place, key), part.name)
        for part in parts
    ]
    for outcome in run_jobs(jobs, executor, progress=progress, title="parts"):
        if outcome.failure is not None:
            failure = outcome.failure
            raise UserError(
                failure.message, code=failure.code or "worker-failed", where=outcome.job.what
            )
        if isinstance(outcome.result, RowFailure):
            raise bad_row(outcome.result)


def score_part(scoring: Scoring, part: TablePart, folder: str, key: str) -> RowFailure | None:
    """The job of a worker: score a part and write its file. If a row fails and failures are not
    reported, nothing is written, and the row is returned."""
    scorer = Scorer(scoring, schema_of(part.file))
    try:
        with _writer(scorer, part, Path(folder), key) as writer:
            first = part.first
            for batch in read_part(part, scorer.read, scorer.read_rows):
                scored = scorer.score(batch)
                _require(scorer, scored, part.file, first)
                writer.write(scored.batch, len(scored.refused))
                first += batch.num_rows
    except BadRow as error:
        return error.failure
    return None
