"""Find concatenations that need no kernel, since their operands can be computed in place: side by
side in the memory of the result. Part of `fuse_ops`.

    c = concat(a, b); d = concat(a, b, e)   ->   c = concat(a, b); d = concat(c, e)

An operand can be part of one result only. In dense networks, d begins with the operands of c; it is
rewritten to begin with c, so that c lies in the memory of d, and a and b in that of c.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Tuple, Value
from tensorkiln.ir.tensor_bytes import known_bytes

# Bytes of a cache line, the alignment of every value in the workspace.
_LINE = 64


def adjacent_concats(f: Function, never: Collection[RVar]) -> tuple[Function, set[RVar]]:
    """Return `f`, with concatenations nested as above, and the variables of those in place.

    Each operand of such a concatenation is the result of a call other than reshape, is an operand
    of no other one, fills whole cache lines of the result's memory, and is not in `never`. Results
    of the function and their operands are excluded: their memory is the caller's.
    """
    nested = _nested(f)
    unavailable = _owners_of_results(f) | set(never)
    calls = {b.var: b.value for b in nested if isinstance(b.value, Call)}
    in_place: set[RVar] = set()
    for var, call in calls.items():
        if call.op != "concat" or var in unavailable:
            continue
        operands = [a for a in call.args if isinstance(a, RVar) and a in calls]
        own_memory = all(calls[a].op != "reshape" for a in operands)
        distinct = len({*operands}) == len(call.args) and not unavailable & {*operands}
        if own_memory and distinct and _side_by_side(var.tensor, call):
            in_place.add(var)
            unavailable |= {*operands}
    if not in_place:
        return f, in_place
    chosen = (n if n.var in in_place else b for n, b in zip(nested, f.bindings, strict=True))
    return replace(f, bindings=tuple(chosen)), in_place


def _nested(f: Function) -> list[Binding]:
    """The bindings, where a concatenation that begins with all operands of an earlier one, along
    the same axis, begins with the earlier one's result instead."""
    concats: dict[tuple[object, ...], Value] = {}
    bindings: list[Binding] = []
    for b in f.bindings:
        call = b.value
        if isinstance(call, Call) and call.op == "concat":
            axis, args = call.attrs.axis, call.args
            prefix = next((n for n in range(len(args), 1, -1) if (axis, *args[:n]) in concats), 0)
            concats.setdefault((axis, *args), b.var)
            if 0 < prefix < len(args):
                whole = (concats[axis, *args[:prefix]], *args[prefix:])
                b = Binding(b.var, replace(call, args=whole))
        bindings.append(b)
    return bindings


def offsets_within(t: TensorType, call: Call) -> list[int]:
    """The byte offset of each operand in the result, of type `t`, of a concatenation in place."""
    offsets, offset = [], 0
    for a in call.args:
        offsets.append(offset)
        offset += _bytes(a.type) or 0
    assert offset == _bytes(t)
    return offsets


def _side_by_side(t: TensorType, call: Call) -> bool:
    """Whether the result's memory is that of its operands, one after the other.

    Then the axis is the outermost of extent greater than 1, and operands fill whole blocks of it.
    """
    axis, axes = call.attrs.axis % t.ndim, t.memory.axes
    position = next(i for i, a in enumerate(axes) if a.dim == axis)
    block = max((a.divisor for a in axes if a.dim == axis), default=1)
    types = [a.type for a in call.args]
    if t.memory.halo(axis) or any(int_value(d) != 1 for d in t.physical_shape[:position]):
        return False
    for x in types:
        assert isinstance(x, TensorType)
        size, extent = _bytes(x), int_value(x.shape[axis])
        if size is None or size % _LINE or extent is None or extent % block:
            return False
        if x.memory != t.memory or x.dtype != t.dtype:
            return False
    return sum(_bytes(x) or 0 for x in types) == _bytes(t)


def _bytes(t: object) -> int | None:
    assert isinstance(t, TensorType)
    return known_bytes(t.dtype, t.physical_shape)


def _owners_of_results(f: Function) -> set[RVar]:
    views = {
        b.var: b.value.args[0]
        for b in f.bindings
        if isinstance(b.value, Call) and b.value.op == "reshape"
    }
    owners: set[RVar] = set()
    for v in f.result.fields if isinstance(f.result, Tuple) else (f.result,):
        while isinstance(v, RVar):
            owners.add(v)
            v = views.get(v)  # type: ignore[assignment]
    return owners
