"""Every class of device kernels with arrays at a small shape: device functions to be changed,
launched on the emulator, and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import Alloc, CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.choose import schedule_group
from tests.cuda.emulator.launch import Emulated
from tests.cuda.test_kernels import CUDA
from tests.schedule.battery import extent_of
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.gpu.runner import Kernels, groups_for
from tests.schedule.gpu.test_device_primitives import tiled_product, transposed
from tests.transform.graphs import graph

SIZES = {"N": 3, "S": 20}
# Beside the compiler's own kernels: what schedules of users make, by primitives.
SCHEDULED = {
    "product_one_stage": lambda: tiled_product(1),
    "product_three_stages": lambda: tiled_product(3),
    "transpose_shared": transposed,
    "transpose_swizzled": lambda: transposed("before"),
}
NAMES = (*KERNELS, *SCHEDULED)
# Takes seconds as a whole: the first block only.
ONE_BLOCK = {"linear_large"}


@dataclass(frozen=True, slots=True)
class Launched:
    """A device function, called after its class, with what one launch of it takes. The last of the
    buffers among `args` are what it writes."""

    func: PrimFunc
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[object, ...]

    def run(self, kernels: Emulated, name: str = "") -> None:
        """Launch it on copies of its arrays, or a variant of it by its name."""
        args = [a.copy() if isinstance(a, np.ndarray) else a for a in self.args]
        shared = launch_of(self.func).shared_bytes
        kernels.run(name or self.func.name, self.grid, self.block, args, shared)


@cache
def launched(name: str) -> tuple[Launched, ...]:
    """The launches of a class, in order. Arrays are of small numbers, the results of fours."""
    if name in SCHEDULED:
        scheduled = SCHEDULED[name]()
    else:
        build, shape, _ = KERNELS[name]
        *_, group = groups_for(graph(build, x=shape), CUDA)
        scheduled = schedule_group(group, CUDA)
    made = Kernels([scheduled], CUDA)
    rng = np.random.default_rng(0)
    between = {
        s.buffer: np.full([extent_of(n, SIZES) for n in s.buffer.shape], 4, s.buffer.dtype.name)
        for s in walk_stmt(made.func(f"run_{made.names[0]}").body)
        if isinstance(s, Alloc)
    }
    found = []
    for i, call in enumerate(made.launches(made.names[0])):
        f = made.func(call.name)
        named = replace(f, name=f"{name}_{i}" if i else name)
        found.append(_launched(named, call, between, rng))
    return tuple(found)


def _launched(
    f: PrimFunc, call: CallKernel, between: Mapping[Buffer, np.ndarray], rng: np.random.Generator
) -> Launched:
    own = [a.buffer if isinstance(a, AddressOf) else None for a in call.args]
    args = [
        _argument(p, between.get(b) if b else None, rng) for p, b in zip(f.params, own, strict=True)
    ]
    grid = [extent_of(n, SIZES) for n in call.grid]
    name = f.name
    return Launched(
        f, tuple([1] * 3 if name in ONE_BLOCK else grid), tuple(call.block), tuple(args)
    )


def _argument(p: Buffer | Var, known: np.ndarray | None, rng: np.random.Generator) -> object:
    if not isinstance(p, Buffer):
        return np.dtype(p.dtype.name).type(SIZES[p.name])
    if known is not None:
        return known
    return rng.integers(1, 5, [extent_of(n, SIZES) for n in p.shape]).astype(p.dtype.name)


def all_launched(names: Sequence[str] = NAMES) -> dict[str, Launched]:
    """The launches of classes by the names of their device functions."""
    return {x.func.name: x for name in names for x in launched(name)}
