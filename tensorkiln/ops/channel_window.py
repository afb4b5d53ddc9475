"""Which input channels a panel of output channels reads in a grouped convolution.

A panel is the `nr` consecutive output channels that one register tile computes. The groups of a
panel read one contiguous range of input channels, here rounded outwards to multiples of `granule`:

    groups 4, 34 channels each, nr 16, granule 4:   panel 2 = outputs 32..47 = groups 0, 1
                                                    reads channels 0..67 = granules 0..16

A panel's weights are stored for its whole range, as zeros for input channels outside an output's
own group; the attribute `channel_window` of a `conv2d` says that they are. Groups are not padded
one by one, so the layout of tensors does not depend on the groups.
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
        """The number of panels; the last one may have fewer than `nr` outputs."""
        return -(-self.outputs // self.nr)

    @property
    def per_group(self) -> int:
        """Output channels per group."""
        return self.outputs // self.groups

    def range(self, panel: int) -> tuple[int, int]:
        """Return (first granule, number of granules) that a panel reads."""
        first, last = panel * self.nr, min(panel * self.nr + self.nr, self.outputs) - 1
        start = first // self.per_group * self.inputs // self.granule
        end = -(-(last // self.per_group + 1) * self.inputs // self.granule)
        return start, end - start

    @property
    def width(self) -> int:
        """Granules that the widest panel reads; each panel's weights are stored for that many."""
        return max(self.range(p)[1] for p in range(self.panels))

    @property
    def steps(self) -> int:
        """Input channels that all panels together reduce over, per tap: a measure of the work."""
        return sum(self.range(p)[1] for p in range(self.panels)) * self.granule

    def start(self, panel: Expr) -> Expr:
        """`range(panel)[0]` as an expression, for `panel` a loop variable."""
        first = simplify(panel * self.nr) // self.per_group * self.inputs
        return simplify(first // self.granule, {panel: (0, self.panels - 1)})  # type: ignore[dict-item]

    def count(self, panel: Expr) -> Expr:
        """`range(panel)[1]` as an expression, for `panel` a loop variable."""
        counts = {self.range(p)[1] for p in range(self.panels)}
        if len(counts) == 1:
            return IntImm(counts.pop())
        last = minimum(panel * self.nr + self.nr, self.outputs) - 1
        reach = (last // self.per_group + 1) * self.inputs
        return simplify((reach + (self.granule - 1)) // self.granule - self.start(panel))

    @property
    def channels(self) -> int:
        """Input channels that the weights of an output are stored for."""
        return self.width * self.granule

    def at(self, output: int) -> slice:
        """Where the channels of an output's own group are in its stored weights."""
        begin = self.range(output // self.nr)[0] * self.granule
        first = output // self.per_group * self.inputs - begin
        return slice(first, first + self.inputs)

    def place(self, output: Expr, channel: Expr) -> Expr:
        """Where channel `channel` of an output's own group is in its stored weights."""
        first = output // self.nr * self.nr // self.per_group * self.inputs
        begin = first // self.granule * self.granule
        return output // self.per_group * self.inputs - begin + channel

    def spread(self, w: np.ndarray) -> np.ndarray:
        """Return weights [outputs, inputs, ...] as [outputs, channels, ...], where input channels
        outside an output's group are zero."""
        out = np.zeros((self.outputs, self.channels, *w.shape[2:]), w.dtype)
        for o in range(self.outputs):
            out[o, self.at(o)] = w[o]
        return out

    def gather(self, w: np.ndarray) -> np.ndarray:
        """Return the weights [outputs, inputs, ...] that were spread as `w`."""
        return np.stack([w[o, self.at(o)] for o in range(self.outputs)])
