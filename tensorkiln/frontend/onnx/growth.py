"""Sizes that a model computes from sizes, kept short: `s + s // 2` twenty times is a million
operations as one expression, because each step holds the one before it twice.

An expression that has become too long is computed when the function runs, and what follows it reads
a new dimension.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extents_of, with_shape
from tensorkiln.frontend.graph.values import SymbolicTensor, Val, expression_tensor, object_array
from tensorkiln.frontend.onnx.graph_values import GraphValue, TensorList
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.scope import Unknown
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, binary
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.visit import is_longer

# Nodes of an expression: more than the sizes of pyramids of images have. Proofs about nested
# divisions and minima take seconds from some 200 on.
LONGEST = 128


def shortened(g: Context, value: GraphValue | Unknown) -> GraphValue | Unknown:
    """The result of a node with new dimensions in place of long expressions."""
    if isinstance(value, TensorList):
        return TensorList(tuple(_plain(g, item) for item in value.items))
    return _plain(g, value) if isinstance(value, Val | Narrow) else value


def _plain(g: Context, value: Val | Narrow) -> Val | Narrow:
    if isinstance(value, Narrow):
        return replace(value, stored=_tensor(g, value.stored))
    return _tensor(g, value)


def _tensor(g: Context, x: Val) -> Val:
    if isinstance(x, SymbolicTensor):
        return _elements(g, x) if _any_long(x.array.ravel()) else x
    if not isinstance(x, RVar) or not _any_long(x.tensor.shape):
        return x
    shape = [_dimension(g, d) if is_longer(d, LONGEST) else d for d in x.tensor.shape]
    return with_shape(g, x, shape, x.tensor.dtype)


def _any_long(extents: Iterable[Expr]) -> bool:
    return any(is_longer(e, LONGEST) for e in extents)


def _elements(g: Context, x: SymbolicTensor) -> Val:
    """A tensor of sizes with dimensions in place of long elements; one with others, which may be
    negative or conditions, is computed when the function runs."""
    flat = list(x.array.ravel())
    for k, e in enumerate(flat):
        if not is_longer(e, LONGEST):
            continue
        if x.dtype != INT64 or not g.dims.holds(binary("ge", e, 0)):
            return g.runtime_value(x)
        flat[k] = _dimension(g, e)
    return expression_tensor(object_array(flat, x.array.shape), x.dtype)


def _dimension(g: Context, e: Expr) -> Expr:
    """The dimension that has the value of an expression, which is 0 or more."""
    extents = g.bound_sizes.get(e)
    if extents is None:
        number = g.builder.emit("arange", span=g.span, start=e, step=1, count=1, dtype="int64")
        extents = g.bound_sizes[e] = extents_of(g, number, "a size")
    return extents[0]
