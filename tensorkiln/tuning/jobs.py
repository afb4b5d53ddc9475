"""What workers do for a search: prepare a workload, compile a candidate, measure one.

Arguments and results are plain data of a few hundred kilobytes. Each job may run twice without
harm, since an executor resubmits a job whose worker died.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorkiln.kernels.knobs import text_of
from tensorkiln.runtime.measuring import Measure, TookTooLongError, measure_kernel, within
from tensorkiln.runtime.timing import ERROR, HANG, OK, Verdict, time_kernel
from tensorkiln.runtime.trial import Trial
from tensorkiln.scale import Job
from tensorkiln.target import Target
from tensorkiln.tuning.workloads import TrialOption, Workload, library_of, trial_for

COMPILING = 60.0  # seconds after which compiling a candidate is given up


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload that is ready to be measured: its trial, and the library of the untuned kernel."""

    trial: Trial
    library: bytes


@dataclass(frozen=True, slots=True)
class CandidateLibrary:
    """The library of a candidate, or the reason why compiling it failed."""

    library: bytes
    state: str = OK
    reason: str = ""


def prepare_job(w: Workload, options: Mapping[str, float | int]) -> Job:
    """The job that returns the Prepared workload."""
    workload_options: dict[str, TrialOption] = {
        "weights": w.weights,
        "network_bytes": w.network_bytes,
    }
    trial_options = tuple(sorted({**options, **workload_options}.items()))
    return Job(
        _key("prepare", w.text, w.target, trial_options, w.sizes),
        prepare,
        (w.text, w.target.to_json(), w.family.op_class, w.sizes, trial_options),
        f"prepare {w.name}",
    )


def compile_job(w: Workload, chosen: Mapping[str, int]) -> Job:
    """The job that returns the Compiled candidate."""
    rows = tuple(sorted(chosen.items()))
    return Job(
        _key("compile", w.text, w.target, rows),
        compile_candidate,
        (w.text, w.target.to_json(), w.family.op_class, rows),
        f"compile {w.name} {text_of(chosen)}",
    )


def measure_job(
    w: Workload,
    prepared: Prepared,
    library: bytes,
    run: int,
    choice_text: str,
    measure: Measure | None,
) -> Job:
    """The job that returns the Verdict on a candidate. The number of the run makes repeated
    measurements different jobs, which would otherwise be run once."""
    trial = prepared.trial
    digest = hashlib.sha256(library).hexdigest()
    return Job(
        _key("measure", w.key, w.target, trial.seconds, trial.seed, digest, run),
        *_measuring(trial, prepared.library, library, measure),
        f"measure {w.name} {choice_text}",
    )


def _measuring(
    trial: Trial, untuned: bytes, library: bytes, measure: Measure | None
) -> tuple[Callable[..., Verdict], tuple[Any, ...]]:
    """The function that a worker calls, and its arguments. The function is in the runtime package,
    so that a worker needs no more than that."""
    if measure is None:
        return time_kernel, (trial, untuned, library)
    return measure_kernel, (trial, library, measure)


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def prepare(
    text: str,
    target: Mapping[str, object],
    family: str,
    sizes: tuple[tuple[str, int], ...],
    options: tuple[tuple[str, TrialOption], ...],
) -> Prepared:
    """Compile a workload untuned, and compute the expected results."""
    library, symbol = library_of(text, Target(dict(target)), family)
    return Prepared(trial_for(text, symbol, dict(sizes), dict(options)), library)


def compile_candidate(
    text: str, target: Mapping[str, object], family: str, chosen: tuple[tuple[str, int], ...]
) -> CandidateLibrary:
    """Compile a workload with these values of its knobs."""
    try:
        library, _ = within(COMPILING, library_of, text, Target(dict(target)), family, chosen)
    except TookTooLongError:
        return CandidateLibrary(b"", HANG, f"compiling it takes more than {COMPILING:g} s")
    except Exception as error:
        # Any error of a schedule costs its candidate alone.
        return CandidateLibrary(b"", ERROR, f"compiling it: {type(error).__name__}: {error}")
    return CandidateLibrary(library)
