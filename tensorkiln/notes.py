"""Notes of a compile: what a caller should know of its target and of what came out of it."""

from __future__ import annotations

import warnings

from tensorkiln.base.progress import Progress, watched
from tensorkiln.codegen.memory.weights import is_much
from tensorkiln.executable import Executable
from tensorkiln.target import Target, cpu_target
from tensorkiln.target.triple import LIBRARIES

_MOST_NOTES = 3  # of nodes without the kernel that is fast for them


def note_baseline(cpu: Target, progress: Progress | None) -> None:
    """Say that the target is the oldest processor of its architecture: to `progress`, else as a
    warning at the line that calls `compile`."""
    if not cpu.is_baseline or cpu.arch not in LIBRARIES:
        return
    note = f"{cpu.mcpu} is the baseline of {cpu.arch}: 'native' uses all this CPU has"
    if progress is None:
        warnings.warn(note, stacklevel=3)
    else:
        watched(progress).note(note)


def note_results(executable: Executable, progress: Progress) -> None:
    """Say why weights take much more than in the model and what to do about that, and which nodes
    have no kernel of the family that is fast for them, and why."""
    _note_weights(executable, progress)
    _note_reasons(executable, progress)


def _note_weights(executable: Executable, progress: Progress) -> None:
    model = executable.model_weights
    if model is None or not is_much(executable.weights_bytes, model.bytes):
        return
    weights = executable.memory().weights
    assert weights is not None
    small = cpu_target(executable.target).optimize == "size"
    hint = "" if small else "; --optimize size, or compile(optimize='size'), keeps them small"
    progress.note(f"{weights.note}{hint}")


def _note_reasons(executable: Executable, progress: Progress) -> None:
    slow = []
    for row in executable.placement():
        tail = f" and {len(row.nodes) - 1} more" if len(row.nodes) > 1 else ""
        slow += [f"{row.nodes[0]}{tail}: {text}" for text in row.reasons if text.startswith("no ")]
    for text in slow[:_MOST_NOTES]:
        progress.note(text)
    if len(slow) > _MOST_NOTES:
        progress.note(f"{len(slow) - _MOST_NOTES} more of these: Executable.placement()")
