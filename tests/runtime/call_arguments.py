"""Random arguments of calls: tensors of every layout and origin, things that lie, numbers, others;
and, without asking the library, which a parameter takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tensorkiln.runtime import Tensor
from tests.exports import Exports, Lies
from tests.runtime import scalars
from tests.runtime.scalars import FLOATS, INTEGERS, numpy_type

_GUARD = 64  # bytes around each tensor, which no call may touch
LAYOUTS = ("C", "C", "C", "F", "gaps", "negative", "zero", "odd", "huge")
ORIGINS = ("numpy", "numpy", "numpy", "tensor", "torch", "dlpack", "subclass", "locked")
_TORCH = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


class Subclass(np.ndarray):
    """An array of another class."""


@dataclass(frozen=True)
class View:
    """A tensor in a block of memory: strides and offset count bytes."""

    block: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any  # of NumPy
    origin: str = "numpy"
    lie: str = ""

    def array(self, blocks: Sequence[Any]) -> Any:
        """As NumPy has it."""
        base = np.ndarray((), self.dtype, blocks[self.block], self.offset)
        return np.lib.stride_tricks.as_strided(base, self.shape, self.strides)

    def argument(self, blocks: Sequence[Any]) -> object:
        """What is passed."""
        array = self.array(blocks)
        if self.lie:
            return Lies(array, self.lie)
        match self.origin:
            case "tensor":
                return Tensor(array)
            case "torch":
                import torch

                return torch.from_numpy(array)
            case "dlpack":
                return Exports(array)
            case "subclass":
                return array.view(Subclass)
            case "locked":
                array.flags.writeable = False
        return array

    def taken(self, dtype: str, written: bool) -> bool:
        """Whether a parameter of this type may be given it, shapes aside."""
        if self.dtype != numpy_type(dtype) or not self.dtype.isnative or self.lie:
            return False
        if written and self.origin == "locked":
            return False
        exported = self.origin == "dlpack"
        if exported and dtype == "bfloat16":
            return False  # NumPy has no export of it
        steps = zip(self.shape, self.strides, strict=True)
        odd = any(s % self.dtype.itemsize for n, s in steps if n > 1)
        return not (odd and (written or exported))


def memory(rng: Random, blocks: list[Any], size: int, dtype: Any) -> int:
    """A new block for that many bytes, with small numbers and no NaN; its place."""
    room = np.zeros(size + 2 * _GUARD + 64, np.uint8)
    start = -room.ctypes.data % 64
    block = room[start : start + size + 2 * _GUARD]
    seed = np.random.default_rng(rng.getrandbits(32))
    if dtype == np.bool_ or (dtype.kind not in "iuf" and dtype.name != "bfloat16"):
        block[:] = seed.integers(0, 2, len(block))
    else:
        count = len(block) // dtype.itemsize
        numbers = seed.integers(0 if dtype.kind == "u" else -100, 100, count).astype(dtype)
        block[: count * dtype.itemsize] = numbers.view(np.uint8)
    blocks.append(block)
    return len(blocks) - 1


def view(rng: Random, blocks: list[Any], shape: tuple[int, ...], dtype: Any) -> View:
    """A new tensor, in any layout and from any origin that has such tensors."""
    layout, size = rng.choice(LAYOUTS), dtype.itemsize
    order = list(range(len(shape)))
    if layout == "F":
        order.reverse()
    strides, step = [0] * len(shape), size
    for d in reversed(order):
        strides[d] = step
        step *= max(1, shape[d])
    if layout == "gaps":
        strides = [2 * s for s in strides]
    if layout == "odd" and size > 1 and shape:
        strides = [s + (size // 2 if d == 0 else 0) for d, s in enumerate(strides)]
    if shape and layout in ("negative", "zero"):
        strides[0] *= -1 if layout == "negative" else 0
    if layout == "huge":
        strides = [1 << 40 if n == 1 else s for s, n in zip(strides, shape, strict=True)]
    spans = [s * (n - 1) for s, n in zip(strides, shape, strict=True) if n > 1]
    below, above = -sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    shift = rng.choice((0, 0, size, 1 if size > 1 else 0))
    block = memory(rng, blocks, below + above + size + shift, dtype)
    origin = rng.choice(ORIGINS)
    plain = layout in ("C", "F", "gaps") and shift % size == 0 and dtype.isnative
    if origin == "torch" and not (plain and dtype.name in _TORCH):
        origin = "numpy"
    return View(block, _GUARD + below + shift, shape, tuple(strides), dtype, origin)


def overlapping(rng: Random, base: View, blocks: list[Any], shape: tuple[int, ...]) -> View | None:
    """A tensor in the memory of another one, without gaps; None where there is no room."""
    size = base.dtype.itemsize
    bytes_ = size * math.prod(shape)
    room = len(blocks[base.block]) - 2 * _GUARD - bytes_
    if room < 0:
        return None
    offset = _GUARD + rng.randrange(room // size + 1) * size
    strides = tuple(size * math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return View(base.block, offset, shape, strides, base.dtype)


# ---- numbers ------------------------------------------------------------------------------------

_KINDS = (np.int8, np.uint16, np.int64, np.uint64, np.float16, np.float32, np.float64, np.bool_)
JUNK = (
    None,
    "x",
    b"1",
    [1.0],
    (1,),
    {"a": 1},
    object(),
    1j,
    np.complex64(1),
    np.datetime64(3, "s"),
    np.timedelta64(3, "s"),
    np.str_("1"),
    slice(3),
    int,
    [],
    (),
    NotImplemented,
    Ellipsis,
    float,
)


def number(rng: Random, dtype: str) -> Any:
    """A number for a parameter of this type, right or not."""
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(scalars.good_values(dtype))
    if kind < 0.82:
        return rng.choice(scalars.bad_values(dtype))[0]
    if kind < 0.92:
        return rng.choice(_KINDS)(rng.choice((0, 1, 3, 100)))
    return rng.choice((True, False, 2**40, -5, 1e10, -0.0, math.inf, FLOATS["bfloat16"](1.5)))


def converted(dtype: str, value: Any) -> Any:
    """The number as an element of that type; None where it is no number that the type holds."""
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
            return None
        real = value.dtype.kind in "fV"
        value = float(value) if real else bool(value) if value.dtype.kind == "b" else int(value)
    if isinstance(value, bool):
        return None if dtype in FLOATS else numpy_type(dtype).type(value)
    if isinstance(value, int) and dtype not in FLOATS:
        unsigned, bits = INTEGERS.get(dtype, ("u", 1))
        low, high = (0, 1 << bits) if unsigned else (-1 << bits - 1, 1 << bits - 1)
        return numpy_type(dtype).type(value) if low <= value < high else None
    if dtype not in FLOATS or not isinstance(value, int | float):
        return None
    try:
        wide = np.array(float(value))
    except OverflowError:
        return None
    with np.errstate(all="ignore"):
        number = wide.astype(FLOATS[dtype])
    return number[()] if np.isfinite(wide) == np.isfinite(number) else None
