"""Links a model, and a program that calls an object of a caller's (the second argument), in memory
after it has left only pieces of the address space free: pieces of some pages (the first argument)
and, 3 GB below them, everything else."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

import tensorkiln as tk
from tensorkiln.script import R, T

PAGE = 4096
RESERVED = 0x4022  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE; no access

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@tk.script.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((40, 80), "float32"), w: R.Tensor((80, 160), "float32")):  # noqa: ANN201
        y = R.gelu(R.linear(x, w))
        z = R.softmax(y, axis=1)
        return z


@tk.script.ir_module
class Calls:
    @T.prim_func
    def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):  # noqa: ANN201
        for i in range(4):
            Y[i] = T.call_extern("float32", "extra", X[i])


def reserve(size: int) -> int:
    """The highest place where `size` bytes are free, from now on taken."""
    return int(libc.mmap(None, size, 0, RESERVED, -1, 0))


def fill_above(place: int) -> None:
    """Leave nothing free above an address."""
    size = 1 << 29
    while size >= PAGE:
        found = reserve(size)
        if found < place:
            libc.munmap(found, size)
            size //= 2


def scatter(piece: int) -> None:
    fill_above(reserve(1 << 30))
    pieces = []
    for _ in range(500):
        pieces.append(reserve(piece))
        reserve(PAGE)
    fill_above(reserve(3 << 30))
    for place in pieces:
        libc.munmap(place, piece)


def main() -> None:
    begin: Callable[..., None] = llvm.JITLibraryBuilder.__init__

    def scattered(*args: object) -> None:
        begin(*args)
        scatter(PAGE * int(sys.argv[1]))

    llvm.JITLibraryBuilder.__init__ = scattered
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((40, 80), (80, 160)))
    y = np.zeros(4, np.float32)
    tk.compile(Calls, "llvmjit").jit(addons=[sys.argv[2]])["f"](np.zeros(4, np.float32), y)
    assert y.tolist() == [599.25] * 4
    found = np.asarray(tk.compile(Model, "llvmjit")(x, w))
    wanted = np.asarray(tk.compile(Model, "native")(x, w))
    print("right" if np.allclose(found, wanted, rtol=1e-4, atol=1e-7) else "wrong")


if __name__ == "__main__":
    main()
