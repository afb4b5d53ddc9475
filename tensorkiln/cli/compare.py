"""Compare a library with ONNX Runtime in a fresh process: results and latency.

`python -m tensorkiln.cli.compare REQUEST` takes a Request and prints an Answer, both as JSON. A
process of its own shows that the library needs nothing of the process that compiled it, and starts
as many threads as requested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.packages import install_line
from tensorkiln.base.processes import python_command
from tensorkiln.cli.library import (
    Array,
    graph_function,
    open_streams,
    precision_of,
)
from tensorkiln.measure.inputs import random_inputs
from tensorkiln.measure.latency import Latency, measure, throughput

_REFUSED = 2  # exit code of the fresh process for a UserError


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare. Without `model`, or without onnxruntime, only the library is timed.

    `dims`: sizes of symbolic dimensions. `seconds`: of measurement. `trials`: random inputs whose
    results are compared. `streams`: executors that call the library at the same time, each on
    `threads` threads, for their throughput; 0: only the latency of one is measured. `why_alone`
    says why there is no model.
    """

    library: str
    model: str = ""
    function: str = "main"
    dims: dict[str, int] = field(default_factory=dict)
    threads: int = 1
    seconds: float = 3.0
    trials: int = 3
    streams: int = 0
    why_alone: str = "no --model was given"


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """Over all outputs of `trials` random inputs: the largest absolute error, the largest magnitude
    (`scale`), and the largest ratio of an error to its tolerance (`worst`): up to 1 is agreement;
    infinity if an error is NaN."""

    max_error: float
    scale: float
    worst: float
    trials: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result, on `threads` threads: times of the library (`ours`) and of ONNX Runtime (`peer`),
    and their difference. If they were not compared, `not_compared` says why. `precision` is the
    library's. `per_second` has the calls per second of `streams` at a time, by engine."""

    ours: Latency
    threads: int
    peer: Latency | None = None
    difference: OutputDifference | None = None
    not_compared: str = ""
    precision: str = "float32"
    streams: int = 0
    per_second: dict[str, float] = field(default_factory=dict)

    @property
    def agrees(self) -> bool | None:
        """Whether every output was within tolerance; None when nothing was compared."""
        return None if self.difference is None else self.difference.worst <= 1

    def to_json(self) -> dict[str, object]:
        """The answer as plain values, for `kiln bench --json`."""
        return {**asdict(self), "agrees": self.agrees}


def compare_fresh(request: Request) -> Answer:
    """Run `compare` in a new Python process, with the number of threads requested. UserError if
    that process ends with one, InternalError if it fails otherwise."""
    environment = dict(os.environ, KILN_NUM_THREADS=str(request.threads))
    command = python_command("tensorkiln.cli.compare", json.dumps(asdict(request)))
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode == _REFUSED:
        raise UserError(process.stderr.strip())
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        reason = "\n  ".join(lines[-5:]) or f"exit code {process.returncode}"
        raise InternalError(f"the fresh process failed:\n  {reason}", where=request.library)
    parsed = json.loads(process.stdout.splitlines()[-1])
    kinds = {"ours": Latency, "peer": Latency, "difference": OutputDifference}
    parts = {name: kind(**parsed[name]) for name, kind in kinds.items() if parsed[name]}
    return Answer(**{**parsed, **parts})


def compare(request: Request) -> Answer:
    """Compare results on `trials` random inputs, then time both in turns on the last one."""
    path = Path(request.library)
    function = graph_function(path, request.function)
    all_ours, threads = open_streams(path, request.function, max(1, request.streams))
    library_call = all_ours[0]
    session = _session(request.model, threads) if request.model else None
    peer = None if session is None else partial(_call, session, len(function.outputs))
    precision = precision_of(path)
    errors = [(0.0, 0.0, 0.0)]
    names = [tensor.name for tensor in function.inputs]
    arrays: list[Array] = []
    for trial in range(max(1, request.trials)):
        arrays = random_inputs(function, request.dims, seed=trial)
        if peer is not None:
            want = peer(names, arrays)
            pairs = zip(library_call(*arrays), want, strict=True)
            errors += [_error(a, b, precision) for a, b in pairs]
    calls: dict[str, Callable[[], object]] = {"ours": lambda: library_call(*arrays)}
    if peer is not None:
        calls["peer"] = partial(peer, names, arrays)
    times = measure(calls, seconds=request.seconds)
    rates: dict[str, float] = {}
    if request.streams:
        streams = {"ours": [partial(call, *arrays) for call in all_ours]}
        if peer is not None:
            streams["peer"] = [partial(peer, names, arrays)] * request.streams
        rates = throughput(streams, seconds=request.seconds)
    about: dict[str, Any] = {
        "precision": precision,
        "streams": request.streams,
        "per_second": rates,
    }
    if peer is None:
        missing = f"ONNX Runtime is not installed ({install_line('onnxruntime')})"
        reason = missing if request.model else request.why_alone
        return Answer(times["ours"], threads, not_compared=reason, **about)
    largest, scale, worst = (max(column) for column in zip(*errors, strict=True))
    difference = OutputDifference(largest, scale, worst, request.trials)
    return Answer(times["ours"], threads, times["peer"], difference, **about)


def _session(model: str, threads: int) -> Any:
    """An ONNX Runtime session for a model; None if ONNX Runtime is not installed. UserError (code
    `peer`) if it cannot load the model."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are also raised as exceptions
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exceptions of ONNX Runtime have no other common base class
        raise UserError(f"ONNX Runtime cannot load {model!r}: {error}", code="peer") from None


def _call(session: Any, count: int, names: Sequence[str], arrays: Sequence[Array]) -> list[Array]:
    """The outputs of ONNX Runtime for the library's inputs, which are passed by name if the names
    are the same, else in order. UserError (code `peer`) if numbers of inputs or outputs differ."""
    input_names = [value.name for value in session.get_inputs()]
    results = len(session.get_outputs())
    if len(input_names) != len(arrays) or results != count:
        raise UserError(
            f"the library has {len(arrays)} input(s) and {count} output(s), "
            f"the model {len(input_names)} and {results}",
            code="peer",
            hint="--model is the model that the library was made from",
        )
    feeds = dict(zip(input_names if set(input_names) != set(names) else names, arrays, strict=True))
    try:
        return list(session.run(None, feeds))
    except Exception as error:
        raise UserError(f"ONNX Runtime cannot run the model: {error}", code="peer") from None


def _error(have: Array, want: Array, precision: str) -> tuple[float, float, float]:
    """(largest difference, largest magnitude of `want`, largest ratio of a difference to its
    tolerance)."""
    if have.shape != want.shape:
        raise UserError(
            f"an output has shape {have.shape}, that of ONNX Runtime {want.shape}", code="peer"
        )
    if want.size == 0:
        return 0.0, 0.0, 0.0
    exact, actual = want.astype(np.float64), have.astype(np.float64)
    scale = float(np.abs(exact).max())
    difference = np.abs(actual - exact)
    relative, absolute = ELEMENT_TYPES[precision].tolerance
    ratio = difference / (absolute * scale + relative * np.abs(exact) + np.finfo(np.float64).tiny)
    worst = float(ratio.max())
    # NaN compares false with everything: the caller's max() might drop it.
    return float(difference.max()), scale, float("inf") if np.isnan(worst) else worst


def main() -> int:
    """The fresh process: print the answer, or the message of a UserError to standard error."""
    try:
        print(json.dumps(asdict(compare(Request(**json.loads(sys.argv[1]))))))
    except UserError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    return 0
