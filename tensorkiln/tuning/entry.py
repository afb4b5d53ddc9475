"""`tune`: from a model to records of the choices that are best for its kernels."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

from tensorkiln import frontend
from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.base.progress import Progress, watched
from tensorkiln.base.sources import source_digest
from tensorkiln.external.argument import Externals, require_externals
from tensorkiln.kernels.records import GivenRecords, Records, records_of, target_text
from tensorkiln.options import target_of, with_options
from tensorkiln.runtime.measuring import Measure
from tensorkiln.scale import local_executor
from tensorkiln.scale.executors import Given, given_executor
from tensorkiln.scale.jobs import require_executor
from tensorkiln.target import Target
from tensorkiln.tuning.direct import Direct
from tensorkiln.tuning.emulated import InstructionCount
from tensorkiln.tuning.journal import Journal
from tensorkiln.tuning.report import Tuned, tuned_of
from tensorkiln.tuning.search import Effort, Search, SearchOptions, require_options
from tensorkiln.tuning.space import SEARCHES, Space, require_search
from tensorkiln.tuning.workloads import (
    Choice,
    FixedKernel,
    Workload,
    fused_module,
    require_tunable,
    workloads_of,
)

MEASURES = ("time", "instructions")
_MOST = 7 * 86400.0
_SHARE = 0.01  # of a run's time: kernels that take less are not worth tuning


def tune(
    model: Any,
    target: Target | str | dict[str, object] | None = None,
    *,
    seconds: float = 300.0,
    kernels: int | None = None,
    executor: Given = None,
    measure_executor: Given = None,
    measure: str | Measure = "time",
    search: str = "model",
    journal: str | os.PathLike[str] | None = None,
    records: GivenRecords | None = None,
    sizes: Mapping[str, int] | None = None,
    trials: int | None = None,
    batch: int = 8,
    seed: int = 0,
    threads: int = 1,
    each: float = 0.2,
    limit: float = 10.0,
    freeze: Mapping[str, int] | None = None,
    precision: str | None = None,
    optimize: str | None = None,
    externals: Externals = (),
    progress: Progress | None = None,
) -> Tuned:
    """Search for the values of knobs with which a model's kernels are fastest, as records for
    `compile(records=)`.

    `model`, `target`, `freeze`, `precision`, `optimize` and `externals` are as for `compile`; pass
    what the model will be compiled with, since the kernels depend on it. The search ends when every
    choice was tried, or after about `seconds`: at most the time of one candidate later. Only the
    `kernels` costliest kernels are tuned, each with at most `trials` candidates. `sizes` are the
    sizes of symbolic dimensions for which kernels are measured.

    Candidates are compiled by `executor`: any of `concurrent.futures`, or text for
    `tk.scale.executor_of`; by default processes of this machine. They are measured by
    `measure_executor`: by default the same; if neither is given and `measure` is "time", by one
    process of this machine, one candidate at a time. A machine that only measures needs no more
    than the runtime package; with `resources={"board": 1}` of `tk.scale.ray_executor`, candidates
    are measured on boards.
    Each candidate runs in a process of its own, on `threads` threads, for `each` seconds in turn
    with the untuned kernel; a call that takes more than `limit` seconds fails. Its result has to
    agree with NumPy in float64. `measure` is "time"; "instructions", the instructions that an
    AArch64 library executes in qemu, for target machines that are not at hand; or a function,
    `Measure`.

    `search` is "model", where scikit-learn's regression trees learn from the measurements (extra
    `tune`), or "random"; `batch` candidates are proposed at a time. The same measurements and the
    same `seed` lead to the same proposals. With a `journal`, a file of measurements, a search that
    was interrupted is resumed. The choices of `records` are tried first.

    A record is kept only if its kernel was faster in two measurements, by more than noise. Raises
    UserError for invalid options, a journal of another search (code `other-journal`) and a missing
    package; what `compile` raises; UnsupportedError for a target other than a CPU of kind llvm.
    """
    start = time.monotonic()
    _require_arguments(seconds, kernels, search, each, limit)
    require_externals(externals)
    sizes = _sizes(sizes)
    for name, argument in (("executor", executor), ("measure_executor", measure_executor)):
        if argument is not None and not isinstance(argument, str):
            require_executor(argument, name)
    metric = _measure(measure)
    options = SearchOptions(
        search, seed, batch, trials, kernels, float(each), float(limit), threads, metric
    )
    require_options(options)
    compile_target = with_options(target_of(target), precision=precision, optimize=optimize)
    require_tunable(compile_target)
    require_search(search)
    if isinstance(metric, InstructionCount):
        metric.require(compile_target)
    former_records, monitor = records_of(records), watched(progress)
    monitor.phase("optimise graph")
    mod = frontend.import_model(model, freeze=freeze)
    fused = fused_module(mod, compile_target, externals)
    workloads, fixed_kernels = workloads_of(fused, compile_target, sizes)
    with ExitStack() as stack:
        compiling = stack.enter_context(given_executor(executor))
        alone = stack.enter_context(given_executor(measure_executor, "measure_executor"))
        header = _header(workloads, compile_target, metric, sizes, threads)
        chosen = _worth(workloads, fixed_kernels, kernels)
        book = stack.enter_context(Journal(journal, header, {w.key: w.cost for w in chosen}))
        if compiling is None:
            compiling = stack.enter_context(local_executor())
            if alone is None and metric is None:
                alone = stack.enter_context(local_executor(1))
        efforts = _efforts(workloads, book.costs, former_records)
        measuring = Direct(alone or compiling)
        finished_efforts = Search(
            efforts, options, book, compiling, measuring, start + seconds, monitor
        ).run()
    monitor.finish()
    return tuned_of(finished_efforts, fixed_kernels)


def _require_arguments(
    seconds: object, kernels: object, search: object, kernel_seconds: object, limit: object
) -> None:
    for name, value, upper in (
        ("seconds", seconds, _MOST),
        ("each", kernel_seconds, 60),
        ("limit", limit, 3600),
    ):
        require(value, (int, float), name)
        if isinstance(value, bool) or not 0 < float(value) <= upper:  # type: ignore[arg-type]
            raise UserError(f"{name}={value!r}, expected a number above 0, at most {upper:g}")
    if kernels is not None and (type(kernels) is not int or kernels < 1):
        raise UserError(f"kernels={kernels!r}, expected a whole number of at least 1, or None")
    require(search, str, "search")
    if search not in SEARCHES:
        hint = nearest(str(search), SEARCHES) or f"one of {', '.join(SEARCHES)}"
        raise UserError(f"no search {search!r}", code="unknown-search", hint=hint)


def _sizes(sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes of symbolic dimensions, checked: UserError unless they map names to positive
    integers."""
    if sizes is None:
        return {}
    require(sizes, Mapping, "sizes")
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise UserError(f"sizes: {name!r} is {size!r}, expected a whole number of at least 1")
    return dict(sizes)


def _measure(measure: object) -> Measure | None:
    """The `Measure` that the argument stands for; None stands for wall-clock time."""
    if isinstance(measure, str) and measure in MEASURES:
        return InstructionCount() if measure == "instructions" else None
    if callable(measure) and isinstance(getattr(measure, "unit", None), str):
        return cast("Measure", measure)
    if callable(measure):
        raise UserError(
            "a function to measure with has an attribute 'unit', such as \"cycles\"",
            code="bad-measure",
            where="measure",
        )
    hint = nearest(str(measure)[:80], MEASURES) or f"{' or '.join(MEASURES)}, or a function"
    raise UserError(f"no way to measure {measure!r}", code="bad-measure", hint=hint)


def _header(
    workloads: list[Workload],
    target: Target,
    measure: Measure | None,
    sizes: Mapping[str, int],
    threads: int,
) -> dict[str, str]:
    """The first line of the journal, by which a resumed search checks that it is the same one: see
    `journal.HEADER`."""
    keys = json.dumps(sorted(w.key for w in workloads))
    return {
        "compiler": source_digest()[:16],
        "target": target_text(target),
        "model": hashlib.sha256(keys.encode()).hexdigest(),
        "measure": "time" if measure is None else f"{type(measure).__qualname__} {measure.unit}",
        "sizes": json.dumps(dict(sorted(sizes.items()))),
        "threads": str(threads),
    }


def _worth(
    workloads: list[Workload], fixed_kernels: list[FixedKernel], kernels: int | None
) -> list[Workload]:
    """The workloads to measure: those that take at least a hundredth of a run of the model by the
    estimate or, if a number of kernels was asked for, twice as many of the costliest, since
    measuring may rank them otherwise."""
    share = 1 - sum(k.share for k in fixed_kernels)
    total = sum(w.total for w in workloads) / max(share, 1e-9)
    worth = [w for w in workloads if w.total >= _SHARE * total]
    return worth if kernels is None else workloads[: 2 * kernels]


def _efforts(
    workloads: list[Workload], costs: Mapping[str, float], records: Records
) -> list[Effort]:
    """Efforts for the workloads whose costs the journal has, the costliest first."""
    by_key = {w.key: w for w in workloads}
    efforts = []
    for key, cost in costs.items():
        w = by_key.get(key)
        if w is None:
            continue
        space = Space(w.knobs)
        workload_records = records.of(w.key, target_text(w.target))
        efforts.append(
            Effort(w, cost, space, tuple(_choice(w, r.choices) for r in workload_records))
        )
    return efforts


def _choice(w: Workload, chosen: Mapping[str, int]) -> Choice:
    return tuple(chosen.get(k.name, k.untuned) for k in w.knobs)
