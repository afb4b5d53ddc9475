"""`tk.scale.map_batches`: a compiled library over the rows of tables.

Here: what is asked for, and what is given back. Pyarrow and Ray are imported by a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorkiln.base.config import available_cpus
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import made_folder, plain_path
from tensorkiln.base.packages import require_package
from tensorkiln.base.progress import Progress, watched
from tensorkiln.runtime.loaded import LoadedModel
from tensorkiln.scale.executors import Given, given_executor
from tensorkiln.scale.jobs import require_executor


def map_batches(
    library: str | os.PathLike[str] | LoadedModel,
    data: Any,
    *,
    function: str | None = None,
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    outputs: Mapping[str, str] | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    preprocess: Callable[[Any], Mapping[str, Any]] | None = None,
    batch_size: int | None = None,
    batch_bytes: int | None = None,
    part_bytes: int | None = None,
    concurrency: int | tuple[int, int] | None = None,
    engine: str | None = None,
    executor: Given = None,
    on_error: str = "raise",
    error_column: str = "error",
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Call a compiled library on all rows of a table, and append its results as columns.

    `data` is Parquet files (paths, folders, patterns), a pyarrow Table, RecordBatch,
    RecordBatchReader or Dataset, or a `ray.data.Dataset`. It is read in batches, never as a whole.
    `inputs` maps each input to its column, or to several columns of numbers that form its rows side
    by side; by default, columns have the names of inputs. `outputs` maps results to names of
    columns; None: all results. `columns` are the columns of the table to keep; None: all.
    `constants` are inputs with the same value in every call. `preprocess(batch)` gets a RecordBatch
    with all columns and returns an array [rows, ...] for each input; it replaces `inputs`.

    The first dimension of inputs and results is that of rows. If it is symbolic, a call has
    `batch_size` rows, by default as many as fit into `batch_bytes` with their workspace; if it is a
    number, the last call is padded with copies of a row.

    With `engine` "local" (None: unless `data` is Ray's), `concurrency` threads of this process
    share the library, by default one for each CPU; with "ray", Ray Data runs that many actors. An
    `executor`, any of concurrent.futures or text for `executor_of`, scores files in parts of
    `part_bytes`, each as a job; it needs `out`.

    If a row is null or has another shape, or if `preprocess` or the library fails on it, the call
    raises UserError (code `bad-row`) that names the row. With `on_error="report"` such a row gets
    null results and a reason in `error_column`, and all other rows get their results.

    With `out`, a folder, the results are written there as Parquet files, in the order of the rows,
    and the call returns Scores. Of Parquet files, each part is written atomically, and repeating
    the call continues with the parts that are missing; results of other data are written as a whole
    folder, atomically. Without `out` the call returns ScoredBatches or, of Ray, a Dataset that is
    computed when it is consumed.

    Raises UserError for arguments that contradict each other, and without pyarrow (`pip install
    'tensorkiln[arrow]'`).
    """
    require_package("pyarrow", "tk.scale.map_batches")
    by_ray = _by_ray(data, engine, executor)
    _check_numbers(batch_size, batch_bytes, part_bytes, concurrency, by_ray)
    _check_choices(on_error, error_column, preprocess, inputs)
    _check_combinations(by_ray, executor, concurrency, part_bytes, out, progress)
    if executor is not None and not isinstance(executor, str):
        require_executor(executor)
    from tensorkiln.scale import batch_size as sizes
    from tensorkiln.scale import score_tables, tables
    from tensorkiln.scale.scorer import Scorer, Scoring, threads_of_a_call

    scoring = Scoring(
        library if isinstance(library, LoadedModel) else _library_path(library),
        _text(function, "function"),
        _pairs(inputs),
        _named(outputs),
        None if columns is None else _texts(columns, "columns"),
        tuple(_mapping(constants, "constants").items()),
        preprocess,
        batch_size,
        batch_bytes or sizes.BATCH_BYTES,
        "report" if on_error == "report" else "raise",
        error_column,
    )
    if by_ray or executor is not None:
        scoring = replace(scoring, library=str(score_tables.library_file(scoring.library)))
    if by_ray:
        from tensorkiln.scale import ray_scoring

        return ray_scoring.scored(scoring, data, concurrency)
    source = tables.source_of(data)
    if executor is not None and not isinstance(source, tables.Files):
        raise UserError(
            f"an executor's workers read files of Parquet, and data is {type(data).__name__}",
            code="contradiction",
            where="executor=",
            hint="without executor=, threads of this process do it",
        )
    workers = concurrency if isinstance(concurrency, int) else available_cpus()
    if executor is None:
        scoring = replace(scoring, threads=threads_of_a_call(workers))
    scorer = Scorer(scoring, source.schema)  # raises before a row is read if inputs do not fit
    monitor = watched(progress)
    if out is None:
        return score_tables.iterated(scorer, source, workers, monitor)
    part_limit = part_bytes or tables.PART_BYTES
    if isinstance(source, tables.Stream):
        return score_tables.streamed_to(scorer, source, workers, Path(out), part_limit, monitor)
    parts = source.parts(part_limit)
    folder = made_folder(Path(out))
    key = score_tables.key_of(scoring, source, parts)
    finished_parts = tables.require_ours(folder, parts, key)
    open_parts = [part for part in parts if part.name not in finished_parts]
    with given_executor(executor) as runs:
        if runs is not None:
            score_tables.by_jobs(scoring, open_parts, folder, key, runs, progress)
        else:
            score_tables.by_threads(scorer, open_parts, folder, key, workers, monitor)
    tables.remove_remains(folder, parts)
    files = [folder / part.name for part in parts]
    return score_tables.scores(folder, files, len(finished_parts), error_column)


# ---- what is asked for ---------------------------------------------------------------------------


def _by_ray(data: Any, engine: str | None, executor: Given) -> bool:
    if engine is not None and not (isinstance(engine, str) and engine in ("local", "ray")):
        raise UserError(
            f"engine={engine!r:.80}, expected 'local' or 'ray'",
            code="bad-engine",
            where="engine=",
            hint=nearest(str(engine), ("local", "ray")),
        )
    is_ray = type(data).__module__.partition(".")[0] == "ray"
    if is_ray and engine == "local":
        raise UserError(
            "a Dataset of Ray is scored by Ray",
            code="contradiction",
            where="engine='local'",
            hint="leave it out, or name the files",
        )
    if (is_ray or engine == "ray") and executor is not None:
        raise UserError("Ray Data has its own workers", code="contradiction", where="executor=")
    if engine == "ray":
        require_package("ray", "tk.scale.map_batches(engine='ray')")
    return is_ray or engine == "ray"


def _check_numbers(
    batch_size: Any, batch_bytes: Any, part_bytes: Any, concurrency: Any, by_ray: bool
) -> None:
    numbers = {"batch_size": batch_size, "batch_bytes": batch_bytes, "part_bytes": part_bytes}
    if isinstance(concurrency, tuple) and by_ray and len(concurrency) == 2:
        numbers |= {"concurrency[0]": concurrency[0], "concurrency[1]": concurrency[1]}
    else:
        numbers["concurrency"] = concurrency
    for name, value in numbers.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not is_whole or value < 1):
            raise UserError(
                f"{name}={value!r:.80}, expected a whole number of at least 1", where=f"{name}="
            )


def _check_choices(on_error: Any, error_column: Any, preprocess: Any, inputs: Any) -> None:
    if not isinstance(on_error, str) or on_error not in ("raise", "report"):
        raise UserError(
            f"on_error={on_error!r:.80}, expected 'raise' or 'report'",
            where="on_error=",
            hint=nearest(str(on_error), ("raise", "report")),
        )
    if not isinstance(error_column, str) or not error_column:
        raise UserError(
            f"error_column={error_column!r:.80}, expected the name of a column",
            where="error_column=",
        )
    if preprocess is not None and not callable(preprocess):
        raise UserError(
            f"preprocess is {preprocess!r:.80}, expected a function", where="preprocess="
        )
    if preprocess is not None and inputs is not None:
        raise UserError(
            "preprocess makes the inputs, of all columns",
            code="contradiction",
            where="inputs=",
            hint="leave it out",
        )


def _check_combinations(
    by_ray: bool, executor: Any, concurrency: Any, part_bytes: Any, out: Any, progress: Any
) -> None:
    """Raise UserError for arguments that would have no effect together."""
    if out is not None and not isinstance(out, str | os.PathLike):
        raise UserError(f"out is {out!r:.80}, expected the path of a folder", where="out=")
    rows = [
        (by_ray and out is not None, "out=", "the Dataset has write_parquet"),
        (by_ray and part_bytes is not None, "part_bytes=", "Ray chooses the sizes of its blocks"),
        (by_ray and progress is not None, "progress=", "Ray shows its own"),
        (executor is not None and concurrency is not None, "concurrency=", "the executor has it"),
        (executor is not None and out is None, "executor=", "name a folder: out="),
        (out is None and part_bytes is not None, "part_bytes=", "parts are files: out="),
    ]
    for applies, argument, hint in rows:
        if applies:
            raise UserError(
                "it has no effect here", code="contradiction", where=argument, hint=hint
            )


def _text(value: Any, argument: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UserError(f"{argument} is {value!r:.80}, expected a name", where=f"{argument}=")
    return value


def _library_path(library: Any) -> str:
    if not isinstance(library, str | os.PathLike):
        raise UserError(
            f"library is {type(library).__name__}, expected a path, or what tk.load returns",
            where="library",
        )
    return str(plain_path(library).absolute())


def _mapping(value: Any, argument: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise UserError(
            f"{argument} is {value!r:.80}, expected a dictionary by names", where=argument
        )
    return value


def _texts(value: Any, argument: str) -> tuple[str, ...]:
    is_row = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not is_row or not all(isinstance(v, str) for v in value):
        raise UserError(f"{argument} is {value!r:.80}, expected names of columns", where=argument)
    return tuple(value)


def _pairs(inputs: Any) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    if inputs is None:
        return None
    rows = []
    for name, names in _mapping(inputs, "inputs").items():
        columns = (names,) if isinstance(names, str) else _texts(names, f"inputs[{name!r}]")
        if not columns:
            raise UserError("no column is named", where=f"inputs[{name!r}]")
        rows.append((name, columns))
    return tuple(rows)


def _named(outputs: Any) -> tuple[tuple[str, str], ...] | None:
    if outputs is None:
        return None
    if isinstance(outputs, Mapping):
        names = _mapping(outputs, "outputs")
        return tuple(zip(names, _texts(list(names.values()), "outputs"), strict=True))
    return tuple((name, name) for name in _texts(outputs, "outputs"))
