"""Executors by name: every form, and every kind of wrong one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import tensorkiln as tk
from tensorkiln.base.config import available_cpus
from tensorkiln.base.errors import UserError
from tensorkiln.scale import executor_of
from tensorkiln.scale.executors import given_executor
from tensorkiln.scale.local import LocalExecutor

WRONG = {
    "": "expected local, local:N",
    "locl": "did you mean 'local'?",
    "Local": "did you mean 'local'?",
    "local:": "expected local",
    "local:0": "a whole number from 1 to 4096",
    "local:-1": "a whole number from 1 to 4096",
    "local:two": "a whole number from 1 to 4096",
    "local:2.5": "a whole number from 1 to 4096",
    "local: 2": "a whole number from 1 to 4096",
    "local:5000": "a whole number from 1 to 4096",
    "local:2:3": "a whole number from 1 to 4096",
    "slurm": "expected local",
    "dask:": "expected local",
    "dask:8786": "dask://HOST:PORT",
    "dask://": "dask://HOST:PORT",
    "ray:": "expected local",
    "ray://": "ray://HOST:PORT",
    "tcp://127.0.0.1:8786": "expected local",
    "4": "expected local",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(tk.UserError) as caught:
        executor_of(text)
    assert caught.value.code == "bad-executor"
    assert repr(text) in caught.value.message and WRONG[text] in str(caught.value)


@pytest.mark.parametrize("value", [None, 4, b"local", ["local"], object()])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(tk.UserError, match="expected local, local:N"):
        executor_of(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "cpus", "workers"),
    [
        ("local", 1, available_cpus()),
        ("local:1", 1, 1),
        ("local:3", 1, 3),
        ("local:3", 2, 3),
        ("local", available_cpus(), 1),
        ("local", available_cpus() + 1, 1),
    ],
)
def test_local(text: str, cpus: int, workers: int) -> None:
    with executor_of(text, cpus=cpus) as executor:
        assert isinstance(executor, LocalExecutor)
        assert (executor.workers, executor.cpus) == (workers, cpus)


def test_its_jobs_run_elsewhere() -> None:
    with executor_of("local:1") as executor:
        assert executor.submit(os.getpid).result() != os.getpid()


@pytest.mark.parametrize("cpus", [0, -1, True, 1.5, "two", None])
@pytest.mark.parametrize("text", ["local", "local:2", "ray", "dask"])
def test_jobs_use_a_cpu_at_least(text: str, cpus: int) -> None:
    with pytest.raises(tk.UserError, match="cpus=.*, expected a whole number of at least 1"):
        executor_of(text, cpus=cpus)


def test_a_cluster_that_does_not_answer() -> None:
    dask = pytest.importorskip("dask", reason="distributed is not installed")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(tk.UserError) as caught,
    ):
        executor_of("dask://127.0.0.1:9")
    assert caught.value.code == "no-cluster"
    assert "dask://127.0.0.1:9" in caught.value.where


WHO_TAKES = {
    "tune": lambda x: tk.tune("none.onnx", executor=x),
    "tune, measure": lambda x: tk.tune("none.onnx", measure_executor=x),
    "farm": lambda x: tk.scale.farm(FARM, "out", executor=x),
    "run_jobs": lambda x: list(tk.scale.run_jobs([], x)),
    "given_executor": lambda x: given_executor(x).__enter__(),
}
FARM = {"models": {"net": "none.onnx"}, "targets": {"a": "llvm"}}


@pytest.mark.parametrize("wrong", [5, [], object, ThreadPoolExecutor], ids=repr)
@pytest.mark.parametrize("call", WHO_TAKES)
def test_what_takes_no_jobs(call: str, wrong: object) -> None:
    with pytest.raises(UserError, match="expected one of concurrent.futures") as caught:
        WHO_TAKES[call](wrong)
    assert caught.value.code == "bad-executor"


def test_arguments_are_executors_or_their_names() -> None:
    with given_executor(None) as no_executor:
        assert no_executor is None
    with ThreadPoolExecutor(1) as own_executor:
        with given_executor(own_executor) as same_executor:
            assert same_executor is own_executor
        assert own_executor.submit(abs, -1).result() == 1, "it is not ended"
    with given_executor("local:1") as local_executor:
        assert isinstance(local_executor, LocalExecutor)
    with pytest.raises(RuntimeError):
        local_executor.submit(abs, -1)
    with pytest.raises(UserError, match="did you mean 'local'"):
        given_executor("locl").__enter__()
