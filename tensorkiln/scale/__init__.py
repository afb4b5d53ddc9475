"""`tk.scale`: many jobs on the processes, machines and stores that somebody else runs.

Nothing here is a distributed system. Jobs are plain data that are named by their content and may be
done twice, so whatever runs functions elsewhere will do: any `concurrent.futures.Executor`, Dask's
`Client.get_executor()`, Ray by `ray_executor()`, or this machine's own processes, the default.
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
