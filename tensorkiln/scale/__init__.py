"""`tk.scale`: many jobs on the processes, machines and stores that somebody else runs.

Nothing here is a distributed system. Jobs are plain data that are named by their content and may be
done twice, so whatever runs functions elsewhere will do: any `concurrent.futures.Executor`, Dask's
`Client.get_executor()`, Ray by `ray_executor()`, or this machine's own processes, the default.
"""

from tensorkiln.scale.dask import dask_executor
from tensorkiln.scale.executors import executor_of
from tensorkiln.scale.jobs import Failure, Job, Outcome, run_jobs
from tensorkiln.scale.local import WorkerLost, local_executor
from tensorkiln.scale.ray import ray_executor

__all__ = [
    "Failure",
    "Job",
    "Outcome",
    "WorkerLost",
    "dask_executor",
    "executor_of",
    "local_executor",
    "ray_executor",
    "run_jobs",
]
