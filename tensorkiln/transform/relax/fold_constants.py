"""Evaluate calls whose operands are all constants, or whose result has no elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Bound, Call, Constant, Function, RVar, TensorType, Value
from tensorkiln.ir.visit_graph import substitute, substitute_value
from tensorkiln.transform.rewriting.graph import live, use_counts

# A result is folded if it has at most LIMIT bytes, or no more elements than its operands, each
# counted once, and at most GROWTH times their bytes: a constant that is concatenated with itself 40
# times has a trillion. All results of a function together have at most TOTAL_GROWTH times the bytes
# of its weights and LIMIT bytes more.
GROWTH = 4
LIMIT = 64 << 20
TOTAL_GROWTH = 10
# Operators whose result may be much larger than their operands. A result of more than
# EXPANDED_LIMIT bytes is used to fold calls that read it, but is not stored in the module.
EXPANDING = frozenset({"full", "arange", "broadcast_to", "tile", "pad"})
EXPANDED_LIMIT = 64 << 10


def fold_constants(mod: IRModule) -> IRModule:
    """Replace calls on constants by their value, computed by NumPy in the declared dtype, and calls
    that make tensors of no elements by such a tensor, or `full` where an extent is symbolic, so
    that no other kernel has to handle such a result.

    Other calls with symbolic extents, bfloat16 or layouts are kept.

    Before:  w1 = transpose(W, axes=(1, 0)); y = matmul(x, w1)
    After:   y = matmul(x, W1)                W1 is a view of W's memory
    Needs:   types inferred.
    """
    return mod.map_graphs(_fold_function)


def _fold_function(f: Function) -> Function:
    state = _Folding(LIMIT + TOTAL_GROWTH * _weight_bytes(f), use_counts(f))
    for b in f.bindings:
        state.visit(b)
    if all(a is b for a, b in zip(state.out, f.bindings, strict=False)) and not state.replaced:
        return f
    result = substitute_value(f.result, state.replaced)
    return live(Function(f.name, f.params, tuple(state.out), result, f.attrs))


@dataclass(slots=True)
class _Folding:
    """The state of one function. `budget`: bytes that further results may take. `out`: the bindings
    that stay. `replaced`: constants that replace variables in them. `constants`: also the large
    results of EXPANDING operators, which are used only to fold calls that read them."""

    budget: int
    uses: Mapping[RVar, int]
    out: list[Binding] = field(default_factory=list)
    replaced: dict[RVar, Value] = field(default_factory=dict)
    constants: dict[RVar, Constant] = field(default_factory=dict)

    def visit(self, b: Binding) -> None:
        value = self._value(b)
        if value is not None:
            self.constants[b.var] = value
            if value.array.nbytes <= EXPANDED_LIMIT or not self._expands(b.value):
                self.replaced[b.var] = value
                return
        definition = _of_nothing(b) or substitute(b.value, self.replaced)
        self.out.append(b if definition is b.value else Binding(b.var, definition))

    @staticmethod
    def _expands(definition: Bound) -> bool:
        return isinstance(definition, Call) and definition.op in EXPANDING

    def _value(self, b: Binding) -> Constant | None:
        call = b.value
        if not isinstance(call, Call) or not call.op or not isinstance(b.var.type, TensorType):
            return None
        shape = b.var.type.static_shape() or ()
        if 0 in shape and b.var.type.layout is None:
            return Constant(np.empty(shape, b.var.type.dtype.name), b.var.type)
        args = [self.constants.get(a, a) if isinstance(a, RVar) else a for a in call.args]
        constants = [a for a in args if isinstance(a, Constant)]
        if len(constants) < len(args) or not _foldable(b.var.type, constants, self.budget):
            return None
        attrs = _numbers(call.attrs)
        if attrs is None:
            return None
        value = _evaluate(call.op, constants, attrs, b.var.type)
        if not any(np.may_share_memory(value.array, a.array) for a in constants):
            self.budget -= value.array.nbytes - self._freed(call)
        return value

    def _freed(self, call: Call) -> int:
        """Bytes of the results that only this call reads."""
        read = {a for a in call.args if isinstance(a, RVar) and self.uses[a] == 1}
        return sum(self.constants[v].array.nbytes for v in read if v in self.replaced)


def _weight_bytes(f: Function) -> int:
    """Bytes of the constants of a function, those of one name once: a folded constant has the name
    of a weight that it was made of."""
    bytes_by_name: dict[str, int] = {}
    for b in f.bindings:
        for a in b.value.args if isinstance(b.value, Call) else ():
            if isinstance(a, Constant):
                bytes_by_name[a.name] = max(a.array.nbytes, bytes_by_name.get(a.name, 0))
    return sum(bytes_by_name.values())


def _of_nothing(b: Binding) -> Call | None:
    """`full` in place of a call whose result has no elements, whatever the sizes are."""
    call, t = b.value, b.var.type
    if not isinstance(call, Call) or not call.op or call.op == "full":
        return None
    if not isinstance(t, TensorType) or t.layout is not None:
        return None
    if not any(int_value(d) == 0 for d in t.shape):
        return None
    value = False if t.dtype.is_bool else 0.0 if t.dtype.is_float else 0
    attrs = Attrs.of(shape=t.shape, value=value, dtype=t.dtype.name)
    return Call("full", (), attrs, call.span)


def _foldable(type_: TensorType, args: list[Constant], budget: int) -> bool:
    types = [type_, *(a.type for a in args)]
    shape = type_.static_shape()
    # NumPy itself cannot compute in bfloat16.
    if shape is None or any(t.layout is not None or not t.dtype.row.in_numpy for t in types):
        return False
    size = type_.dtype.size(prod(shape))
    if size <= LIMIT:
        return size <= budget
    different = {id(a.array): a.array for a in args}.values()
    if prod(shape) > sum(a.size for a in different):
        return False
    return size <= min(budget, GROWTH * sum(a.nbytes for a in different))


def _numbers(attrs: Attrs) -> Attrs | None:
    """Attributes with expressions replaced by their integers; None if one is symbolic."""

    def plain(v: AttrValue) -> AttrValue:
        if isinstance(v, tuple):
            return tuple(map(plain, v))
        return int_value(v) if isinstance(v, Expr) else v

    if any(int_value(e) is None for e in attrs.exprs()):
        return None
    return Attrs.of(**{k: plain(v) for k, v in attrs.items()})


def _evaluate(op: str, args: list[Constant], attrs: Attrs, type_: TensorType) -> Constant:
    arrays = [a.array for a in args]
    # The result keeps the first name among its operands, so that lists of weights can show one.
    name = next((a.name for a in args if a.name), "")
    if op == "transpose":
        return Constant(arrays[0].transpose(attrs.axes), type_, name)
    if op == "broadcast_to":
        # A view with strides of 0, without memory of its own: only small ones are stored.
        return Constant(np.broadcast_to(arrays[0], attrs.shape), type_, name)
    with np.errstate(all="ignore"):
        array = np.asarray(ops.get(op).numpy(arrays, attrs))
    return Constant(array.astype(type_.dtype.name, copy=False), type_, name)
