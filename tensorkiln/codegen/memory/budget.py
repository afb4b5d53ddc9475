"""Budgets: what a compile may ask for at most, and the error of one that needs more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tensorkiln.base.config import byte_count
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.codegen.memory.figures import LiveTensor, PoolMemory
from tensorkiln.codegen.memory.measure import GraphMemory, memory_report
from tensorkiln.codegen.memory.report import MemoryReport
from tensorkiln.codegen.memory.table import lines_of, tensor_rows
from tensorkiln.ir.module import IRModule
from tensorkiln.target import MemoryPool

GivenBudget = int | str | Mapping[str, int | str]
_WHAT = "bytes such as 262144 or '256K', or bytes for pools: 'sram=200K,dtcm=64K'"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most bytes of workspace that a function may need: of all pools together, None without
    such a limit, and of single pools."""

    total: int | None = None
    pools: Mapping[str, int] = field(default_factory=dict)


def read_budget(budget: GivenBudget | None, pools: Sequence[MemoryPool]) -> Budget:
    """The budget that `max_workspace=` stands for. UserError: `bad-argument`, `unknown-pool`."""
    if budget is None:
        return Budget()
    if isinstance(budget, str) and "=" in budget:
        budget = _by_pool(budget)
    if not isinstance(budget, Mapping):
        return Budget(_bytes(budget))
    pool_names = [p.name for p in pools if p.kind == "ram"]
    for name in budget:
        if name not in pool_names:
            raise UserError(
                f"max_workspace: the target has no pool {name!r} for intermediate results",
                code="unknown-pool",
                hint=nearest(str(name), pool_names) or f"its pools: {listed(pool_names) or 'none'}",
            )
    return Budget(None, {name: _bytes(size) for name, size in budget.items()})


def _by_pool(text: str) -> dict[str, int | str]:
    out: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if name in out:
            raise UserError(f"max_workspace: {name!r} is given twice", code="bad-argument")
        out[name] = size
    return out


def _bytes(size_argument: object) -> int:
    try:
        size = byte_count(size_argument) if isinstance(size_argument, str) else size_argument
    except ValueError:
        size = None
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    raise UserError(f"max_workspace={size_argument!r}: expected {_WHAT}", code="bad-argument")


def require_memory(
    mod: IRModule, pools: Sequence[MemoryPool], budget: Budget, devices: Sequence[str] = ()
) -> None:
    """Check what the planned functions of a module need against a budget and the target's pools;
    `devices` have memory of their own, which has no limit here.

    Raises UserError: `workspace` for a function or the constants that need more than there is,
    `unbounded-size` where that depends on a dimension without upper bound, `unknown-pool` for
    storages of other pools; UnsupportedError for host steps, which allocate as they run.
    """
    _require_known_pools(mod, pools, devices)
    limits = {p.name: p.size for p in pools if p.kind == "ram" and p.size is not None}
    for name, size in budget.pools.items():
        limits[name] = min(size, limits.get(name, size))
    flash = next((p for p in pools if p.kind == "flash"), None)
    if budget.total is None and not limits and (flash is None or flash.size is None):
        return
    if mod.outers:
        names = listed(f.name for f in mod.outers)
        raise UnsupportedError(
            f"{names}: host steps (branches, loops, values other than tensors) allocate as they "
            "run, so their memory cannot be bounded",
            hint="without max_workspace, for a target without pools",
        )
    report = memory_report(mod, pools)
    for f in report.functions.values():
        for name, limit in limits.items():
            if name in f.pools:
                largest_tensors = partial(_largest_in, mod, f.name, pools, name)
                _require(f.name, f"pool {name!r}", [f.pools[name]], limit, largest_tensors)
        if budget.total is not None:
            needs = list(f.pools.values())
            _require(f.name, "workspace", needs, budget.total, partial(tuple, f.largest))
    _require_flash(report, flash)


def _require(
    function: str,
    subject: str,
    pools: Sequence[PoolMemory],
    have: int,
    largest: Callable[[], Sequence[LiveTensor]],
) -> None:
    needs = [p.reserved if isinstance(p.reserved, int) else p.most for p in pools]
    if None in needs:
        formula = " + ".join(str(p.reserved) for p in pools if p.reserved != 0)
        raise UserError(
            f"{subject}: needs {formula} bytes, which have no upper bound; there are {have:,}",
            code="unbounded-size",
            where=function,
            hint="freeze the dimensions, or give them a range (the attribute `assumes`, or "
            "torch.export.Dim(max=...))",
        )
    need = sum(n for n in needs if n is not None)
    if need > have:
        table = "\n".join(lines_of(tensor_rows(largest())))
        raise UserError(
            f"{subject}: needs {need:,} bytes, has {have:,}, {need - have:,} too many\n{table}",
            code="workspace",
            where=function,
            hint="smaller inputs or batches, or more memory: a larger pool, a larger max_workspace",
        )


def _largest_in(
    mod: IRModule, function: str, pools: Sequence[MemoryPool], pool: str
) -> Sequence[LiveTensor]:
    """The largest values in a pool when most of it is in use."""
    return GraphMemory(mod.plan(function), mod, pools).peak({}, pool)[1]


def _require_flash(report: MemoryReport, flash: MemoryPool | None) -> None:
    if flash is None or flash.size is None:
        return
    need = report.pools[flash.name].constants
    if need > flash.size:
        raise UserError(
            f"pool {flash.name!r}: weights need {need:,} bytes, it has {flash.size:,}, "
            f"{need - flash.size:,} too many",
            code="workspace",
            where=report.name,
            hint="a smaller or quantised model, or a larger pool",
        )


def _require_known_pools(
    mod: IRModule, pools: Sequence[MemoryPool], devices: Sequence[str]
) -> None:
    """Check that storages are of devices or pools of the target, of which their alignment can be
    had."""
    pool_of_name = {p.name: p for p in pools if p.kind == "ram"}
    storages = [(plan.functions[0].name, s) for plan in mod.planned for s in plan.storages]
    for function, s in storages:
        if s.pool in devices:
            continue
        if s.pool not in pool_of_name and (s.pool or pool_of_name):
            raise UserError(
                f"a storage of pool {s.pool!r}; the target's are {listed(pool_of_name) or 'none'}"
                if s.pool
                else f"a storage of no pool; the target's are {listed(pool_of_name)}",
                code="unknown-pool",
                where=function,
                hint=nearest(s.pool, pool_of_name)
                or "PlanMemory(target) plans for the pools of a target",
            )
        if s.pool and s.align > pool_of_name[s.pool].align:
            raise UserError(
                f"a storage aligned to {s.align} bytes in pool {s.pool!r}, which is aligned to "
                f"{pool_of_name[s.pool].align}",
                code="unknown-pool",
                where=function,
            )
