"""What a compiled module needs of memory: measured in its plan, reported, held against budgets."""

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
