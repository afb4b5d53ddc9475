"""Values of a graph that is being imported: tensors that are computed when the function runs,
constants, and integer tensors whose elements are expressions of symbolic dimensions.

Models compute shapes as data: `Reshape(x, Concat(Gather(Shape(x), 0), [-1]))`. What is computed
from shapes alone is evaluated at import (`shape_arithmetic.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import const, int_value
from tensorkiln.ir.relax import Constant, RVar, TensorType, constant, tensor


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicTensor:
    """An integer or boolean tensor whose elements are expressions of dimensions, at least one of
    them symbolic (otherwise it is a Constant). `array` is an object array of Expr."""

    array: np.ndarray
    dtype: DType

    @property
    def tensor(self) -> TensorType:
        """The type of the tensor."""
        return tensor(self.array.shape, self.dtype)


Val = RVar | Constant | SymbolicTensor

# Elements: a larger constant is taken to be data, not part of a computation of shapes.
LARGEST_SHAPE_CONSTANT = 256


def constant_expressions(c: Constant) -> np.ndarray:
    """An integer or boolean constant as an object array of IntImm, in the constant's shape."""
    dtype = c.type.dtype
    flat = [const(int(v), dtype) for v in c.array.ravel().tolist()]
    return object_array(flat, c.array.shape)


def object_array(flat: Sequence[object], shape: tuple[int, ...]) -> np.ndarray:
    """`flat` as an object array of the given shape.

    The elements are stored one by one, since np.array would try to convert an Expr to a sequence.
    """
    out = np.empty(len(flat), object)
    for i, v in enumerate(flat):
        out[i] = v
    return out.reshape(shape)


def expression_tensor(array: np.ndarray, dtype: DType) -> SymbolicTensor | Constant:
    """The tensor of these elements: a Constant if all are literals, else a SymbolicTensor."""
    values = [int_value(e) for e in array.ravel()]
    if None in values:
        return SymbolicTensor(array, dtype)
    return constant(np.array(values, dtype.name).reshape(array.shape))
