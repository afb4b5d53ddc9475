"""The instruments that come with the compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tensorkiln.base.debug import CHANGES, PASSES
from tensorkiln.base.errors import InternalError, UserError, nearest
from tensorkiln.base.folders import write_files
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.text.printer import print_module
from tensorkiln.ops.verify import verify
from tensorkiln.passes.diff import module_diff
from tensorkiln.passes.step import Instrument, Step


@dataclass(slots=True)
class Timing(Instrument):
    """Collects how long each pass took; `print(timing.table())`."""

    steps: list[Step] = field(default_factory=list)

    def after(self, step: Step) -> None:
        """Keep the step."""
        self.steps.append(step)

    def table(self) -> str:
        """One line per pass, then the sum."""
        lines = [_time_line(s) for s in self.steps]
        total = sum(s.seconds for s in self.steps)
        return "\n".join([*lines, f"{'':>3} {'':5} {'total':32} {total * 1e3:10.1f} ms"])


def _time_line(s: Step) -> str:
    note = "" if s.changed else "  (unchanged)"
    return f"{s.number:3} {s.pipeline:5} {s.name:32} {s.seconds * 1e3:10.1f} ms{note}"


@dataclass(slots=True)
class Dump(Instrument):
    """Writes `00-input.py`, then `<number>-<pass>.py` for each pass that changed the module.

    Files of a former compile are replaced; raises UserError rather than overwrite any other file.
    """

    folder: Path | str
    _started: bool = False

    def before(self, step: Step) -> None:
        """Write the module that the first pass receives."""
        if not self._started:
            self._started = True
            self._write("00-input", step.before)

    def after(self, step: Step) -> None:
        """Write the module if the pass changed it."""
        if step.changed and step.after is not None:
            self._write(f"{step.number:02d}-{step.name}", step.after)

    def _write(self, name: str, mod: IRModule) -> None:
        write_files(self.folder, {f"{name}.py": print_module(mod)})


@dataclass(frozen=True, slots=True)
class Verify(Instrument):
    """Verifies the module after every pass, where a compile does so only after passes that changed
    it; with `round_trip` also that its text parses back to the same module."""

    round_trip: bool = True

    def after(self, step: Step) -> None:
        """Raise InternalError if the module is malformed or does not round-trip."""
        assert step.after is not None
        verify(step.after)
        if self.round_trip:
            require_round_trip(step.after, step.name)


def require_round_trip(mod: IRModule, file: str) -> None:
    """Raise InternalError (code `round-trip`) unless the module's text parses back to an equal
    module; `file` is the name of the text in the error."""
    from tensorkiln.script import constant_table, from_source

    try:
        again = from_source(print_module(mod), constant_table(mod), file=file)
    except UserError as error:
        raise InternalError(f"its text is not read back: {error}", code="round-trip") from error
    difference = first_difference(mod, again)
    if difference is not None:
        raise InternalError(f"its text reads back differently: {difference}", code="round-trip")


class PrintAfter(Instrument):
    """Prints the module after the named passes (after all, without names), changed or not.

    Output goes to `stream`, by default stdout.
    """

    def __init__(self, *names: str, stream: TextIO | None = None):
        self.names, self.stream = names, stream

    def check(self, passes: Sequence[str]) -> None:
        """Raise UserError for a name that no pass of the compile has."""
        for name in self.names:
            if name not in passes:
                raise UserError(
                    f"PrintAfter({name!r}): no pass of this compile has this name",
                    code="unknown-pass",
                    where="instruments",
                    hint=nearest(name, passes) or f"its passes: {', '.join(passes)}",
                )

    def after(self, step: Step) -> None:
        """Print the module below a line that names the pass."""
        if step.after is not None and (not self.names or step.name in self.names):
            out = self.stream or sys.stdout
            out.write(f"# after {step.number} {step.name}\n{print_module(step.after)}\n")


class DebugLadder(Instrument):
    """Prints what `KILN_DEBUG=level` asks about passes: from 1 on name and time, from 2 on a diff.

    Output goes to `stream`, by default stderr.
    """

    def __init__(self, level: int, stream: TextIO | None = None):
        self.level, self.stream = level, stream

    def after(self, step: Step) -> None:
        """Print a line, and a diff from level 2 on."""
        lines: list[str] = []
        if self.level >= PASSES:
            lines.append(f"kiln[{PASSES}] {_time_line(step)}")
        if self.level >= CHANGES and step.changed and step.after is not None:
            lines += _ladder_lines(module_diff(step.before, step.after))
        if lines:
            (self.stream or sys.stderr).write("\n".join(lines) + "\n")


def _ladder_lines(lines: Iterable[str]) -> list[str]:
    return [f"kiln[{CHANGES}] {line}" for line in lines]
