"""A library beside ONNX Runtime, in a fresh process: same results, and how fast each is.

`python -m tensorkiln.cli.compare REQUEST` takes and prints JSON text. A process of its own shows
that the library needs nothing of the compiler, and starts its threads as asked for.
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

import numpy as np

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.cli.library import Array, graph_function, open_function, random_inputs
from tensorkiln.tune.measure import Timing, measure

RTOL, ATOL = 1e-3, 1e-4  # of the value, and of the output's largest value
_REFUSED = 2  # exit code of the fresh process for a UserError


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare. Without `model`, or without onnxruntime, only the library is timed."""

    library: str
    model: str = ""
    function: str = "main"
    dims: dict[str, int] = field(default_factory=dict)
    threads: int = 1
    seconds: float = 3.0
    trials: int = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What came out. `worst` is the largest error in units of what is allowed: 1 is the limit."""

    ours: Timing
    peer: Timing | None
    max_error: float
    scale: float
    worst: float
    trials: int

    @property
    def agrees(self) -> bool:
        """Whether every output was within tolerance; NaN is not."""
        return self.worst <= 1


def compare_fresh(request: Request) -> Answer:
    """Run `compare` in a new Python process with that many threads."""
    environment = dict(os.environ, KILN_NUM_THREADS=str(request.threads))
    command = [sys.executable, "-m", "tensorkiln.cli.compare", json.dumps(asdict(request))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == _REFUSED:
        raise UserError(done.stderr.strip())
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = "\n  ".join(lines[-5:]) or f"exit code {done.returncode}"
        raise InternalError(f"the fresh process failed:\n  {reason}", where=request.library)
    parsed = json.loads(done.stdout.splitlines()[-1])
    peer = parsed.pop("peer")
    ours = Timing(**parsed.pop("ours"))
    return Answer(ours=ours, peer=Timing(**peer) if peer else None, **parsed)


def compare(request: Request) -> Answer:
    """Compare on `trials` random inputs, then time both in turns on the last of them."""
    path = Path(request.library)
    function = graph_function(path, request.function)
    ours = open_function(path, request.function)
    peer = _peer(request)
    errors = [(0.0, 0.0, 0.0)]
    names = [tensor.name for tensor in function.inputs]
    arrays: list[Array] = []
    for trial in range(max(1, request.trials)):
        arrays = random_inputs(function, request.dims, seed=trial)
        if peer is not None:
            want = peer(names, arrays)
            errors += [_error(a, b) for a, b in zip(ours(*arrays), want, strict=True)]
    calls: dict[str, Callable[[], object]] = {"ours": lambda: ours(*arrays)}
    if peer is not None:
        calls["peer"] = partial(peer, names, arrays)
    times = measure(calls, seconds=request.seconds)
    return Answer(
        ours=times["ours"],
        peer=times.get("peer"),
        max_error=max(error for error, _, _ in errors),
        scale=max(scale for _, scale, _ in errors),
        worst=max(worst for _, _, worst in errors),
        trials=request.trials if peer is not None else 0,
    )


def _peer(request: Request) -> Callable[[Sequence[str], Sequence[Array]], list[Array]] | None:
    """ONNX Runtime on the same model with the same number of threads."""
    if not request.model:
        return None
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        request.model, options, providers=["CPUExecutionProvider"]
    )
    wanted = [value.name for value in session.get_inputs()]

    def call(names: Sequence[str], arrays: Sequence[Array]) -> list[Array]:
        feeds = dict(zip(wanted if set(wanted) != set(names) else names, arrays, strict=True))
        return list(session.run(None, feeds))

    return call


def _error(have: Array, want: Array) -> tuple[float, float, float]:
    """(largest difference, scale, largest difference over what is allowed there)."""
    if have.shape != want.shape:
        raise UserError(f"output of shape {have.shape}, expected {want.shape}")
    if want.size == 0:
        return 0.0, 0.0, 0.0
    exact, found = want.astype(np.float64), have.astype(np.float64)
    scale = float(np.abs(exact).max())
    difference = np.abs(found - exact)
    ratio = difference / (ATOL * scale + RTOL * np.abs(exact) + np.finfo(np.float64).tiny)
    worst = float(ratio.max())
    # NaN compares false with everything, and must not pass as the smaller of two.
    return float(difference.max()), scale, float("inf") if np.isnan(worst) else worst


def main(request: str) -> int:
    """The fresh process: print the answer; what the user did wrong goes to stderr as a sentence."""
    try:
        print(json.dumps(asdict(compare(Request(**json.loads(request))))))
    except UserError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
