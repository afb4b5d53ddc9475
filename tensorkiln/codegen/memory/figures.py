"""The figures of the memory report: what a function of a compiled module needs, per pool.

Sizes are bytes. One that depends on symbolic dimensions is the text of a formula (`n * 64`), unless
`Executable.memory(sizes=...)` was given a value for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.base.schema import Dim

# The name of the pool that stands for all memory of a target that states no pools.
ANY_POOL = "memory"


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What is needed of one pool.

    `workspace` is what a run touches for intermediate results: the bytes up to the last one that it
    writes. `reserved` is what storage is asked for: the same, or up to 63 bytes more on targets
    without pools. `constants` are weights. `capacity` is the size of the pool, None if the target
    does not state it. `most` is the workspace at the upper bounds of symbolic dimensions: a number
    if every dimension that matters has one, else None.
    """

    workspace: Dim
    reserved: Dim
    constants: int = 0
    capacity: int | None = None
    kind: str = "ram"
    most: int | None = None


@dataclass(frozen=True, slots=True)
class InputOutput:
    """Bytes of the tensors that callers own: inputs and outputs."""

    inputs: Dim
    outputs: Dim


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """An intermediate result in memory while most memory is in use.

    `name` is that of the model's node that makes it (`node`), or of the kernel where no node is
    known; where a kernel has several results, their number follows: `split[1]`. `shape` is that in
    memory, with blocks of channels and borders of zeros, at the sizes of the peak.
    """

    name: str
    node: str
    kernel: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    pool: str
    offset: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The kernel call (counted from 1) during which most bytes of intermediate results are in use:
    `bytes`, at the sizes `at` of symbolic dimensions."""

    call: int
    kernel: str
    node: str
    bytes: int
    at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FunctionMemory(JsonRecord):
    """What one function needs. `stack` bounds the local buffers of its kernels, see `MemoryReport`.

    `peak` and `largest`, the three largest values that are in use then, are None and empty for a
    function without intermediate results.
    """

    name: str = field(metadata=json_key(hidden=True))
    pools: Mapping[str, PoolMemory]
    io: InputOutput
    stack: int | None
    peak: Peak | None = None
    largest: tuple[LiveTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightCause:
    """Why weights take more bytes in the library than in the model: `count` weights take `bytes`
    in place of `model_bytes`. `names` are the largest of them."""

    cause: str
    bytes: int
    model_bytes: int
    count: int
    names: tuple[str, ...]

    @property
    def more(self) -> int:
        """The bytes that they take more."""
        return self.bytes - self.model_bytes


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """The bytes of all weights, those that they take in the model, and why they take more, the
    largest cause first. `note` says it in a sentence if they take much more, else it is empty."""

    bytes: int
    model_bytes: int
    causes: tuple[WeightCause, ...] = ()
    note: str = ""
