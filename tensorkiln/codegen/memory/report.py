"""The memory report: what a compiled module needs, by function and pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from tensorkiln.base.record import JsonRecord
from tensorkiln.codegen.memory.figures import FunctionMemory, PoolMemory, WeightMemory
from tensorkiln.codegen.memory.table import (
    cause_rows,
    facts,
    html_table,
    lines_of,
    pool_rows,
    stack_text,
    tensor_rows,
    weights_text,
)


@dataclass(frozen=True, slots=True)
class MemoryReport(JsonRecord):
    """What a compiled module needs, by function and pool.

    Functions of one executor share its storages, since they do not run at the same time: of
    `pools`, the workspace is that of the largest function, and the constants are those of all.
    `stack` is the most that the local buffers of one kernel take, and of those that it calls, per
    thread; registers that the code generator spills, return addresses, host code and kernels of
    externals come on top. It is None for kernels that call themselves. `unplanned` are functions
    whose host steps allocate as they run, so that nothing is known of them here. `weights` are
    those of all functions, beside the model's; None where that is not known.
    """

    name: str
    functions: Mapping[str, FunctionMemory]
    pools: Mapping[str, PoolMemory]
    stack: int | None
    unplanned: tuple[str, ...] = ()
    weights: WeightMemory | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, in a fixed order."""
        row = JsonRecord.to_json(self)
        functions = row.pop("functions")
        return row | {"functions": functions}

    def __str__(self) -> str:
        """The weights, and a table for each function: pools, inputs and outputs, the peak and its
        tensors."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"memory of {self.name}, in bytes"
        if len(self.functions) != 1:
            yield from lines_of(pool_rows(self.pools), 3)
        yield f"  {stack_text(self.stack)}"
        if self.weights is not None and self.weights.bytes:
            yield f"  {weights_text(self.weights)}"
            if self.weights.causes:
                yield from lines_of(cause_rows(self.weights.causes), 2)
        for f in self.functions.values():
            yield f"{f.name}:"
            yield from lines_of(pool_rows(f.pools), 3)
            yield from (f"  {fact}" for fact in facts(f))
            if f.largest:
                yield from lines_of(tensor_rows(f.largest))
        if self.unplanned:
            yield f"allocate as they run: {', '.join(self.unplanned)}"

    def _repr_html_(self) -> str:
        """The tables for notebooks."""
        parts = [html_table(f"memory of {self.name}, in bytes", pool_rows(self.pools))]
        parts.append(f"<p>{escape(stack_text(self.stack))}</p>")
        if self.weights is not None and self.weights.bytes:
            parts.append(f"<p>{escape(weights_text(self.weights))}</p>")
            if self.weights.causes:
                parts.append(html_table("", cause_rows(self.weights.causes)))
        for f in self.functions.values():
            parts.append(html_table(f.name, pool_rows(f.pools)))
            parts += (f"<p>{escape(fact)}</p>" for fact in facts(f))
            if f.largest:
                parts.append(html_table("", tensor_rows(f.largest)))
        if self.unplanned:
            parts.append(f"<p>allocate as they run: {escape(', '.join(self.unplanned))}</p>")
        return "".join(parts)
