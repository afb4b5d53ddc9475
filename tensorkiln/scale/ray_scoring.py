"""Ray Data as an engine of `map_batches`: actors that have loaded the library.

Imported where Ray scores, and only there: it needs pyarrow and Ray.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

from tensorkiln.base.errors import UserError
from tensorkiln.scale.scorer import Scorer, Scoring
from tensorkiln.scale.tables import Files, Stream, source_of

_BLOCKS = 8  # for each CPU, so that all end at about the same time


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
    dataset = _dataset(data)
    scorer = Scorer(scoring, _schema(dataset))  # what does not fit is said here
    pool, share = _actors()
    least, most = _span(concurrency or pool)
    made = dataset.map_batches(
        _Actor,
        fn_constructor_args=(scoring,),
        batch_format="pyarrow",
        batch_size=scorer.read_rows,
        zero_copy_batch=True,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=share,
    )
    made.context.execution_options.preserve_order = True
    return made


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


def _dataset(data: Any) -> Any:
    if isinstance(data, ray.data.Dataset):
        return data
    source = source_of(data)
    if isinstance(source, Files):
        # Few files of many row groups would be as few tasks.
        blocks = min(source.row_groups, _BLOCKS * int(ray.cluster_resources().get("CPU", 1)))
        return ray.data.read_parquet(list(source.paths), override_num_blocks=max(1, blocks))
    if isinstance(source, Stream) and isinstance(source.source, pa.Table):
        return ray.data.from_arrow(source.source)
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
