"""Rows of the gallery in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.gallery.case import Outcome, run
from tests.gallery.rows import ROWS

SECONDS = 420  # for one row by one route
LEAVING = 10  # seconds that a row's process has to end by itself
_PROCESSES = multiprocessing.get_context("forkserver")
# Importing torch and the collections takes longer than most rows do: they are imported once.
_PROCESSES.set_forkserver_preload(["tests.gallery.preloaded"])


def alone(name: str, route: str, times: bool) -> Outcome:
    """Run a row in a process of its own, forked from one that has imported what all rows need."""
    mine, child_end = _PROCESSES.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        output_path = Path(folder) / "said"
        process = _PROCESSES.Process(target=_row, args=(name, route, times, child_end, output_path))
        process.start()
        child_end.close()
        try:
            if mine.poll(SECONDS):
                outcome: Outcome = mine.recv()
                return outcome
            return Outcome(name, route, "hangs", f"more than {SECONDS} s")
        except EOFError:
            process.join()
            text = output_path.read_text(errors="replace")[-500:] if output_path.exists() else ""
            return Outcome(name, route, "crashes", f"exit code {process.exitcode}: {text}")
        finally:
            process.join(LEAVING)
            process.kill()
            process.join()


def _row(name: str, route: str, times: bool, answer: Connection, output_path: Path) -> None:
    """Run a row in this process, and send what was found; what is printed goes to a file."""
    with output_path.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    answer.send(run(ROWS[name], route, times))
