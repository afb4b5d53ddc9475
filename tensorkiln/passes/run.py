"""Run pipelines: call instruments around each pass, verify what it changed, name it in errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tensorkiln.base.config import Config
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.base.frames import with_frame_room
from tensorkiln.base.nesting import nesting_checked
from tensorkiln.base.plugin import plugin
from tensorkiln.ir.module import IRModule
from tensorkiln.ops.verify import verify
from tensorkiln.passes.depth import deepest_place
from tensorkiln.passes.failure import is_ours, pass_broke, pass_failed
from tensorkiln.passes.instruments import DebugLadder, Dump, PrintAfter
from tensorkiln.passes.step import Instrument, Pass, Step, pass_name


@dataclass(slots=True)
class PassRunner:
    """Runs the pipelines of one compile and verifies the module after each pass that changed it.

    A pass that raises or returns a malformed module is an InternalError if it belongs to this
    package, a UserError if it is the caller's. Both say where the module before the pass was
    written: in the folder `failures`, or in a new temporary one. UserErrors, UnsupportedErrors and
    MemoryErrors of a pass concern the model and propagate.

    Passes from outside the package, and all instruments, see the programs of all kernels, whatever
    the cache knows.
    """

    instruments: tuple[Instrument, ...] = ()
    failures: Path | None = None
    number: int = 0
    verified: dict[int, object] = field(default_factory=dict)

    @with_frame_room
    def run(self, mod: IRModule, pipeline: str, passes: Sequence[Pass]) -> IRModule:
        """The module after all `passes`; `pipeline` names them in messages, such as "relax"."""
        for p in passes:
            self.number += 1
            mod = mod if is_ours(p) else mod.with_programs()
            with nesting_checked(partial(deepest_place, mod)):
                mod = self._one(p, Step(self.number, pipeline, pass_name(p), mod))
        return mod

    def _one(self, p: Pass, step: Step) -> IRModule:
        for i in self.instruments:
            with plugin(f"instrument {type(i).__name__}: before({step.name!r})"):
                i.before(step)
        start = time.perf_counter()
        try:
            new = p(step.before)
        except (UserError, UnsupportedError, MemoryError) as error:
            error.add_note(f"in pass {step.name!r}")
            raise  # about the model or the arguments, not about the pass
        except RecursionError as error:
            if is_ours(p):
                raise  # about what is compiled
            raise pass_failed(p, step, error, self.failures) from error
        except Exception as error:
            raise pass_failed(p, step, error, self.failures) from error
        seconds = time.perf_counter() - start
        if not isinstance(new, IRModule):
            raise UserError(
                f"{step.name} returned {type(new).__name__}, expected an IRModule",
                code="bad-pass",
                where=f"{step.pipeline}_pipeline",
                hint="return the module, the very object it was given when nothing changed",
            )
        if self.instruments:
            new = new.with_programs()
        step_after = replace(step, after=new, seconds=seconds)
        try:
            for i in self.instruments:
                with plugin(f"instrument {type(i).__name__}: after({step.name!r})"):
                    i.after(step_after)
            if step_after.changed:
                verify(new, self.verified)
        except InternalError as error:
            raise pass_broke(p, step, error, self.failures) from error
        return new


def make_runner(
    instruments: Sequence[Instrument], config: Config, passes: Sequence[Pass]
) -> PassRunner:
    """A runner with the caller's instruments and those of `KILN_DEBUG` and `KILN_DUMP`.

    `passes` are all passes of the compile; PrintAfter checks its names against theirs. Raises
    UserError: `bad-instrument` for an object without `before` and `after`, `unknown-pass`.
    """
    for i, instrument in enumerate(instruments):
        methods = all(callable(getattr(instrument, m, None)) for m in ("before", "after"))
        if not methods or isinstance(instrument, type):
            raise UserError(
                f"instruments[{i}] is {instrument!r}, expected an object with the methods before "
                "and after",
                code="bad-instrument",
                hint="tensorkiln.passes.Instrument is what to subclass",
            )
        if isinstance(instrument, PrintAfter):
            instrument.check([pass_name(p) for p in passes])
    all_instruments: list[Instrument] = list(instruments)
    if config.debug:
        all_instruments.append(DebugLadder(config.debug))
    if config.dump is not None:
        all_instruments.append(Dump(config.dump))
    return PassRunner(tuple(all_instruments), config.dump)
