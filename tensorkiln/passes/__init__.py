"""Passes and instruments: their types, and the runner of a pipeline."""

from tensorkiln.passes.diff import module_diff
from tensorkiln.passes.instruments import DebugLadder, Dump, PrintAfter, Timing, Verify
from tensorkiln.passes.resolve import resolve
from tensorkiln.passes.run import PassRunner, make_runner
from tensorkiln.passes.step import Instrument, Pass, Pipeline, Step, pass_name

__all__ = [
    "DebugLadder",
    "Dump",
    "Instrument",
    "Pass",
    "PassRunner",
    "Pipeline",
    "PrintAfter",
    "Step",
    "Timing",
    "Verify",
    "make_runner",
    "module_diff",
    "pass_name",
    "resolve",
]
