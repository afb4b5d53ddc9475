"""The work on one batch: rows to tensors, calls of the library, results to columns. If a call
fails, it is split until the row at fault is found; all other rows get their results.

Imported only where tables are scored, since it needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.config import available_cpus
from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.base.schema import Dim
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.runtime.failures import DeviceError
from tensorkiln.runtime.loaded import LoadedModel, load, required_entry
from tensorkiln.scale.batch_size import (
    BATCH_BYTES,
    MOST_ROWS,
    batch_dim,
    bytes_of_a_row,
    rows_of_a_call,
)
from tensorkiln.scale.columns import (
    Array,
    ColumnRows,
    Refusals,
    Shape,
    leaf_of,
    require_column,
    tensors_of,
)
from tensorkiln.scale.result_columns import column_of, output_type
from tensorkiln.scale.scores import RowFailure, bad_row
from tensorkiln.scale.tables import whole_table


@dataclass(frozen=True)
class Scoring:
    """How each batch is scored, as plain data that can be pickled. The fields are arguments of
    `map_batches`. `inputs` are pairs of an input's name and its columns, `outputs` pairs of a
    result's name and its column; None: columns have the names of the inputs or results."""

    library: str | LoadedModel
    function: str | None = None
    inputs: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    outputs: tuple[tuple[str, str], ...] | None = None
    columns: tuple[str, ...] | None = None
    constants: tuple[tuple[str, Any], ...] = ()
    preprocess: Callable[[Any], Mapping[str, Any]] | None = None
    batch_size: int | None = None
    batch_bytes: int = BATCH_BYTES
    on_error: Literal["raise", "report"] = "raise"
    error_column: str = "error"
    threads: int = 1  # of each call


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch with its results, and the rows that failed: reasons by row number."""

    batch: Any
    refused: Refusals


class Scorer:
    """A library that scores batches of one schema. It may be used by several threads at once."""

    def __init__(self, scoring: Scoring, schema: Any):
        self.scoring = scoring
        self.schema = schema
        model = _opened(scoring)
        name = scoring.function or required_entry(model.functions, "f")
        self.info: FunctionInfo = model.module.info(name)
        if self.info.kind == "tensor" or any(p.shape is None for p in self.info.outputs):
            raise UserError(
                f"{name} is no function from tensors to tensors",
                code="not-scorable",
                where="function=",
                hint="tk.load shows the functions of a library",
            )
        self._call = model[name]
        self.constants = dict(scoring.constants)
        self._fed = [p for p in self.info.inputs if p.name not in self.constants]
        self._check_inputs()
        self.batch = batch_dim(self._fed)
        self._columns = self._bound()
        self.outputs = self._chosen_outputs()
        self.keep = self._kept()
        self.result_schema = self._result_schema()
        self._fit = scoring.batch_bytes // bytes_of_a_row(self.info, self.batch, self._fed)
        self.call_rows, self.least_rows = rows_of_a_call(
            self.info, self.batch, scoring.batch_size, self._fit
        )

    # ---- what the library and the table agree on ----

    def _check_inputs(self) -> None:
        names = [p.name for p in self.info.inputs]
        input_names = [name for name, _ in self.scoring.inputs or ()]
        for argument, argument_names in (
            ("inputs", input_names),
            ("constants", list(self.constants)),
        ):
            for name in argument_names:
                if name not in names:
                    raise _unknown(f"{self.info.name} has no input {name!r}", argument, name, names)
        for name in input_names:
            if name in self.constants:
                raise UserError(
                    f"input {name!r} is among the constants, too",
                    code="contradiction",
                    where="inputs=",
                )
        if not self._fed:
            raise UserError(f"{self.info.name} takes nothing of a row", code="not-scorable")

    def _bound(self) -> dict[str, tuple[str, ...]]:
        """The columns of each input; UserError if one is missing or has a wrong type."""
        if self.scoring.preprocess is not None:
            return {}
        chosen_columns = dict(self.scoring.inputs or ())
        columns_of_input = {p.name: chosen_columns.get(p.name, (p.name,)) for p in self._fed}
        for param in self._fed:
            dtype = numpy_type(param.dtype)
            columns = columns_of_input[param.name]
            for column in columns:
                kind = self._type(column, f"input {param.name!r}", "inputs")
                if param.name in chosen_columns and len(columns) > 1:
                    _require_number(column, kind, param, dtype, len(columns))
                else:
                    require_column(column, kind, param, dtype)
        return columns_of_input

    def _type(self, column: str, subject: str, argument: str) -> Any:
        indices = self.schema.get_all_field_indices(column)
        if len(indices) == 1:
            return self.schema.field(indices[0]).type
        if indices:
            raise UserError(f"{len(indices)} columns have the name {column!r}", code="column-name")
        raise _unknown(
            f"{subject}: the table has no column {column!r}", argument, column, self.schema.names
        )

    def _chosen_outputs(self) -> list[tuple[int, ParamInfo, str]]:
        names = [p.name for p in self.info.outputs]
        chosen = self.scoring.outputs
        if chosen is None:
            chosen = tuple((name, name) for name in names)
        outputs = []
        for name, column in chosen:
            if name not in names:
                raise _unknown(f"{self.info.name} has no output {name!r}", "outputs", name, names)
            param = self.info.outputs[names.index(name)]
            if not param.shape or param.shape[0] != self.batch:
                raise UserError(
                    f"output {name!r} is {param.dtype}{param.shape_text}, which has no result of "
                    f"each of {self.batch} rows",
                    code="not-scorable",
                    where="outputs=",
                    hint="outputs= names those that have",
                )
            outputs.append((names.index(name), param, column))
        if not outputs:
            raise UserError("no output is chosen", code="no-output", where="outputs=")
        return outputs

    def _kept(self) -> list[str]:
        if self.scoring.columns is None:
            return list(self.schema.names)
        for column in self.scoring.columns:
            self._type(column, "columns", "columns")
        return list(self.scoring.columns)

    def _result_schema(self) -> Any:
        fields = [self.schema.field(name) for name in self.keep]
        fields += [pa.field(column, output_type(param)[0]) for _, param, column in self.outputs]
        if self.scoring.on_error == "report":
            fields.append(pa.field(self.scoring.error_column, pa.string()))
        names = [f.name for f in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(
                f"two columns of the result have the name {twice[0]!r}",
                code="column-name",
                hint="outputs={'name in the library': 'column'} names results, columns= those that "
                "are kept, error_column= that of reasons",
            )
        return pa.schema(fields)

    @property
    def read(self) -> list[str]:
        """The names of the columns that have to be read, in the order of the table."""
        if self.scoring.preprocess is not None:
            return list(self.schema.names)
        needed_names = {*self.keep, *(c for columns in self._columns.values() for c in columns)}
        return [name for name in self.schema.names if name in needed_names]

    @property
    def read_rows(self) -> int:
        """How many rows to read at a time: those of one call or, if the library's batch is fixed,
        of as many calls as fit into the memory budget."""
        if isinstance(self.batch, str):
            return self.call_rows
        return self.batch * max(1, min(MOST_ROWS, self._fit) // self.batch)

    # ---- batches ----

    def score(self, batch: Any) -> Scored:
        """The kept columns of a batch with its results. With `on_error="raise"`, the results of
        rows that failed are missing, and the caller has to raise."""
        refused: Refusals = {}
        pieces = list(self._results(self._tensors(batch, refused), refused))
        arrays = [batch.column(batch.schema.get_field_index(name)) for name in self.keep]
        for k, (_, param, _) in enumerate(self.outputs):
            tensors = [(rows, results[k]) for rows, results in pieces]
            arrays.append(column_of(tensors, batch.num_rows, param, refused))
        if self.scoring.on_error == "report":
            reasons = [refused.get(i) for i in range(batch.num_rows)] if refused else None
            error_array = (
                pa.array(reasons, pa.string()) if reasons else pa.nulls(batch.num_rows, pa.string())
            )
            arrays.append(error_array)
        return Scored(pa.RecordBatch.from_arrays(arrays, schema=self.result_schema), refused)

    def score_table(self, table: Any) -> Any:
        """As `score`, for a table; raises BadRow unless failures are reported."""
        if table.num_rows == 0:
            return self.result_schema.empty_table()
        scored = self.score(whole_table(table))
        if scored.refused and self.scoring.on_error == "raise":
            row = min(scored.refused)
            raise bad_row(RowFailure("a batch", row, scored.refused[row]))
        return pa.Table.from_batches([scored.batch])

    def _tensors(
        self, batch: Any, refused: Refusals
    ) -> list[list[tuple[Sequence[int], ColumnRows]]]:
        """For each input, the rows of the batch with their tensors."""
        if self.scoring.preprocess is None:
            everything = range(batch.num_rows)
            return [[(everything, self._of_columns(p, batch, refused))] for p in self._fed]
        pieces = list(self._preprocessed(batch, 0, batch.num_rows, refused))
        return [[(rows, arrays[k]) for rows, arrays in pieces] for k in range(len(self._fed))]

    def _of_columns(self, param: ParamInfo, batch: Any, refused: Refusals) -> ColumnRows:
        dtype = numpy_type(param.dtype)
        names = self._columns[param.name]
        columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
        if len(names) == 1:
            return tensors_of(columns[0], param, dtype, names[0], refused)
        number = replace(param, shape=(self.batch,))
        tensors = [
            tensors_of(column, number, dtype, name, refused).values
            for column, name in zip(columns, names, strict=True)
        ]
        return ColumnRows(np.stack(tensors, axis=1))

    def _preprocessed(
        self, batch: Any, begin: int, end: int, refused: Refusals
    ) -> Iterator[tuple[range, list[ColumnRows]]]:
        """The tensors that the user's function returns for these rows. If it raises, each half is
        tried, down to single rows."""
        if begin == end:
            return
        try:
            yield range(begin, end), self._preprocess(batch.slice(begin, end - begin))
        except _Interface:
            raise
        except Exception as error:
            if end - begin == 1:
                refused[begin] = f"preprocess: {_said(error)}"
                return
            middle = (begin + end) // 2
            yield from self._preprocessed(batch, begin, middle, refused)
            yield from self._preprocessed(batch, middle, end, refused)

    def _preprocess(self, batch: Any) -> list[ColumnRows]:
        function = self.scoring.preprocess
        assert function is not None
        arrays = function(batch)
        names = [p.name for p in self._fed]
        if not isinstance(arrays, Mapping) or set(arrays) != set(names):
            description = (
                sorted(map(str, arrays)) if isinstance(arrays, Mapping) else type(arrays).__name__
            )
            raise _Interface(
                f"preprocess returned {description}, expected a dictionary of arrays for {names}",
                code="bad-preprocess",
                where="preprocess=",
            )
        rows = []
        for param in self._fed:
            array = np.asarray(arrays[param.name])
            self._check_made(array, param, batch.num_rows)
            rows.append(ColumnRows(array))
        return rows

    def _check_made(self, array: Array, param: ParamInfo, count: int) -> None:
        dtype = numpy_type(param.dtype)
        if array.dtype != dtype:
            raise _Interface(
                f"preprocess returned {array.dtype} for input {param.name!r}, expected {dtype}",
                code="bad-preprocess",
                where="preprocess=",
                hint=f"astype({param.dtype!r})",
            )
        if array.ndim < 1 or array.shape[0] != count:
            raise _Interface(
                f"preprocess returned {list(array.shape)} for {param.name!r} and {count} rows",
                code="bad-preprocess",
                where="preprocess=",
                hint="the first dimension is that of the rows",
            )
        if not _fits(array.shape[1:], (param.shape or ())[1:]):
            row_shape = f"[{', '.join(map(str, (param.shape or ())[1:]))}]"
            raise ValueError(
                f"{param.name!r} has a row of {list(array.shape[1:])}, expected {row_shape}"
            )

    def _results(
        self, inputs: list[list[tuple[Sequence[int], ColumnRows]]], refused: Refusals
    ) -> Iterator[tuple[Sequence[int], list[Array]]]:
        """The row numbers and results of each call; the rows of a call have tensors of the same
        shapes."""
        for parts in zip(*inputs, strict=True):
            numbers, rows = parts[0][0], [input_rows for _, input_rows in parts]
            first = numbers[0] if len(numbers) else 0
            for group in _groups(rows, numbers, refused):
                for start in range(0, len(group), self.call_rows):
                    chosen = group[start : start + self.call_rows]
                    yield from self._called(rows, chosen, first, refused)

    def _called(
        self, rows: list[ColumnRows], chosen: Sequence[int], first: int, refused: Refusals
    ) -> Iterator[tuple[Sequence[int], list[Array]]]:
        """The results of a call. If it fails, each half of its rows is called, down to single
        rows."""
        short = self.least_rows - len(chosen)
        padded = [*chosen, *[chosen[-1]] * short] if short > 0 else chosen
        tensors = iter([r.take([i - first for i in padded]) for r in rows])
        arguments = [
            self.constants[p.name] if p.name in self.constants else next(tensors)
            for p in self.info.inputs
        ]
        try:
            answer = self._call(*arguments)
        except (DeviceError, MemoryError):
            if len(chosen) == 1:
                raise
            error: Exception | None = None
        except Exception as caught:
            error = caught
        else:
            arrays = answer if isinstance(answer, tuple) else (answer,)
            yield chosen, [arrays[k][: len(chosen)] for k, _, _ in self.outputs]
            return
        if len(chosen) == 1:
            assert error is not None
            refused[chosen[0]] = _said(error)
            return
        middle = len(chosen) // 2
        yield from self._called(rows, chosen[:middle], first, refused)
        yield from self._called(rows, chosen[middle:], first, refused)


class _Interface(UserError):
    """A user's function breaks its contract: an error of the call, not of a row."""


def _said(error: Exception) -> str:
    if isinstance(error, TensorkilnError):
        return error.message
    return f"{type(error).__name__}: {error}"


def _unknown(message: str, argument: str, name: str, names: Sequence[str]) -> UserError:
    return UserError(
        message,
        code="no-such-name",
        where=f"{argument}=",
        hint=nearest(name, names) or f"there are {', '.join(names[:20])}",
    )


def _require_number(
    column: str, kind: Any, param: ParamInfo, dtype: np.dtype[Any], count: int
) -> None:
    """Raise UserError unless `count` columns of numbers, side by side, are the rows of an input."""
    row = (param.shape or ())[1:]
    if len(row) != 1 or (isinstance(row[0], int) and row[0] != count):
        raise UserError(
            f"input {param.name!r} is {param.dtype}{param.shape_text}, not {count} numbers a row",
            code="column-shape",
            where="inputs=",
        )
    leaf = leaf_of(kind)
    if leaf is not None and leaf.dims:
        raise UserError(
            f"several columns of one input are numbers, and {column!r} is {kind}",
            code="column-shape",
            where="inputs=",
        )
    require_column(column, kind, replace(param, shape=(param.shape or (1,))[:1]), dtype)


def _fits(shape: Shape, row_dims: Sequence[Dim]) -> bool:
    return len(shape) == len(row_dims) and all(
        isinstance(w, str) or f == w for f, w in zip(shape, row_dims, strict=True)
    )


def _groups(
    rows: list[ColumnRows], numbers: Sequence[int], refused: Refusals
) -> Iterator[Sequence[int]]:
    """The rows that were not refused, grouped by the shapes of their tensors."""
    good = [n for n in numbers if n not in refused] if refused else numbers
    if not len(good):
        return
    if all(r.starts is None for r in rows):
        yield good
        return
    rows_of_shapes: dict[tuple[Shape, ...], list[int]] = {}
    for n in good:
        rows_of_shapes.setdefault(tuple(r.shape(n - numbers[0]) for r in rows), []).append(n)
    yield from rows_of_shapes.values()


def _opened(scoring: Scoring) -> LoadedModel:
    if isinstance(scoring.library, LoadedModel):
        return scoring.library.with_threads(scoring.threads)
    path = Path(scoring.library)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0  # load says why
    return _loaded(scoring.library, changed).with_threads(scoring.threads)


@lru_cache(maxsize=4)
def _loaded(path: str, changed: int) -> LoadedModel:
    """The library, which each process loads only once. Its weights are memory-mapped."""
    return load(path)


def threads_of_a_call(workers: int) -> int:
    """The threads of each call if `workers` calls run at once: an equal share of the CPUs."""
    return max(1, available_cpus() // workers)
