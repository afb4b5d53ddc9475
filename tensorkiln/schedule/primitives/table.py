"""Every primitive by name: the functions that traces call, and the methods of a Schedule."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.primitives.caches import cache_read
from tensorkiln.schedule.primitives.compute_at import compute_at
from tensorkiln.schedule.primitives.cooperative import cooperative
from tensorkiln.schedule.primitives.distribute import fission
from tensorkiln.schedule.primitives.inline import compute_inline
from tensorkiln.schedule.primitives.layout import pad, set_scope, storage_align, transform_layout
from tensorkiln.schedule.primitives.loops import partition, split, split_even
from tensorkiln.schedule.primitives.marks import annotate, bind, parallel, unroll, vectorize
from tensorkiln.schedule.primitives.nests import fuse, reorder, tile
from tensorkiln.schedule.primitives.pad_loop import pad_loop
from tensorkiln.schedule.primitives.pipeline import pipeline
from tensorkiln.schedule.primitives.prefetch import prefetch, prefetch_next
from tensorkiln.schedule.primitives.rfactor import rfactor
from tensorkiln.schedule.primitives.sums import compose_reduction, decompose_reduction
from tensorkiln.schedule.primitives.tensorize import tensorize

PRIMITIVES: dict[str, Callable[..., PrimFunc]] = {
    p.__name__: p
    for p in (
        *(split, split_even, partition, fuse, fission, reorder, tile),
        *(vectorize, unroll, parallel, bind, annotate, prefetch, prefetch_next),
        *(compute_at, compute_inline, cache_read),
        *(decompose_reduction, compose_reduction, rfactor),
        *(set_scope, storage_align, transform_layout, pad, tensorize, pad_loop),
        *(cooperative, pipeline),
    )
}
