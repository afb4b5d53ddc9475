"""Rows put to computed places, one after the other: the plain program, and its schedule.

Roles of loops: "part", over parts of the columns or rows; "copy", over elements or rows that are
kept; "row", over updates; "element", over neighbours in memory.
"""

from __future__ import annotations

from typing import NamedTuple

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    as_expr,
    binary,
    cast,
    int_value,
    logical_and,
    maximum,
    minimum,
)
from tensorkiln.ir.relax import Call, RVar, TensorType
from tensorkiln.ir.stmt import If, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.places import combined
from tensorkiln.schedule.build import PARALLEL_WORK, loop
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.partial_sums import in_vectors, store_in_lanes
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS

# Columns of a part: whole cache lines of any type.
_PART = 64
# Parts of the rows. Each reads all places, and takes what is put to its own rows, which are in the
# cache since they were copied. Half of 4096 rows of 512 are updated in 0.23 ms in 8 parts, in 0.24
# in 16 and 0.38 in 64. Parts of the columns stride through memory: they copy in twice the time.
_ROW_PARTS = 8
# Elements of a task that copies.
_CHUNK = 4096


class _ColumnPart(NamedTuple):
    """Rows from `row` on of columns from `column` on."""

    row: Expr
    rows: Expr
    column: Expr
    columns: Expr


def scatter_program(group: Group, width: int = 0, parts: int = 0) -> PrimFunc:
    """Copy x, then out[place] = update for each update; once for each part of `width` columns, or
    for each of `parts` parts of the rows."""
    zero, (rows, columns) = IntImm(0), group.out_type.shape

    def both(part: _ColumnPart) -> Stmt:
        return seq(_copy(group, part), _put(group, part))

    def of_columns(p: Expr) -> Stmt:
        return both(_ColumnPart(zero, rows, simplify(p * width), as_expr(width)))

    def of_rows(p: Expr) -> Stmt:
        height = simplify((rows + parts - 1) // parts)
        first, many = simplify(p * height), height
        if int_value(simplify(rows % parts)) != 0:
            many = maximum(minimum(height, rows - first), zero)
        return both(_ColumnPart(first, many, zero, columns))

    if width:
        body = loop("p", simplify(columns // width), of_columns, "part", keep=True)
    elif parts:
        body = loop("p", parts, of_rows, "part", keep=True)
    else:
        body = seq(_copy_all(group), _put(group, _ColumnPart(zero, rows, zero, columns)))
    return PrimFunc(group.name, group.params, body, inplace=_inplace(group))


def _call(group: Group) -> Call:
    assert group.anchor is not None
    return group.anchor


def _copy(group: Group, part: _ColumnPart) -> Stmt:
    """out = x in a part."""
    x = group.element(_call(group).args[0])

    def one(i: Expr, k: Expr) -> Stmt:
        index = (simplify(part.row + i), simplify(part.column + k))
        return Store(group.out, group.store_index(index), x(*index))

    def row(i: Expr) -> Stmt:
        return loop("k", part.columns, lambda k: one(i, k), "element")

    return loop("i", part.rows, row, "copy")


def _copy_all(group: Group) -> Stmt:
    """out = x, in the order of memory."""
    (x, *other_args), (rows, columns) = _call(group).args, group.out_type.shape
    alone = isinstance(x, RVar) and x in group.buffers and x not in other_args
    if int_value(columns) != 1 and not alone:
        return _copy(group, _ColumnPart(IntImm(0), rows, IntImm(0), columns))
    total = simplify(rows * columns)
    if int_value(columns) == 1:
        element, zero = group.element(x), IntImm(0)
        return loop("i", total, lambda i: Store(group.out, (i, zero), element(i, zero)), "copy")
    assert isinstance(x, RVar)
    group.flatten([x])
    source = group.buffers[x]
    return loop("i", total, lambda i: Store(group.out, (i,), Load(source, (i,))), "copy")


def _put(group: Group, part: _ColumnPart) -> Stmt:
    """Store the updates of a part in their rows, or combine them with these."""
    call, columns = _call(group), group.out_type.shape[1]
    places, updates = map(group.element, call.args[1:])
    place_type, flat = call.args[1].type, len(group.out.shape) == 1
    assert isinstance(place_type, TensorType)

    def update(j: Expr) -> Stmt:
        place = Var("place")
        end = simplify(part.row + part.rows)
        row: Expr = place
        if int_value(part.row) is None:  # proofs see this; the condition below is data's
            row = maximum(minimum(place, simplify(end - 1)), part.row)

        def element(k: Expr) -> Stmt:
            column = simplify(part.column + k)
            index = (simplify(row * columns + column),) if flat else (row, column)
            new = updates(j, column)
            return Store(
                group.out, index, combined(Load(group.out, index), new, call.attrs.reduction)
            )

        inside = logical_and(binary("ge", place, part.row), place < end)
        body = If(inside, loop("k", part.columns, element, "element"))
        return Let(place, cast(places(j), INT64), body)

    return loop("j", place_type.shape[0], update, "row")


def _inplace(group: Group) -> tuple[int, ...]:
    """The result may take the memory of x, unless x is another operand as well."""
    call = _call(group)
    x = call.args[0]
    if not KINDS[group.target.kind].overwrites or x in call.args[1:] or x not in group.buffers:
        return ()
    return tuple(k for k, p in enumerate(group.function.params) if p is x)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """`scatter`: threads share parts of the rows; if rows are few, parts of the columns; or only
    the copy."""
    rows, columns = map(int_value, group.out_type.shape)
    size = int_value(product(group.out_type.shape))
    large = size is None or size > PARALLEL_WORK
    width = parts = 0
    if large and (columns is None or columns > _PART):
        if rows is None or rows >= 2 * _ROW_PARTS:
            parts = _ROW_PARTS
        elif columns is not None and columns % _PART == 0:
            width = _PART
    s = Schedule(scatter_program(group, width, parts), check)
    lanes = target.vector_lanes(group.out_type.dtype.name)
    copies, elements = s.loops(role="copy"), s.loops(role="element")
    for name in s.loops(role="part"):
        s.parallel(name)
    for name in copies:
        if s.children(name)[0] not in elements:  # one loop over all
            inner = name
            if large and s.reaches(name, _CHUNK):
                tasks = s.split(name, _CHUNK, tail="peel")
                s.parallel(tasks.outer)
                inner = tasks.inner
            store_in_lanes(s, inner, lanes)
    for name in elements:
        store_in_lanes(s, name, lanes)
    in_vectors(s)
    return s
