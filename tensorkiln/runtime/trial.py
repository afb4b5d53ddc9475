"""A trial of one kernel: its operands, and how its result is checked.

Operands are drawn at random from a seed, so a trial is a few kilobytes long however large they are.
The expected result is computed in float64 at up to `PLACES` elements, each with a bound on the
rounding error. All other elements are compared with the result of another kernel, which was right
at these elements.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from tensorkiln.base.errors import UserError
from tensorkiln.base.record import JsonKind, JsonRecord, json_key
from tensorkiln.base.schema import Reader
from tensorkiln.runtime.tensor import aligned_empty, dtype_named

Array = npt.NDArray[Any]

GUARD = 4096  # bytes before and after each operand that no kernel may write
PLACES = 4096  # the most elements of the result that are checked against float64
# Copies of weights take at most the first number of bytes, more than a core's share of any cache.
# Weights smaller than the second are not copied.
_MOST_COLD, _LEAST_COLD = 1 << 27, 1 << 16
_FILL = 0xA5
_UNWRITTEN = 0xFF  # NaN, in floats
_CODE = "bad-trial"


class WrongResult(UserError):
    """A kernel computed a wrong result, or wrote outside of its result."""

    code = "wrong-result"


def _axes(reader: Reader, key: str) -> tuple[tuple[int, int, int, int], ...]:
    axes = []
    for axis in reader.get(key, list):
        is_axis = isinstance(axis, list) and len(axis) == 4
        if not is_axis or not all(type(n) is int and n >= 0 for n in axis):
            raise reader.wrong("expected axes of four numbers", key)
        axes.append((axis[0], axis[1], axis[2], axis[3]))
    return tuple(axes)


@dataclass(frozen=True, slots=True)
class Operand(JsonRecord):
    """A tensor of a kernel, in the layout in which the kernel reads or writes it. `shape` is its
    logical shape. `axes` are the dimensions of the array in memory, outermost first, each
    (dimension, divisor, modulus, halo): its index is `(i + halo) // divisor % modulus`, where i is
    the index of that logical dimension; modulus 0 means no modulus. Elements in memory that
    correspond to no logical element are zero."""

    dtype: str
    shape: tuple[int, ...]
    axes: Annotated[tuple[tuple[int, int, int, int], ...], JsonKind(_axes)]

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        if any(axis[0] >= len(self.shape) or axis[1] < 1 for axis in self.axes):
            raise reader.wrong("an axis is of no dimension", "axes")

    @property
    def physical(self) -> tuple[int, ...]:
        """The shape of the array in memory."""
        return tuple(
            modulus or -(-(self.shape[dim] + 2 * halo) // divisor)
            for dim, divisor, modulus, halo in self.axes
        )

    def inside(self) -> Array:
        """A mask of the physical shape: True where an element in memory belongs to the logical
        tensor, False in padding."""
        index = self._logical()
        inside = np.ones(self.physical, bool)
        for i, extent in zip(index, self.shape, strict=True):
            inside &= (i >= 0) & (i < extent)
        return inside

    def packed(self, array: Array) -> Array:
        """A logical array copied into the layout in memory."""
        if self._is_plain():
            return array.reshape(self.physical)
        index = self._logical()
        clipped = [np.clip(i, 0, n - 1) for i, n in zip(index, self.shape, strict=True)]
        elements = array[tuple(np.broadcast_arrays(*clipped))]
        return np.where(self.inside(), elements, np.zeros((), array.dtype))

    def at(self, physical: Array, places: npt.NDArray[np.int64]) -> Array:
        """The elements at flat indices of the logical tensor, from an array in the layout in
        memory."""
        index = np.unravel_index(places, self.shape) if self.shape else ()
        indices = []
        for dim, divisor, modulus, halo in self.axes:
            i = (index[dim] + halo) // divisor
            indices.append(i % modulus if modulus else i)
        return np.asarray(physical[tuple(indices)]).reshape(places.shape)

    def _is_plain(self) -> bool:
        return self.axes == tuple((d, 1, 0, 0) for d in range(len(self.shape)))

    def _logical(self) -> list[Array]:
        """The logical index of each element in memory: one array for each dimension, which
        broadcast together."""
        indices: list[Array] = [np.zeros((), np.int64) for _ in self.shape]
        rank = len(self.axes)
        for k, ((dim, divisor, _, halo), n) in enumerate(
            zip(self.axes, self.physical, strict=True)
        ):
            along = np.arange(n).reshape([-1 if j == k else 1 for j in range(rank)])
            indices[dim] = indices[dim] + (along * divisor - halo)
        return indices


@dataclass(frozen=True, slots=True)
class Trial(JsonRecord):
    """The arguments of a kernel's call, and its expected result. `symbol` is the kernel's name in a
    library; `operands` are its tensors, the result last, `sizes` its symbolic dimensions. `want`
    has the expected elements at `places()` of the result and `may` their permitted absolute errors:
    float64, as bytes. With `positive`, no operand has a negative number. `seconds` is the time for
    measuring, `limit` the time after which a single call counts as hung; `threads` are those of a
    call. The operands numbered `weights` are constants of a network whose weights have
    `network_bytes` in total: they are measured cold in cache, as a run of the whole network finds
    them."""

    symbol: str
    operands: tuple[Operand, ...]
    sizes: tuple[int, ...] = ()
    want: bytes = field(default=b"", metadata=json_key(hidden=True))
    may: bytes = field(default=b"", metadata=json_key(hidden=True))
    seed: int = 0
    positive: bool = False
    seconds: float = 0.2
    limit: float = 10.0
    threads: int = 1
    weights: tuple[int, ...] = ()
    network_bytes: int = 0

    def drawn(self) -> Iterator[Array]:
        """The logical arrays of all operands but the last: floats between -1 and 1, small integers,
        and 0 or 1 for integers of more than 8 bits, since these may be indices into a dimension of
        any size."""
        for i, operand in enumerate(self.operands[:-1]):
            rng = np.random.default_rng((self.seed, i))
            yield _drawn(rng, operand, self.positive)

    def places(self) -> npt.NDArray[np.int64]:
        """The flat logical indices of the result's elements that are checked against float64,
        ascending: all elements of a small result, a sample of a large one."""
        count = math.prod(self.operands[-1].shape)
        if count <= PLACES:
            return np.arange(count)
        rng = np.random.default_rng((self.seed, len(self.operands)))
        return np.sort(rng.choice(count, PLACES, replace=False))

    def check(self, result: Array, second_result: Array | None = None) -> None:
        """Raise WrongResult unless a result, in its layout in memory, is right: at its places
        within `may` of `want`, zero in its padding and, if there is `second_result`, everywhere
        within twice the largest permitted error of that result."""
        out = self.operands[-1]
        want, may = np.frombuffer(self.want), np.frombuffer(self.may)
        places = self.places()
        have = out.at(result, places)
        _require_near(have, want, may, lambda k: np.unravel_index(int(places[k]), out.shape))
        if not out._is_plain():
            outside = ~out.inside()
            if np.any(result[outside].astype(np.float64) != 0):
                place = np.argwhere(outside & (result.astype(np.float64) != 0))[0]
                raise WrongResult(f"its padding in memory is not zero at {place.tolist()}")
        if second_result is not None:
            tolerance = np.full(result.size, 2 * float(np.nanmax(may, initial=0.0)))
            flat, reference = result.reshape(-1), second_result.reshape(-1).astype(np.float64)
            _require_near(flat, reference, tolerance, lambda k: np.unravel_index(k, result.shape))

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        if any(i >= len(self.operands) - 1 for i in self.weights):
            raise reader.wrong("expected places of operands", "weights")


def trial_of(text: bytes, want: bytes, may: bytes) -> Trial:
    """The trial that JSON describes, with its result. Raises UserError (code `bad-trial`) for
    anything else."""
    reader = Reader.of_text(text, "trial", _CODE)
    trial = replace(Trial.read(reader), want=want, may=may)
    if not trial.operands or len(want) != len(may) or len(want) != 8 * len(trial.places()):
        raise reader.wrong("its result is not known at its places")
    return trial


def _drawn(rng: np.random.Generator, operand: Operand, positive: bool) -> Array:
    dtype, shape = dtype_named(operand.dtype), operand.shape
    if (dtype.kind in "biu" and dtype.itemsize > 1) or dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low = 0 if positive or dtype.kind == "u" else -128
        return rng.integers(low, 128 + 128 * (dtype.kind == "u"), shape).astype(dtype)
    return rng.uniform(0.0 if positive else -1.0, 1.0, shape).astype(dtype)


def _require_near(
    have: Array, want: Array, may: Array, place: Callable[[int], Sequence[Any]]
) -> None:
    """Raise WrongResult for the element with the largest error, if it is too large. NaN equals NaN,
    and infinity equals a number that is too large for the type."""
    with np.errstate(all="ignore"):
        a = have.astype(np.float64)
        rounded = want.astype(have.dtype).astype(np.float64)
        deviation = np.abs(a - want)
        right = (deviation <= may) | (a == want) | (np.isnan(a) & np.isnan(want))
        right |= np.isinf(a) & (a == rounded)
    if right.all():
        return
    deviation = np.where(right, -1.0, np.where(np.isnan(deviation), np.inf, deviation))
    k = int(np.argmax(deviation))
    index = [int(i) for i in place(k)]
    raise WrongResult(
        f"{int(np.count_nonzero(~right))} of {right.size} elements are wrong: at {index} it is "
        f"{a[k]:.9g}, expected {want[k]:.9g}"
    )


class TrialMemory:
    """The operands of a trial in memory between guard bytes, and arrays for results."""

    def __init__(self, trial: Trial):
        self.trial = trial
        self.inputs = []
        self._raw: list[tuple[Array, Array]] = []
        for operand, array in zip(trial.operands[:-1], trial.drawn(), strict=True):
            buffer = self._make(operand)
            buffer[...] = operand.packed(array)
            self.inputs.append(buffer)
        self._sums = [zlib.crc32(raw.data) for raw, _ in self._raw]
        self._inputs = len(self._raw)

    def walk(self) -> list[list[Array]]:
        """The inputs that successive calls take in turn: as many copies of the kernel's weights as
        fill the size of the network's weights, so that each call finds its weights as cold in cache
        as a run of the network does."""
        trial = self.trial
        size = sum(self.inputs[i].nbytes for i in trial.weights)
        count = min(trial.network_bytes, _MOST_COLD) // size if size >= _LEAST_COLD else 0
        return [self.inputs, *(self._copied() for _ in range(count - 1))]

    def _copied(self) -> list[Array]:
        inputs = list(self.inputs)
        for i in self.trial.weights:
            inputs[i] = aligned_empty(inputs[i].shape, inputs[i].dtype)
            inputs[i][...] = self.inputs[i]
        return inputs

    def result(self) -> Array:
        """An array for a result, filled with bytes that a correct result does not have."""
        buffer = self._make(self.trial.operands[-1])
        buffer.view(np.uint8).reshape(-1)[:] = _UNWRITTEN
        return buffer

    def require_guards(self) -> None:
        """Raise WrongResult if a kernel wrote to an operand or outside of its results."""
        for i, (raw, inner) in enumerate(self._raw):
            if i < self._inputs:
                if zlib.crc32(raw.data) != self._sums[i]:
                    raise WrongResult(f"it wrote to its operand {i}, or beside it")
                continue
            end = raw.nbytes - GUARD
            if not (np.all(raw[:GUARD] == _FILL) and np.all(raw[end:] == _FILL)):
                raise WrongResult("it wrote outside of its result")
            assert inner.nbytes == raw.nbytes - 2 * GUARD

    def _make(self, operand: Operand) -> Array:
        dtype = dtype_named(operand.dtype)
        size = math.prod(operand.physical) * dtype.itemsize
        raw = aligned_empty((size + 2 * GUARD,), np.dtype(np.uint8))
        raw[:] = _FILL
        inner: Array = np.ndarray(operand.physical, dtype, raw, GUARD)
        self._raw.append((raw, inner))
        return inner
