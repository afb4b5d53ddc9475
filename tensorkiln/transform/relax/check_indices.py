"""Have indices checked before elements are read or written there.

    y = take(x, i)          ->  c = bounds_check(i, extent=n); y = take(x, c)     x: [n, 4]
    y = take(x, argmax(z))  ->  itself: argmax of n is within 0..n-1

A kernel of `bounds_check` puts the indices into memory, where the host looks at them before the
next kernel runs (`CHECKED_INDICES` in `ir/known_attrs.py`); a call with an index outside fails.
Indices that are proved to be inside (`index_range.py`) are not checked, nor are those of `take`
with `outside="clamp"`. Where the target says `indices="clamp"`, none is: one that is outside is
then taken for the nearest inside.

Needs: canonical operators; run before operators are divided among devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Type, Value, constant
from tensorkiln.ir.visit_graph import substitute, substitute_value
from tensorkiln.ops import call as op_call
from tensorkiln.ops import infer
from tensorkiln.ops.places import index_limits
from tensorkiln.target import Target, cpu_target
from tensorkiln.transform.relax.index_range import IndexRanges


@dataclass(frozen=True, slots=True)
class CheckIndices:
    """Check what is not proved, or clamp it, as the option `indices` of `target` says."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with checks; `mod` itself where nothing is to be checked."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        if f.is_primitive or f.external or not any(map(_indexes, f.bindings)):
            return f
        return _Checked(f, cpu_target(self.target).indices == "clamp").function()


def _indexes(b: Binding) -> bool:
    call = b.value
    if not isinstance(call, Call):
        return False
    return call.op == "bounds_check" or (call.op == "take" and call.attrs.outside == "error")


class _Checked:
    """One function with its indices checked, or clamped."""

    def __init__(self, f: Function, clamps: bool):
        self.f, self.clamps = f, clamps
        self.ranges = IndexRanges(f)
        self.bindings: list[Binding] = []
        self.by: dict[RVar, Value] = {}
        self.names = {v.name for v in (*f.params, *(b.var for b in f.bindings))}
        # Checks that were made: two tables of one size may be read at the same indices.
        self.checked: dict[tuple[Value, Attrs], Value] = {}

    def function(self) -> Function:
        """The function with its checks; itself where it needs none."""
        changed = False
        for b in self.f.bindings:
            value = substitute(b.value, self.by)
            call = value if isinstance(value, Call) else None
            if call is not None and call.op == "bounds_check":
                inside = self._inside(call.args[0], call.attrs, call.span, b.var)
                if inside is not b.var:
                    self.by[b.var] = inside
                    changed = True
                continue
            if call is not None and _indexes(Binding(b.var, call)) and not self.clamps:
                value = self._checked_take(call, b.var)
            changed |= value is not b.value
            self.bindings.append(b if value is b.value else Binding(b.var, value))
        if not changed:
            return self.f
        result = substitute_value(self.f.result, self.by)
        return replace(self.f, bindings=tuple(self.bindings), result=result)

    def _checked_take(self, call: Call, y: RVar) -> Call:
        x, indices = call.args
        assert isinstance(x.type, TensorType)
        extent = x.type.shape[call.attrs.axis % x.type.ndim]
        checked = self._fresh(f"{y.name}_indices", indices.type)
        inside = self._inside(indices, Attrs.of(extent=extent, negative=True), call.span, checked)
        return call if inside is indices else replace(call, args=(x, inside))

    def _inside(self, indices: Value, a: Attrs, span: str, checked: RVar) -> Value:
        """`indices` once they are known to be inside: themselves where that is proved, else
        `checked`, or what the same check before has given."""
        assert isinstance(indices.type, TensorType)
        low, high = index_limits(indices.type.dtype, a)
        if self.ranges.is_inside(indices, low, high):
            return indices
        key = indices, a
        if key not in self.checked:
            make = self._clamped if self.clamps else self._check
            self.checked[key] = make(indices, a, span, checked)
        return self.checked[key]

    def _check(self, indices: Value, a: Attrs, span: str, checked: RVar) -> Value:
        call = Call("bounds_check", (indices,), a, span)
        self.bindings.append(Binding(checked, call))
        self.ranges.calls[checked] = call
        return checked

    def _clamped(self, indices: Value, a: Attrs, span: str, checked: RVar) -> Value:
        """The nearest indices inside, computed in int64 where the extent is symbolic."""
        t = indices.type
        assert isinstance(t, TensorType)
        low, high = (as_expr(limit) for limit in index_limits(t.dtype, a))
        whole = int_value(high) is not None and _fits(low, high, t.dtype)
        dtype = t.dtype if whole else INT64

        def emit(op: str, *args: Value, **attrs: AttrValue) -> RVar:
            call = op_call(op, *args, span=span, **attrs)
            var = self._fresh(f"{checked.name}_{op}", infer(call))
            self.bindings.append(Binding(var, call))
            return var

        def number(e: Expr) -> Value:
            value = int_value(e)
            if value is not None:
                return constant(np.asarray(value, dtype.name))
            one_element = emit("arange", start=e, step=1, count=1, dtype=dtype.name)
            return emit("reshape", one_element, shape=())

        x = indices if whole else emit("cast", indices, dtype=dtype.name)
        x = emit("maximum", emit("minimum", x, number(high)), number(low))
        return x if whole else emit("cast", x, dtype=t.dtype.name)

    def _fresh(self, name: str, t: Type) -> RVar:
        name = unused(name, self.names)
        self.names.add(name)
        return RVar(name, t)


def _fits(low: Expr, high: Expr, dtype: DType) -> bool:
    """Whether both numbers are numbers of a type."""
    limits = np.iinfo(dtype.name)
    return all(limits.min <= (int_value(e) or 0) <= limits.max for e in (low, high))
