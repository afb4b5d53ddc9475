"""The memory plan as a picture: which bytes of the workspace are taken, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, GlobalRef, RVar
from tensorkiln.measure.kernels import size_of

_ALIGN = 64  # bytes of a cache line, to which plan_memory rounds sizes up


@dataclass(frozen=True, slots=True)
class Block:
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
    """The workspace of one graph function: `total` bytes are reserved, `live[i]` are in use during
    call i. `calls` are the names of the kernels called."""

    function: str
    calls: tuple[str, ...]
    blocks: tuple[Block, ...]
    total: int
    live: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The number of the call during which most bytes are in use."""
        return max(range(len(self.live)), key=lambda i: self.live[i], default=0)


def memory_pictures(
    modules: Sequence[IRModule], sizes: Mapping[str, int]
) -> tuple[MemoryPicture, ...]:
    """A picture for each graph function with a memory plan, of the last module in which it has one.
    `sizes`: values of symbolic dimensions."""
    found: dict[str, Function] = {}
    for mod in modules:
        for f in mod.graphs:
            if "homes" in f.attrs and "workspace_bytes" in f.attrs:
                found[f.name] = f
    return tuple(_picture(f, sizes) for f in found.values())


def _picture(f: Function, sizes: Mapping[str, int]) -> MemoryPicture:
    homes = {name: at for name, kind, at in f.attrs["homes"] if kind == "workspace"}
    owners: dict[RVar, tuple[RVar, ...]] = {}  # a view -> the values whose memory it uses
    calls: list[str] = []
    made: dict[RVar, int] = {}
    last: dict[RVar, int] = {}
    kernel: dict[RVar, str] = {}
    for b in f.bindings:
        if not isinstance(b.value, Call):
            continue
        reads = [a for a in b.value.args if isinstance(a, RVar)]
        if b.value.op in ("reshape", "concat") and reads:
            owners[b.var] = tuple(v for a in reads for v in owners.get(a, (a,)))
            continue
        step = len(calls)
        callee = b.value.callee
        calls.append(callee.name if isinstance(callee, GlobalRef) else b.value.op)
        made[b.var] = last[b.var] = step
        kernel[b.var] = calls[-1]
        for a in reads:
            last |= dict.fromkeys(owners.get(a, (a,)), step)
    blocks = []
    for var, start in made.items():
        if var.name not in homes:
            continue
        size = _bytes(var, sizes)
        offset = _number(homes[var.name], sizes)
        if size is not None and offset is not None:
            name, made_by = (var.name,), (kernel[var],)
            blocks.append(Block(name, made_by, offset, size, start, last[var]))
    blocks = _merged(blocks)
    live = tuple(sum(b.size for b in blocks if b.start <= i <= b.end) for i in range(len(calls)))
    total = _number(f.attrs["workspace_bytes"], sizes) or 0
    return MemoryPicture(f.name, tuple(calls), tuple(blocks), total, live)


def _merged(blocks: list[Block]) -> list[Block]:
    """The blocks, joined where a value overwrites another that dies at the same call."""
    out: list[Block] = []
    for b in sorted(blocks, key=lambda b: (b.start, b.offset)):
        same = next(
            (
                i
                for i, o in enumerate(out)
                if (o.offset, o.size, o.end) == (b.offset, b.size, b.start)
            ),
            None,
        )
        if same is None:
            out.append(b)
        else:
            o = out[same]
            values, kernels = o.values + b.values, o.kernels + b.kernels
            out[same] = Block(values, kernels, o.offset, o.size, o.start, b.end)
    return out


def _number(at: object, sizes: Mapping[str, int]) -> int | None:
    return size_of(at, sizes) if isinstance(at, Expr) else at if isinstance(at, int) else None


def _bytes(var: RVar, sizes: Mapping[str, int]) -> int | None:
    elements: Expr = as_expr(var.tensor.dtype.bytes)
    for d in var.tensor.physical_shape:
        elements = elements * d
    n = size_of(elements, sizes)
    return None if n is None else -(-n // _ALIGN) * _ALIGN
