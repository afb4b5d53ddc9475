"""How convolutions, direct or Winograd, write their output.

The output's channels are in blocks of one vector, and a panel of `vectors` blocks is computed at
once. The epilogue runs on each finished element, and the kernel that writes a plane also writes the
plane's zero halo.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.base.errors import InternalError
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Expr, const, int_value, minimum, select
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import If, Stmt, Store, seq
from tensorkiln.kernels.estimates import expected
from tensorkiln.schedule.access import lane_bounds, simplify_value
from tensorkiln.schedule.build import border_of
from tensorkiln.schedule.group import Group, static, view_index


class ChannelBlocks:
    """The output of a convolution, its bias and its epilogue."""

    vectors: int
    panels: int

    def __init__(self, group: Group):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.call, self.var, self.ot = group, call, var, group.out_type
        self.dtype = var.tensor.dtype  # of the sums
        self.lanes = min(self.ot.memory.block(1), group.target.vector_lanes("float32"))
        self.channels = size_of(self.ot.shape[1])
        self.height, self.width = self.ot.shape[2:]
        # Estimates for choices: the extents, where known.
        self.rows, self.columns = map(expected, self.ot.shape[2:])
        self.blocks = -(-self.channels // self.lanes)

    @property
    def is_open(self) -> bool:
        """Whether the number of rows or columns is unknown."""
        return None in map(int_value, (self.height, self.width))

    def set_panels(self, vectors: int) -> None:
        """Set the number of channel blocks per panel, and from it the number of panels."""
        self.vectors, self.panels = vectors, -(-self.blocks // vectors)

    def initial(self, block: Expr, lane: Expr) -> Expr:
        """The initial value of a sum: the bias of the channel, or zero."""
        if len(self.call.args) < 3:
            return const(0, self.dtype)
        bias = self.call.args[2]
        assert isinstance(bias, RVar)
        if bias.tensor.layout is None:
            raise InternalError(f"{self.group.name}: the bias is not packed")
        if self.blocks % self.vectors:  # a sum of a block that does not exist is not stored
            block = simplify(minimum(block, self.blocks - 1))
        return Load(self.group.buffers[bias], (block, lane))

    def finish(self, total: Expr, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Stmt:
        """Store one channel of one pixel, with the epilogue; channels past the last are zero, and
        blocks past the last, of a panel that is not full, are not stored."""
        stored = store_channel(self.group, total, (n, block, lane, h, w), self.lanes)
        return seq(self._existing(block, stored))

    def _existing(self, block: Expr, stmt: Stmt | None) -> Stmt | None:
        """A statement that runs if a block of channels exists."""
        is_full = self.blocks % self.vectors == 0
        return stmt if stmt is None or is_full else If(block < self.blocks, stmt)

    def border(self, n: Expr, panel: Expr) -> Stmt:
        """Write the zero halo of the planes of one panel."""
        blocks = [simplify(panel * self.vectors + o) for o in range(self.vectors)]
        return seq(
            *(
                self._existing(b, border_of(self.group.out, self.ot, (n, b), self.lanes))
                for b in blocks
            )
        )


def store_channel(group: Group, result: Expr, position: tuple[Expr, ...], lanes: int) -> Stmt:
    """Store one channel of one pixel, `position` (image, vector of `lanes` channels, lane, row,
    column), with the epilogue of the anchor's `result`; channels past the last are zero."""
    n, block, lane, h, w = position
    channels = group.out_type.shape[1]
    bounds = lane_bounds(lane, lanes)
    index = (n, simplify(block * lanes + lane, bounds), h, w)
    assert group.anchor_var is not None
    element = group.element(group.out_var, {group.anchor_var: lambda *_: result})
    value = simplify_value(element(*index), bounds)
    if (int_value(channels) or 0) % lanes:
        value = select(index[1] < channels, value, const(0, value.dtype))
    place = tuple(simplify(i, bounds) for i in view_index(group.out_type, index))
    return Store(group.out, place, value)


def size_of(e: Expr) -> int:
    """The value of a convolution's extent. InternalError if it is symbolic."""
    return static(e, "convolution extent")
