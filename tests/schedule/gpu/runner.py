"""Batteries of graphs on a device of OpenCL or WebGPU, or on the emulator of CUDA: each fused group
is scheduled for it, printed, and launched; the evaluator of graphs does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tensorkiln.codegen.c_like.opencl import emit_opencl
from tensorkiln.codegen.c_like.wgsl import emit_wgsl
from tensorkiln.codegen.ptx.emit import emit_ptx_ir, tensor_maps_of
from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import Alloc, CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import Pass
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tensorkiln.target.capability import copies_ahead, most_shared
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.decompose_operators import DecomposeOperators
from tensorkiln.transform.relax.fold_constants import fold_constants
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.tir.allocate_shared import AllocateShared
from tensorkiln.transform.tir.async_copies import AsyncCopies
from tensorkiln.transform.tir.fold_grid import FoldGrid
from tensorkiln.transform.tir.insert_barriers import insert_barriers
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.narrow_indices import narrow_indices
from tensorkiln.transform.tir.split_device import split_device
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.opencl import device as opencl
from tests.codegen.wgsl import device as wgsl
from tests.cuda.emulator.launch import FORWARD, Emulated, MapOf
from tests.schedule.battery import Battery, arguments, extent_of

OPENCL = Target({"kind": "opencl", "supports_float64": True})
WEBGPU = Target("webgpu")
_TOGETHER = 16  # kernels of one program


def graph_passes(target: Target) -> list[Pass]:
    """The passes before scheduling, without those that look for operators to fuse by pattern."""
    return [
        infer_types,
        fold_constants,
        canonicalize,
        fold_constants,
        DecomposeOperators(target),
        FuseOps(target),
    ]


def fused(mod: IRModule, target: Target = OPENCL) -> IRModule:
    """A module whose groups are functions of their own."""
    for p in graph_passes(target):
        mod = p(mod)
    return mod


def groups_for(mod: IRModule, target: Target = OPENCL) -> Iterator[Group]:
    """Every group of a module, as schedules of a device get it."""
    for f in fused(mod, target).functions:
        if isinstance(f, Function) and f.is_primitive and not f.external:
            yield Group(f, f.name, target)


def device_passes(target: Target) -> list[Pass]:
    """Scheduled programs -> programs that launch, and device functions ready to be printed."""
    max_shared = most_shared(target)
    return [
        pass_sizes,
        lower_blocks,
        split_device,
        AllocateShared(max_shared),
        AsyncCopies(("",) if copies_ahead(target) else ()),
        insert_barriers,
        vectorize_loops,
        narrow_indices,
        FoldGrid(target),
    ]


def built(functions: Sequence[PrimFunc], target: Target) -> opencl.Program | wgsl.Program:
    """Device functions as a program of the device that runs the target's."""
    if target.kind == "webgpu":
        return wgsl.Program(emit_wgsl(functions, target))
    return opencl.device().build(emit_opencl(functions, target).text)


class Kernels:
    """Kernels built for the device in a few programs, when they are first used."""

    def __init__(self, kernels: Sequence[PrimFunc], target: Target = OPENCL):
        self.target = target
        # On the emulator: the order of threads, whether arrays are aligned, and whether copies, and
        # products of warpgroups, happen as late as they may.
        self.order, self.aligned, self.late = (FORWARD, 0), False, False
        mod = IRModule(tuple(replace(f, name=f"run_{f.name}") for f in kernels), "kernels")
        *passes, fold = device_passes(target)
        for p in passes:
            mod = p(mod)
        self._unfolded, self.mod = mod, fold(mod)
        self.names = [f.name for f in kernels]
        self._batches = [
            self.names[k : k + _TOGETHER] for k in range(0, len(self.names), _TOGETHER)
        ]
        self._built: dict[int, opencl.Program | wgsl.Program | Emulated] = {}

    def func(self, name: str) -> PrimFunc:
        """A device function, or the program that launches those of a kernel."""
        function = self.mod[name]
        assert isinstance(function, PrimFunc)
        return function

    def checked(self, name: str) -> PrimFunc:
        """A device function as check_races gets it, before its grid is folded."""
        function = self._unfolded[name]
        assert isinstance(function, PrimFunc)
        return function

    def launches(self, name: str) -> list[CallKernel]:
        """What a kernel launches, in order."""
        calls = walk_stmt(self.func(f"run_{name}").body)
        return [s for s in calls if isinstance(s, CallKernel)]

    def _program(self, name: str) -> opencl.Program | wgsl.Program | Emulated:
        """What launches the parts of a kernel: on the device, or for CUDA on the emulator."""
        batch_index = next(k for k, names in enumerate(self._batches) if name in names)
        if batch_index not in self._built:
            parts = [
                self.func(s.name) for n in self._batches[batch_index] for s in self.launches(n)
            ]
            if self.target.kind == "cuda":
                self._built[batch_index] = Emulated(emit_ptx_ir(f, self.target) for f in parts)
            else:
                self._built[batch_index] = built(parts, self.target)
        return self._built[batch_index]

    def run(self, name: str, sizes: Mapping[str, int], *arrays: np.ndarray) -> None:
        """Launch all parts of a kernel on its buffers, in order; the last is the result."""
        buffers = iter(arrays)
        memory: dict[Buffer | Var, object] = {
            p: next(buffers) if isinstance(p, Buffer) else np.int64(sizes[p.name])
            for p in self.func(f"run_{name}").params
        }
        for t in walk_stmt(self.func(f"run_{name}").body):
            if isinstance(t, Alloc):  # what one launch hands to the next
                steps = zip(t.buffer.shape, t.buffer.strides, strict=True)
                last = sum((extent_of(n, sizes) - 1) * extent_of(by, sizes) for n, by in steps)
                memory[t.buffer] = np.zeros(max(0, last + 1), t.buffer.dtype.name)
        for s in self.launches(name):
            grid = [extent_of(e, sizes) for e in s.grid]
            args = [memory[a.buffer] if isinstance(a, AddressOf) else memory[a] for a in s.args]  # type: ignore[index]
            program = self._program(name)
            if isinstance(program, Emulated):
                program.order(*self.order)
                program.products(self.late)
                program.aligned = self.aligned
                program.copies(self.late)
                shared = launch_of(self.func(s.name)).shared_bytes
                maps, _ = tensor_maps_of(self.func(s.name))
                args += [MapOf(m, tuple(args)) for m in maps]
                program.run(s.name, grid, s.block, args, shared)
            else:
                program.run(s.name, grid, s.block, args)


class DeviceRunner:
    """The cases of a battery on the device."""

    def __init__(self, battery: Battery, names: Sequence[str] = (), target: Target = OPENCL):
        self.battery = battery
        chosen = [battery.cases[n] for n in names or battery.cases]
        self.mod = LowerGroups(target)(
            fused(IRModule(tuple(c.function for c in chosen), "battery"), target)
        )
        self.kernels = Kernels(self.mod.prim_funcs, target)

    def check(self, name: str) -> None:
        """Every size of one case against float64."""
        case = self.battery.cases[name]
        for k, sizes in enumerate(case.sizes):
            inputs = arguments(case, sizes, k)
            want = case.reference(inputs, sizes)
            run = {n: partial(self.kernels.run, n, sizes) for n in self.kernels.names}
            outputs = evaluate(self.mod, inputs, sizes, function=name, packed=run)
            for output, expected in zip(outputs, want, strict=True):
                case.compare(output, expected, f"{name} {dict(sizes)}")
