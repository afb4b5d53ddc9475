"""The conditions on sizes that a graph function must assume, for the operators that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tensorkiln import ops
from tensorkiln.arith import Bounds, prove, simplify
from tensorkiln.ir.conditions import SizeCondition, conditions_of, with_conditions
from tensorkiln.ir.expr import IntImm, Var, binary
from tensorkiln.ir.relax import Binding, Bound, Call, Function, If, Lambda, TensorType
from tensorkiln.ir.subtype import symbols
from tensorkiln.ir.visit import free_vars
from tensorkiln.ir.visit_graph import variables


def stated(f: Function) -> Function:
    """`f` with what its operators require of symbolic extents among the conditions that it assumes.

    Of an outer function these are the requirements of what always runs, over dimensions of
    parameters; the others are stated when its straight-line parts are functions of their own. The
    same object comes back if nothing is missing.
    """
    conditions = conditions_of(f)
    missing = tuple(_missing(f, conditions))
    if not missing:
        return f
    return replace(f, attrs=with_conditions(f.attrs, (*conditions, *missing)))


def of_branches(f: Function) -> Iterator[SizeCondition]:
    """The requirements of operators in branches and loops of `f`, which `stated` returned, on the
    dimensions of its parameters. They are checked only where the operators run."""
    dims = {v for p in f.params for v in symbols(p.type)}
    bounds = _within(dims, conditions_of(f))
    for b in f.bindings:
        yield from _nested(b.value, dims, bounds)


def _nested(definition: Bound, dims: set[Var], bounds: Bounds) -> Iterator[SizeCondition]:
    for bindings in _bodies(definition):
        bound_here = {b.var for b in bindings}
        outside = {v for b in bindings for v in variables(b.value)} - bound_here
        yield from _of_bindings(bindings, dims, bounds, set(outside))
        for b in bindings:
            yield from _nested(b.value, dims, bounds)


def _bodies(definition: Bound) -> tuple[Sequence[Binding], ...]:
    match definition:
        case If():
            return definition.then.bindings, definition.orelse.bindings
        case Lambda():
            return (definition.function.bindings,)
    return ()


def _missing(f: Function, conditions: Iterable[SizeCondition]) -> Iterator[SizeCondition]:
    dims = {v for p in f.params for v in symbols(p.type)}
    return _of_bindings(f.bindings, dims, _within(dims, conditions), set(f.params))


def _within(dims: set[Var], conditions: Iterable[SizeCondition]) -> Bounds:
    bounds = Bounds.dims(dims)
    for condition in conditions:
        bounds = bounds.given(condition.holds)
    return bounds


def _of_bindings(
    bindings: Sequence[Binding], dims: set[Var], bounds: Bounds, arguments: set[object]
) -> Iterator[SizeCondition]:
    for b in bindings:
        for condition in _of_binding(b, bounds, arguments):
            if dims.issuperset(free_vars(condition.holds)):
                bounds = bounds.given(condition.holds)
                yield condition
        if _may_be_fused(b) and not arguments.isdisjoint(variables(b.value)):
            arguments.add(b.var)


def _may_be_fused(b: Binding) -> bool:
    """Whether a kernel that reads a value may compute it, from the memory of its operands."""
    op = ops.OPS.get(b.value.op) if isinstance(b.value, Call) else None
    return op is not None and op.pattern in ("elementwise", "broadcast", "injective")


def _of_binding(b: Binding, bounds: Bounds, arguments: set[object]) -> Iterator[SizeCondition]:
    call = b.value
    if not isinstance(call, Call) or not call.op:
        return
    for need in ops.needs(call):
        elsewhere = need.of_arguments and call.args[need.operand] not in arguments
        holds = None if elsewhere else need.open_condition(bounds)
        if holds is not None:
            node = call.span or call.op
            yield SizeCondition(holds, f"{node}: {need.expected}" if need.expected else node)
    if isinstance(b.var.type, TensorType):
        for axis, extent in enumerate(b.var.type.shape):
            if not isinstance(extent, IntImm | Var) and not prove(binary("ge", extent, 0), bounds):
                reason = f"{call.span or call.op}: dimension {axis} of its result"
                yield SizeCondition(simplify(binary("ge", extent, 0), bounds), reason)


__all__ = ["of_branches", "stated"]
