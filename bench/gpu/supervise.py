"""Cases in processes of their own: one that hangs, ends its process or loses the device costs the
case that it was in, and no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.store import ROOT

Command = Callable[[Path, Sequence[str]], list[str]]
Told = dict[str, Any]
_LOOK_S = 0.05


def no_result(name: str, reason: str, part: Told | None = None) -> Told:
    """The result of a case that has none of its own; with `part` of one, which is ours, the reason
    is why its rival has none."""
    label = "Tensorkiln" if part is None else part["rival"]
    row = {"label": label, "status": reason, "min_ms": 0.0, "median_ms": 0.0, "count": 0}
    if part is None:
        return {"end": name, "rows": [row]}
    facts = {k: v for k, v in part.items() if k != "part"}
    return {**facts, "end": name, "rows": [*part["rows"], row]}


def supervise(
    command: Command, names: Sequence[str], case_s: float, budget_s: float
) -> Iterator[Told]:
    """What workers tell, and a result with the reason for each case that has none. `command` gives
    the worker for a file that it tells in, and cases. A case may take `case_s`, all `budget_s`."""
    todo, end = list(names), time.monotonic() + budget_s
    with tempfile.TemporaryDirectory(prefix="kiln-gpu-") as folder:
        while todo and time.monotonic() < end:
            out, first = Path(folder) / f"{len(todo)}.jsonl", todo[0]
            worker = _Worker(command(out, todo), out, first)
            for message in worker.run(case_s, end):
                if "end" in message:
                    todo.remove(message["end"])
                yield message
            if worker.failed in todo:
                todo.remove(worker.failed)
                yield no_result(worker.failed, f"failed: {worker.reason}", worker.part)
    for name in todo:
        yield no_result(name, f"left out: {budget_s / 60:.3g} minutes had passed")


class _Worker:
    """A process, and the file that it tells in. Afterwards `failed` is the case that it did not
    come back from, else empty, and `reason` why."""

    def __init__(self, command: list[str], out: Path, first: str):
        out.touch()
        self.out, self.seen = out, 0
        self.failed, self.reason = first, ""
        self.part: Told | None = None  # of the case's result
        with out.with_suffix(".log").open("w") as log:
            # A group of its own: it ends with what it has started.
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log, start_new_session=True)

    def run(self, case_s: float, end: float) -> Iterator[Told]:
        """What it tells, until it ends or has to."""
        since = time.monotonic()
        try:
            over = False
            while not over:
                over = self.process.poll() is not None
                for message in self._told():
                    since = since if "part" in message else time.monotonic()
                    self.failed = message.get("begin", "" if "end" in message else self.failed)
                    self.part = message if "part" in message else None
                    yield message
                now = time.monotonic()
                if not over and now > min(end, since + case_s):
                    late = f"took longer than {case_s:.0f} s"
                    self.reason = late if now < end else "the time for all cases was over"
                    break
                time.sleep(_LOOK_S)
        finally:
            self._end()
        self.reason = self.reason or self._last_words()

    def _told(self) -> list[Told]:
        """Whole lines that were not there before."""
        lines = self.out.read_text(encoding="utf-8").splitlines(keepends=True)
        messages = [line for line in lines[self.seen :] if line.endswith("\n")]
        self.seen += len(messages)
        return [json.loads(line) for line in messages]

    def _end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _last_words(self) -> str:
        log_lines = self.out.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        code = self.process.returncode
        ending = f"by signal {-code}" if code < 0 else f"with {code}"
        return f"the process ended {ending}" + (f": {log_lines[-1][:160]}" if log_lines else "")
