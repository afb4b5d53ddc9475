"""Layouts that several kernel families ask for, and when they can."""

from __future__ import annotations

from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.target import Target


def channel_blocks(target: Target) -> Layout:
    """Images [N, C, H, W] with channels in blocks of the vector width."""
    lanes = target.vector_lanes("float32")
    return Layout.parse(f"A B/{lanes} C D B%{lanes}")


def has_vectors(target: Target) -> bool:
    """Whether there are vectors, without which blocks of channels have no use."""
    return target.vector_lanes("float32") > 1


def by_lanes(target: Target) -> Layout:
    """A vector of channels, such as a bias, in blocks of the vector width."""
    lanes = target.vector_lanes("float32")
    return Layout.parse(f"A/{lanes} A%{lanes}")


def has_kernel(call: Call) -> bool:
    """Whether a packed schedule supports the dtypes: float32, or uint8 by int8 into int32."""
    types = [a.type.dtype.name for a in call.args[:2] if isinstance(a.type, TensorType)]
    return types in (["float32", "float32"], ["uint8", "int8"])


def is_float32(call: Call) -> bool:
    """Whether the first three operands are float32."""
    return all(
        isinstance(a.type, TensorType) and a.type.dtype.name == "float32" for a in call.args[:3]
    )
