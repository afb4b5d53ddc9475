"""Arrays of every layout and size that is legal, for Python callers."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np

from tests.runtime.scalars import numpy_type
from tests.safety.libraries import DTYPES

SMALL = (0, 1, 1, 2, 2, 3, 5, 17)
HUGE = (1 << 31, (1 << 31) + 1, 1 << 32, 1 << 60)
RANKS = (0, 1, 1, 2, 2, 3, 3, 4, 8, 15, 16, 17, 32, 63, 64)
LAYOUTS = ("C", "C", "F", "gaps", "negative", "overlap", "zero", "odd", "locked")
_MOST = 1 << 62  # bytes that NumPy lets an array seem to have


def array(rng: Random, shape: tuple[int, ...], dtype: str) -> Any:
    """One of that shape and type; of sizes that no memory has room for by strides of 0."""
    kind = numpy_type(dtype)
    if any(size > 1000 for size in shape):
        return _broadcast(rng, shape, kind)
    layout = rng.choice(LAYOUTS)
    count = math.prod(shape)
    numbers = np.array([rng.randrange(2 if dtype == "bool" else 9) for _ in range(count)])
    whole = numbers.astype(kind).reshape(shape)
    match layout:
        case "F":
            return np.asfortranarray(whole)
        case "gaps" if shape:
            room = np.zeros((2 * shape[0], *shape[1:]), kind)
            room[::2] = whole
            return room[::2]
        case "negative" if shape:
            return whole[::-1].copy()[::-1]
        case "overlap" if count > 1:
            row = np.arange(sum(shape)).astype(kind)
            return np.lib.stride_tricks.as_strided(row, shape, (kind.itemsize,) * len(shape))
        case "zero" if shape and shape[0]:
            return np.broadcast_to(whole[:1], shape)
        case "odd" if count:
            room = np.zeros(whole.nbytes + 1, np.uint8)
            moved = np.ndarray(shape, kind, room, 1)
            moved[...] = whole
            return moved
        case "locked":
            whole.flags.writeable = False
    return whole


def _broadcast(rng: Random, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    """NumPy refuses more than 2**63 bytes in all: sizes are halved until it does not."""
    sizes = list(shape)
    while math.prod(size for size in sizes if size) * kind.itemsize > _MOST:
        k = sizes.index(max(sizes))
        sizes[k] = max(1, sizes[k] >> 16)
    return np.broadcast_to(np.array(rng.randrange(3)).astype(kind), sizes)


def any_array(rng: Random) -> Any:
    """One of any rank, sizes and type."""
    rank, huge, count = rng.choice(RANKS), rng.random() < 0.25, 1
    shape = []
    for _ in range(rank):
        size = rng.choice(HUGE) if huge and rng.random() < 0.4 else rng.choice(SMALL)
        if rank > 4 and rng.random() < 0.8:
            size = 1
        if 1 < size < 1000 and (count := count * size) > 3000:
            size = 1
        shape.append(size)
    return array(rng, tuple(shape), rng.choice(DTYPES))


def bind(
    rng: Random, dims: tuple[int | str, ...], sizes: dict[str, int], huge: bool
) -> tuple[int, ...]:
    """A shape for a parameter's dimensions; symbols get their sizes at their first use."""
    for dim in dims:
        if isinstance(dim, str) and dim not in sizes:
            sizes[dim] = rng.choice(HUGE if huge and rng.random() < 0.6 else (1, 2, 3, 5, 17, 0))
    return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in dims)
