"""What both schedules of attention on a device share (`gpu.py`,
`families/attention_tensor_cores/gpu.py`): a block of threads has a tile of queries of one head, and
passes over the keys a tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.families.attention.operands import AttentionOperands
from tensorkiln.ir.expr import Expr, int_value, maximum, minimum
from tensorkiln.ir.stmt import Stmt
from tensorkiln.schedule.build import nest
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule

_BLOCKS = (("batch", "z"), ("row", "y"), ("head", "x"))


class AttentionBlocks(AttentionOperands):
    """Operands and grid of an attention whose blocks have `tile_rows` queries and take `tile_keys`
    keys at a time."""

    def __init__(self, group: Group, tile_rows: int, tile_keys: int):
        super().__init__(group)
        self.k = group.element(self.call.args[1])
        self.tile_rows, self.tile_keys = tile_rows, tile_keys

    def grid(self, block: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """For batch, tile of rows, head: `block(batch, first row, head)`."""
        tiles = simplify((self.rows + (self.tile_rows - 1)) // self.tile_rows)
        roles = [role for role, _ in _BLOCKS]

        def at(b: Expr, y: Expr, h: Expr) -> Stmt:
            return block(b, simplify(y * self.tile_rows), h)

        return nest(["b", "y", "h"], [self.batch, tiles, self.heads], at, roles, True)

    def rounds(self, first: Expr) -> Expr:
        """The number of tiles of keys for the block whose queries begin at `first`. With `causal`
        it ends with the last key that its last query may see."""
        n = self.tile_keys
        visible_keys = self.keys
        if self.causal:
            last = first + (self.tile_rows + self.keys - self.rows)
            visible_keys = maximum(minimum(self.keys, last), 0)
        return simplify((visible_keys + (n - 1)) // n)


def bind_blocks(s: Schedule) -> None:
    """Bind the loops of `AttentionBlocks.grid` to blocks."""
    for role, index in _BLOCKS:
        (name,) = s.loops(role=role)
        s.bind(name, f"blockIdx.{index}")


def is_inside(index: Expr, extent: Expr, step: int) -> list[Expr]:
    """The condition that an index is below `extent`, as a list; empty if steps of `step` end with
    the extent."""
    return [] if int_value(simplify(extent % step)) == 0 else [index < extent]
