"""This machine's processes as an executor, which outlives them, and which they do not outlive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.scale import WorkerLost, local_executor
from tests.scale import job_functions as f

ROOT = Path(__file__).parents[2]


def test_the_local_executor() -> None:
    """As those of concurrent.futures, but that it outlives its processes."""
    with local_executor(1) as executor:
        assert executor.submit(f.double, 4).result() == 8
        assert executor.submit(f.named, x=4, y=1).result() == 3
        assert list(executor.map(f.double, range(5))) == [0, 2, 4, 6, 8]
        first_pid, two = executor.submit(f.pid).result(), executor.submit(f.pid).result()
        assert first_pid == two != os.getpid()
        with pytest.raises(WorkerLost):
            executor.submit(f.dies).result()
        assert executor.submit(f.pid).result() != first_pid
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()
        slow = executor.submit(f.slow_double, 1, 0.3)
        later = [executor.submit(f.double, i) for i in range(3)]
        assert later[1].cancel() and later[1].cancelled()
        assert (slow.result(), later[0].result(), later[2].result()) == (2, 0, 4)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(f.double, 1)
    executor.shutdown()  # again


@pytest.mark.parametrize(("wait", "cancel"), [(True, False), (True, True), (False, False)])
def test_shutting_it_down(wait: bool, cancel: bool) -> None:
    executor = local_executor(1)
    executor.submit(f.double, 0).result()
    running = executor.submit(f.slow_double, 1, 0.2 if wait else 600)
    until = time.monotonic() + 60
    while not running.running() and time.monotonic() < until:
        time.sleep(0.01)
    waiting = executor.submit(f.double, 2)
    executor.shutdown(wait=wait, cancel_futures=cancel)
    if wait:
        assert running.result(timeout=60) == 2
        assert waiting.cancelled() if cancel else waiting.result(timeout=60) == 4
    else:
        with pytest.raises(WorkerLost):
            running.result(timeout=60)
        assert waiting.cancelled()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_wrong_numbers_of_workers(wrong: Any) -> None:
    for keywords in ({"workers": wrong}, {"cpus": wrong}):
        with pytest.raises(tk.UserError, match="expected a whole number of at least 1"):
            local_executor(**keywords)


INTERRUPTED = """
import sys
from pathlib import Path
from tensorkiln.scale import Job, run_jobs
from tests.scale.job_functions import cleans_up

if __name__ == "__main__":
    for outcome in run_jobs([Job(str(i), cleans_up, (sys.argv[1],)) for i in range(8)]):
        raise AssertionError(outcome)
"""


@pytest.mark.parametrize(
    "signal_number", [pytest.param(signal.SIGINT, marks=pytest.mark.scale), signal.SIGKILL]
)
def test_workers_end_with_their_parent(
    signal_number: signal.Signals, tmp_path: Path, ctrl_c: None
) -> None:
    """However that ends; what they hold is given back."""
    folder = tmp_path / "held"
    folder.mkdir()
    (tmp_path / "script.py").write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not (held_files := list(folder.iterdir())):  # by the first: others are still starting
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    pids = [int(path.name.partition("-")[2]) for path in held_files]
    process.send_signal(signal_number)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("Traceback") == (signal_number is signal.SIGINT), (
        "the parent's KeyboardInterrupt"
    )
    until = time.monotonic() + 60
    while list(folder.iterdir()) or any(map(alive, pids)):
        assert time.monotonic() < until, f"{pids} are left, or what they held"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
