"""Have indices that a caller passes checked where they lie, before the first kernel runs.

    main(x, i): c = bounds_check(i, extent=n); y = take(x, c)
    ->
    main(x, i) [checked_arguments = ((1, n, True, "node"),)]: y = take(x, i)

A kernel of `bounds_check` would copy them: looking up a million numbers took twice as long. What
reads at them stays within its operand whatever they are: another thread might change them after
the check.

Needs: `CheckIndices`. Run before operators are divided among externals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.checked_arguments import CHECKED_ARGUMENTS, CheckedArgument, checked_arguments
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, Value
from tensorkiln.ir.visit_graph import substitute, variables
from tensorkiln.target import Target, devices_of


@dataclass(frozen=True, slots=True)
class CheckArguments:
    """Check arguments in place; not for a `target` with devices, in whose memory they may be."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with such checks; `mod` itself where no parameter is checked."""
        return mod if devices_of(self.target) else mod.map_graphs(_in_place)


def _in_place(f: Function) -> Function:
    if f.is_primitive or f.external or f.is_outer:
        return f
    results = set(variables(f.result))  # those have memory of their own
    number = {p: i for i, p in enumerate(f.params)}
    rows: list[CheckedArgument] = []
    by: dict[RVar, Value] = {}
    for b in f.bindings:
        call = b.value
        if not isinstance(call, Call) or call.op != "bounds_check":
            continue
        (i,) = call.args
        if i in number and b.var not in results:
            int_extent = int_value(as_expr(call.attrs.extent))
            extent = call.attrs.extent if int_extent is None else int_extent
            rows.append(CheckedArgument(number[i], extent, call.attrs.negative, call.span))
            by[b.var] = i
    if not rows:
        return f
    bindings = tuple(Binding(b.var, substitute(b.value, by)) for b in f.bindings if b.var not in by)
    checks = tuple(tuple(row) for row in (*checked_arguments(f.attrs), *rows))
    attrs = Attrs.of(**{**f.attrs, CHECKED_ARGUMENTS: checks})
    return replace(f, bindings=bindings, attrs=attrs)
