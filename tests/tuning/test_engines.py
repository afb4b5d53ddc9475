"""Candidates on Ray, on Dask and on processes: faults are survived there, too, a worker that is
lost costs its job, and what measures needs the runtime package alone."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.kernels.case import rand
from tensorkiln.runtime.trial import Trial
from tests.transform.graphs import graph
from tests.tuning import hooks
from tests.tuning import planted as ways
from tests.tuning.test_faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("local", "ray", "dask")
heavy = pytest.mark.slow  # skipped where the engine is not installed


@contextmanager
def engine(name: str, *paths: Path) -> Iterator[Executor]:
    """An executor of two workers, which find modules in `paths`."""
    places = os.pathsep.join(map(str, paths))
    with ExitStack() as stack:
        if name == "local":
            yield stack.enter_context(tk.scale.local_executor(2))
        elif name == "ray":
            ray = pytest.importorskip("ray", reason="ray is not installed")
            ray.init(
                num_cpus=2,
                object_store_memory=200_000_000,
                include_dashboard=False,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": places}},
            )
            stack.callback(ray.shutdown)
            yield stack.enter_context(tk.scale.ray_executor(num_cpus=1))
        else:
            distributed = pytest.importorskip("distributed", reason="distributed is not installed")
            before = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = places
            try:
                cluster = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=2, threads_per_worker=1, dashboard_address=None
                    )
                )
            finally:
                os.environ.pop("PYTHONPATH")
                if before is not None:
                    os.environ["PYTHONPATH"] = before
            client = stack.enter_context(distributed.Client(cluster))
            yield client.get_executor()


@heavy
@pytest.mark.parametrize("name", ENGINES)
def test_faults_are_survived_anywhere(planted: Path, name: str) -> None:
    mod = graph(lambda g, x: g.exp(x), x=(600,))
    with engine(name, ROOT, planted) as executor:
        result = tk.tune(mod, seconds=300, search="random", limit=1, each=0.01, executor=executor)
    (row,) = result.rows
    failed = {f.knobs["way"]: f.state for f in row.failures}
    assert failed == {variant: state for variant, (state, _) in FAULTS.items()}
    assert row.knobs == {"way": ways.FAST}


@dataclass(frozen=True)
class Mortal(hooks.Points):
    """Kills the worker that measures, once: the first that finds no file `marker`."""

    marker: str = ""

    def __call__(self, library: Path, trial: Trial) -> float:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().__call__(library, trial)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=heavy if n != "local" else ()) for n in ENGINES]
)
def test_a_lost_worker_costs_nothing(tmp_path: Path, name: str) -> None:
    """The records are those that one process finds."""
    expected = hooks.tuned(None, trials=3)
    with engine(name, ROOT) as executor:
        result = tk.tune(
            hooks.model(),
            hooks.TARGET,
            measure=Mortal(marker=str(tmp_path / "marker")),
            executor=executor,
            trials=3,
            batch=3,
            seed=3,
        )
    assert (tmp_path / "marker").exists()
    assert result.records.text() == expected.records.text()
    assert result.rows == expected.rows


@dataclass(frozen=True)
class Deadly(Mortal):
    """Kills every worker that measures, but for the first: that has the untuned kernel."""

    def __call__(self, library: Path, trial: Trial) -> float:
        if Path(self.marker).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        Path(self.marker).touch()
        return 1.0


def test_a_candidate_that_kills_each_worker_is_named(tmp_path: Path) -> None:
    mod = graph(lambda g, x: g.linear(x, rand(32, 64)), x=(24, 32))
    with tk.scale.local_executor(1) as executor:
        result = tk.tune(
            mod,
            hooks.TARGET,
            measure=Deadly(marker=str(tmp_path / "marker")),
            executor=executor,
            trials=1,
        )
    ((_, failed),) = result.failures
    assert failed.state == "lost" and "its process died" in failed.reason
    assert result.rows[0].problem == "" and not len(result.records)


def runtime_alone(folder: Path) -> Path:
    """A folder with what `tensorkiln-runtime` holds."""
    sys.path.insert(0, str(ROOT / "release"))
    try:
        from partition import in_runtime, package_files
    finally:
        sys.path.pop(0)
    for path in package_files(ROOT):
        if in_runtime(path):
            (folder / "tensorkiln" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "tensorkiln" / path, folder / "tensorkiln" / path)
    # An editable install of the compiler would find the rest.
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in f.__module__]\n"
    )
    return folder


def test_the_runtime_alone_measures(tmp_path: Path) -> None:
    """What a worker is sent, done where there is nothing else of the package."""
    from tensorkiln.tuning.jobs import measure_job, prepare
    from tensorkiln.tuning.workloads import fused_module, workloads_of

    target = tk.Target("native")
    (w, *_), _ = workloads_of(fused_module(hooks.model(), target), target, {})
    options = (("limit", 5.0), ("seconds", 0.01))
    prepared = prepare(w.text, target.to_json(), w.family.op_class, (), options)
    job = measure_job(w, prepared, prepared.library, 0, "", None)
    (tmp_path / "job.py").write_text(
        textwrap.dedent(
            f"""
            import importlib.util, pickle, sys
            run, arguments = pickle.load(open({str(tmp_path / "job")!r}, "rb"))
            assert importlib.util.find_spec("tensorkiln.ir") is None
            verdict = run(*arguments)
            print(verdict.state, verdict.reason, verdict.value > 0)
            print(sorted({{m.split(".")[1] for m in sys.modules if m.startswith("tensorkiln.")}}))
            """
        )
    )
    (tmp_path / "job").write_bytes(pickle.dumps((job.run, job.arguments)))
    process = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        env={**os.environ, "PYTHONPATH": str(runtime_alone(tmp_path / "board"))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.stdout == "ok  True\n['artifact', 'base', 'runtime']\n", process.stderr


@heavy
def test_a_board_of_ray_has_the_runtime_alone(tmp_path: Path) -> None:
    """Workers of Ray that have no compiler measure; threads of this process compile."""
    board = runtime_alone(tmp_path / "board")
    with engine("ray", board) as measuring, ThreadPoolExecutor(1) as compiling:
        result = tk.tune(
            hooks.model(),
            executor=compiling,
            measure_executor=measuring,
            trials=2,
            each=0.01,
            search="random",
        )
    assert [row.problem for row in result.rows] == ["", ""]
    assert all(row.tried == 2 and not row.failures for row in result.rows)
