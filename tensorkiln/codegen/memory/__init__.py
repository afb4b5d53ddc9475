"""What a compiled module needs of memory: measured in its plan, reported, held against budgets.

`live.py` reads a planned graph back: which call accesses which bytes, which value lives when.
`measure.py` makes `Executable.memory()` of that, and `budget.py` refuses a plan that exceeds
`max_workspace` or a pool of the target, before code is generated. `weights.py` compares the weights
of the library with those of the model. A function's workspace ends with the last byte that a run
writes; tests/link/test_memory_touched.py runs on storages of that size before unmapped pages.
"""

from tensorkiln.codegen.memory.figures import (
    FunctionMemory,
    InputOutput,
    LiveTensor,
    Peak,
    PoolMemory,
    WeightCause,
    WeightMemory,
)
from tensorkiln.codegen.memory.report import MemoryReport

__all__ = [
    "FunctionMemory",
    "InputOutput",
    "LiveTensor",
    "MemoryReport",
    "Peak",
    "PoolMemory",
    "WeightCause",
    "WeightMemory",
]
