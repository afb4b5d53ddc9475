"""`tk.scale.farm`: compile every row of a manifest, on any executor, into a folder or object store.

`farm.json` beside the outputs records what each row was made from. A row whose files agree with
that record is not built again, so a farm that was interrupted continues where it stopped. The
report is first written before any row is built, so that the files of an interrupted run are known
to belong to a farm and may be replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.base.progress import Progress, watched
from tensorkiln.base.trust import private_temporary
from tensorkiln.scale.build import (
    Built,
    ModelFile,
    Work,
    build,
    compiler_identity,
    download_model,
    results_of,
    work_of,
)
from tensorkiln.scale.executors import Given, given_executor
from tensorkiln.scale.jobs import Failure, Job, Outcome, failure_of, run_jobs
from tensorkiln.scale.local import LocalExecutor, local_executor
from tensorkiln.scale.manifest import ManifestRow, read_manifest
from tensorkiln.scale.report import REPORT, FarmReport, Former, Made, State, read_report
from tensorkiln.scale.results import BuiltFile
from tensorkiln.scale.storage import Storage, is_url, storage_of

_REPORT_EVERY = 2.0  # seconds between writes of the report while rows are made


def farm(
    manifest: str | Path | Mapping[str, Any],
    output: str | Path,
    *,
    cache: str | Path | None = None,
    executor: Given = None,
    only: Sequence[str] = (),
    fail_fast: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> FarmReport:
    """Compile every row of a manifest into `output`, and return a report on each.

    `manifest` is the path of a TOML file, or a mapping with the same keys
    (docs/howto/compile-many.md). `output` and `cache` are folders or URLs that fsspec knows; all
    workers must be able to reach them. Results in the cache are found by a hash of what they are
    made from; whoever can write to it decides what code is used, so it has to be trusted.
    `executor` is any of `concurrent.futures`, or text for `executor_of`; None: processes of this
    machine. `only` are patterns of names of rows; other rows are left alone. With `fail_fast`, no
    row is started after the first failure; with `dry_run`, nothing is built or written, and rows
    that would be built are `waiting`.

    A row that fails is reported, not raised. Raises UserError for an invalid manifest, patterns of
    `only` that match nothing, and places that cannot be written.
    """
    rows = _asked_rows(read_manifest(manifest).rows, only)
    out = storage_of(output)
    shared = None if cache is None else storage_of(cache).url
    if not dry_run:
        results_of(shared).require()
    monitor = watched(progress)
    with ExitStack() as stack:
        users_executor = stack.enter_context(given_executor(executor))
        runs = stack.enter_context(local_executor()) if users_executor is None else users_executor
        run = _Run(out, rows, shared, monitor)
        run.look(stack, getattr(runs, "cpus", 1))
        if dry_run:
            return run.report()
        run.write()
        if not isinstance(runs, LocalExecutor):
            run.share()
        try:
            run.make(runs, fail_fast)
        finally:
            run.write()
    return run.report()


def _asked_rows(rows: Sequence[ManifestRow], only: Sequence[str]) -> list[ManifestRow]:
    """The rows whose names match one of the patterns; UserError for a pattern that matches no
    row."""
    if isinstance(only, str):
        raise UserError(f"only={only!r}: expected a list of patterns", code="wrong-type")
    names = [row.name for row in rows]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"no row is called {pattern!r}",
                code="no-such-row",
                where="only",
                hint=nearest(pattern, names) or f"such as {names[0]!r}",
            )
    return [r for r in rows if not only or any(fnmatchcase(r.name, pattern) for pattern in only)]


class _Run:
    """One run of a farm: the state of each row, by name."""

    def __init__(
        self, out: Storage, rows: Sequence[ManifestRow], cache: str | None, progress: Progress
    ):
        self._out, self._rows, self._cache, self._progress = out, rows, cache, progress
        self._former = read_report(out)
        self._made: dict[str, Made] = {}
        self._work: dict[str, Work] = {}
        self._written = 0.0

    def look(self, stack: ExitStack, cpus: int) -> None:
        """Compute the key of each row, and find the rows whose files exist already. Models that are
        downloaded for it are deleted with `stack`."""
        models = {row.model.path: row.model for row in self._rows}
        self._progress.phase("read models", len(models))
        files: dict[str, ModelFile | Failure] = {}
        for path, model in models.items():
            files[path] = _model_file(path, stack)
            self._progress.advance(1, model.name)
        self._progress.phase("look at outputs", len(self._rows))
        for row in self._rows:
            try:
                entry = self._looked(row, files[row.model.path], cpus)
            except TensorkilnError as error:  # of its place in the output
                entry = Made.of(row).failed(failure_of(error))
            self._made[row.name] = entry
            self._progress.advance(1, row.name)

    def _looked(self, row: ManifestRow, file: ModelFile | Failure, cpus: int) -> Made:
        about = Made.of(row)
        if isinstance(file, Failure):
            return about.failed(file)
        work = work_of(row, file, self._out.url, self._cache, cpus)
        about = about.keyed(work.key)
        former = self._former.rows.get(row.name)
        if former is not None and former.key == work.key and self._is_there(row, former):
            return about.done(State.CACHED, former.files, former.stamps)
        for name in row.names:
            if name not in self._former.names and self._out.stamp(name) is not None:
                return about.failed(_foreign(self._out, name))
        self._work[row.name] = work
        return about

    def _is_there(self, row: ManifestRow, former: Former) -> bool:
        """Whether the files in the output are those that the former report lists."""
        if [f.name for f in former.files] != list(row.names):
            return False
        for file, stamp in zip(former.files, former.stamps, strict=True):
            now = self._out.stamp(file.name)
            if now is None or ((not now or now != stamp) and not self._holds(file)):
                return False
        return True

    def _holds(self, file: BuiltFile) -> bool:
        return self._out.sha256(file.name) == file.sha256

    def share(self) -> None:
        """Upload to the shared cache those models that workers on other machines cannot get
        otherwise."""
        if self._cache is None:
            return
        results = results_of(self._cache)
        models = list({work.model.path: work.model for work in self._work.values()}.values())
        models = [m for m in models if m.data is None and not is_url(m.path)]
        self._progress.phase("share models", len(models))
        for model in models:
            parent = Path(model.local).parent
            for name, sha256 in model.files:
                results.share(sha256, parent / name)
            self._progress.advance(1, model.path)

    def make(self, executor: Executor, fail_fast: bool) -> None:
        """Build all rows that do not exist yet."""
        failed = any(entry.state is State.FAILED for entry in self._made.values())
        if not self._work or (fail_fast and failed):
            return
        jobs = [
            Job(f"{work.key} {name}", build, (work,), name) for name, work in self._work.items()
        ]
        for outcome in run_jobs(jobs, executor, progress=self._progress, title="compile"):
            entry = self._collected(outcome)
            self._made[outcome.job.what] = entry
            if time.monotonic() - self._written > _REPORT_EVERY:
                self.write()
            if fail_fast and entry.state is State.FAILED:
                return

    def _collected(self, outcome: Outcome) -> Made:
        entry = self._made[outcome.job.what].timed(outcome.seconds, outcome.tries)
        if outcome.failure is not None:
            return entry.failed(outcome.failure)
        build: Built = outcome.result
        stamps = [self._out.stamp(file.name) for file in build.files]
        missing = next((f.name for f, s in zip(build.files, stamps, strict=True) if s is None), "")
        if missing:
            return entry.failed(_elsewhere(self._out, missing))
        state = State.CACHED if build.cached else State.MADE
        return entry.noted(build.notes).done(state, build.files, [s or "" for s in stamps])

    def write(self) -> None:
        """Write the report on the rows finished so far."""
        self._out.put(REPORT, self.report().to_bytes(self._former))
        self._written = time.monotonic()

    def report(self) -> FarmReport:
        """The report on the rows finished so far."""
        return FarmReport(self._out.url, compiler_identity(), tuple(self._made.values()))


def _model_file(path: str, stack: ExitStack) -> ModelFile | Failure:
    """The model of a path or URL, or the reason why it cannot be read."""
    try:
        if not is_url(path):
            return ModelFile.at(path, Path(path))
        folder = Path(stack.enter_context(private_temporary("kiln-farm-model-")))
        return ModelFile.at(path, download_model(path, folder))
    except Exception as error:
        return failure_of(error)


def _foreign(out: Storage, name: str) -> Failure:
    error = UserError(
        f"cannot write {out.url + '/' + name!r}: it was not written by a farm",
        code="cannot-write",
        hint="move or remove it, or name an output that is new",
    )
    return failure_of(error)


def _elsewhere(out: Storage, name: str) -> Failure:
    error = UserError(
        f"{name!r} is not in {out.url!r}: its worker wrote it where this machine does not see it",
        code="storage",
        hint="name an output that all machines reach: a shared folder, or a URL",
    )
    return failure_of(error)


def counts(rows: Iterable[Made]) -> dict[str, int]:
    """The number of rows in each state, by the state's name."""
    states = [row.state for row in rows]
    return {state.value: states.count(state) for state in State}
