"""`tk.tune`: measured choices for the kernels of a model, where the untuned ones are not best."""

from tensorkiln.runtime.measuring import Measure
from tensorkiln.tuning.emulated import InstructionCount
from tensorkiln.tuning.entry import tune
from tensorkiln.tuning.report import Failed, Tuned, TunedRow

__all__ = ["Failed", "InstructionCount", "Measure", "Tuned", "TunedRow", "tune"]
