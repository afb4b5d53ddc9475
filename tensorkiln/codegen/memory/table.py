"""The memory report as tables of text and of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from tensorkiln.base.schema import Dim
from tensorkiln.codegen.memory.figures import (
    FunctionMemory,
    LiveTensor,
    PoolMemory,
    WeightCause,
    WeightMemory,
)

_POOL_HEAD = ("pool", "workspace", "constants", "capacity")
_TENSOR_HEAD = ("largest at the peak", "bytes", "shape", "pool", "kernel")
_CAUSE_HEAD = ("larger weights", "bytes", "in place of", "the largest")
Rows = list[tuple[str, ...]]


def bytes_of(size: Dim | None) -> str:
    """`4,096`; a formula as it is; `-` for None."""
    return "-" if size is None else f"{size:,}" if isinstance(size, int) else size


def shape_of(t: LiveTensor) -> str:
    """`float32 1 x 64 x 55 x 55`."""
    return f"{t.dtype} {' x '.join(map(str, t.shape)) or 'scalar'}"


def _pool_row(name: str, p: PoolMemory) -> tuple[str, ...]:
    space = bytes_of(p.workspace)
    if p.most is not None and not isinstance(p.workspace, int):
        space += f" (at most {p.most:,})"
    if p.kind == "flash":
        space = "-"
    return name, space, bytes_of(p.constants), bytes_of(p.capacity)


def pool_rows(pools: Mapping[str, PoolMemory]) -> Rows:
    """A row for each pool, the head first."""
    return [_POOL_HEAD, *(_pool_row(name, p) for name, p in pools.items())]


def tensor_rows(tensors: Sequence[LiveTensor]) -> Rows:
    """A row for each tensor, the head first."""
    rows = [(t.name, f"{t.bytes:,}", shape_of(t), t.pool, t.kernel) for t in tensors]
    return [_TENSOR_HEAD, *rows]


def facts(f: FunctionMemory) -> Iterator[str]:
    """Yield the sentences about a function that are not in its tables."""
    yield f"inputs {bytes_of(f.io.inputs)}, outputs {bytes_of(f.io.outputs)}, of the caller"
    if f.peak is not None:
        sizes_text = ", ".join(f"{n} = {v}" for n, v in f.peak.at.items())
        node = f" ({f.peak.node})" if f.peak.node else ""
        yield (
            f"peak {f.peak.bytes:,} at call {f.peak.call}, {f.peak.kernel}{node}"
            + (f", for {sizes_text}" if sizes_text else "")
        )


def stack_text(stack: int | None) -> str:
    """A sentence about the stack that kernels take."""
    amount = "unbounded: a kernel calls itself" if stack is None else f"{stack:,}"
    return f"stack {amount}, for local buffers of kernels; frames and spills come on top"


def weights_text(w: WeightMemory) -> str:
    """A sentence about all weights."""
    return f"weights {w.bytes:,}, of the model {w.model_bytes:,}"


def cause_rows(causes: Sequence[WeightCause]) -> Rows:
    """A row for each cause for which weights take more than in the model, the head first."""
    rows: Rows = [_CAUSE_HEAD]
    for c in causes:
        tail = f" and {c.count - len(c.names)} more" if c.names and c.count > len(c.names) else ""
        rows.append(
            (c.cause, f"{c.bytes:,}", f"{c.model_bytes:,}", f"{', '.join(c.names)}{tail}".strip())
        )
    return rows


def lines_of(rows: Rows, numbers: int = 1) -> Iterator[str]:
    """Yield rows as aligned lines; `numbers` columns after the first are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(w) if 1 <= i <= numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def html_table(caption: str, rows: Rows) -> str:
    """Rows as a table of HTML, every name escaped."""
    head, *body_rows = rows
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body_rows
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{named}<tr>{titles}</tr>{body}</table>"
