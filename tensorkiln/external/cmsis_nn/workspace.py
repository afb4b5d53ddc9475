"""Bytes of working memory that functions of CMSIS-NN ask their caller for.

Upper bounds over the library's implementations: `scalar` of those without vector instructions (with
and without the DSP extension), `vector` of those for the M-Profile Vector Extension (MVE).
Generated code compares them with the library's own `..._get_buffer_size` functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorkiln.external.cmsis_nn.layers import CmsisLayer

_VECTOR = 16  # bytes of a vector register
_BLOCK = 124  # channels that the depthwise convolution for MVE computes at a time


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes without and with vector instructions."""

    scalar: int = 0
    vector: int = 0

    def __bool__(self) -> bool:
        return bool(self.scalar or self.vector)


def workspace(layer: CmsisLayer) -> Workspace:
    """The working memory of a layer."""
    if layer.weights is not None and layer.kind == "fully_connected":
        return Workspace(0, 4 * layer.output.shape[-1])  # an int32 sum per output
    if layer.weights is not None:
        out, per_group, kh, kw = layer.weights.shape
        taps = per_group * kh * kw
        if layer.kind == "depthwise_conv2d":
            channels = layer.inputs[0].shape[1]
            if out != channels:
                return Workspace()
            return Workspace(2 * channels * kh * kw, 4 * _BLOCK * kh * kw)
        # Two columns of int16 or four of int8, of as many values as fill whole words or vectors.
        return Workspace(4 * _whole(taps, 4), 4 * _whole(taps, _VECTOR))
    if layer.kind == "avg_pool":
        return Workspace(4 * layer.inputs[0].shape[1], 0)  # an int32 sum per channel
    return Workspace()


def _whole(n: int, step: int) -> int:
    return -(-n // step) * step
