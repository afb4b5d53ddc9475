"""Tensor programs of one thread as a library of OpenCL, called by name with NumPy arrays.

A driver takes a tenth of a second and more to compile a kernel, so many programs are one kernel
with a number that says which of them runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tensorkiln.codegen.c_like.opencl import emit_opencl
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import If, Param, PrimFunc, Stmt
from tensorkiln.target import Target
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.opencl.device import Device, Memory, Program, device

_BATCH = 24


class OpenCLLibrary:
    """Programs compiled for the first device; `library[name](*arrays)` runs one."""

    def __init__(self, funcs: Sequence[PrimFunc], target: Target):
        self.device: Device = device()
        lowered_funcs = vectorize_loops(lower_blocks(IRModule(tuple(funcs), "kernels"))).prim_funcs
        self.batches = [
            Batch(f"batch{k}", lowered_funcs[k : k + _BATCH], target)
            for k in range(0, len(lowered_funcs), _BATCH)
        ]
        self.where = {f.name: b for b in self.batches for f in b.funcs}

    def __getitem__(self, name: str):  # noqa: ANN204
        return lambda *args: self.where[name].run(name, args)


class Batch:
    """Programs that are one kernel."""

    def __init__(self, name: str, funcs: Sequence[PrimFunc], target: Target):
        self.name, self.funcs = name, funcs
        self.at: dict[str, int] = {}  # where the parameters of each begin
        params: list[Param] = []
        body: Stmt | None = None
        program_number = Var("which")
        for k, f in reversed(list(enumerate(funcs))):
            body = If(binary("eq", program_number, k), f.body, body)
        for f in funcs:
            self.at[f.name] = len(params)
            params += f.params
        assert body is not None
        self.func = PrimFunc(name, (*params, program_number), body, outputs=len(params))
        self.target = target

    @cached_property
    def program(self) -> Program:
        """The kernel; the batch is built when it is first used."""
        return device().build(emit_opencl([self.func], self.target).text)

    @cached_property
    def nothing(self) -> Memory:
        """What the programs that do not run get."""
        return Memory(device(), np.zeros(1, np.uint8), 0)

    def run(self, name: str, args: Sequence[np.ndarray]) -> None:
        """Run one of the programs in place."""
        first_buffer = self.at[name]
        arguments: list[object] = []
        memory = [Memory(device(), a, 64 * (k % 3 + 1)) for k, a in enumerate(args)]
        for k, p in enumerate(self.func.params[:-1]):
            mine = first_buffer <= k < first_buffer + len(args)
            assert isinstance(p, Buffer)
            arguments.append(memory[k - first_buffer] if mine else self.nothing)
        number = next(k for k, f in enumerate(self.funcs) if f.name == name)
        try:
            self.program.launch(self.name, (1, 1, 1), (1, 1, 1), [*arguments, np.int64(number)])
            for m in memory:
                m.read()
        finally:
            for m in memory:
                m.release()
