"""The memory plan as a picture: which bytes of each storage are taken, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.codegen.memory.live import live_bytes, number, spans
from tensorkiln.codegen.memory.measure import GraphMemory
from tensorkiln.ir.module import IRModule
from tensorkiln.target import MemoryPool

_ALIGN = 64  # where one storage ends in the picture, the next begins at a multiple of it


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """`size` bytes at `offset` of the workspace, in use from call `start` to call `end`, both
    included, by one or more values in succession; `kernels` are those that wrote them."""

    values: tuple[str, ...]
    kernels: tuple[str, ...]
    offset: int
    size: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """The workspace of one graph function, its storages end to end: `total` bytes are reserved,
    `live[i]` are in use during call i. `calls` are the names of the kernels called."""

    function: str
    calls: tuple[str, ...]
    blocks: tuple[MemoryBlock, ...]
    total: int
    live: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The number of the call during which most bytes are in use."""
        return max(range(len(self.live)), key=lambda i: self.live[i], default=0)


def memory_pictures(
    mod: IRModule, pools: Sequence[MemoryPool], sizes: Mapping[str, int]
) -> tuple[MemoryPicture, ...]:
    """A picture for each planned function of a module. `sizes`: values of symbolic dimensions, 1
    for those not listed."""
    return tuple(_picture(GraphMemory(plan, mod, pools), sizes) for plan in mod.planned)


def _picture(g: GraphMemory, named: Mapping[str, int]) -> MemoryPicture:
    sizes = {v: named.get(name, 1) for v, name in g.names.items()}
    starts, total = [], 0
    for s in g.plan.storages:
        starts.append(-(-total // _ALIGN) * _ALIGN)
        total = starts[-1] + number(s.size, sizes)
    values = spans(g.calls, sizes)
    blocks = [
        MemoryBlock(
            (g.tensor(s, sizes).name,),
            (g.plan.calls[s.first].name,),
            starts[s.storage] + s.start,
            s.end - s.start,
            s.first,
            s.last,
        )
        for s in values
    ]
    live = tuple(live_bytes(values, i) for i in range(len(g.plan.calls)))
    calls = tuple(c.name for c in g.plan.calls)
    return MemoryPicture(g.plan.graph.name, calls, tuple(_merged(blocks)), total, live)


def _merged(blocks: list[MemoryBlock]) -> list[MemoryBlock]:
    """The blocks, joined where a value overwrites another that dies at the same call."""
    out: list[MemoryBlock] = []
    for b in sorted(blocks, key=lambda b: (b.start, b.offset)):
        index = next(
            (
                i
                for i, o in enumerate(out)
                if (o.offset, o.size, o.end) == (b.offset, b.size, b.start)
            ),
            None,
        )
        if index is None:
            out.append(b)
        else:
            o = out[index]
            values, kernels = o.values + b.values, o.kernels + b.kernels
            out[index] = MemoryBlock(values, kernels, o.offset, o.size, o.start, b.end)
    return out
