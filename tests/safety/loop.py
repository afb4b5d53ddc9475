"""Runs numbered cases in processes that may die of them, and keeps what is found."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Seconds without a word, after which a process of a processor of its own is taken to wait for ever.
SILENT = 40.0
_REPORTS = re.compile(
    rb"runtime error: |ERROR: (?:Address|Leak|Thread)Sanitizer|WARNING: ThreadSanitizer|^! "
    rb"|^Fatal Python"
)
_PLACES = re.compile(
    r"0x[0-9a-f]+|#\d+|\b\d{4,}\b|/\S*/|\(BuildId.*?\)|==\d+==|thread T\d+|pid=\d+"
)


@dataclass(frozen=True)
class Finding:
    """What a case did wrong: the number that replays it, what it is, and the words about it."""

    case: int
    description: str
    words: str

    @property
    def signature(self) -> str:
        """The same for findings of one cause, as far as words tell."""
        headline = _headline(self.words)
        is_sanitizer_report = "#" in headline or "runtime error" in headline
        place = "" if is_sanitizer_report else re.split(r"[(,]| by ", self.description)[0]
        return f"{place} {_PLACES.sub('', headline)}"


def _headline(words: str) -> str:
    """The line that tells reports of sanitizers apart, else the first."""
    lines = words.splitlines() or [""]
    if "runtime error: " in lines[0]:
        place, _, error = lines[0].partition(" runtime error: ")
        error = re.sub(r"-?\b(0x[0-9a-f]+|\d+)\b", "N", error)
        return f"{place.rsplit('/', 1)[-1]} runtime error: {error}"
    if "stack-overflow" in lines[0]:
        return "stack-overflow"
    own_frames = [line for line in lines if re.search(r"#\d+ .*(crt/|entry\.c|hosts/)", line)]
    summary = [line for line in lines if line.startswith("SUMMARY")]
    return (own_frames or summary or lines)[0]


@dataclass
class Tally:
    """What came of a number of cases: findings by signature, with how often each was met."""

    cases: int = 0
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """One more."""
        self.findings.setdefault(finding.signature, []).append(finding)

    def text(self, replay: Callable[[int], str]) -> str:
        """Every finding with how to see it again."""
        parts = []
        for group in self.findings.values():
            first = min(group, key=lambda f: f.case)
            parts.append(
                f"! {first.description}\n{first.words}\n  {len(group)} times; {replay(first.case)}"
            )
        return "\n\n".join([*parts, f"{self.cases} cases, {len(self.findings)} findings"])


Command = Callable[[int, int], Sequence[str]]  # of the first case, and how many


def run_cases(
    command: Command,
    first: int,
    count: int,
    *,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    deadline: float = float("inf"),
    batch: int = 200,
) -> Tally:
    """Run cases `first`, `first` + 1, ... by a program that prints `@ NUMBER what` before each, and
    `!` before what it finds. One that dies goes on behind the case that ended it."""
    tally, next_case, end = Tally(), first, first + count
    env = {**os.environ, **(environ or {})}
    while next_case < end and time.monotonic() < deadline:
        size = min(batch, end - next_case)
        output, status = run_once(command(next_case, size), folder, env, deadline)
        last = _read(output, status, tally, next_case)
        resume_case = last + 1 if status != "deadline" else end
        tally.cases += max(resume_case - next_case, 0) if status != "deadline" else last - next_case
        next_case = max(resume_case, next_case + 1) if status != 0 else next_case + size
    return tally


def silence_limit() -> float:
    """SILENT, times the tasks that each processor is shared by now: a compile that takes 5 seconds
    on an idle machine takes a minute on one with a load of 20."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    return SILENT * max(1.0, load / processors)


def run_once(
    command: Sequence[str], folder: Path, env: Mapping[str, str], deadline: float
) -> tuple[bytes, int | str]:
    """All that a process says, and its status: a number, "hang" or "deadline"."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    output, status = bytearray(), None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while status is None:
            limit, remaining = silence_limit(), deadline - time.monotonic()
            if remaining <= 0 or not selector.select(min(limit, remaining)):
                status = "deadline" if remaining < limit else "hang"
                break
            piece = os.read(process.stdout.fileno(), 1 << 16)
            output += piece
            if not piece:
                break
    if status is not None:
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    process.stdout.close()
    return bytes(output), code if status is None else status


def _read(output: bytes, status: int | str, tally: Tally, first: int) -> int:
    """Add what a process said; the number of its last case."""
    case, description, words = first, "before the first case", list[bytes]()
    reports: list[tuple[int, str, list[bytes]]] = []
    for line in output.splitlines():
        if _REPORTS.search(line):
            if line.startswith(b": "):  # it began in the middle of a description
                description = f"{description.split(' : ')[0]} {line.decode(errors='replace')}"
            words = [line]
            reports.append((case, description, words))
        elif line.startswith(b"@ "):
            number, _, details = line[2:].partition(b" ")
            case, description, words = int(number), details.decode(errors="replace"), []
        elif line.startswith(b": "):
            description, words = (
                f"{description.split(' : ')[0]} {line.decode(errors='replace')}",
                [],
            )
        elif words and len(words) < 40:
            words.append(line)
    for number, text, lines in reports:
        tally.add(Finding(number, text, b"\n".join(lines).decode(errors="replace")))
    if status == "hang":
        tally.add(
            Finding(
                case,
                description,
                f"nothing was heard for {SILENT:.0f} s, or longer where others run",
            )
        )
    elif status not in (0, "deadline") and not _is_explained(output, case, reports):
        number = int(status)
        name = signal.Signals(-number).name if number < 0 else f"status {number}"
        tail = output[-1500:].decode(errors="replace")
        tally.add(Finding(case, description, f"ended with {name}\n{tail}"))
    return case


def _is_explained(
    output: bytes, case: int, reports: Sequence[tuple[int, str, list[bytes]]]
) -> bool:
    """A process that ends with an error has said why: in its last case, or in any when it got to
    its end, where sanitizers return an error of their own."""
    return bool(reports) and (reports[-1][0] == case or b"\n= done" in output)
