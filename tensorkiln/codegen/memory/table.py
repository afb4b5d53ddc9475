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


def _pool_rows(pools: Mapping[str, PoolMemory]) -> Rows:
    return [_POOL_HEAD, *(_pool_row(name, p) for name, p in pools.items())]


def tensor_rows(tensors: Sequence[LiveTensor]) -> Rows:
    """A row for each tensor, the head first."""
    rows = [(t.name, f"{t.bytes:,}", shape_of(t), t.pool, t.kernel) for t in tensors]
    return [_TENSOR_HEAD, *rows]


def _facts(f: FunctionMemory) -> Iterator[str]:
    """Yield the sentences about a function that are not in its tables."""
    yield f"inputs {bytes_of(f.io.inputs)}, outputs {bytes_of(f.io.outputs)}, of the caller"
    if f.peak is not None:
        at = ", ".join(f"{n} = {v}" for n, v in f.peak.at.items())
        node = f" ({f.peak.node})" if f.peak.node else ""
        yield (
            f"peak {f.peak.bytes:,} at call {f.peak.call}, {f.peak.kernel}{node}"
            + (f", for {at}" if at else "")
        )


def _stack_text(stack: int | None) -> str:
    known = "unbounded: a kernel calls itself" if stack is None else f"{stack:,}"
    return f"stack {known}, for local buffers of kernels; frames and spills come on top"


def _weights_text(w: WeightMemory) -> str:
    return f"weights {w.bytes:,}, of the model {w.model_bytes:,}"


def cause_rows(causes: Sequence[WeightCause]) -> Rows:
    """A row for each cause for which weights take more than in the model, the head first."""
    rows: Rows = [_CAUSE_HEAD]
    for c in causes:
        more = f" and {c.count - len(c.names)} more" if c.names and c.count > len(c.names) else ""
        rows.append(
            (c.cause, f"{c.bytes:,}", f"{c.model_bytes:,}", f"{', '.join(c.names)}{more}".strip())
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


def text_lines(
    name: str,
    pools: Mapping[str, PoolMemory],
    stack: int | None,
    functions: Mapping[str, FunctionMemory],
    unplanned: Sequence[str],
    weights: WeightMemory | None,
) -> Iterator[str]:
    """Yield the lines of a report; sizes are bytes. The arguments are its fields."""
    yield f"memory of {name}, in bytes"
    if len(functions) != 1:
        yield from lines_of(_pool_rows(pools), 3)
    yield f"  {_stack_text(stack)}"
    if weights is not None and weights.bytes:
        yield f"  {_weights_text(weights)}"
        if weights.causes:
            yield from lines_of(cause_rows(weights.causes), 2)
    for f in functions.values():
        yield f"{f.name}:"
        yield from lines_of(_pool_rows(f.pools), 3)
        yield from (f"  {fact}" for fact in _facts(f))
        if f.largest:
            yield from lines_of(tensor_rows(f.largest))
    if unplanned:
        yield f"allocate as they run: {', '.join(unplanned)}"


def html_tables(
    name: str,
    pools: Mapping[str, PoolMemory],
    stack: int | None,
    functions: Mapping[str, FunctionMemory],
    unplanned: Sequence[str],
    weights: WeightMemory | None,
) -> str:
    """A report as HTML, every name escaped. The arguments are its fields."""
    parts = [_html_table(f"memory of {name}, in bytes", _pool_rows(pools))]
    parts.append(f"<p>{escape(_stack_text(stack))}</p>")
    if weights is not None and weights.bytes:
        parts.append(f"<p>{escape(_weights_text(weights))}</p>")
        if weights.causes:
            parts.append(_html_table("", cause_rows(weights.causes)))
    for f in functions.values():
        parts.append(_html_table(f.name, _pool_rows(f.pools)))
        parts += (f"<p>{escape(fact)}</p>" for fact in _facts(f))
        if f.largest:
            parts.append(_html_table("", tensor_rows(f.largest)))
    if unplanned:
        parts.append(f"<p>allocate as they run: {escape(', '.join(unplanned))}</p>")
    return "".join(parts)


def _html_table(caption: str, rows: Rows) -> str:
    head, *rest = rows
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rest
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{named}<tr>{titles}</tr>{body}</table>"
