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


def collect(paths: Sequence[str], how: Settings) -> list[str]:
    """The tests that a campaign consists of. Raises UserError where they cannot be collected."""
    with tempfile.TemporaryDirectory(prefix="kc-") as folder:
        found = _session(paths, how, Path(folder), ("--collect-only",))
    if found.code != 0:
        raise UserError(f"pytest --collect-only ended with {found.code}:\n{found.printed}")
    return found.collected


def run_tests(tests: Sequence[str], how: Settings) -> tuple[Counter[str], list[Failure]]:
    """Run tests; how many had each outcome, and the failures."""
    left, counts, failures = list(tests), Counter[str](), list[Failure]()
    before: dict[str, list[str]] = {}  # what ran in the same child, by the test that ended in it
    while left:
        with tempfile.TemporaryDirectory(prefix="kc-") as folder:
            said = _session(left, how, Path(folder))
        counts += said.outcomes
        for k, test in enumerate(said.ended):
            before[test] = said.ended[:k]
        before[said.current] = list(said.ended)
        failures += said.failures
        # It did not end as pytest does, or failed without a test or a file that did.
        broken = bool(said.current) or said.code not in ((0, 1, 2, 4) if said.failures else (0,))
        if said.current:
            failures.append(_broken(said, said.current))
            counts["hung" if said.code is None else "crashed"] += 1
        elif broken:
            failures.append(replace(_broken(said, ""), command=command(left, how)))
        done = {*said.ended, said.current} & set(left)
        left = [t for t in left if t not in done]
        if not (broken and done):
            # Those of a file that cannot be imported are told by the failure of the file.
            counts["not run"] += len(left)
            if left and not said.failures and not broken:
                failures.append(_absent(left))
            break
    return counts, _repeated(failures, how, before)


def command(tests: Sequence[str], how: Settings, hangs: bool = False) -> str:
    """The line that runs tests again, in the folder of the checkout."""
    mark = f"-m {shlex.quote(how.mark)} " if how.mark else ""
    limit = f"timeout -s ABRT {2 * how.seconds:g} " if hangs else ""
    named = " ".join(shlex.quote(t) for t in tests)
    options = f"-q -p no:cacheprovider --hypothesis-seed={how.seed} {mark}{named}"
    return f"FUZZ_SEED={how.seed} {limit}python -m pytest {options}"


def _session(
    tests: Sequence[str], how: Settings, folder: Path, more: Sequence[str] = ()
) -> Session:
    """Run one child to its end, or until it has said nothing for too long."""
    log, printed, listed = folder / "log", folder / "printed", folder / "tests"
    (folder / "work").mkdir()
    (folder / "tmp").mkdir()
    log.touch()
    listed.write_text("".join(f"{ROOT / t}\n" for t in tests), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.campaign.recorder"]
    words += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    words += ["--campaign-log", str(log), "--basetemp", str(folder / "t"), *more]
    words += ["--hypothesis-profile=campaign", f"--hypothesis-seed={how.seed}"]
    words += ["-m", how.mark] if how.mark else []
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "FUZZ_SEED": str(how.seed),
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
            code = _watched(child, log, how.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - TAIL))
        said = Session(code, file.read(TAIL).decode(errors="replace"))
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(json.JSONDecodeError):  # cut off by a crash
            _note(said, json.loads(line), how)
    return said


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


def _note(said: Session, event: dict[str, Any], how: Settings) -> None:
    kind, test = event.pop("event"), event.pop("test")
    if kind == "collected":
        said.collected.append(test)
    elif kind == "begin":
        said.current = test
    elif kind == "end":
        said.current = ""
        said.ended.append(test)
    elif kind == "outcome":
        said.outcomes[event["outcome"]] += 1
    elif kind == "failure":
        frames = tuple(event.pop("frames"))
        line = command([test], how)
        said.failures.append(
            Failure(test=test, seed=how.seed, frames=frames, command=line, **event)
        )


_DUMPED = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.M)


def _broken(said: Session, test: str) -> Failure:
    """The failure of a child that crashed or hung, or ended as pytest should not."""
    kind, what = "Hang", "it said nothing for too long"
    if said.code is not None:
        signal_name = ""
        with suppress(ValueError):
            signal_name = signal.Signals(-said.code).name if said.code < 0 else ""
        kind = "Crash" if test else "Session"
        what = signal_name or f"exit status {said.code}"
        what += "" if test else f": {' / '.join(said.printed.strip().splitlines()[-3:])}"
    block = said.printed.rpartition("most recent call first")[2]
    if "Current thread" in said.printed:
        block = said.printed.rpartition("Current thread")[2].partition("\n\n")[0]
    frames = [f"{_short(m['file'])}:{m['line']} in {m['name']}" for m in _DUMPED.finditer(block)]
    ours = [f for f in frames if not f.startswith(("/", "<"))]
    return Failure(
        kind=kind,
        message=what,
        test=test,
        frames=tuple(reversed((ours or frames)[:8])),
        printed=said.printed[-2000:],
    )


def _short(name: str) -> str:
    path = Path(name)
    ours = path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)
    return str(path.relative_to(ROOT)) if ours else name


def _absent(tests: Sequence[str]) -> Failure:
    return Failure(
        kind="NotCollected",
        message=f"{len(tests)} tests are not there on this machine, or were left out",
        test=tests[0],
    )


def _repeated(
    failures: Sequence[Failure], how: Settings, before: dict[str, list[str]]
) -> list[Failure]:
    """The failures with commands that repeat them; of the same failure, the first is tried."""
    known = set[str]()
    out = []
    for failure in failures:
        mark = signature(failure)
        if failure.test not in before or not failure.test:
            out.append(failure)
            continue
        hangs = failure.kind == "Hang"
        line = command([failure.test], how, hangs)
        repeats = "not tried"
        if mark not in known and len(known) < TRIED:
            known.add(mark)
            repeats, others = _tried(failure.test, before[failure.test], how, mark)
            line = command([*others, failure.test], how, hangs)
        out.append(replace(failure, seed=how.seed, command=line, repeats=repeats))
    return out


def _tried(test: str, before: Sequence[str], how: Settings, mark: str) -> tuple[str, Sequence[str]]:
    """How a failure repeats, and the tests before it that are needed for that."""

    def fails(others: Sequence[str]) -> bool:
        return _fails_again([*others, test], how, mark)

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


def _fails_again(tests: Sequence[str], how: Settings, mark: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="kc-") as folder:
        said = _session(tests, how, Path(folder))
    found = list(said.failures)
    if said.current:
        found.append(_broken(said, said.current))
    return any(signature(f) == mark for f in found)
