"""Make the plan of a graph function (`ir/plan.py`) of the places that `plan_memory` has found for
its values.

    main(x) [homes, workspace_bytes]: h = k1(x, w); y = k2(h); return y
    ->
    storages: 4096 bytes; constants: w; calls: k1(x, constants[0], storages[0]), k2(storages[0], y)

In the module the plan is functions `main_init`, `main` and `main_run` (`ir/plan_form.py`). Each
pool of memory (`PlanMemory`) is a storage of its own.

Needs: `plan_memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove
from tensorkiln.base.errors import UserError
from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.conditions import SizeCondition, conditions_of, with_conditions
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.plan import Address, Plan, PlannedCall, PlannedStorage
from tensorkiln.ir.plan_form import printed_plan
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Value,
)
from tensorkiln.ir.visit import free_vars
from tensorkiln.transform.relax.results import made_values

_WORKSPACE = "workspace"  # the kind of a home in no pool
_PLAN = ("homes", "pools", "workspace_bytes")


def partial_graph_aot(mod: IRModule) -> IRModule:
    """Split every graph function that `plan_memory` has planned.

    Raises UserError (code `not-lowered`) if one still calls a fused group.
    """
    names = set(mod)
    plans: dict[str, Plan] = {}
    functions: list[AnyFunction] = []
    for f in mod.functions:
        if isinstance(f, Function) and "homes" in f.attrs:
            _require_kernels(f, mod)
            plans[f.name] = _plan(f, names)
            functions += plans[f.name].functions
        else:
            functions.append(f)
    if not plans:
        return mod
    mod = mod.with_functions(tuple(functions))
    mod.plans.update(plans)
    return mod


def _require_kernels(f: Function, mod: IRModule) -> None:
    """Raise UserError (code `not-lowered`) if a call in `f` is of a fused group without loops."""
    for b in f.bindings:
        if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef):
            callee = mod[b.value.callee.name]
            if isinstance(callee, Function) and not callee.external:
                raise UserError(
                    f"{callee.name} is a fused group without loops: run lower_groups before "
                    "partial_graph_aot",
                    code="not-lowered",
                    where=f.name,
                    hint="pipeline.relax_passes lists the passes in order",
                )


class _Places:
    """The places of the values of one graph function, and what is in them.

    `homes` maps a value's name to its place (`plan_memory`), `storages` has the storage of each
    kind of home, `views` maps a reshape to its operand, and `constants` the identity of a
    constant's data to the constant, in the order in which kernels read them; `numbers` has the
    numbers of storages and of constants.
    """

    def __init__(self, f: Function):
        self.f = f
        self.tensors = [*f.params, *(r for r in f.results if isinstance(r, RVar))]
        self.homes = {name: (kind, offset) for name, kind, offset in f.attrs["homes"]}
        self.storages = self._storages()
        self.views: dict[RVar, Value] = {}
        self.constants: dict[int, Constant] = {}
        for b in f.bindings:
            call = b.value
            if not isinstance(call, Call):
                continue
            if not isinstance(call.callee, GlobalRef):
                self.views[b.var] = call.args[0]
                continue
            for v in map(self._root, call.args):
                if isinstance(v, Constant):
                    self.constants.setdefault(id(v.data), v)
        self.numbers: dict[object, int] = {key: k for k, key in enumerate(self.constants)}
        self.numbers |= {kind: i for i, kind in enumerate(self.storages)}

    def _storages(self) -> dict[str, PlannedStorage]:
        attrs = self.f.attrs
        pools = attrs.get("pools", ())
        storages = {kind: PlannedStorage(as_expr(n), kind, align) for kind, n, align in pools}
        size = attrs.get("workspace_bytes", 0)
        if size != 0:
            storages[_WORKSPACE] = PlannedStorage(as_expr(size))
        # Where all values of a memory are empty, they have an address nevertheless.
        for kind in (k for k, _ in self.homes.values() if k not in ("arg", *storages)):
            storages[kind] = PlannedStorage(IntImm(1), "" if kind == _WORKSPACE else kind)
        return storages

    def calls(self) -> Iterator[PlannedCall]:
        """Yield the calls of kernels, in order."""
        results = made_values(self.f)
        for b in self.f.bindings:
            call = b.value
            if not isinstance(call, Call) or not isinstance(call.callee, GlobalRef):
                continue
            tensors = [a for a in call.args if not isinstance(a, ShapeValue)]
            addresses = [self._address(v) for v in (*tensors, *results[b.var])]
            numbers = [e for a in call.args if isinstance(a, ShapeValue) for e in a.values]
            yield PlannedCall(call.callee.name, (*addresses, *numbers), call.span)

    def _address(self, v: Value) -> Address:
        v = self._root(v)
        if isinstance(v, Constant):
            k = self.numbers[id(v.data)]
            return Address("constant", k, IntImm(0), f"constants[{k}]")
        assert isinstance(v, RVar)
        kind, offset = self.homes[v.name]
        if kind == "arg":
            return Address("tensor", offset, IntImm(0), self.tensors[offset].name)
        i = self.numbers[kind]
        return Address("storage", i, as_expr(offset), f"storages[{i}]")

    def _root(self, v: Value) -> Value:
        while isinstance(v, RVar) and v in self.views:
            v = self.views[v]
        return v


def _plan(f: Function, names: set[str]) -> Plan:
    """The plan of a graph function; `names` are those of the module, to which its own are
    added."""
    init, run = (unused(f"{f.name}_{part}", names) for part in ("init", "run"))
    names |= {init, run}
    places = _Places(f)
    conditions = (*conditions_of(f), *map(SizeCondition, _not_negative(f)))
    attrs = Attrs.of(**{k: v for k, v in f.attrs.items() if k not in _PLAN})
    f = replace(f, attrs=with_conditions(attrs, conditions))
    storages, constants = places.storages.values(), places.constants.values()
    return printed_plan(f, tuple(storages), tuple(constants), tuple(places.calls()), init, run)


def _not_negative(f: Function) -> list[Expr]:
    """The condition `extent >= 0` for each computed extent that is not proved to be non-negative.

    A window may be larger than its input, as for the extent `h - 6` and h = 3; memory was planned
    for extents that are not negative.
    """
    sizes = {
        d: None
        for b in f.bindings
        if isinstance(b.var.type, TensorType)
        for d in b.var.type.shape
        if not isinstance(d, IntImm | Var)
    }
    bounds = Bounds.dims([v for d in sizes for v in free_vars(d)])
    for condition in conditions_of(f):
        bounds = bounds.given(condition.holds)
    return [c for c in (binary("ge", d, 0) for d in sizes) if not prove(c, bounds)]
