"""A trial of one kernel: which operands it gets, and what it has to compute from them.

Operands are drawn from a seed, so that a trial is a few kilobytes however large they are. What is
right is known at some places of the result, in float64, with what rounding may do there; everywhere
else a kernel is held against another one that was found right at these places.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Reader
from tensorkiln.runtime.tensor import aligned_empty, dtype_named

Array = npt.NDArray[Any]

GUARD = 4096  # bytes before and behind each operand that no kernel may write
PLACES = 4096  # of the result, at which it is known
# Bytes of weights that calls walk over at most, which no core's share of caches holds; and those of
# a kernel from which on they are copied.
_MOST_COLD, _LEAST_COLD = 1 << 27, 1 << 16
_FILL = 0xA5
_UNWRITTEN = 0xFF  # NaN, in floats
_CODE = "bad-trial"


class WrongResult(UserError):
    """A kernel did not compute what it should."""

    code = "wrong-result"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a kernel. `shape` is its logical shape; each of `axes`, in order of memory, is
    (dimension, divisor, modulus, halo): along it lies `(i + halo) // divisor % modulus` of the
    index i of that dimension, without a modulus where that is 0. What is outside of the shape is
    zero."""

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[tuple[int, int, int, int], ...]

    @property
    def physical(self) -> tuple[int, ...]:
        """The shape in memory."""
        return tuple(
            modulus or -(-(self.shape[dim] + 2 * halo) // divisor)
            for dim, divisor, modulus, halo in self.axes
        )

    def inside(self) -> Array:
        """Which elements in memory are of the tensor, in the physical shape."""
        index = self._logical()
        inside = np.ones(self.physical, bool)
        for i, extent in zip(index, self.shape, strict=True):
            inside &= (i >= 0) & (i < extent)
        return inside

    def packed(self, array: Array) -> Array:
        """A logical array as it lies in memory."""
        if self._is_plain():
            return array.reshape(self.physical)
        index = self._logical()
        clipped = [np.clip(i, 0, n - 1) for i, n in zip(index, self.shape, strict=True)]
        elements = array[tuple(np.broadcast_arrays(*clipped))]
        return np.where(self.inside(), elements, np.zeros((), array.dtype))

    def at(self, physical: Array, places: npt.NDArray[np.int64]) -> Array:
        """The elements at flat logical places of an array as it lies in memory."""
        index = np.unravel_index(places, self.shape) if self.shape else ()
        indices = []
        for dim, divisor, modulus, halo in self.axes:
            i = (index[dim] + halo) // divisor
            indices.append(i % modulus if modulus else i)
        return np.asarray(physical[tuple(indices)]).reshape(places.shape)

    def _is_plain(self) -> bool:
        return self.axes == tuple((d, 1, 0, 0) for d in range(len(self.shape)))

    def _logical(self) -> list[Array]:
        """The logical index of each element in memory, by dimension, to be broadcast."""
        indices: list[Array] = [np.zeros((), np.int64) for _ in self.shape]
        rank = len(self.axes)
        for k, ((dim, divisor, _, halo), n) in enumerate(
            zip(self.axes, self.physical, strict=True)
        ):
            along = np.arange(n).reshape([-1 if j == k else 1 for j in range(rank)])
            indices[dim] = indices[dim] + (along * divisor - halo)
        return indices


@dataclass(frozen=True, slots=True)
class Trial:
    """What a kernel is called with, and what has to come out.

    `symbol` is its name in a library; `operands` are its tensors, the result last, `sizes` its
    symbolic dimensions. `want` are the elements at `places()` of the result, and `may` what each
    may be off by: float64, as bytes. With `positive`, no operand has a negative number. `seconds`
    is the time for measuring, `limit` that for a single call; `threads` are those of a call.
    Operands `weights` are constants of a network whose weights are `network_bytes` in all: calls
    find them where they lie when a run of the network comes back to them.
    """

    symbol: str
    operands: tuple[Operand, ...]
    sizes: tuple[int, ...] = ()
    want: bytes = b""
    may: bytes = b""
    seed: int = 0
    positive: bool = False
    seconds: float = 0.2
    limit: float = 10.0
    threads: int = 1
    weights: tuple[int, ...] = ()
    network_bytes: int = 0

    def drawn(self) -> Iterator[Array]:
        """The logical arrays of the operands but the last: floats between -1 and 1, small integers,
        and 0 or 1 of more than 8 bits, which are indices of any dimension."""
        for i, operand in enumerate(self.operands[:-1]):
            rng = np.random.default_rng((self.seed, i))
            yield _drawn(rng, operand, self.positive)

    def places(self) -> npt.NDArray[np.int64]:
        """Flat places of the result in its logical shape, in order: all, if they are not many."""
        count = math.prod(self.operands[-1].shape)
        if count <= PLACES:
            return np.arange(count)
        rng = np.random.default_rng((self.seed, len(self.operands)))
        return np.sort(rng.choice(count, PLACES, replace=False))

    def check(self, result: Array, second_result: Array | None = None) -> None:
        """Raise WrongResult unless a result, as it lies in memory, is right: at the places, in its
        padding, and everywhere as near to `second_result` as two right results are."""
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

    def to_json(self) -> str:
        """All but `want` and `may`."""
        row = asdict(self)
        del row["want"], row["may"]
        return json.dumps(row)


def trial_of(text: str, want: bytes, may: bytes) -> Trial:
    """The inverse of `Trial.to_json`. Raises UserError (code `bad-trial`) for anything else."""
    try:
        row = Reader(json.loads(text), "trial", _CODE)
    except ValueError:
        raise UserError("it is not JSON", code=_CODE, where="trial") from None
    operands = tuple(
        Operand(o.get("dtype", str), _numbers(o, "shape"), _axes(o)) for o in row.rows("operands")
    )
    trial = Trial(
        row.get("symbol", str),
        operands,
        _numbers(row, "sizes"),
        want,
        may,
        row.number("seed"),
        row.flag("positive"),
        row.get("seconds", float),
        row.get("limit", float),
        row.number("threads"),
        _numbers(row, "weights"),
        row.number("network_bytes"),
    )
    if any(i >= len(operands) - 1 for i in trial.weights):
        raise row.wrong("expected places of operands", "weights")
    if not operands or len(want) != len(may) or len(want) != 8 * len(trial.places()):
        raise row.wrong("its result is not known at its places")
    return trial


def _numbers(row: Reader, key: str) -> tuple[int, ...]:
    numbers = row.get(key, list)
    if not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 48 for n in numbers
    ):
        raise row.wrong("expected a list of sizes", key)
    return tuple(numbers)


def _axes(row: Reader) -> tuple[tuple[int, int, int, int], ...]:
    rank = len(row.get("shape", list))
    axes = []
    for axis in row.get("axes", list):
        is_axis = isinstance(axis, list) and len(axis) == 4
        if not is_axis or not all(isinstance(n, int) and n >= 0 for n in axis):
            raise row.wrong("expected axes of four numbers", "axes")
        if axis[0] >= rank or axis[1] < 1:
            raise row.wrong("an axis is of no dimension", "axes")
        axes.append((axis[0], axis[1], axis[2], axis[3]))
    return tuple(axes)


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
    """Raise WrongResult at the element that is the furthest off. NaN agrees with NaN, and infinity
    with what is too large for the type."""
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


class Memory:
    """The operands of a trial in memory, between guards, and any number of results."""

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
        """The inputs of calls in turn: copies of the weights, as many as a network has weights of
        this size, so that each call finds its own as cold as a run of the network does."""
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
        """An array for a result, of bytes that no result has."""
        buffer = self._make(self.trial.operands[-1])
        buffer.view(np.uint8).reshape(-1)[:] = _UNWRITTEN
        return buffer

    def require_guards(self) -> None:
        """Raise WrongResult if anything was written outside of the results."""
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
