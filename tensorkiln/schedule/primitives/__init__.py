"""Schedule primitives: pure functions from a tensor program to one that computes the same.

They refer to loops and blocks by name (docs/schedules.md). Each first brings the program into
normal form (`schedule/tree/normalise.py`): names are unique, and every side effect is in a
straight-line block. One that changes an order asks `schedule/proofs/legality.py` whether all
dependences are kept. A new primitive is a row of `table.py`, and of the tables of random schedules
in the tests.
"""

from tensorkiln.schedule.primitives.caches import cache_read
from tensorkiln.schedule.primitives.compute_at import compute_at
from tensorkiln.schedule.primitives.cooperative import cooperative
from tensorkiln.schedule.primitives.distribute import fission
from tensorkiln.schedule.primitives.inline import compute_inline
from tensorkiln.schedule.primitives.instruction import Instruction
from tensorkiln.schedule.primitives.layout import pad, set_scope, storage_align, transform_layout
from tensorkiln.schedule.primitives.loops import partition, split, split_even
from tensorkiln.schedule.primitives.marks import annotate, bind, parallel, unroll, vectorize
from tensorkiln.schedule.primitives.nests import fuse, reorder, tile
from tensorkiln.schedule.primitives.pad_loop import pad_loop
from tensorkiln.schedule.primitives.pipeline import pipeline
from tensorkiln.schedule.primitives.prefetch import prefetch, prefetch_next
from tensorkiln.schedule.primitives.results import (
    Cooperative,
    Fission,
    Nest,
    Partition,
    Rfactor,
    Split,
    SplitEven,
    Tile,
)
from tensorkiln.schedule.primitives.rfactor import rfactor
from tensorkiln.schedule.primitives.sums import compose_reduction, decompose_reduction
from tensorkiln.schedule.primitives.table import PRIMITIVES
from tensorkiln.schedule.primitives.tensorize import tensorize
from tensorkiln.schedule.primitives.trace import Schedule, Trace, TraceStep, replay
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.navigate import (
    block,
    blocks,
    children,
    loop,
    loops,
    loops_of,
    parent,
    role,
)
from tensorkiln.schedule.tree.normalise import normal

__all__ = [
    "PRIMITIVES",
    "Cooperative",
    "Fission",
    "Instruction",
    "Nest",
    "Partition",
    "Rfactor",
    "Schedule",
    "ScheduleError",
    "Split",
    "SplitEven",
    "Tile",
    "Trace",
    "TraceStep",
    "annotate",
    "bind",
    "block",
    "blocks",
    "cache_read",
    "children",
    "compose_reduction",
    "compute_at",
    "compute_inline",
    "cooperative",
    "decompose_reduction",
    "fission",
    "fuse",
    "loop",
    "loops",
    "loops_of",
    "normal",
    "pad",
    "pad_loop",
    "parallel",
    "parent",
    "partition",
    "pipeline",
    "prefetch",
    "prefetch_next",
    "reorder",
    "replay",
    "require_order",
    "rfactor",
    "role",
    "set_scope",
    "split",
    "split_even",
    "storage_align",
    "tensorize",
    "tile",
    "transform_layout",
    "unroll",
    "vectorize",
]  # fmt: skip
