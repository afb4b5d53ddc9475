"""Clusters of several processes, one of which is killed in the middle: nothing is lost, nothing is
delivered twice, and all is equal to what this machine alone does. `make scale` runs these."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import Progress
from tensorkiln.scale import (
    Failure,
    Job,
    Outcome,
    dask_executor,
    executor_of,
    farm,
    local_executor,
    ray_executor,
    run_jobs,
)
from tensorkiln.scale.report import FarmReport
from tests.scale import job_functions as f
from tests.scale.networks import SMALL, hashes, states, write_networks

pytestmark = [pytest.mark.scale, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
COUNT = 40


@dataclass
class Engine:
    """An executor of a cluster, and what kills one of the processes of its machines."""

    executor: Executor
    kill: Callable[[], None]


@pytest.fixture(scope="module", autouse=True)
def importable(
    tmp_path_factory: pytest.TempPathFactory, fresh_cache: Callable[[Path], Path]
) -> Iterator[None]:
    """Workers find the functions of tests, and have a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path_factory.mktemp("c") / "kiln")))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        yield


@pytest.fixture
def ray_cluster() -> Iterator[Any]:
    """A head that runs no jobs, and two nodes of one job each."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=100_000_000) for _ in range(2)]
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def ray_engine(ray_cluster: Any) -> Iterator[Engine]:
    cluster, nodes = ray_cluster
    with ray_executor(cluster.address, memory=10_000_000) as executor:
        yield Engine(executor, lambda: cluster.remove_node(nodes[0], allow_graceful=False))


@pytest.fixture
def dask_cluster() -> Iterator[Any]:
    pytest.importorskip("distributed", reason="distributed is not installed")
    from distributed import LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with LocalCluster(**options, dashboard_address=None, memory_limit=0) as cluster:
        yield cluster


@pytest.fixture
def dask_engine(dask_cluster: Any) -> Iterator[Engine]:
    def kill() -> None:
        nanny = next(iter(dask_cluster.workers.values()))
        os.kill(nanny.pid, signal.SIGKILL)

    with dask_executor(dask_cluster.scheduler_address) as executor:
        yield Engine(executor, kill)


@pytest.fixture
def own_executor(dask_cluster: Any) -> Iterator[Engine]:
    """Dask's own."""
    from distributed import Client

    def kill() -> None:
        os.kill(next(iter(dask_cluster.workers.values())).pid, signal.SIGKILL)

    with Client(dask_cluster) as client:
        yield Engine(client.get_executor(pure=False), kill)


@pytest.fixture
def local_engine() -> Iterator[Engine]:
    with local_executor(2) as executor:

        def kill() -> None:
            for pool in list(executor._busy)[:1]:
                for process in (pool._processes or {}).values():
                    process.kill()

        yield Engine(executor, kill)


ENGINES = ["local_engine", "ray_engine", "dask_engine", "own_executor"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def test_jobs_when_a_machine_is_killed(engine: Engine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    many = [Job(str(i), f.slow_double, (i, 0.1, str(log)), str(i)) for i in range(COUNT)]
    outcomes: list[Outcome] = []
    for outcome in run_jobs(many, engine.executor):
        outcomes.append(outcome)
        if len(outcomes) == 5:
            engine.kill()
    assert Counter(o.job.key for o in outcomes) == {str(i): 1 for i in range(COUNT)}
    with ThreadPoolExecutor(4) as pool:
        expected = {o.job.key: o.result for o in run_jobs(many, pool)}
    assert {o.job.key: o.result for o in outcomes} == expected
    assert {*log.read_text().split()} == {str(i) for i in range(COUNT)}


def test_jobs_that_fail(engine: Engine, tmp_path: Path) -> None:
    """Raised by the job: at once. Of a worker that it kills: lost, and others are not."""
    many = [
        Job("value", f.raises, ("ValueError",)),
        Job("user", f.raises, ("UserError",)),
        Job("arguments", f.raises, ("TwoArguments",)),
        Job("unpicklable", f.raises, ("Unpicklable",)),
        Job("lock", f.unpicklable_result),
        Job("once", f.dies_once, (str(tmp_path / "once"), 4)),
        Job("tuple", f.arguments, ((f.double, 2), {"key": 1}, [f.double])),
        *(Job(str(i), f.double, (i,)) for i in range(10)),
    ]
    outcomes = {o.job.key: o for o in run_jobs(many, engine.executor)}
    assert len(outcomes) == len(many)
    for key, kind, code in (
        ("value", "ValueError", ""),
        ("user", "UserError", "bad-thing"),
        ("arguments", "TwoArguments", ""),
        ("unpicklable", "Unpicklable", ""),
    ):
        failure = outcomes[key].failure
        assert failure is not None and (failure.kind, failure.code) == (kind, code), key
        assert not failure.lost and outcomes[key].tries == 1
    assert outcomes["lock"].failure is not None and not outcomes["lock"].failure.lost
    assert outcomes["once"].result == 8
    assert [outcomes[str(i)].result for i in range(10)] == [2 * i for i in range(10)]
    if engine.executor.__class__.__module__.startswith("tensorkiln"):
        assert outcomes["tuple"].result == ((f.double, 2), {"key": 1}, [f.double])


def test_a_job_that_kills_every_worker(engine: Engine) -> None:
    (outcome,) = run_jobs([Job("bad", f.dies)], engine.executor, tries=1)
    assert isinstance(outcome.failure, Failure) and outcome.failure.lost
    assert [o.result for o in run_jobs([Job("good", f.double, (4,))], engine.executor)] == [8]


def test_a_caller_who_stops_early(engine: Engine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    many = [Job(str(i), f.slow_double, (i, 0.2, str(log))) for i in range(200)]
    outcomes = run_jobs(many, engine.executor)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert [o.result for o in run_jobs([Job("more", f.double, (1,))], engine.executor)] == [2]
    assert len(log.read_text().split()) < 100


class Kill(Progress):
    """Kills when the first row is done."""

    def __init__(self, kill: Callable[[], None]):
        super().__init__()
        self._kill: Callable[[], None] | None = kill

    def advance(self, count: int = 1, item: str = "") -> None:
        if self.name == "compile" and self._kill is not None:
            kill, self._kill = self._kill, None
            kill()


def test_a_farm_when_a_machine_is_killed(
    engine: Engine, tmp_path: Path, fresh_cache: Callable[[Path], Path]
) -> None:
    manifest = write_networks(tmp_path / "models", SMALL)
    progress = Kill(engine.kill)
    report: FarmReport = farm(
        manifest,
        tmp_path / "out",
        cache=tmp_path / "shared",
        executor=engine.executor,
        progress=progress,
    )
    assert progress._kill is None
    assert "failed" not in states(report).values() and len(report.rows) == 6, report
    with pytest.MonkeyPatch.context() as patch, local_executor(1) as pool:
        patch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / "another")))
        straight = farm(manifest, tmp_path / "straight", executor=pool)
    assert set(states(straight).values()) == {"made"}
    assert hashes(tmp_path / "out") == hashes(tmp_path / "straight")
    again = farm(manifest, tmp_path / "out", cache=tmp_path / "shared", executor=engine.executor)
    assert set(states(again).values()) == {"cached"} and not any(r.tries for r in again.rows)


# -- by name ---------------------------------------------------------------------------------------


def test_ray_by_name(ray_cluster: Any) -> None:
    cluster, _ = ray_cluster
    with executor_of(f"ray:{cluster.address}") as executor:
        assert executor.submit(f.double, 3).result(timeout=120) == 6
        with pytest.raises(UserError) as caught:
            executor_of("ray:127.0.0.1:1")
        assert caught.value.code == "contradiction"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(f.double, 3)


def test_dask_by_name(dask_cluster: Any) -> None:
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    with executor_of(address) as executor:
        assert executor.submit(f.named, x=4, y=1).result(timeout=120) == 3
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(f.double, 3)


def test_clusters_that_begin_here() -> None:
    for name in ("ray", "dask"):
        module = {"dask": "distributed"}.get(name, name)
        pytest.importorskip(module, reason=f"{module} is not installed")
        with executor_of(name) as executor:
            assert executor.submit(f.double, 3).result(timeout=120) == 6
