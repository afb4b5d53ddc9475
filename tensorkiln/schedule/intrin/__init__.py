"""The instructions that `tensorize` takes by name."""

from __future__ import annotations

from functools import cache

from tensorkiln.schedule.intrin.device import device_named
from tensorkiln.schedule.intrin.dot import DOT4_I8, DOT4_ROW_I8, DOT_LANES, PAIRS
from tensorkiln.schedule.intrin.fma import FMA_ROWS
from tensorkiln.schedule.intrin.reduce import reduce_named
from tensorkiln.schedule.intrin.shift import shift_named
from tensorkiln.schedule.intrin.tiles import tile_named
from tensorkiln.schedule.intrin.transpose import COLUMNS, transpose_named
from tensorkiln.schedule.intrin.warp import warp_named
from tensorkiln.schedule.intrin.warpgroup import warpgroup_named
from tensorkiln.schedule.primitives.instruction import Instruction

INSTRUCTIONS: dict[str, Instruction] = {
    i.name: i for i in (*FMA_ROWS, DOT4_I8, DOT4_ROW_I8, *DOT_LANES, *PAIRS, *COLUMNS)
}
# Members of the families that have one for every number of lanes, to be listed in hints.
EXAMPLES = (
    *("sum_16", "max_16", "min_16", "sum_8_float64", "shift_1_16", "transpose_16x16"),
    *("tile_zero_16x16_int32", "tile_copy_16x64_uint8", "tile_dot4_16x16x16"),
    *("tile_copy_16x32_bfloat16", "tile_dot2_bf16_16x16x16"),
    *("transpose_16x16x2_bfloat16", "interleave_2x16_bfloat16"),
    *("copy_4", "copy_4_to_shared", "thread_fma_4", "thread_dot4", "thread_load_half_4"),
    *("subgroup_sum_32", "subgroup_max_32", "subgroup_min_32", "thread_round_tf32_4"),
    *("warp_mma_m16n8k16_float16", "warp_load_matrix_4_float16"),
    "warpgroup_mma_m64n128k64_float16",
)


@cache
def instruction(name: str) -> Instruction | None:
    """The instruction called `name`; None for an unknown name."""
    of_threads = device_named, warp_named, warpgroup_named
    families = (reduce_named, shift_named, transpose_named, tile_named, *of_threads)
    candidates = (family(name) for family in families)
    return INSTRUCTIONS.get(name) or next((i for i in candidates if i is not None), None)
