"""The memory report: what a compiled module needs, by function and pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tensorkiln.codegen.memory.figures import FunctionMemory, PoolMemory
from tensorkiln.codegen.memory.table import html_tables, text_lines


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a compiled module needs, by function and pool.

    Functions of one executor share its storages, since they do not run at the same time: of
    `pools`, the workspace is that of the largest function, and the constants are those of all.
    `stack` is the most that the local buffers of one kernel take, and of those that it calls, per
    thread; registers that the code generator spills, return addresses, host code and kernels of
    externals come on top. It is None for kernels that call themselves. `unplanned` are functions
    whose host steps allocate as they run, so that nothing is known of them here.
    """

    name: str
    functions: Mapping[str, FunctionMemory]
    pools: Mapping[str, PoolMemory]
    stack: int | None
    unplanned: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The report as JSON values, in a fixed order."""
        return {
            "name": self.name,
            "pools": {name: asdict(p) for name, p in self.pools.items()},
            "stack": self.stack,
            "unplanned": list(self.unplanned),
            "functions": {name: _function_json(f) for name, f in self.functions.items()},
        }

    def __str__(self) -> str:
        """A table for each function: pools, inputs and outputs, the peak and its tensors."""
        return "\n".join(
            text_lines(self.name, self.pools, self.stack, self.functions, self.unplanned)
        )

    def _repr_html_(self) -> str:
        """The tables for notebooks."""
        return html_tables(self.name, self.pools, self.stack, self.functions, self.unplanned)


def _function_json(f: FunctionMemory) -> dict[str, object]:
    return {
        "pools": {name: asdict(p) for name, p in f.pools.items()},
        "io": asdict(f.io),
        "stack": f.stack,
        "peak": None if f.peak is None else asdict(f.peak),
        "largest": [{**asdict(t), "shape": list(t.shape)} for t in f.largest],
    }
