"""Rows put to computed places, one after the other: the plain program, and its schedule.

Roles of loops: "part", over parts of the columns; "copy", over elements or rows that are kept;
"row", over updates; "element", over neighbours in memory.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary, cast, int_value, logical_and
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
# Elements of a task that copies.
_CHUNK = 4096


def scatter_program(group: Group, width: int) -> PrimFunc:
    """Copy x, then for each update out[place] = update; with a `width` once for each part of so
    many columns."""
    columns = group.out_type.shape[1]

    def part(p: Expr) -> Stmt:
        first, many = simplify(p * width), as_expr(width)
        return seq(_copy(group, first, many), _put(group, first, many))

    if width:
        body = loop("p", simplify(columns // width), part, "part", keep=True)
    else:
        body = seq(_copy_all(group), _put(group, IntImm(0), columns))
    return PrimFunc(group.name, group.params, body, inplace=_inplace(group))


def _call(group: Group) -> Call:
    assert group.anchor is not None
    return group.anchor


def _copy(group: Group, first: Expr, count: Expr) -> Stmt:
    """out = x in columns first .. first + count - 1."""
    x = group.element(_call(group).args[0])

    def one(i: Expr, k: Expr) -> Stmt:
        index = (i, simplify(first + k))
        return Store(group.out, group.store_index(index), x(*index))

    rows = group.out_type.shape[0]
    return loop("i", rows, lambda i: loop("k", count, lambda k: one(i, k), "element"), "copy")


def _copy_all(group: Group) -> Stmt:
    """out = x, in the order of memory."""
    (x, *others), (rows, columns) = _call(group).args, group.out_type.shape
    alone = isinstance(x, RVar) and x in group.buffers and x not in others
    if int_value(columns) != 1 and not alone:
        return _copy(group, IntImm(0), columns)
    total = simplify(rows * columns)
    if int_value(columns) == 1:
        element, zero = group.element(x), IntImm(0)
        return loop("i", total, lambda i: Store(group.out, (i, zero), element(i, zero)), "copy")
    assert isinstance(x, RVar)
    group.flatten([x])
    source = group.buffers[x]
    return loop("i", total, lambda i: Store(group.out, (i,), Load(source, (i,))), "copy")


def _put(group: Group, first: Expr, count: Expr) -> Stmt:
    """Put the updates' columns first .. first + count - 1 to their rows, or combine them."""
    call, (rows, columns) = _call(group), group.out_type.shape
    places, updates = map(group.element, call.args[1:])
    place_type, flat = call.args[1].type, len(group.out.shape) == 1
    assert isinstance(place_type, TensorType)

    def update(j: Expr) -> Stmt:
        place = Var("place")

        def element(k: Expr) -> Stmt:
            column = simplify(first + k)
            at = (simplify(place * columns + column),) if flat else (place, column)
            new = updates(j, column)
            return Store(group.out, at, combined(Load(group.out, at), new, call.attrs.reduction))

        inside = logical_and(binary("ge", place, IntImm(0)), place < rows)
        body = If(inside, loop("k", count, element, "element"))
        return Let(place, cast(places(j), INT64), body)

    return loop("j", place_type.shape[0], update, "row")


def _inplace(group: Group) -> tuple[int, ...]:
    """x may lie where the result does, unless it is another operand as well."""
    call = _call(group)
    x = call.args[0]
    if not KINDS[group.target.kind].overwrites or x in call.args[1:] or x not in group.buffers:
        return ()
    return tuple(k for k, p in enumerate(group.function.params) if p is x)


def schedule_scatter(group: Group, target: Target, check: bool = False) -> Schedule:
    """`scatter`: threads share parts of the columns, or what is copied."""
    columns = int_value(group.out_type.shape[1])
    size = int_value(product(group.out_type.shape))
    large = size is None or size > PARALLEL_WORK
    parts = large and columns is not None and columns % _PART == 0 and columns > _PART
    s = Schedule(scatter_program(group, _PART if parts else 0), check)
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
