"""Instructions that `tensorize` knows by name."""

from tensorkiln.schedule.intrin.dot import DOT4_I8, DOT4_ROW_I8
from tensorkiln.schedule.intrin.fma import FMA_ROWS
from tensorkiln.schedule.intrin.reduce import REDUCTIONS
from tensorkiln.schedule.primitives.tensorize import Instruction

INSTRUCTIONS: dict[str, Instruction] = {
    i.name: i for i in (*FMA_ROWS, DOT4_I8, DOT4_ROW_I8, *REDUCTIONS)
}
