"""The plan of a graph function: what runs, in which order, on which memory.

`partial_graph_aot` makes it once. `IRModule.plan` hands it to all that follow: the verifier, the
host's code, memory reports, weights, placement. `ir/plan_form.py` prints and reads it as functions
of the module, which is its form in text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.relax import STORAGE_ALIGN, Constant, Function, TensorType, size_symbols
from tensorkiln.ir.stmt import PrimFunc, TensorProgram
from tensorkiln.ir.visit import free_vars, substitute


@dataclass(frozen=True, slots=True)
class Address:
    """An argument of a kernel: byte `offset` of a storage, a constant or a tensor, by number.

    Tensors are numbered from the graph's parameters on to its results. `name` is what the memory is
    called in text: `x`, `storages[0]`.
    """

    base: Literal["storage", "constant", "tensor"]
    index: int
    offset: Expr
    name: str = field(compare=False)

    def __str__(self) -> str:
        """The name of the memory."""
        return self.name


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of kernel `name`, with addresses and numbers; `span` is the model's node."""

    name: str
    args: tuple[Address | Expr, ...]
    span: str


@dataclass(frozen=True, slots=True)
class PlannedStorage:
    """Memory for intermediate results: its bytes, the target's pool that has it (empty: any memory)
    and the alignment of its address."""

    size: Expr
    pool: str = ""
    align: int = STORAGE_ALIGN


@dataclass(frozen=True, slots=True)
class Plan:
    """What the graph function `graph` runs. All expressions are over its symbolic dimensions.

    `init` makes the storages and `run` calls the kernels, in text: with `graph` they are all of the
    plan as functions of a module.
    """

    storages: tuple[PlannedStorage, ...]
    constants: tuple[Constant, ...]
    calls: tuple[PlannedCall, ...]
    graph: Function = field(compare=False, repr=False)
    run: PrimFunc = field(compare=False, repr=False)
    init: Function | None = field(compare=False, repr=False)

    @property
    def functions(self) -> tuple[Function | PrimFunc, ...]:
        """The functions of the plan, in the order in which a module has them."""
        return (self.graph, self.run) if self.init is None else (self.init, self.graph, self.run)

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The types of the graph's parameters."""
        return tuple(p.tensor for p in self.graph.params)

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the graph's results."""
        return self.graph.result_types

    def constants_read(self) -> Iterator[tuple[PlannedCall, Constant]]:
        """Yield the constants as the calls read them: in the order in which a library has them."""
        for call in self.calls:
            for a in call.args:
                if isinstance(a, Address) and a.base == "constant":
                    yield call, self.constants[a.index]


@dataclass(frozen=True, slots=True)
class ArgumentAccess:
    """A tensor that a call reads or writes: the number of the argument, its place, and its shape as
    it lies in memory, over the symbolic dimensions of the graph."""

    argument: int
    place: Address
    dtype: DType
    shape: tuple[Expr, ...]
    written: bool


def accesses(
    call: PlannedCall, kernel: Function | PrimFunc | KnownKernel
) -> Iterator[ArgumentAccess]:
    """Yield the tensors that the kernel of a call reads, then those that it writes."""
    sizes: dict[Var, Expr] = {}
    tensors: list[tuple[int, DType, tuple[Expr, ...]]] = []
    if isinstance(kernel, TensorProgram):
        outputs = kernel.outputs
        for i, p in enumerate(kernel.params):
            value = call.args[i]
            if isinstance(p, Buffer):
                tensors.append((i, p.dtype, p.shape))
            elif isinstance(value, Expr):
                sizes[p] = value
    else:
        types = (*(p.tensor for p in kernel.params), *kernel.result_types)
        outputs = len(kernel.result_types)
        tensors = [(i, t.dtype, t.physical_shape) for i, t in enumerate(types)]
        numbers = [a for a in call.args[len(types) :] if isinstance(a, Expr)]
        sizes = dict(zip(size_symbols(kernel), numbers, strict=False)) if numbers else {}
    for k, (i, dtype, shape) in enumerate(tensors):
        place = call.args[i]
        assert isinstance(place, Address), place  # the verifier has seen the call
        extents = tuple(substitute(d, sizes) if free_vars(d) else d for d in shape)
        yield ArgumentAccess(i, place, dtype, extents, k >= len(tensors) - outputs)
