"""Time two kernels beside each other in a process of their own, which may crash or hang.

A kernel that was never run before may do anything. The process that runs it is ended by the system
when its time is over, also where nobody is left who waits for it; whatever happens there is a
`Verdict` here. Both kernels take turns, so that what else the machine does slows both. Calls walk
over copies of the weights, which so are as cold as in a run of the network.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.base.files import atomic_write, open_plain, read_plain
from tensorkiln.base.machine import architecture
from tensorkiln.base.processes import python_command
from tensorkiln.base.record import JsonRecord, one_of
from tensorkiln.base.schema import Reader
from tensorkiln.base.trust import private_temporary
from tensorkiln.runtime.load import load_module
from tensorkiln.runtime.module import Module
from tensorkiln.runtime.trial import Array, Trial, TrialMemory, WrongResult, trial_of

STARTING = 60.0  # seconds until a new process has loaded both libraries
_ROUNDS = 5
_SAMPLE = 0.002  # seconds: calls are timed together until they take as long
_CODE = "bad-verdict"

OK, WRONG, CRASH, HANG, ERROR = "ok", "wrong", "crash", "hang", "error"
STATES = (OK, WRONG, CRASH, HANG, ERROR)
MS = "ms"


@dataclass(frozen=True, slots=True)
class Verdict(JsonRecord):
    """The outcome of measuring a candidate: its state, and what happened, in words. If the state is
    `ok`, `value` and `median` are the least and the median cost of a call, and `untuned` the least
    cost of the untuned kernel, measured in turn with it; all in `unit`. `ratio` compares the two
    kernels: the larger of value / untuned and the median ratio of neighbouring samples, since other
    load on the machine may distort either. `machine` is where it was measured."""

    state: Annotated[str, one_of(STATES)]
    reason: str = ""
    value: float = math.nan
    median: float = math.nan
    untuned: float = math.nan
    ratio: float = math.nan
    unit: str = MS
    machine: str = ""

    _omits_defaults = True

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        numbers = (self.value, self.median, self.untuned, self.ratio)
        if self.state == OK and any(map(math.isnan, numbers)):
            raise reader.wrong("a number is missing")


def machine_name() -> str:
    """The processor of this machine, as it calls itself, else its architecture."""
    try:
        with open_plain("/proc/cpuinfo") as stream:  # whose size is 0, by what the system says
            text = stream.read(1 << 16).decode(errors="replace")
    except OSError:
        text = ""
    rows = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in rows}
    return fields.get("model name") or fields.get("Model") or architecture()


def time_kernel(trial: Trial, untuned: bytes, candidate: bytes) -> Verdict:
    """Check a candidate and time it beside the untuned kernel: libraries that have the trial's
    symbol. Times are of a call, in milliseconds."""
    with private_temporary("kiln-trial-") as name:
        folder = Path(name)
        for file, content in (
            ("untuned.so", untuned),
            ("candidate.so", candidate),
            ("want", trial.want),
            ("may", trial.may),
            ("trial.json", json.dumps(trial.to_json())),
        ):
            atomic_write(folder / file, content)
        return _judged(folder, trial)


def _judged(folder: Path, trial: Trial) -> Verdict:
    """The verdict of a process that is started now."""
    time_limit = STARTING + 4 * trial.limit + 10 * trial.seconds
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            python_command("tensorkiln.runtime.timing", str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            start_new_session=True,
        )
        try:
            status = process.wait(time_limit)
            is_late = status == -signal.SIGALRM
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            if process.poll() is None:
                process.kill()
            status = process.wait()
    stage = read_plain(folder / "out", 1 << 16).decode(errors="replace").split("\n")[-1]
    words = read_plain(folder / "err", 1 << 20).decode(errors="replace").strip()
    if is_late:
        return Verdict(HANG, f"{stage or 'its process'} did not end in time")
    if status < 0:
        return Verdict(CRASH, f"{stage or 'its process'} ended by {_signal(-status)}")
    if status != 0:
        return Verdict(ERROR, words.splitlines()[-1] if words else f"exit status {status}")
    try:
        text = read_plain(folder / "verdict.json", 1 << 20)
        return Verdict.read(Reader.of_text(text, "verdict", _CODE))
    except (OSError, UserError):
        return Verdict(ERROR, f"{stage or 'its process'} ended without a verdict")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> int:
    """The process: write `verdict.json` into the folder that is named. What it does at the moment
    stands in the last line of standard output."""
    folder = Path(sys.argv[1])
    trial = trial_of(
        (folder / "trial.json").read_bytes(),
        read_plain(folder / "want", 1 << 20),
        read_plain(folder / "may", 1 << 20),
    )
    try:
        verdict = _timed(folder, trial)
    except WrongResult as error:
        verdict = Verdict(WRONG, error.message)
    except (TensorkilnError, MemoryError) as error:
        verdict = Verdict(ERROR, str(error))
    atomic_write(folder / "verdict.json", json.dumps(verdict.to_json()))
    return 0


def _say(stage: str) -> None:
    print(f"\n{stage}", end="", flush=True)


def _timed(folder: Path, trial: Trial) -> Verdict:
    memory = TrialMemory(trial)
    inputs = memory.walk()
    calls: list[Callable[[], object]] = []
    results: list[Array] = []
    libraries = []  # libraries stay loaded until the process ends
    for name in ("untuned", "candidate"):
        _say(f"loading the {name} kernel")
        signal.alarm(math.ceil(STARTING))
        library = load_module(folder / f"{name}.so")
        library.set_num_threads(trial.threads)
        libraries.append(library)
        results.append(memory.result())
        calls.append(_call(library, trial, inputs, results[-1]))
        _say(f"the {name} kernel")
        signal.alarm(math.ceil(trial.limit))
        calls[-1]()
        try:
            memory.require_guards()
            trial.check(results[-1], results[0] if name == "candidate" else None)
        except WrongResult as error:
            if name == "candidate":
                raise
            raise UserError(f"the untuned kernel: {error.message}", code="untuned-wrong") from None
    _say("the candidate kernel, called again,")
    signal.alarm(math.ceil(trial.limit + 10 * trial.seconds))
    # What other processes take of a processor does not count, if there is but one thread.
    clock = time.thread_time if trial.threads == 1 else time.perf_counter
    untuned, candidate = _in_turns(calls, trial.seconds, clock)
    pairs = (a / b for a, b in zip(candidate, untuned, strict=True))
    memory.require_guards()
    trial.check(results[1], results[0])
    signal.alarm(0)
    return Verdict(
        OK,
        value=1e3 * min(candidate),
        median=1e3 * statistics.median(candidate),
        untuned=1e3 * min(untuned),
        ratio=max(min(candidate) / min(untuned), statistics.median(pairs)),
        machine=machine_name(),
    )


def _call(
    library: Module, trial: Trial, inputs: list[list[Array]], result: Array
) -> Callable[[], Any]:
    """A call of the kernel, with each of `inputs` in turn. UserError if the library has none of its
    name."""
    kernel = getattr(library.library.dll, trial.symbol, None)
    if kernel is None:
        raise UserError(f"the library has no kernel {trial.symbol!r}", code="no-kernel")
    sizes = [ctypes.c_int64(n) for n in trial.sizes]
    calls = []
    for arrays in inputs:
        tensors = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, result)]
        calls.append(partial(kernel, *tensors, *sizes))
    if len(calls) == 1:
        return calls[0]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _in_turns(
    calls: list[Callable[[], object]], seconds: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of a call of each: samples in turns for as long, and a few at least."""

    def span(call: Callable[[], object], count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        return max(clock() - start, 1e-9)

    once = [min(span(call, 1) for _ in range(2)) for call in calls]
    counts = [max(1, min(1000, round(_SAMPLE / max(t, 1e-7)))) for t in once]
    samples: list[list[float]] = [[] for _ in calls]
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < _ROUNDS or time.perf_counter() < end:
        order = range(len(calls)) if rounds % 2 == 0 else reversed(range(len(calls)))
        for i in order:
            samples[i].append(span(calls[i], counts[i]) / counts[i])
        rounds += 1
    return samples
