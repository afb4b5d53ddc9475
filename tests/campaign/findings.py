"""Failures that mean the same are one finding: the exception's class, where in our package it was
raised, and its message without what differs from run to run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.record import ClosedRecord, plain

REPEATS = ("alone", "after others", "not tried", "no")
MOST = 20  # tests and seeds that a finding names
WIDE = 160  # columns of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(ClosedRecord):
    """A test that failed, as plain data. `frames` are the last ones, innermost last, as
    `file:line in function`; `example` and `blob` are Hypothesis's; `command` runs it again, in the
    folder of a checkout; `repeats` says whether it did: see REPEATS."""

    kind: str
    message: str
    test: str
    seed: int = 0
    frames: tuple[str, ...] = ()
    example: str = ""
    blob: str = ""
    command: str = ""
    repeats: str = "not tried"
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Failures of one signature. `shortest` is the one that is easiest to repeat."""

    signature: str
    where: str
    message: str
    count: int
    tests: tuple[str, ...]
    seeds: tuple[int, ...]
    shortest: Failure

    def to_json(self) -> dict[str, Any]:
        """Plain data, for findings.json."""
        return {"kind": self.shortest.kind, **plain(self)}


def place(failure: Failure) -> str:
    """Where it was raised: the innermost frame in our package, else in tests, else nothing."""
    for folder in ("tensorkiln/", "tests/", ""):
        for frame in reversed(failure.frames):
            file, _, position = frame.partition(":")
            if file.startswith(folder):
                return f"{file} in {position.partition(' in ')[2]}"
    return ""


_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x#"),
    (re.compile(r"(?<![\w.])/[^\s'\":,)]+"), "PATH"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "#"),
    (re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "#"),
    (re.compile(r"(?:#[, ]*){2,}"), "# "),
    (re.compile(r"\s+"), " "),
)


def normalised(message: str) -> str:
    """The first line of a message, without numbers, addresses, hashes and absolute paths."""
    text = message.strip().partition("\n")[0][:400]
    for pattern, new in _VARYING:
        text = pattern.sub(new, text)
    return text.strip()[:200]


def signature(failure: Failure) -> str:
    """What failures of one finding share, as ten digits."""
    place_text = place(failure)
    # A crash says nothing; without a place, tests are all that tells two of them apart.
    parts = [
        failure.kind,
        place_text or failure.test.partition("[")[0],
        normalised(failure.message),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def deduplicated(failures: Iterable[Failure]) -> list[Finding]:
    """Findings, those with most failures first; the same for any order of the failures."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(signature(failure), []).append(failure)
    findings = []
    for mark, group in groups.items():
        best = min(group, key=_length)
        tests = tuple(sorted({f.test for f in group}))[:MOST]
        seeds = tuple(sorted({f.seed for f in group}))[:MOST]
        message = normalised(best.message)
        findings.append(Finding(mark, place(best), message, len(group), tests, seeds, best))
    return sorted(findings, key=lambda f: (-f.count, f.signature))


def _length(failure: Failure) -> tuple[Any, ...]:
    """What repeats comes first, then short examples, then short commands."""
    size = len(failure.example) or len(failure.message)
    rank = REPEATS.index(failure.repeats)
    return (rank, size, len(failure.command), failure.seed, failure.test, failure.message)


def table(findings: Sequence[Finding]) -> str:
    """Findings as text: a line each, then how to repeat each."""
    if not findings:
        return "no findings"
    rows = [("finding", "times", "what", "where", "message")]
    rows += [
        (f.signature, str(f.count), f.shortest.kind, f.where or f.tests[0], f.message)
        for f in findings
    ]
    widths = [min(48, max(len(row[c]) for row in rows)) for c in range(4)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]
    for f in findings:
        s = f.shortest
        lines += ["", f"{f.signature}: {s.kind} in {s.test or 'no test'}, seed {s.seed}"]
        lines += [f"  {line[:WIDE]}" for line in s.message.strip().splitlines()[:12]]
        lines += [f"    {frame}" for frame in s.frames[-3:]]
        lines += [f"  {line}" for line in s.example.splitlines()[:12]]
        lines += [f"  {s.blob}"] if s.blob else []
        lines += [f"  repeats {s.repeats}: {s.command}" if s.command else "  no command repeats it"]
    return "\n".join(lines)
