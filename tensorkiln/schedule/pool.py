"""Max and average pooling on channel blocks.

The reduction of a column over the window's rows is held in a register, and shared by neighbouring
outputs of a row. Tiles whose windows reach into the padding get loops of their own, so that the
conditions on taps fold to constants. The program is in pool_program.py.
"""

from __future__ import annotations

from tensorkiln.ir.expr import IntImm, Var, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.nn import pool_windows
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.pool_program import Pool, pool_program
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

# Column values of one tile, each a vector that lives in a register.
_COLUMNS = 12


def supports_pool(group: Group) -> bool:
    """Whether operand and output have channel blocks of one width, image sizes are static, and
    windows are undilated and of at most 64 taps."""
    call, out = group.anchor, group.out_type
    assert call is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if out.layout is None or x.layout is None or len(out.layout.axes) != 5:
        return False
    if None in (*map(int_value, x.shape[1:]), *map(int_value, out.shape[1:])):
        return False
    pair = pool_windows(call.attrs)
    if any(w.dilation != 1 for w in pair) or pair[0].kernel * pair[1].kernel > 64:
        return False
    lane, zero = Var("l"), IntImm(0)
    v = out.layout.block(1)
    value = simplify_value(group.element(call.args[0])(zero, lane, zero, zero), {lane: (0, v - 1)})
    return x.layout.block(1) == v and blocked_loads(value, v, lane)


def schedule_pool(group: Group, target: Target, check: bool = False) -> Schedule:
    """max_pool2d or avg_pool2d with its elementwise prologue and epilogue."""
    p = Pool(group)
    s = Schedule(pool_program(p), check=check)
    size = _tile(p)
    start, columns = s.blocks()[:2]
    s.compose_reduction(start, columns)
    (row,), (column,) = s.loops(role="row"), s.loops(role="column")
    tiles = s.split(column, size, tail="guard")
    s.compute_at(columns, tiles.outer)
    _tasks(s, p)
    for loop in s.loops(role="kernel_row"):
        s.reorder(loop, s.parent(loop))
    for loop in s.loops(role="lane"):
        s.vectorize(loop)
    s.unroll(tiles.inner)
    for role in ("image_column", "kernel_row", "kernel_column"):
        for loop in s.loops(role=role):
            s.unroll(loop)
    s.set_scope("column", "register")
    s.set_scope("total", "register")
    _cut(s, tiles.outer, [p.are_inner(w, w + size - 1) for w in range(0, p.width, size)])
    _cut(s, row, [p.is_inner(h) for h in range(p.height)])
    return s


def _tile(p: Pool) -> int:
    """How many outputs of a row share columns: so many that their columns fit into _COLUMNS
    registers, and tiles are as equal as possible."""
    largest = max(1, (_COLUMNS - p.cols.kernel) // p.cols.stride + 1)
    return -(-p.width // -(-p.width // largest))


def _cut(s: Schedule, loop: str, inner: list[bool]) -> None:
    """Partition a loop so that each iteration whose windows reach into the padding (`inner` is
    false) has a loop of its own, in which the conditions on taps fold."""
    start = 0
    for i in range(1, len(inner)):
        if not (inner[i - 1] and inner[i]):
            loop, start = s.partition(loop, i - start).rest, i


def _tasks(s: Schedule, p: Pool) -> None:
    """Share the planes among threads when there is work for them."""
    work = p.blocks * p.lanes * p.height * p.width * 4
    if int_value(p.out.shape[0]) is None or work > PARALLEL_WORK:
        share(s, s.loops(role="task"))
