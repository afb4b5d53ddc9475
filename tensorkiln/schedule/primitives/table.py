"""Every primitive by name: what traces may call, and what a Schedule has as methods."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.primitives.distribute import fission
from tensorkiln.schedule.primitives.loops import (
    fuse,
    partition,
    peel,
    reorder,
    split,
    split_even,
    tile,
)
from tensorkiln.schedule.primitives.marks import annotate, bind, parallel, unroll, vectorize

PRIMITIVES: dict[str, Callable[..., PrimFunc]] = {
    "split": split,
    "split_even": split_even,
    "partition": partition,
    "peel": peel,
    "fuse": fuse,
    "fission": fission,
    "reorder": reorder,
    "tile": tile,
    "vectorize": vectorize,
    "unroll": unroll,
    "parallel": parallel,
    "bind": bind,
    "annotate": annotate,
}
