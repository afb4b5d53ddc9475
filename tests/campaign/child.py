"""Tests run in child processes, in an empty folder, so that a crash or a hang costs one test.

A child is pytest with `tests/campaign/recorder.py`. The test that a child was in when it ended, or
in which it said nothing for too long, is a failure as any other; the tests after it go on in
another child. What failed is run once more, alone, and where that passes, after the tests that ran
before it: a failure comes with a command that has been seen to repeat it, or says that none has.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError
from tests.campaign.findings import Failure, signature

ROOT = Path(__file__).resolve().parents[2]
TRIED = 5  # different failures of a shard that are run again
TAIL = 8000  # characters of what a child printed
STARTING = 120.0  # seconds in which a child has said something, at least
SHORTENING = 600.0  # seconds for leaving out tests that a failure does not need
LEAVING = 10  # seconds in which a child that hangs prints where


@dataclass(frozen=True, slots=True)
class Settings:
    """How tests are run: `mark` is pytest's expression, `seconds` how long one may say nothing."""

    mark: str = ""
    seed: int = 0
    seconds: float = 1800.0


@dataclass(slots=True)
class Session:
    """What one child said."""

    code: int | None  # None: it hung
    printed: str
    collected: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    current: str = ""  # begun and not ended
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def collect(paths: Sequence[str], settings: Settings) -> list[str]:
    """The tests that a campaign consists of. Raises UserError where they cannot be collected."""
    with tempfile.TemporaryDirectory(prefix="kc-") as folder:
        session = _session(paths, settings, Path(folder), ("--collect-only",))
    if session.code != 0:
        raise UserError(f"pytest --collect-only ended with {session.code}:\n{session.printed}")
    return session.collected


def run_tests(tests: Sequence[str], settings: Settings) -> tuple[Counter[str], list[Failure]]:
    """Run tests; how many had each outcome, and the failures."""
    remaining, counts, failures = list(tests), Counter[str](), list[Failure]()
    before: dict[str, list[str]] = {}  # what ran in the same child, by the test that ended in it
    while remaining:
        with tempfile.TemporaryDirectory(prefix="kc-") as folder:
            session = _session(remaining, settings, Path(folder))
        counts += session.outcomes
        for k, test in enumerate(session.ended):
            before[test] = session.ended[:k]
        before[session.current] = list(session.ended)
        failures += session.failures
        # It did not end as pytest does, or failed without a test or a file that did.
        broken = bool(session.current) or session.code not in (
            (0, 1, 2, 4) if session.failures else (0,)
        )
        if session.current:
            failures.append(_broken(session, session.current))
            counts["hung" if session.code is None else "crashed"] += 1
        elif broken:
            failures.append(replace(_broken(session, ""), command=command(remaining, settings)))
        finished = {*session.ended, session.current} & set(remaining)
        remaining = [t for t in remaining if t not in finished]
        if not (broken and finished):
            # Those of a file that cannot be imported are told by the failure of the file.
            counts["not run"] += len(remaining)
            if remaining and not session.failures and not broken:
                failures.append(_absent(remaining))
            break
    return counts, _repeated(failures, settings, before)


def command(tests: Sequence[str], settings: Settings, hangs: bool = False) -> str:
    """The line that runs tests again, in the folder of the checkout."""
    mark = f"-m {shlex.quote(settings.mark)} " if settings.mark else ""
    limit = f"timeout -s ABRT {2 * settings.seconds:g} " if hangs else ""
    named = " ".join(shlex.quote(t) for t in tests)
    options = f"-q -p no:cacheprovider --hypothesis-seed={settings.seed} {mark}{named}"
    return f"FUZZ_SEED={settings.seed} {limit}python -m pytest {options}"


def _session(
    tests: Sequence[str], settings: Settings, folder: Path, extra_arguments: Sequence[str] = ()
) -> Session:
    """Run one child to its end, or until it has said nothing for too long."""
    log, printed, listed = folder / "log", folder / "printed", folder / "tests"
    (folder / "work").mkdir()
    (folder / "tmp").mkdir()
    log.touch()
    listed.write_text("".join(f"{ROOT / t}\n" for t in tests), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.campaign.recorder"]
    words += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    words += ["--campaign-log", str(log), "--basetemp", str(folder / "t"), *extra_arguments]
    words += ["--hypothesis-profile=campaign", f"--hypothesis-seed={settings.seed}"]
    words += ["-m", settings.mark] if settings.mark else []
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "FUZZ_SEED": str(settings.seed),
        "TMPDIR": str(folder / "tmp"),
    }
    with printed.open("wb") as out:
        child = subprocess.Popen(
            [*words, f"@{listed}"],
            cwd=folder / "work",
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = _watched(child, log, settings.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - TAIL))
        session = Session(code, file.read(TAIL).decode(errors="replace"))
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(json.JSONDecodeError):  # cut off by a crash
            _note(session, json.loads(line), settings)
    return session


def _watched(child: subprocess.Popen[bytes], log: Path, seconds: float) -> int | None:
    """The exit status, or None for a child that said nothing for `seconds`."""
    size, since = -1, time.monotonic()
    while True:
        try:
            return child.wait(timeout=min(1.0, seconds))
        except subprocess.TimeoutExpired:
            pass
        now = log.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > (seconds if now else max(seconds, STARTING)):
            child.send_signal(signal.SIGABRT)  # pytest prints where its threads are
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=LEAVING)
            return None


def _note(session: Session, event: dict[str, Any], settings: Settings) -> None:
    kind, test = event.pop("event"), event.pop("test")
    if kind == "collected":
        session.collected.append(test)
    elif kind == "begin":
        session.current = test
    elif kind == "end":
        session.current = ""
        session.ended.append(test)
    elif kind == "outcome":
        session.outcomes[event["outcome"]] += 1
    elif kind == "failure":
        frames = tuple(event.pop("frames"))
        line = command([test], settings)
        session.failures.append(
            Failure(test=test, seed=settings.seed, frames=frames, command=line, **event)
        )


# Files of the outermost frames of every test (tests/conftest.py).
_RUNNER = ("tests/conftest.py:", "tensorkiln/base/frames.py:")
_DUMPED = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.M)


def _broken(session: Session, test: str) -> Failure:
    """The failure of a child that crashed or hung, or ended as pytest should not."""
    kind, message = "Hang", "it said nothing for too long"
    if session.code is not None:
        signal_name = ""
        with suppress(ValueError):
            signal_name = signal.Signals(-session.code).name if session.code < 0 else ""
        kind = "Crash" if test else "Session"
        message = signal_name or f"exit status {session.code}"
        message += "" if test else f": {' / '.join(session.printed.strip().splitlines()[-3:])}"
    block = session.printed.rpartition("most recent call first")[2]
    if "Current thread" in session.printed:
        block = session.printed.rpartition("Current thread")[2].partition("\n\n")[0]
    frames = [f"{_short(m['file'])}:{m['line']} in {m['name']}" for m in _DUMPED.finditer(block)]
    own_frames = [f for f in frames if not f.startswith(("/", "<"))]
    while own_frames and own_frames[-1].startswith(_RUNNER):
        own_frames.pop()
    return Failure(
        kind=kind,
        message=message,
        test=test,
        frames=tuple(reversed((own_frames or frames)[:8])),
        printed=session.printed[-2000:],
    )


def _short(name: str) -> str:
    path = Path(name)
    is_own = path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)
    return str(path.relative_to(ROOT)) if is_own else name


def _absent(tests: Sequence[str]) -> Failure:
    return Failure(
        kind="NotCollected",
        message=f"{len(tests)} tests are not there on this machine, or were left out",
        test=tests[0],
    )


def _repeated(
    failures: Sequence[Failure], settings: Settings, before: dict[str, list[str]]
) -> list[Failure]:
    """The failures with commands that repeat them; of the same failure, the first is tried."""
    tried_signatures = set[str]()
    out = []
    for failure in failures:
        mark = signature(failure)
        if failure.test not in before or not failure.test:
            out.append(failure)
            continue
        hangs = failure.kind == "Hang"
        line = command([failure.test], settings, hangs)
        repeats = "not tried"
        if mark not in tried_signatures and len(tried_signatures) < TRIED:
            tried_signatures.add(mark)
            repeats, needed_tests = _tried(failure.test, before[failure.test], settings, mark)
            line = command([*needed_tests, failure.test], settings, hangs)
        out.append(replace(failure, seed=settings.seed, command=line, repeats=repeats))
    return out


def _tried(
    test: str, before: Sequence[str], settings: Settings, mark: str
) -> tuple[str, Sequence[str]]:
    """How a failure repeats, and the tests before it that are needed for that."""

    def fails(needed_tests: Sequence[str]) -> bool:
        return _fails_again([*needed_tests, test], settings, mark)

    if fails(()):
        return "alone", ()
    if before and fails(before):
        end = time.monotonic() + SHORTENING
        return "after others", shortened(before, fails, lambda: time.monotonic() < end)
    return "no", ()


def shortened(
    tests: Sequence[str], fails: Callable[[Sequence[str]], bool], go_on: Callable[[], bool]
) -> Sequence[str]:
    """Of tests after which another fails, half of them and half of those, as long as it does."""
    while len(tests) > 1:
        middle = len(tests) // 2
        for half in (tests[middle:], tests[:middle]):
            if not go_on():
                return tests
            if fails(half):
                tests = half
                break
        else:
            return tests
    return tests


def _fails_again(tests: Sequence[str], settings: Settings, mark: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="kc-") as folder:
        session = _session(tests, settings, Path(folder))
    failures = list(session.failures)
    if session.current:
        failures.append(_broken(session, session.current))
    return any(signature(f) == mark for f in failures)
