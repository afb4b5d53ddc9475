"""The plugin of pytest that a campaign's child process runs with: a line of JSON for every test
that begins and for every one that ends, written at once, so that what a crash or a hang leaves
behind says which test it was.

`python -m pytest -p tests.campaign.recorder --campaign-log FILE ...`; the events are those of
`tests/campaign/child.py`, which reads them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMES = 8  # of a traceback, the last ones
LONGEST = 4000  # characters of a message or of an example
_BLOB = re.compile(r"@reproduce_failure\(.+\)(?= as a decorator|$)")

# Failing examples depend on the seed alone, and print what repeats them.
hypothesis.settings.register_profile("campaign", deadline=None, database=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign-log", metavar="FILE", help="where each test is noted")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--campaign-log")
    if path is not None:
        # Workers leave Ctrl-C to their parent; what tests start has it as at a terminal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with_parent()
        config.pluginmanager.register(Recorder(Path(path)))


def end_with_parent() -> None:
    """A worker that is killed takes this process, and those that it started, with it."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)


class Recorder:
    """Writes the events of a session."""

    def __init__(self, path: Path):
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def _say(self, event: str, test: str, **details: Any) -> None:
        self._file.write(json.dumps({"event": event, "test": test, **details}) + "\n")
        self._file.flush()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._say("begin", nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        if report.failed and call.excinfo is not None:
            for error in _each(call.excinfo.value):
                self._say("failure", item.nodeid, **described(error))
        elif report.failed:  # a test that was expected to fail, and does not any more
            self._say(
                "failure", item.nodeid, kind="Passed", message=str(report.longrepr), frames=[]
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._say("outcome", report.nodeid, outcome=report.outcome)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._say("end", nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr)
            last = text.strip().rpartition("\n")[2].removeprefix("E   ").strip()
            self._say("failure", report.nodeid, kind="CollectError", message=last, frames=[])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._say("collected", item.nodeid)


def _each(error: BaseException) -> list[BaseException]:
    """The exceptions of a group: Hypothesis raises one for several faults."""
    if isinstance(error, BaseExceptionGroup):
        notes = getattr(error, "__notes__", [])
        causes = [e for inner in error.exceptions for e in _each(inner)]
        for e in causes:
            for note in notes:
                e.add_note(note)
        return causes
    return [error]


def described(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its class, its text, the last frames, and what Hypothesis says of
    the failing example and how to repeat it."""
    notes = [str(n) for n in getattr(error, "__notes__", ())]
    # What a note begins with differs between versions of Hypothesis.
    lines = [line for n in notes for line in n.strip().splitlines()]
    blob = next((m[0] for line in lines if (m := _BLOB.search(line))), "")
    example = "\n".join(line for line in lines if not _BLOB.search(line))
    return {
        "kind": type(error).__name__,
        "message": str(error)[:LONGEST],
        "frames": frames(error.__traceback__),
        "example": example[:LONGEST],
        "blob": blob,
    }


def frames(trace: TracebackType | None) -> list[str]:
    """The last frames of our own code, as `file:line in function`, files of this checkout relative
    to it."""
    frame_lines = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frame_lines.append(f"{_short(code.co_filename)}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    own_frames = [f for f in frame_lines if not f.startswith("/")]
    return (own_frames or frame_lines)[-FRAMES:]


def _short(name: str) -> str:
    path = Path(name)
    if path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix):
        return str(path.relative_to(ROOT))
    return name
