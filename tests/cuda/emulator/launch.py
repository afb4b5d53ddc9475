"""Launches of emulated kernels on NumPy arrays, each in memory of its own with nothing around it
that a kernel may touch."""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tensorkiln.codegen.host.tensor_maps import MAP_BYTES, MAPPED_TYPES, TensorMap
from tensorkiln.codegen.ptx.box_pieces import SOURCE_ALIGN
from tests.cuda.emulator.build import FAULTS, build

FORWARD, BACKWARD, RANDOM = 0, 1, 2
_GUARD = 64
CU_TENSOR_MAP_SWIZZLE_128B = 3
_numbers = itertools.count()


class EmulatorFault(Exception):
    """What a kernel did wrong: `kind` is one of `FAULTS`."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(f"{kind}: {message}")


# What is counted, in the order of counts.h.
ACCESSES = ("shared loads", "shared stores", "global loads", "global stores")


@dataclass(frozen=True, slots=True)
class Count:
    """Of accesses of one kind: requests of warps, the turns of banks (shared memory) or sectors
    (global memory) that they take, and the least that would do."""

    requests: int
    turns: int
    fewest_turns: int


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kiln-emulated-")


@dataclass(frozen=True, eq=False)
class MapOf:
    """An argument: the tensor map of an array among the arguments before."""

    map: TensorMap
    args: Sequence[object]


class Emulated:
    """Kernels from their LLVM IR; threads run in an order that may be changed between launches.
    Arrays are copied to addresses that are multiples of an element or, if `aligned`, of 64."""

    aligned = False

    def __init__(self, irs: Iterable[str]):
        out = Path(_folder().name) / f"kernels{next(_numbers)}.so"
        self.library = ctypes.CDLL(str(build(irs, out)))
        self.library.emulator_message.restype = ctypes.c_char_p

    def order(self, order_code: int, seed: int = 0) -> None:
        """Run threads and blocks forward, backward or at random."""
        self.library.emulator_order(order_code, ctypes.c_uint64(seed))

    def products(self, late: bool) -> None:
        """Let products of warpgroups happen when threads wait for them, or when they begin them."""
        self.library.emulator_products(int(late))

    def copies(self, late: bool) -> None:
        """Let asynchronous copies happen when a thread waits for them, or when it begins them."""
        self.library.emulator_copies(int(late))

    @contextmanager
    def counted(self) -> Iterator[dict[str, Count]]:
        """What the launches in a `with` statement ask of memory, by kind of access; the mapping is
        filled when it ends."""
        counts: dict[str, Count] = {}
        self.library.emulator_count(1)
        try:
            yield counts
            numbers = (ctypes.c_uint64 * (3 * len(ACCESSES)))()
            self.library.emulator_counts(numbers)
            rows = zip(ACCESSES, zip(*[iter(numbers)] * 3, strict=True), strict=True)
            counts.update({kind: Count(*row) for kind, row in rows})
        finally:
            self.library.emulator_count(0)

    def run(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        shared: int = 0,
    ) -> None:
        """Launch a kernel on arrays, which it may change, NumPy numbers and tensor maps of some of
        these arrays. Raises EmulatorFault."""
        if 0 in grid:
            return
        arrays = (a for a in args if isinstance(a, np.ndarray))
        memory = {id(a): _Memory(a, 0 if self.aligned else a.itemsize) for a in arrays}
        for m in memory.values():
            assert self.library.emulator_buffer(ctypes.c_void_p(m.start), m.size) == 0
        arguments = [
            memory[id(a)].pointer
            if id(a) in memory
            else self._map(a, memory[id(a.args[a.map.param])].start)
            if isinstance(a, MapOf)
            else _number(a)
            for a in args
        ]
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(g) for g in arguments))
        sizes = [(ctypes.c_uint * 3)(*size) for size in (grid, block)]
        fault = self.library[f"emulate_{name}"](*sizes, ctypes.c_uint(shared), pointers)
        for m in memory.values():
            self.library.emulator_forget(ctypes.c_void_p(m.start))
            m.read()
        if fault:
            raise EmulatorFault(FAULTS[fault], self.library.emulator_message().decode())

    def _map(self, map_argument: MapOf, start: int) -> ctypes.Array[ctypes.c_char]:
        """The map of a tensor, which is zeros where it is not aligned or has no elements."""
        buffer = ctypes.create_string_buffer(2 * MAP_BYTES)
        inside = (ctypes.c_char * MAP_BYTES).from_buffer(
            buffer, -ctypes.addressof(buffer) % MAP_BYTES
        )
        m = map_argument.map
        dims, strides = ([s.at(map_argument.args) for s in sizes] for sizes in (m.dims, m.strides))
        if start % SOURCE_ALIGN == 0 and all(dims):
            windows = () if m.window is None else (m.window.lower, m.window.upper, m.window.steps)
            encode = self.library["emulator_windows" if windows else "emulator_tensor_map"]
            is_valid = encode(
                inside,
                MAPPED_TYPES[m.dtype],
                len(dims),
                ctypes.c_uint64(start),
                (ctypes.c_uint64 * len(dims))(*dims),
                (ctypes.c_uint64 * len(strides))(*strides),
                (ctypes.c_uint32 * len(dims))(*m.box),
                *((ctypes.c_int * len(x))(*x) for x in windows),
                CU_TENSOR_MAP_SWIZZLE_128B,
            )
            assert is_valid, m
        return inside


class _Memory:
    """A copy of an array, `past` bytes behind a multiple of 64."""

    def __init__(self, array: np.ndarray, past: int):
        self.array, self.size = array, ctypes.c_size_t(array.nbytes)
        self.bytes = np.empty(array.nbytes + 3 * _GUARD, np.uint8)
        first = -self.bytes.ctypes.data % _GUARD + _GUARD + past
        self.inside = self.bytes[first : first + array.nbytes]
        self.inside[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.start = self.inside.ctypes.data
        self.pointer = ctypes.c_void_p(self.start)

    def read(self) -> None:
        """Copy the result into the array."""
        if self.array.flags.writeable:
            self.array[...] = self.inside.view(self.array.dtype).reshape(self.array.shape)


def _number(a: object) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a NumPy number as a kernel's parameter has them."""
    return ctypes.create_string_buffer(np.asarray(a).tobytes(), np.asarray(a).itemsize)
