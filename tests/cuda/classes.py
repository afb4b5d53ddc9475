"""Every class of device kernels with arrays at a small shape: device functions to be changed,
launched on the emulator, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.folders import cases
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tests.cuda.emulator.launch import Emulated
from tests.schedule.battery import extent_of
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.gpu.runner import device_passes, groups_for
from tests.schedule.gpu.test_device_primitives import long_product, tiled_product, transposed

# Values of symbols, so that each class but those of constant shape has several blocks.
_SIZES = {"N": 3, "S": 20}
_LONGER = {
    "flat_symbolic": 20,
    "broadcast": 20,
    "sum_few_terms": 300,
    "softmax_short": 300,
    "sum_rows": 9,
    "softmax": 9,
    "conv2d_batch": 9,
}
# Beside the compiler's own kernels: what schedules of users make, by primitives.
SCHEDULED = {
    "product_one_stage": lambda: tiled_product(1, f=long_product),
    "product_three_stages": lambda: tiled_product(3, f=long_product),
    "transpose_shared": lambda: transposed().func,
}
# Beside kernels of all devices, those on tensor cores of NVIDIA.
HALVES = {
    name: case for name, case in cases("GPU_CASES").items() if case.options == {"arch": "sm_80"}
}
NAMES = (*KERNELS, *HALVES, *SCHEDULED)
# What kernels are scheduled for, the least that has asynchronous copies; and what came before it.
TARGETS = {arch: Target({"kind": "cuda", "arch": arch}) for arch in ("sm_75", "sm_80")}
TARGET = TARGETS["sm_80"]
# Take seconds as a whole: the first block only.
ONE_BLOCK = {"linear_large", "linear_wide"}


@dataclass(frozen=True, slots=True)
class Launched:
    """A device function, called after its class, with what one launch of it takes."""

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
def launched(name: str, folded: bool = True, arch: str = "sm_80") -> tuple[Launched, ...]:
    """The launches of a class, in order, with grids as they are launched or, if not `folded`, as
    they are proved. Arrays are of small numbers."""
    target = TARGETS[arch]
    if name in SCHEDULED:
        scheduled = SCHEDULED[name]()
    else:
        case = HALVES[name] if name in HALVES else KERNELS[name]
        *_, group = groups_for(case.module(), target)
        scheduled = schedule_group(group, target)
    mod = IRModule((replace(scheduled, name="run"),))
    for p in device_passes(target)[: None if folded else -1]:
        mod = p(mod)
    sizes = {**_SIZES, "N": _LONGER.get(name, _SIZES["N"])}
    rng = np.random.default_rng(0)
    statements = list(walk_stmt(mod["run"].body))
    between = {
        s.buffer: np.full([extent_of(n, sizes) for n in s.buffer.shape], 4, s.buffer.dtype.name)
        for s in statements
        if isinstance(s, Alloc)
    }
    calls = [s for s in statements if isinstance(s, CallKernel)]
    launches = []
    for i, call in enumerate(calls):
        f = replace(mod[call.name], name=f"{name}_{i}" if i else name)
        buffers = [between.get(a.buffer) if isinstance(a, AddressOf) else None for a in call.args]
        args = [_argument(p, a, sizes, rng) for p, a in zip(f.params, buffers, strict=True)]
        grid = (1, 1, 1) if name in ONE_BLOCK else [extent_of(n, sizes) for n in call.grid]
        launches.append(Launched(f, tuple(grid), call.block, tuple(args)))
    return tuple(launches)


def _argument(
    p: Buffer | Var, array: np.ndarray | None, sizes: Mapping[str, int], rng: np.random.Generator
) -> object:
    if not isinstance(p, Buffer):
        return np.dtype(p.dtype.name).type(sizes[p.name])
    if array is not None:
        return array
    return rng.integers(1, 5, [extent_of(n, sizes) for n in p.shape]).astype(p.dtype.name)


def all_launched(arch: str = "sm_80") -> dict[str, Launched]:
    """The launches of all classes by the names of their device functions."""
    return {x.func.name: x for name in NAMES for x in launched(name, arch=arch)}
