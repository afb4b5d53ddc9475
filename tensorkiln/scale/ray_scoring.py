"""Ray Data as an engine of `map_batches`: actors that have loaded the library.

Imported only where Ray scores, since it needs pyarrow and Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

from tensorkiln.base.errors import UserError
from tensorkiln.scale.scorer import Scorer, Scoring
from tensorkiln.scale.tables import Files, Stream, TablePart, read_part, source_of

_READ_ROWS = 256  # rows that are read at a time
_BLOCK_BYTES = 32 << 20  # that a task reads: small, so that all CPUs finish at about the same time


class _Actor:
    """A process that has loaded the library. The weights are memory-mapped, so that the actors of
    one machine share them."""

    def __init__(self, scoring: Scoring):
        self._scoring = scoring
        self._scorer: Scorer | None = None

    def __call__(self, table: Any) -> Any:
        """The rows of a block, with their results."""
        if self._scorer is None or not self._scorer.schema.equals(table.schema):
            if table.num_rows == 0 and not table.column_names:
                return table  # an empty block has no schema
            self._scorer = Scorer(self._scoring, table.schema)
        return self._scorer.score_table(table)


def scored(scoring: Scoring, data: Any, concurrency: int | tuple[int, int] | None) -> Any:
    """A Ray Dataset with the results, in the order of its rows. It is computed when it is
    consumed."""
    dataset, schema = _dataset(data)
    scorer = Scorer(scoring, schema)  # raises here, not in an actor, if inputs do not fit
    pool, share = _actors()
    smallest, largest = _span(concurrency or pool)
    scored_dataset = dataset.map_batches(
        _Actor,
        fn_constructor_args=(scoring,),
        batch_format="pyarrow",
        batch_size=scorer.read_rows,
        zero_copy_batch=True,
        compute=ActorPoolStrategy(min_size=smallest, max_size=largest),
        num_cpus=share,
    )
    scored_dataset.context.execution_options.preserve_order = True
    return scored_dataset


def _span(count: int | tuple[int, int]) -> tuple[int, int]:
    return count if isinstance(count, tuple) else (count, count)


def _actors() -> tuple[int | tuple[int, int], float]:
    """How many actors, and the share of a CPU that each reserves: one for each CPU, and together
    one CPU less on every machine. If they reserved all, no task that reads would ever start."""
    nodes = [int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]]
    cpus = [n for n in nodes if n]
    if not cpus or min(cpus) < 2:
        return (1, max(1, sum(cpus))), 1.0
    return sum(cpus), int(1e4 * (min(cpus) - 1) / min(cpus)) / 1e4


class _Reader:
    """A task that reads parts of files, given by their numbers."""

    def __init__(self, parts: list[TablePart], schema: Any):
        self._parts, self._schema = parts, schema

    def __call__(self, numbers: Any) -> Iterator[Any]:
        """The rows of these parts, batch by batch."""
        for number in numbers.column(0).to_pylist():
            yield self._schema.empty_table()
            for batch in read_part(self._parts[number], self._schema.names, _READ_ROWS):
                yield pa.Table.from_batches([batch], schema=self._schema)


def _dataset(data: Any) -> tuple[Any, Any]:
    """The rows as a Ray Dataset, and their Arrow schema."""
    if isinstance(data, ray.data.Dataset):
        return data, _schema(data)
    source = source_of(data)
    if isinstance(source, Files):
        # Not by read_parquet: a task a file, and threads that race where aiohttp is missing.
        parts = source.parts(_BLOCK_BYTES)
        numbers = ray.data.from_items(list(range(len(parts))), override_num_blocks=len(parts))
        read = _Reader(parts, source.schema)
        return numbers.map_batches(read, batch_format="pyarrow", batch_size=1), source.schema
    if isinstance(source, Stream) and isinstance(source.source, pa.Table):
        return ray.data.from_arrow(source.source), source.schema
    raise UserError(
        f"data is {type(data).__name__}, which Ray does not take",
        code="bad-data",
        where="data",
        hint="files of Parquet, a Table of pyarrow, or a Dataset of Ray",
    )


def _schema(dataset: Any) -> Any:
    """The Arrow schema of a Dataset. If Ray does not know it, the first row is computed."""
    schema = dataset.schema()
    base = getattr(schema, "base_schema", None)
    if isinstance(base, pa.Schema):
        return base
    if schema is None:
        raise UserError("the Dataset has no rows, and no columns", code="no-rows", where="data")
    return dataset.take_batch(1, batch_format="pyarrow").schema
