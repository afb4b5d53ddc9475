"""`tk.scale`: many compiles, or many rows, on processes, machines and stores that others operate.

This package contains no cluster of its own. A job is plain data, identified by a hash of its
content, and may run twice without harm; so any executor will do: those of `concurrent.futures`,
Dask's `Client.get_executor()`, Ray through `ray_executor()`, or local processes, the default.
"""

from tensorkiln.scale.dask import dask_executor
from tensorkiln.scale.executors import executor_of
from tensorkiln.scale.farm import farm
from tensorkiln.scale.jobs import Failure, Job, Outcome, run_jobs
from tensorkiln.scale.local import WorkerLost, local_executor
from tensorkiln.scale.ray import ray_executor
from tensorkiln.scale.scores import RowFailure, ScoredBatches, Scores
from tensorkiln.scale.scoring import map_batches

__all__ = [
    "Failure",
    "Job",
    "Outcome",
    "RowFailure",
    "ScoredBatches",
    "Scores",
    "WorkerLost",
    "dask_executor",
    "executor_of",
    "farm",
    "local_executor",
    "map_batches",
    "ray_executor",
    "run_jobs",
]
