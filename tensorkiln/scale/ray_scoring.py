"""Ray Data as an engine of `map_batches`: actors that have loaded the library.

Imported where Ray scores, and only there: it needs pyarrow and Ray.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import ray

from tensorkiln.base.errors import UserError
from tensorkiln.scale.scorer import Scorer, Scoring
from tensorkiln.scale.tables import Files, Stream, source_of

# Of a CPU: files are read by tasks of a tenth, so that an actor for each CPU leaves them room.
_ACTOR, _READ = 0.9, 0.1


class _Actor:
    """A process that has loaded the library; its weights are mapped, so that those of one machine
    share them."""

    def __init__(self, scoring: Scoring):
        self._scoring = scoring
        self._scorer: Scorer | None = None

    def __call__(self, table: Any) -> Any:
        """The rows of a block with their results."""
        if self._scorer is None or not self._scorer.schema.equals(table.schema):
            if table.num_rows == 0 and not table.column_names:
                return table  # a block of nothing has no schema
            self._scorer = Scorer(self._scoring, table.schema)
        return self._scorer.score_table(table)


def scored(scoring: Scoring, data: Any, concurrency: int | tuple[int, int] | None) -> Any:
    """A Dataset of Ray with the results, computed when it is used, in the order of its rows."""
    dataset, actor_cpus = _dataset(data)
    scorer = Scorer(scoring, _schema(dataset))  # what does not fit is said here
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    if concurrency is None:
        # Of a Dataset, nobody knows what its own tasks take: Ray adds actors where CPUs are free.
        concurrency = cpus if actor_cpus < 1 else (1, cpus)
    made = dataset.map_batches(
        _Actor,
        fn_constructor_args=(scoring,),
        batch_format="pyarrow",
        batch_size=scorer.read_rows,
        zero_copy_batch=True,
        concurrency=concurrency,
        num_cpus=actor_cpus,
    )
    made.context.execution_options.preserve_order = True
    return made


def _dataset(data: Any) -> tuple[Any, float]:
    """The rows as Ray's, and the share of a CPU that an actor takes beside their reading."""
    if isinstance(data, ray.data.Dataset):
        return data, 1.0
    source = source_of(data)
    if isinstance(source, Files):
        options = {"ray_remote_args": {"num_cpus": _READ}}
        return ray.data.read_parquet(list(source.paths), **options), _ACTOR
    if isinstance(source, Stream) and isinstance(source.source, pa.Table):
        return ray.data.from_arrow(source.source), _ACTOR
    raise UserError(
        f"data is {type(data).__name__}, which Ray does not take",
        code="bad-data",
        where="data",
        hint="files of Parquet, a Table of pyarrow, or a Dataset of Ray",
    )


def _schema(dataset: Any) -> Any:
    """The columns in Arrow. A Dataset that does not know them computes its first row."""
    found = dataset.schema()
    base = getattr(found, "base_schema", None)
    if isinstance(base, pa.Schema):
        return base
    if found is None:
        raise UserError("the Dataset has no rows, and no columns", code="no-rows", where="data")
    return dataset.take_batch(1, batch_format="pyarrow").schema
