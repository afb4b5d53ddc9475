"""Walks through decision trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import OpDef, Operands
from tensorkiln.ops.rules import (
    FLOAT,
    mismatch,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    show_type,
)

# A node is one integer: the number of the node where <= leads, behind which lies the one where >
# and NaN lead; and what is compared, in `bits` bits: of k features, number i is x[i], and k + i is
# -x[i]. So NaN can go either way: "x <= a, or NaN" is where -x <= b does not hold, with b the next
# number below -a. Whatever is compared with NaN leads to the second node.


def packed_nodes(compared: np.ndarray, child: np.ndarray) -> tuple[np.ndarray, int]:
    """Nodes as `tree_leaves` takes them, of int32 where they fit, else of int64; and the bits of
    what is compared."""
    bits = max(int(compared.max(initial=0)), 1).bit_length()
    wide = (child.astype(np.int64) << bits) + compared
    small = wide.max(initial=0) <= np.iinfo(np.int32).max
    return wide.astype(np.int32 if small else np.int64), bits


def _infer_leaves(types: Operands, a: Attrs) -> TensorType:
    op = "tree_leaves"
    x, roots, levels, nodes, limits = types
    require_dtype(op, "x", x, FLOAT)
    require_ndim(op, "x", x, 2, "(samples, features)")
    require_same_dtype(op, ("x", "limits"), (x, limits))
    if nodes.dtype.is_unsigned or not nodes.dtype.is_int or nodes.dtype.bits < 32:
        raise mismatch(op, "nodes", "int32 or int64", show_type(nodes), code="dtype-mismatch")
    require_ndim(op, "nodes", nodes, 1, "(nodes,)")
    require_shape(op, "limits", limits, nodes.shape, "one number for each of 'nodes'")
    for name, t in (("roots", roots), ("levels", levels)):
        if t.dtype != INT32:
            raise mismatch(op, name, str(INT32), show_type(t), code="dtype-mismatch")
        require_ndim(op, name, t, 1, "(trees,)")
    require_shape(op, "levels", levels, roots.shape, "one number for each of 'roots'")
    for name, t, axis in (("x", x, 1), ("nodes", nodes, 0)):
        if int_value(t.shape[axis]) in (0, None):
            expected = f"a known dimension {axis} that is not empty"
            raise mismatch(op, name, expected, show_type(t), code="out-of-range")
    return TensorType((x.shape[0], roots.shape[0]), INT32)


def _np_leaves(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    """The node that each sample reaches in each tree after the number of steps in the attribute.
    `levels` are the depths of single trees: after as many steps, walks are at nodes that lead to
    themselves."""
    x, roots, _, nodes, limits = arrays
    last, row = len(nodes) - 1, np.arange(len(x))[:, None]
    signed_features = np.concatenate([x, -x], axis=1)
    unsigned = nodes.astype(f"u{nodes.dtype.name}")
    positions = np.minimum(np.tile(roots.astype(np.uint32), (len(x), 1)), last)
    for _ in range(a.most):
        node = unsigned[positions]
        compared = np.minimum(node & ((1 << a.bits) - 1), signed_features.shape[1] - 1)
        over = ~(signed_features[row, compared] <= limits[positions])
        positions = np.minimum((node >> a.bits) + over, last)
    return np.asarray(positions.astype(np.int32))


FOREST: dict[str, OpDef] = {
    # Only a kernel of its own can compute it: it has no program per output element.
    "tree_leaves": OpDef(
        "tree_leaves",
        ("x", "roots", "levels", "nodes", "limits"),
        {"bits": at.integer(1), "most": at.integer(0)},
        "opaque",
        _infer_leaves,
        _np_leaves,
    ),
}
