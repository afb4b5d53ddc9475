"""GridSample."""

from __future__ import annotations

from tensorkiln.frontend.graph import grid_sample as grids
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Str, Table

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names until opset 19


def grid_sample(
    g: Context,
    x: Val,
    grid: Val,
    *,
    align_corners: Int = 0,
    mode: Str = "linear",
    padding_mode: Str = "zeros",
) -> Val:
    """x [N, C, D1, ..., Dr] at the coordinates grid [N, ..., r], the last dimension first."""
    return grids.grid_sample(
        g,
        x,
        grid,
        align_corners=bool(align_corners),
        mode=_MODES.get(mode, mode),
        padding_mode=padding_mode,
    )


TABLE: Table = {"GridSample": {16: grid_sample}}
