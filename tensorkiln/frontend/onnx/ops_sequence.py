"""Sequences and optionals, which graphs do not have: their operators are done at import.

A sequence is a list of tensors whose length is known; positions in it must be constants. An
optional is its tensor or sequence, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.movement import stack
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Table, TypeOf
from tensorkiln.frontend.onnx.graph_values import ABSENT, EmptyOptional, GraphValue, TensorList
from tensorkiln.frontend.onnx.narrow import Narrow, element_type
from tensorkiln.frontend.onnx.texts import Texts
from tensorkiln.ir.expr import as_expr, int_value


def _items(x: GraphValue) -> tuple[Val | Narrow, ...]:
    if not isinstance(x, TensorList):
        raise malformed("the operand is no sequence")
    return x.items


def _tensor(x: GraphValue) -> Val | Narrow:
    if isinstance(x, TensorList | EmptyOptional | Texts):
        raise malformed("an operand is no tensor of numbers")
    return x


def _plain(x: GraphValue) -> Val:
    if not isinstance(x, Val):
        raise malformed("an operand is no tensor of a type to compute with")
    return x


def _place(g: Context, position: GraphValue, count: int, maximum: int) -> int:
    """A position, from the end when negative, as 0 to `maximum`, among `count` tensors."""
    place = int(g.scalar(_plain(position), "a position in a sequence"))
    if not -count <= place <= maximum:
        raise malformed(f"position {place} is outside of a sequence of {count}")
    return place + count if place < 0 else place


def _same_type(items: Sequence[Val | Narrow]) -> TensorList:
    names = sorted({element_type(v) for v in items})
    if len(names) > 1:
        raise malformed(f"tensors of a sequence have different element types: {', '.join(names)}")
    return TensorList(tuple(items))


def sequence_construct(g: Context, x: GraphValue, *more: GraphValue) -> GraphValue:
    """The operands, one or more tensors of one element type, as a sequence."""
    return _same_type([_tensor(v) for v in (x, *more)])


def sequence_empty(g: Context, *, dtype: Int = 1) -> GraphValue:
    """A sequence of no tensors."""
    return TensorList(())


def sequence_at(g: Context, xs: GraphValue, at: GraphValue) -> GraphValue:
    """The tensor at a constant position."""
    items = _items(xs)
    return items[_place(g, at, len(items), len(items) - 1)]


def sequence_insert(
    g: Context, xs: GraphValue, x: GraphValue, at: GraphValue | None = None
) -> GraphValue:
    """The sequence with a tensor more, before a constant position or at the end."""
    items = list(_items(xs))
    items.insert(len(items) if at is None else _place(g, at, len(items), len(items)), _tensor(x))
    return _same_type(items)


def sequence_erase(g: Context, xs: GraphValue, at: GraphValue | None = None) -> GraphValue:
    """The sequence without the tensor at a constant position, or without the last."""
    items = list(_items(xs))
    if not items:
        raise malformed("the sequence is empty")
    del items[-1 if at is None else _place(g, at, len(items), len(items) - 1)]
    return TensorList(tuple(items))


def sequence_length(g: Context, xs: GraphValue) -> GraphValue:
    """The number of tensors, which is known."""
    return g.const(len(_items(xs)), "int64")


def concat_from_sequence(g: Context, xs: GraphValue, *, axis: Int, new_axis: Int = 0) -> GraphValue:
    """The tensors joined along a dimension, with `new_axis` along one that they have not yet."""
    items = [_plain(v) for v in _items(xs)]
    if not items:
        raise malformed("the sequence is empty")
    if new_axis:
        return stack(g, items, axis)
    dimension = g.axis(axis, g.rank(items[0]))
    return items[0] if len(items) == 1 else g.emit("concat", *items, axis=dimension)


def split_to_sequence(
    g: Context, x: GraphValue, split: GraphValue | None = None, *, axis: Int = 0, keepdims: Int = 1
) -> GraphValue:
    """Parts of `split` elements along a dimension, or of as many as its entries say; without it of
    one, and then `keepdims` = 0 removes the dimension."""
    x = _plain(x)
    dimension = g.axis(axis, g.rank(x))
    extent = int_value(g.shape(x)[dimension])
    if extent is None:
        raise unsupported("a symbolic dimension is split", "freeze={name: size} makes it static")
    if split is None:
        parts = [1] * extent
    elif g.rank(_plain(split)) == 0:
        (part_size,) = g.ints(_plain(split), "split")
        if part_size < 1:
            raise malformed(f"split={part_size}, expected 1 or more")
        parts = [min(part_size, extent - k) for k in range(0, extent, part_size)]
    else:
        parts = list(g.ints(_plain(split), "split"))
    if any(n < 0 for n in parts) or sum(parts) != extent:
        raise malformed(f"parts {parts} do not add up to the extent {extent}")
    tensors, start = [], 0
    for n in parts:
        begin = tuple(start if i == dimension else 0 for i in range(g.rank(x)))
        shape = [as_expr(n) if i == dimension else d for i, d in enumerate(g.shape(x))]
        part = g.emit("slice", x, begin=begin, strides=(1,) * g.rank(x), shape=tuple(shape))
        if split is None and not keepdims:
            part = g.reshape(part, [*shape[:dimension], *shape[dimension + 1 :]])
        tensors.append(part)
        start += n
    return TensorList(tuple(tensors))


def optional(g: Context, x: GraphValue | None = None, *, type: TypeOf = None) -> GraphValue:
    """An optional that holds the operand, or without one is empty."""
    return ABSENT if x is None else x


def optional_has_element(g: Context, x: GraphValue | None = None) -> GraphValue:
    """Whether there is an operand and it is not empty, which is known."""
    return g.const(x is not None and not isinstance(x, EmptyOptional), "bool")


def optional_get_element(g: Context, x: GraphValue) -> GraphValue:
    """What the optional holds."""
    if isinstance(x, EmptyOptional):
        raise malformed("the optional is empty")
    return x


TABLE: Table = {
    "SequenceConstruct": {11: sequence_construct},
    "SequenceEmpty": {11: sequence_empty},
    "SequenceAt": {11: sequence_at},
    "SequenceInsert": {11: sequence_insert},
    "SequenceErase": {11: sequence_erase},
    "SequenceLength": {11: sequence_length},
    "ConcatFromSequence": {11: concat_from_sequence},
    "SplitToSequence": {11: split_to_sequence},
    "Optional": {15: optional},
    "OptionalHasElement": {15: optional_has_element},
    "OptionalGetElement": {15: optional_get_element},
}
