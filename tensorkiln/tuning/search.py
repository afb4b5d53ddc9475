"""The search for records: rounds of candidates, each for the kernel from which most is still to be
gained.

A round depends only on the measurements before it. So a search that resumes from its journal
chooses the candidates that it would have chosen, and one that was killed ends like one that was
not. In the end the best candidates are measured again, for longer, so that noise does not become a
record.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import cast

from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import Progress
from tensorkiln.kernels.knobs import text_of
from tensorkiln.kernels.records import Record, schedule_digest, target_text
from tensorkiln.runtime.measuring import Measure
from tensorkiln.runtime.timing import ERROR, OK, Verdict
from tensorkiln.scale import Job, Outcome, run_jobs
from tensorkiln.tuning.jobs import (
    CandidateLibrary,
    Prepared,
    compile_job,
    measure_job,
    prepare_job,
)
from tensorkiln.tuning.journal import Entry, Journal
from tensorkiln.tuning.space import Space
from tensorkiln.tuning.workloads import Choice, Workload

NOISE = 0.02  # a kernel is better if it takes less time by more than this fraction
LONGER = 4  # how many times longer a confirming measurement takes
_CONFIRMED = 3  # candidates of a workload that are measured again, until one is better
_PATIENCE = 0.6  # factor by which each round without a gain lowers what is expected of the next
LOST = "lost"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How candidates are found and measured: see `tune`."""

    search: str = "model"
    seed: int = 0
    batch: int = 8
    trials: int | None = None
    kernels: int | None = None
    seconds: float = 0.2  # of each measurement
    limit: float = 10.0
    threads: int = 1
    measure: Measure | None = None


@dataclass(slots=True)
class Effort:
    """The state of the search for one workload."""

    workload: Workload
    cost: float
    space: Space
    first: tuple[Choice, ...] = ()
    prepared: Prepared | None = None
    untuned: Entry | None = None
    tried: dict[Choice, Entry] = field(default_factory=dict)
    confirmed: dict[Choice, Entry] = field(default_factory=dict)
    fruitless: int = 0
    problem: str = ""  # why it is not tuned

    @property
    def best(self) -> float:
        """The least ratio that was measured; 1 for the untuned choice."""
        return min((1.0, *(e.ratio for e in self.tried.values())))

    @property
    def total(self) -> float:
        """Seconds that all calls of the kernel take in a run of the model."""
        return self.cost * self.workload.calls

    @property
    def expected(self) -> float:
        """An estimate of what one more round may gain: more where more time is spent, less after
        each round without a gain."""
        return self.total * self.best * _PATIENCE**self.fruitless

    def ranked(self) -> list[Choice]:
        """Choices that are better by more than noise, the best first."""
        good = [c for c, e in self.tried.items() if e.ratio <= 1 - NOISE]
        return sorted(good, key=lambda c: (self.tried[c].ratio, c))

    def winner(self) -> tuple[Choice, Entry] | None:
        """The best of the choices that were better in both measurements, with the second one."""
        good = [c for c, e in self.confirmed.items() if e.ratio <= 1 - NOISE]
        best = min(good, key=lambda c: (self.confirmed[c].ratio, c), default=None)
        return None if best is None else (best, self.confirmed[best])

    def record(self) -> Record | None:
        """The record of the winner."""
        won = self.winner()
        if won is None:
            return None
        w, (choice, entry) = self.workload, won
        assert entry.value is not None and entry.untuned is not None
        return Record(
            w.key,
            target_text(w.target),
            w.family.op_class,
            schedule_digest(w.family),
            tuple(sorted(w.chosen(choice).items())),
            entry.unit,
            entry.value,
            entry.value if entry.median is None else entry.median,
            entry.untuned,
            entry.machine,
            w.record_text,
        )


class Search:
    """A search over workloads; `run` ends when its time is over, or nothing is left to try."""

    def __init__(
        self,
        efforts: Sequence[Effort],
        options: SearchOptions,
        journal: Journal,
        compiling: Executor,
        measuring: Executor,
        deadline: float,
        progress: Progress,
    ):
        self.efforts, self.options, self.journal = list(efforts), options, journal
        self.compiling, self.measuring = compiling, measuring
        self.deadline, self.progress = deadline, progress
        self._took = 2.0  # seconds that one candidate takes: a guess, then those of the last one

    def run(self) -> list[Effort]:
        """Tune, and return what is known of each workload, the costliest first."""
        self._prepare()
        able = [e for e in self.efforts if not e.problem]
        self.progress.phase("tune", 0)
        while time.monotonic() + self._reserve(able) < self.deadline:
            todo = [e for e in able if self._left(e)]
            if not todo:
                break
            # Each workload has one round, then the one of which most is expected. Of equals the
            # first, because a resumed search must choose the same.
            self._round(max(todo, key=lambda e: (not e.tried, e.expected)))
        self.progress.phase("confirm", 0)
        for effort in able:
            self._confirm(effort)
        return self.efforts

    def _reserve(self, able: Sequence[Effort]) -> float:
        """Seconds to keep for what comes after the rounds, and for the next round itself."""
        waiting = sum(bool(e.ranked()) for e in able)
        return waiting * (1.0 + LONGER * self.options.seconds) + self._took * self.options.batch

    def _left(self, e: Effort) -> int:
        """How many more candidates of a workload may be tried."""
        remaining = e.space.size - 1 - len(e.tried)
        trials = self.options.trials
        return remaining if trials is None else min(remaining, trials - len(e.tried))

    # -- steps -------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the trials, and measure the untuned kernels."""
        o = self.options
        options = {"seed": o.seed, "seconds": o.seconds, "limit": o.limit, "threads": o.threads}
        jobs = {(job := prepare_job(e.workload, options)).key: (job, e) for e in self.efforts}
        prepare_jobs = [job for job, _ in jobs.values()]
        for outcome in self._until(prepare_jobs, self.compiling, "prepare kernels"):
            _, e = jobs[outcome.job.key]
            if outcome.failure is not None:
                e.problem = str(outcome.failure)
                continue
            e.prepared = outcome.result
            e.untuned = self.journal.get(e.workload.key, (), 0)
        measure_jobs = {}
        for e in self.efforts:
            if e.prepared is not None and e.untuned is None:
                job = self._measure(e, e.workload.untuned, e.prepared.library, 0)
                measure_jobs[job.key] = job, e
        measured = [job for job, _ in measure_jobs.values()]
        for outcome in self._until(measured, self.measuring, "measure untuned kernels"):
            _, e = measure_jobs[outcome.job.key]
            e.untuned = self._entry(e, (), 0, _verdict(outcome), b"")
            self.journal.add(e.untuned)
        for e in self.efforts:
            if not e.problem and e.untuned is None:
                e.problem = "the time was over before it was measured"
            elif e.untuned is not None and e.untuned.state != OK:
                e.problem = f"the untuned kernel: {e.untuned.state}: {e.untuned.reason}"
            elif e.untuned is not None:
                e.cost = e.untuned.untuned or 0.0
        # What was measured decides, not the estimate by which these were chosen.
        by_cost = sorted(self.efforts, key=lambda e: (bool(e.problem), -e.total, e.workload.name))
        self.efforts = by_cost[: o.kernels]

    def _round(self, e: Effort) -> None:
        """Try a batch of candidates of one workload."""
        before, start = e.best, time.monotonic()
        ratios = {e.workload.untuned: 1.0, **{c: x.ratio for c, x in e.tried.items()}}
        first = (*e.first, *self._of_others(e))
        choices = e.space.propose(
            min(self.options.batch, self._left(e)),
            ratios,
            first=first,
            search=self.options.search,
            seed=(self.options.seed, int(e.workload.key[:8], 16)),
        )
        todo = []
        for choice in choices:
            entry = self.journal.get(e.workload.key, _rows(e, choice), 0)
            if entry is None:
                todo.append(choice)
            else:
                e.tried[choice] = entry
        if todo:
            self._try(e, todo)
            self._took = max(0.1, (time.monotonic() - start) / len(todo))
        e.fruitless = 0 if e.best < before * (1 - NOISE / 2) else e.fruitless + 1

    def _try(self, e: Effort, choices: Sequence[Choice]) -> None:
        """Compile candidates, and measure each as soon as it is compiled."""
        assert e.prepared is not None
        compiled = {compile_job(e.workload, e.workload.chosen(c)).key: c for c in choices}
        libraries: dict[str, tuple[Choice, bytes]] = {}
        repeats: list[tuple[Choice, bytes]] = []
        entry_of_library = {x.library: x for x in e.tried.values() if x.library}

        def measured() -> Iterator[Job]:
            jobs = [compile_job(e.workload, e.workload.chosen(c)) for c in choices]
            for outcome in self._until(jobs, self.compiling, f"compile {e.workload.name}"):
                choice = compiled[outcome.job.key]
                kernel = _compiled(outcome)
                if kernel.state != OK:
                    verdict = Verdict(kernel.state, kernel.reason)
                    self._keep(e, choice, verdict, b"")
                    continue
                job = self._measure(e, choice, kernel.library, 0)
                if _digest(kernel.library) in entry_of_library or job.key in libraries:
                    repeats.append((choice, kernel.library))
                    continue
                libraries[job.key] = choice, kernel.library
                yield job

        for outcome in self._until(measured(), self.measuring, f"measure {e.workload.name}"):
            choice, library = libraries[outcome.job.key]
            self._keep(e, choice, _verdict(outcome), library)
        # Other values of knobs may make the same kernel: they get the same measurement.
        entry_of_digest = {x.library: x for x in e.tried.values() if x.library}
        for choice, library in repeats:
            twin = entry_of_digest.get(_digest(library))
            if twin is not None:
                entry = replace(twin, knobs=_rows(e, choice))
                e.tried[choice] = entry
                self.journal.add(entry)

    def _confirm(self, e: Effort) -> None:
        """Measure the best candidates of a workload again, for longer, until one of them is
        better."""
        assert e.prepared is not None
        for choice in e.ranked()[:_CONFIRMED]:
            if e.winner() is not None:
                return
            entry = self.journal.get(e.workload.key, _rows(e, choice), 1)
            if entry is None:
                entry = self._again(e, choice)
            if entry is None:
                return
            e.confirmed[choice] = entry

    def _again(self, e: Effort, choice: Choice) -> Entry | None:
        """The longer measurement of a candidate; None if time ran out."""
        job = compile_job(e.workload, e.workload.chosen(choice))
        title = f"confirm {e.workload.name}"
        for outcome in self._until([job], self.compiling, title, late=True):
            compiled = _compiled(outcome)
            verdict = Verdict(compiled.state, compiled.reason)
            if compiled.state == OK:
                again = self._measure(e, choice, compiled.library, 1)
                verdicts = [
                    _verdict(x) for x in self._until([again], self.measuring, title, late=True)
                ]
                if not verdicts:
                    return None
                (verdict,) = verdicts
            entry = self._entry(e, _rows(e, choice), 1, verdict, compiled.library)
            self.journal.add(entry)
            return entry
        return None

    # -- jobs --------------------------------------------------------------------------------------

    def _measure(self, e: Effort, choice: Choice, library: bytes, run: int) -> Job:
        prepared = e.prepared
        assert prepared is not None
        if run:
            longer = replace(prepared.trial, seconds=LONGER * prepared.trial.seconds)
            prepared = Prepared(longer, prepared.library)
        choice_text = text_of(e.workload.chosen(choice)) or "untuned"
        return measure_job(e.workload, prepared, library, run, choice_text, self.options.measure)

    def _until(
        self,
        jobs: Sequence[Job] | Iterator[Job],
        executor: Executor,
        title: str,
        late: bool = False,
    ) -> Iterator[Outcome]:
        """Outcomes of jobs until the deadline; with `late`, for a while after it."""
        end = self.deadline + (10 * LONGER * self.options.seconds if late else 0.0)
        if time.monotonic() >= end:
            return
        outcomes = run_jobs(jobs, executor, title=title)
        with closing(cast("Generator[Outcome]", outcomes)):
            for outcome in outcomes:
                yield outcome
                if time.monotonic() >= end:
                    return

    def _keep(self, e: Effort, choice: Choice, verdict: Verdict, library: bytes) -> None:
        entry = self._entry(e, _rows(e, choice), 0, verdict, library)
        e.tried[choice] = entry
        self.journal.add(entry)
        self.progress.advance(1, f"{e.workload.name}: {e.best:.3f} of untuned")

    def _entry(
        self,
        e: Effort,
        knobs: tuple[tuple[str, int], ...],
        run: int,
        verdict: Verdict,
        library: bytes,
    ) -> Entry:
        if verdict.state != OK:
            return Entry(e.workload.key, knobs, run, verdict.state, verdict.reason)
        untuned, ratio = verdict.untuned, verdict.ratio
        if self.options.measure is not None and e.untuned is not None:
            untuned = e.untuned.value or math.inf
            ratio = verdict.value / untuned
        median = verdict.median if verdict.median == verdict.median else verdict.value
        return Entry(
            e.workload.key,
            knobs,
            run,
            OK,
            "",
            verdict.value,
            median,
            untuned,
            ratio,
            verdict.unit,
            verdict.machine,
            _digest(library),
        )

    def _of_others(self, e: Effort) -> Iterator[Choice]:
        """The best choices for other kernels of the same family, as far as this kernel has these
        knobs."""
        for effort in self.efforts:
            if effort is not e and effort.workload.family.op_class == e.workload.family.op_class:
                for choice in effort.ranked()[:1]:
                    values = dict(zip((k.name for k in effort.space.knobs), choice, strict=True))
                    yield tuple(values.get(k.name, k.untuned) for k in e.space.knobs)


def _rows(e: Effort, choice: Choice) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(e.workload.chosen(choice).items()))


def _digest(library: bytes) -> str:
    return hashlib.sha256(library).hexdigest()[:16] if library else ""


def _compiled(outcome: Outcome) -> CandidateLibrary:
    if outcome.failure is None:
        assert isinstance(outcome.result, CandidateLibrary)
        return outcome.result
    state = LOST if outcome.failure.lost else ERROR
    return CandidateLibrary(b"", state, f"compiling it: {outcome.failure}")


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.failure is None:
        assert isinstance(outcome.result, Verdict)
        return outcome.result
    state = LOST if outcome.failure.lost else ERROR
    return Verdict(state, f"measuring it: {outcome.failure}")


def require_options(o: SearchOptions) -> None:
    """Raise UserError for invalid options."""
    for name, value, lower in (
        ("batch", o.batch, 1),
        ("trials", 1 if o.trials is None else o.trials, 1),
        ("threads", o.threads, 1),
        ("seed", o.seed, 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < lower:
            raise UserError(f"{name}={value!r}, expected a whole number of at least {lower}")
