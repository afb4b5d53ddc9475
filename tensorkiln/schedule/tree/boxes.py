"""The box of a buffer that a statement accesses in one iteration of the loops around it.

    for ii, k in T.grid(6, 256):                   reads  A[io*6 : io*6 + 6, 0 : 256]
        C[io*6 + ii] += A[io*6 + ii, k]     ->     writes C[io*6 : io*6 + 6]

Boxes are conservative: they are never too small. Conditions are ignored, so a box may extend past
the end of the buffer if only a guard keeps the accesses inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tensorkiln.arith import Bounds, affine, bound, prove, simplify
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Expr,
    IntImm,
    Ramp,
    Unary,
    Var,
    binary,
    const,
    int_value,
    maximum,
    minimum,
    unary,
)
from tensorkiln.ir.stmt import Block, For, If, Let, MatchBuffer, PrimFunc, Stmt, Store, While
from tensorkiln.ir.visit import free_vars, has_load, stmt_exprs, substitute, substmts, walk

Ends: TypeAlias = "tuple[Expr, Expr]"  # first and last, both included
Ranges: TypeAlias = "tuple[tuple[Expr, Expr], ...]"  # (first, extent) per dimension


@dataclass(frozen=True, slots=True)
class Around:
    """The context of a statement: loops and conditions around it, and the values of let and
    iteration variables, all in terms of loop variables."""

    loops: tuple[For, ...] = ()
    conds: tuple[Expr, ...] = ()
    values: Mapping[Var, Expr] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    branches: tuple[If, ...] = ()
    opaque: tuple[Var, ...] = ()  # variables bound here to values that are read from memory
    known: Bounds = field(default_factory=Bounds)  # of variables that are bound outside

    def expr(self, e: Expr) -> Expr:
        """`e` with let and iteration variables replaced by their values."""
        return substitute(e, self.values) if self.values else e

    def enter(self, s: Stmt, child: Stmt) -> Around:
        """The context of `child`, a direct part of `s`."""
        match s:
            case For():
                new = replace(s, lo=self.expr(s.lo), extent=self.expr(s.extent))
                return replace(self, loops=(*self.loops, new))
            case If(cond, then_body, _):
                cond = self.expr(cond)
                branch_cond = cond if child is then_body else unary("not", cond)
                branches = (*self.branches, s)
                return replace(self, conds=(*self.conds, branch_cond), branches=branches)
            case While(cond, _):
                return replace(self, conds=(*self.conds, self.expr(cond)))
            case Let(var, value, _):
                return self.bind(((var, value),))
            case Block():
                inner = self.bind(tuple((i.var, i.value) for i in s.iters))
                inner = replace(inner, blocks=(*self.blocks, s))
                if child is not s.init:
                    return inner
                return replace(inner, conds=(*self.conds, *first_terms(s, inner)))
        return self

    def bind(self, pairs: tuple[tuple[Var, Expr], ...]) -> Around:
        """This context with variables bound to values; a variable whose value is read from memory
        is not replaced by it, but becomes opaque."""
        values, opaque = dict(self.values), list(self.opaque)
        for var, value in pairs:
            if has_load(value):
                opaque.append(var)
            else:
                values[var] = self.expr(value)
        return replace(self, values=values, opaque=tuple(opaque))

    @property
    def bounds(self) -> Bounds:
        """Ranges of the loops."""
        return loop_bounds(self.loops, self.known)


def first_terms(b: Block, inside: Around) -> list[Expr]:
    """The conditions under which a block's init runs: every reduce variable is 0."""
    reduce = [i for i in b.iters if i.kind == "reduce"]
    return [binary("eq", inside.expr(i.var), const(0, i.var.dtype)) for i in reduce]


def loop_bounds(loops: Sequence[For], bounds: Bounds) -> Bounds:
    """Ranges of loop variables, outermost first."""
    for loop in loops:
        bounds = bounds.with_loop(loop.var, loop.lo, loop.extent)
    return bounds


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store; `indices` and the context are in terms of loop variables, not of the
    iteration variables of blocks."""

    buffer: Buffer
    indices: tuple[Expr, ...] | None  # None: anywhere in the buffer
    write: bool
    around: Around

    @property
    def block(self) -> str:
        """The name of the innermost block around, or an empty string."""
        return self.around.blocks[-1].name if self.around.blocks else ""


NOWHERE = Around()


def walk_around(s: Stmt, around: Around = NOWHERE) -> Iterator[tuple[Stmt, Around]]:
    """Every statement with its context, parents first."""
    yield s, around
    for child in substmts(s):
        yield from walk_around(child, around.enter(s, child))


def accesses(s: Stmt, around: Around = NOWHERE) -> list[Access]:
    """Every access of memory in program text order, the reads of a statement before its write.

    An access of a view is listed as one of its source, at unknown indices; an address that is taken
    as a read and a write of the whole buffer.
    """
    views: dict[Buffer, Buffer] = {}
    out: list[Access] = []
    for t, context in walk_around(s, around):
        if isinstance(t, MatchBuffer):
            views[t.buffer] = views.get(t.source, t.source)
        if isinstance(t, Block):
            exprs: Sequence[Expr] = [i.value for i in t.iters]
        else:
            exprs = stmt_exprs(t)
        for e in exprs:
            out += _reads(e, context, views)
        if isinstance(t, Store):
            out.append(_access(t.buffer, t.indices, True, context, views))
    return out


def _reads(e: Expr, around: Around, views: Mapping[Buffer, Buffer]) -> Iterator[Access]:
    for x in walk(e):
        if isinstance(x, Load):
            yield _access(x.buffer, x.indices, False, around, views)
        elif isinstance(x, AddressOf):
            source = views.get(x.buffer, x.buffer)
            yield Access(source, None, False, around)
            yield Access(source, None, True, around)


def _access(
    buf: Buffer,
    indices: tuple[Expr, ...],
    write: bool,
    around: Around,
    views: Mapping[Buffer, Buffer],
) -> Access:
    if buf in views:
        return Access(views[buf], None, write, around)
    return Access(buf, tuple(map(around.expr, indices)), write, around)


# ---- boxes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a buffer. `exact`: every element of the box is certainly accessed; else the box may
    be larger than the accesses."""

    buffer: Buffer
    ranges: Ranges
    exact: bool

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents, one per dimension."""
        return tuple(extent for _, extent in self.ranges)


def box_of(access: Access, fixed: int = 0, cond_count: int = 0) -> Box:
    """The box of one access in one iteration of its outermost `fixed` loops, over all iterations of
    the others.

    The outermost `cond_count` conditions around it are known to hold.
    """
    buf, around = access.buffer, access.around
    if access.indices is None:
        return whole(buf)
    bounds = around.bounds
    moving = around.loops[fixed:]
    ends: dict[Var, Ends | None] = {}
    for v in around.opaque:
        ends[v] = None
    for loop in moving:
        first = _ends(loop.lo, ends, bounds)
        last = _ends(simplify(loop.lo + loop.extent - 1, bounds), ends, bounds)
        if first is None or last is None:
            return whole(buf)
        ends[loop.var] = (first[0], last[1])
    spans = [
        _range(e, extent, ends, bounds, around.loops[:fixed])
        for e, extent in zip(access.indices, buf.shape, strict=True)
    ]
    ranges = tuple((lo, extent) for lo, extent, _ in spans)
    exact = len(around.conds) <= cond_count and all(sharp for _, _, sharp in spans)
    exact = exact and _is_exact(access, moving, bounds)
    return Box(buf, ranges, exact)


def whole(buf: Buffer) -> Box:
    """The box of a whole buffer, not exact."""
    return Box(buf, tuple((const(0), extent) for extent in buf.shape), False)


def _range(
    e: Expr, size: Expr, ends: Mapping[Var, Ends | None], bounds: Bounds, fixed: Sequence[For]
) -> tuple[Expr, Expr, bool]:
    """(first, extent, whether the extent is exact and not only an upper bound) of the indices `e`
    in a dimension of `size` elements. `fixed`: the loops that do not run."""
    everything = (const(0), size, False)
    extremes = _ends(e if e.dtype.lanes > 1 else simplify(e, bounds), ends, bounds)
    if extremes is None:
        return everything
    lo, hi = simplify(extremes[0], bounds), simplify(extremes[1], bounds)
    extent, sharp = simplify(hi - lo + 1, bounds), True
    outer = {loop.var for loop in fixed}
    if any(v in outer for v in free_vars(extent)) or has_load(extent):
        upper = bound(extent, bounds)[1]
        if upper is None:
            return everything
        extent, sharp = const(upper), False
    if has_load(lo):
        return everything
    if prove(binary("ge", extent, size), bounds):
        return const(0), size, sharp
    return lo, extent, sharp


def _ends(e: Expr, ends: Mapping[Var, Ends | None], bounds: Bounds) -> Ends | None:
    """The least and greatest value of `e`, of all its lanes, in terms of variables without `ends`,
    which are fixed; None if unknown."""
    match e:
        case IntImm():
            return e, e
        case Var():
            return ends.get(e, (e, e))
        case Ramp(base, stride, lanes):
            step, operand_ends = int_value(stride), _ends(simplify(base, bounds), ends, bounds)
            if step is None or operand_ends is None:
                return None
            reach = step * (lanes - 1)
            return operand_ends[0] + min(reach, 0), operand_ends[1] + max(reach, 0)
        case Broadcast(a, _):
            return _ends(simplify(a, bounds), ends, bounds)
        case Unary("neg", a):
            operand_ends = _ends(a, ends, bounds)
            return None if operand_ends is None else (-operand_ends[1], -operand_ends[0])
        case Binary(op, a, b):
            x, y = _ends(a, ends, bounds), _ends(b, ends, bounds)
            return None if x is None or y is None else _combine(op, x, y, bounds)
    if e.dtype.lanes > 1:
        return None
    return None if any(v in ends for v in free_vars(e)) or has_load(e) else (e, e)


def _combine(op: str, x: Ends, y: Ends, bounds: Bounds) -> Ends | None:
    fixed = y[0] is y[1] or y[0] == y[1]
    match op:
        case "add":
            return x[0] + y[0], x[1] + y[1]
        case "sub":
            return x[0] - y[1], x[1] - y[0]
        case "mul":
            if not fixed and (x[0] is x[1] or x[0] == x[1]):
                x, y, fixed = y, x, True
            if not fixed:
                return None
            if prove(binary("ge", y[0], 0), bounds):
                return x[0] * y[0], x[1] * y[0]
            negative = prove(binary("le", y[0], 0), bounds)
            return (x[1] * y[0], x[0] * y[0]) if negative else None
        case "floordiv" if fixed:
            return x[0] // y[0], x[1] // y[0]
        case "floormod" if fixed:
            one_period = simplify(x[0] // y[0], bounds) == simplify(x[1] // y[0], bounds)
            return (x[0] % y[0], x[1] % y[0]) if one_period else (const(0), y[0] - 1)
        case "min":
            return minimum(x[0], y[0]), minimum(x[1], y[1])
        case "max":
            return maximum(x[0], y[0]), maximum(x[1], y[1])
    return None


def _is_exact(access: Access, moving: Sequence[For], bounds: Bounds) -> bool:
    """Whether the indices reach every element of their box: each loop is in one index at most, and
    in an index no coefficient exceeds the span of the loops with smaller ones. With 4 iterations of
    j, i*4 + j reaches all elements, i*5 + j does not."""
    names = [loop.var for loop in moving]
    extents = {loop.var: int_value(loop.extent) for loop in moving}
    index_vars: list[Var] = []
    assert access.indices is not None
    for e in access.indices:
        lanes = e.lanes if isinstance(e, Ramp) else 1
        if isinstance(e, Ramp):
            if int_value(e.stride) != 1:
                return False
            e = e.base
        linear = None if e.dtype.lanes > 1 else affine(simplify(e, bounds), names, bounds)
        if linear is None:
            return False
        steps = []
        for v, c in linear[0].items():
            if not isinstance(c, int):
                return False
            if c:
                index_vars.append(v)
                steps.append((abs(c), v))
        reach = lanes
        for step, v in sorted(steps, key=lambda x: x[0]):
            extent = extents[v]
            if step > reach or (extent is None and len(steps) > 1):
                return False
            reach += step * ((extent or 1) - 1)
    if len(set(index_vars)) != len(index_vars):
        return False
    # A loop whose range depends on another makes a triangle, not a box.
    return not any(v in names for x in moving for e in (x.lo, x.extent) for v in free_vars(e))


def union(boxes: Sequence[Box], bounds: Bounds) -> Box:
    """The smallest box that provably contains all boxes; they are of one buffer."""
    total = boxes[0]
    for b in boxes[1:]:
        ranges = tuple(
            _join(x, y, size, bounds)
            for x, y, size in zip(total.ranges, b.ranges, total.buffer.shape, strict=True)
        )
        exact = (total.exact and ranges == total.ranges) or (b.exact and ranges == b.ranges)
        total = Box(total.buffer, ranges, exact)
    return total


def _join(
    a: tuple[Expr, Expr], b: tuple[Expr, Expr], size: Expr, bounds: Bounds
) -> tuple[Expr, Expr]:
    if a == b:
        return a
    firsts, ends = (a[0], b[0]), (a[0] + a[1], b[0] + b[1])
    first = _known(firsts, "le", bounds)
    end = _known(ends, "ge", bounds)
    if first is None or end is None:
        return const(0), size
    extent = simplify(end - first, bounds)
    if any(v in bounds for v in free_vars(extent)):
        upper = bound(extent, bounds)[1]
        if upper is None:
            return const(0), size
        extent = const(upper)
    return first, extent


def _known(pair: tuple[Expr, Expr], op: str, bounds: Bounds) -> Expr | None:
    """The least (`op` "le") or greatest ("ge") of two expressions; None if neither is provable."""
    a, b = pair
    if prove(binary(op, a, b), bounds):
        return a
    return b if prove(binary(op, b, a), bounds) else None


def inside(small: Box, large: Box, bounds: Bounds) -> bool:
    """Whether every element of `small` is certainly in `large`."""
    for (lo, extent), (first, size) in zip(small.ranges, large.ranges, strict=True):
        if not prove(binary("ge", lo, first), bounds):
            return False
        if not prove(binary("le", lo + extent, first + size), bounds):
            return False
    return True


def region(
    s: Stmt,
    around: Around,
    buf: Buffer,
    *,
    reads: bool = True,
    writes: bool = True,
    only: Block | None = None,
) -> Box | None:
    """The box of `buf` that one run of `s` accesses; None if it does not. `reads`, `writes`: which
    accesses count; those in block `only`, if it is given."""
    boxes = [
        box_of(a, len(around.loops), len(around.conds))
        for a in accesses(s, around)
        if a.buffer is buf and (writes if a.write else reads) and only in (None, *a.around.blocks)
    ]
    return union(boxes, around.bounds) if boxes else None


def same_memory(f: PrimFunc, a: Buffer, b: Buffer) -> bool:
    """Whether two buffers may share memory, as the output and the operands in `inplace` may."""
    if a is b:
        return True
    shared = {f.params[i] for i in f.inplace} | set(f.buffers[-1:] if f.inplace else ())
    return a in shared and b in shared
