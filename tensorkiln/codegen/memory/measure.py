"""Measure the memory that the functions of a compiled module need, in their plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensorkiln.arith import simplify
from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import bound, prove
from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.base.schema import Dim
from tensorkiln.base.text import listed
from tensorkiln.codegen.c_text.sizes import expression_text, shown_size
from tensorkiln.codegen.host.call_plan import Symbols, sizes_read
from tensorkiln.codegen.host.weights import WeightArena
from tensorkiln.codegen.memory.figures import (
    ANY_POOL,
    FunctionMemory,
    InputOutput,
    LiveTensor,
    Peak,
    PoolMemory,
)
from tensorkiln.codegen.memory.live import (
    Span,
    end_of,
    is_replaced,
    live_bytes,
    number,
    simple_accesses,
    spans,
)
from tensorkiln.codegen.memory.report import MemoryReport
from tensorkiln.codegen.memory.weights import ModelWeights, weight_memory
from tensorkiln.codegen.stack import stack_of
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.conditions import conditions_of
from tensorkiln.ir.expr import Expr, IntImm, Var, binary, int_value
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.plan import ArgumentAccess, Plan
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.tensor_bytes import bytes_of
from tensorkiln.ir.text.printer import printed_names
from tensorkiln.ir.visit import free_vars
from tensorkiln.target import MemoryPool

_SHOWN = 3  # tensors at the peak
_SAMPLE = 1009  # of a dimension without an upper bound, to guess which formula is the largest


def memory_report(
    mod: IRModule,
    pools: Sequence[MemoryPool] = (),
    sizes: Mapping[str, int] | None = None,
    weights: int | None = None,
    model: ModelWeights | None = None,
) -> MemoryReport:
    """The report of a module whose graph functions are planned.

    `pools` are the target's; `sizes` are values of symbolic dimensions, by the model's names;
    `weights` are the bytes of all constants, which are counted here if it is None; `model` are the
    model's constants, for what they have become.
    Raises UserError: `unknown-dimension`, `bad-argument` for a size below 1.
    """
    sizes = {} if sizes is None else sizes
    require(sizes, Mapping, "sizes")
    graphs = [GraphMemory(plan, mod, pools) for plan in mod.planned]
    _check_sizes(sizes, {n for g in graphs for n in g.names.values()})
    functions = [g.memory(sizes) for g in graphs]
    functions += [_program(f, mod, pools) for f in mod.prim_funcs if f.public]
    stacks = [f.stack for f in functions]
    arena = WeightArena()
    if weights is None:
        for g in graphs:
            arena.place_plan(g.plan)
    total = arena.size if weights is None else weights
    return MemoryReport(
        mod.name,
        {f.name: f for f in functions},
        _together(functions, pools, total),
        None if None in stacks else max((s for s in stacks if s is not None), default=0),
        tuple(f.name for f in mod.outers),
        None if model is None else weight_memory(mod, model, total),
    )


def _check_sizes(sizes: Mapping[str, int], names: set[str]) -> None:
    for name, size in sizes.items():
        if name not in names:
            raise UserError(
                f"sizes: no dimension {name!r}; there are {listed(sorted(names)) or 'none'}",
                code="unknown-dimension",
                hint=nearest(str(name), sorted(names)),
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UserError(
                f"sizes[{name!r}] is {size!r}, expected a whole number from 0", code="bad-argument"
            )


class GraphMemory:
    """The memory of one planned graph function.

    `bounds` are what is known of its symbolic dimensions: at least 0, and what it `assumes`.
    """

    def __init__(self, plan: Plan, mod: IRModule, pools: Sequence[MemoryPool]):
        self.plan, self.mod, self.pools = plan, mod, pools
        f = plan.graph
        self.symbols = Symbols.of(plan)
        self.names = {v: self.symbols.model_name(v) for v in self.symbols.names}
        self.bounds = Bounds.dims(self.names)
        for condition in conditions_of(f):
            self.bounds = self.bounds.given(condition.holds)
        self.calls = simple_accesses(plan, mod)

    def memory(self, sizes: Mapping[str, int]) -> FunctionMemory:
        """What the function needs, with `sizes` for the dimensions of these names."""
        numbers = {v: sizes[name] for v, name in self.names.items() if name in sizes}
        io = InputOutput(
            self._sum(self.plan.inputs, numbers), self._sum(self.plan.results, numbers)
        )
        peak, largest = self.peak(numbers)
        stacks = [stack_of(c.name, self.mod) for c in self.plan.calls]
        stack = None if None in stacks else max((s for s in stacks if s is not None), default=0)
        return FunctionMemory(self.plan.graph.name, self.by_pool(numbers), io, stack, peak, largest)

    def by_pool(self, numbers: Mapping[Var, int]) -> dict[str, PoolMemory]:
        """What it needs of each pool, in the target's order."""
        arena = WeightArena()
        arena.place_plan(self.plan)
        out = empty_pools(self.pools, arena.size)
        for i, s in enumerate(self.plan.storages):
            ends = [end_of(a) for a in self._stored(i)]
            largest = self._largest(ends)
            tops = [bound(e, self.bounds)[1] for e in largest]
            maximum = None if None in tops else max((t for t in tops if t is not None), default=0)
            name = s.pool or ANY_POOL
            before = out.get(name, PoolMemory(0, 0))
            out[name] = PoolMemory(
                _plus(before.workspace, self._text(largest, numbers)),
                _plus(before.reserved, self._text([s.size], numbers)),
                before.constants,
                before.capacity,
                before.kind,
                None if maximum is None or before.most is None else before.most + maximum,
            )
        return out

    def _stored(self, storage: int) -> Iterator[ArgumentAccess]:
        """Yield all accesses of a storage."""
        for tensors in self.calls:
            for a in tensors:
                if a.place.base == "storage" and a.place.index == storage:
                    yield a

    def peak_sizes(self, numbers: Mapping[Var, int]) -> dict[Var, int]:
        """Sizes for the peak: those given, else upper bounds, else 1."""
        return {v: numbers.get(v) or bound(v, self.bounds)[1] or 1 for v in self.names}

    def peak(
        self, numbers: Mapping[Var, int], pool: str | None = None
    ) -> tuple[Peak | None, tuple[LiveTensor, ...]]:
        """The call during which most bytes are in use, and the largest values then; of one pool
        only, unless None."""
        sizes = self.peak_sizes(numbers)
        values = spans(self.calls, sizes)
        if pool is not None:
            names = [s.pool or ANY_POOL for s in self.plan.storages]
            values = [s for s in values if names[s.storage] == pool]
        if not values:
            return None, ()
        live = [live_bytes(values, i) for i in range(len(self.plan.calls))]
        step = max(range(len(live)), key=live.__getitem__)
        call = self.plan.calls[step]
        size_of_name = {self.names[v]: n for v, n in sizes.items()}
        live_spans = [s for s in values if s.lives(step) and not is_replaced(s, values, step)]
        live_spans.sort(key=lambda s: (s.start - s.end, s.first, s.start))
        tensors = tuple(self.tensor(s, sizes) for s in live_spans[:_SHOWN])
        return Peak(step + 1, call.name, call.span, live[step], size_of_name), tensors

    def tensor(self, s: Span, sizes: Mapping[Var, int]) -> LiveTensor:
        """A value as the report shows it."""
        call = self.plan.calls[s.first]
        name = (call.span or call.name) + (f"[{s.result}]" if s.results > 1 else "")
        pool = self.plan.storages[s.storage].pool or ANY_POOL
        shape = tuple(number(d, sizes) for d in s.access.shape)
        dtype = s.access.dtype.name
        return LiveTensor(name, call.span, call.name, dtype, shape, s.end - s.start, pool, s.start)

    # -- sizes as text ---------------------------------------------------------------------------

    def _largest(self, sizes: Iterable[Expr]) -> list[Expr]:
        """The sizes of which one is the largest, whatever the dimensions are: a single one where
        that can be proved."""
        candidates = list(dict.fromkeys(map(simplify, sizes)))
        if not candidates:
            return [IntImm(0)]
        sample = {v: bound(v, self.bounds)[1] or _SAMPLE for v in self.names}
        best = max(candidates, key=lambda e: number(e, sample))
        rivals = (e for e in candidates if e is not best)
        return [best, *(e for e in rivals if not prove(binary("le", e, best), self.bounds))]

    def _sum(self, types: Sequence[TensorType], numbers: Mapping[Var, int]) -> Dim:
        return self._text([_total_bytes(types)], numbers)

    def _text(self, sizes: Sequence[Expr], numbers: Mapping[Var, int]) -> Dim:
        """The largest of some sizes: a number if it is known, else a formula."""
        if all(v in numbers for e in sizes for v in free_vars(e)):
            return max(number(e, numbers) for e in sizes)
        names = {name: self.names[v] for v, name in self.symbols.names.items()}
        texts = [str(shown_size(self.symbols.size(e), names)) for e in sizes]
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def empty_pools(pools: Sequence[MemoryPool], constants: int) -> dict[str, PoolMemory]:
    """Each pool of a target with nothing in it but the constants: in the first pool of flash, or in
    the memory that is not a pool of the target's."""
    flash = next((p.name for p in pools if p.kind == "flash"), ANY_POOL)
    out = {
        p.name: PoolMemory(0, 0, constants if p.name == flash else 0, p.size, p.kind, 0)
        for p in pools
    }
    if not pools or (constants and flash == ANY_POOL):
        out[ANY_POOL] = PoolMemory(0, 0, constants, None, "ram", 0)
    return out


def _plus(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else f"{a} + {b}"


def _program(f: AnyKernel, mod: IRModule, pools: Sequence[MemoryPool]) -> FunctionMemory:
    """What a public tensor program needs: nothing but its stack and the caller's tensors."""
    spelled = printed_names(f)
    names = {v: spelled[v] for b in f.buffers for d in b.shape for v in free_vars(d)}
    names |= {v: spelled[v] for v in sizes_read(f)}
    return FunctionMemory(
        f.public_name,
        empty_pools(pools, 0),
        InputOutput(*(_program_bytes(f, names, outputs) for outputs in (False, True))),
        stack_of(f.name, mod),
    )


def _program_bytes(f: AnyKernel, names: Mapping[Var, str], outputs: bool) -> Dim:
    split = len(f.buffers) - f.outputs
    total = _total_bytes(f.buffers[split:] if outputs else f.buffers[:split])
    number = int_value(total)
    return expression_text(total, names) if number is None else number


def _total_bytes(tensors: Iterable[TensorType | Buffer]) -> Expr:
    return simplify(sum((bytes_of(t.dtype, t.shape) for t in tensors), IntImm(0)))


def _together(
    functions: Sequence[FunctionMemory], pools: Sequence[MemoryPool], constants: int
) -> dict[str, PoolMemory]:
    """The pools of a whole module: the most that a function needs, and all constants."""
    out = empty_pools(pools, constants)
    for name in dict.fromkeys(n for f in functions for n in f.pools):
        uses = [f.pools[name] for f in functions if name in f.pools]
        module_pool = out.get(name, PoolMemory(0, 0, 0, uses[0].capacity, uses[0].kind, 0))
        maxima = [p.most for p in uses]
        out[name] = PoolMemory(
            _most([p.workspace for p in uses]),
            _most([p.reserved for p in uses]),
            module_pool.constants,
            module_pool.capacity,
            module_pool.kind,
            None if None in maxima else max(m for m in maxima if m is not None),
        )
    return out


def _most(sizes: Sequence[Dim]) -> Dim:
    largest = max((s for s in sizes if isinstance(s, int)), default=0)
    texts = list(dict.fromkeys(s for s in sizes if not isinstance(s, int)))
    if not texts:
        return largest
    parts = [str(largest)] * bool(largest) + texts
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"
