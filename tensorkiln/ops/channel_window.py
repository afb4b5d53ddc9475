"""Which input channels a panel of output channels reads in a grouped convolution.

A panel is `nr` neighbouring output channels that one register tile computes. Its groups read one
contiguous range of input channels, here rounded outwards to granules:

    groups 4, 34 channels each, nr 16, granule 4:   panel 2 = outputs 32..47 = groups 0, 1
                                                    reads channels 0..67 = granules 0..16

Weights are stored per panel over that window, zero where an output's group does not reach. No
group is padded on its own, so tensors keep one layout whatever the groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, IntImm, minimum


@dataclass(frozen=True, slots=True)
class ChannelWindow:
    """`outputs` channels in `groups` groups of `inputs` input channels each."""

    groups: int
    outputs: int
    inputs: int
    nr: int
    granule: int

    @property
    def panels(self) -> int:
        """How many panels hold all outputs."""
        return -(-self.outputs // self.nr)

    @property
    def per_group(self) -> int:
        """Output channels of a group."""
        return self.outputs // self.groups

    def range(self, panel: int) -> tuple[int, int]:
        """First granule and number of granules that a panel reads."""
        first, last = panel * self.nr, min(panel * self.nr + self.nr, self.outputs) - 1
        start = first // self.per_group * self.inputs // self.granule
        end = -(-(last // self.per_group + 1) * self.inputs // self.granule)
        return start, end - start

    @property
    def width(self) -> int:
        """Granules of the widest panel: every panel's weights take that room."""
        return max(self.range(p)[1] for p in range(self.panels))

    @property
    def steps(self) -> int:
        """Reduction steps of all panels together, per tap: what the window costs."""
        return sum(self.range(p)[1] for p in range(self.panels)) * self.granule

    def start(self, panel: Expr) -> Expr:
        """`range(panel)[0]` of a loop variable."""
        first = simplify(panel * self.nr) // self.per_group * self.inputs
        return simplify(first // self.granule, {panel: (0, self.panels - 1)})  # type: ignore

    def count(self, panel: Expr) -> Expr:
        """`range(panel)[1]` of a loop variable."""
        counts = {self.range(p)[1] for p in range(self.panels)}
        if len(counts) == 1:
            return IntImm(counts.pop())
        last = minimum(panel * self.nr + self.nr, self.outputs) - 1
        reach = (last // self.per_group + 1) * self.inputs
        return simplify((reach + (self.granule - 1)) // self.granule - self.start(panel))

    def spread(self, w: np.ndarray) -> np.ndarray:
        """Weights [outputs, inputs, ...] -> [outputs, width * granule, ...], zero elsewhere."""
        out = np.zeros((self.outputs, self.width * self.granule, *w.shape[2:]), w.dtype)
        for o in range(self.outputs):
            begin = self.range(o // self.nr)[0] * self.granule
            at = o // self.per_group * self.inputs - begin
            out[o, at : at + self.inputs] = w[o]
        return out
