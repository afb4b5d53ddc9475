"""Types of a graph's inputs; equal names of symbolic dimensions share one variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import NodeProblem
from tensorkiln.frontend.onnx.dim_params import build_dim, parse_dim
from tensorkiln.frontend.onnx.narrow import Format
from tensorkiln.frontend.onnx.proto import Dim, OnnxGraph, TypeProto, ValueInfo
from tensorkiln.frontend.onnx.ranks import lacks_shape, shaped, with_ranks
from tensorkiln.frontend.onnx.tensors import element_type
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.ir.relax import TensorType


def declared(v: ValueInfo) -> Sequence[Dim]:
    """The declared dimensions of an input; empty if it is not a tensor or its rank is unknown."""
    t = v.type.tensor if v.type is not None else None
    return t.shape.dim if t is not None and t.shape is not None else ()


def with_shapes(
    graph: OnnxGraph,
    shapes: Mapping[str, Sequence[int | str | None]],
    declared: Mapping[str, TypeProto],
) -> Sequence[ValueInfo]:
    """The graph's inputs, those without a shape with the one among `shapes`, which the user gives,
    or with dimensions without names, where nodes and `declared` types tell how many.

    Raises UserError for shapes of other inputs, and for invalid shapes.
    """
    require(shapes, Mapping, "shapes")
    lacking = [v.name for v in graph.input if lacks_shape(v)]
    for name, dims in shapes.items():
        if name not in lacking:
            has = name in [v.name for v in graph.input]
            raise UserError(
                f"shapes: input {name!r} declares its shape"
                if has
                else f"shapes: the model has no input {name!r}",
                code="bad-shapes",
                hint="freeze={name: size} gives its symbolic dimensions a size"
                if has
                else nearest(name, lacking),
            )
        _check_shape(name, dims)
    inputs = [
        shaped(v, list(map(_given, shapes[v.name]))) if v.name in shapes else v for v in graph.input
    ]
    return with_ranks(replace(graph, input=tuple(inputs)), declared)


def _check_shape(name: str, dims: Any) -> None:
    listed = isinstance(dims, Sequence) and not isinstance(dims, str | bytes)
    for d in dims if listed else [dims]:
        whole = isinstance(d, int) and not isinstance(d, bool) and 0 <= d < 2**63
        if not listed or not (whole or d is None or (isinstance(d, str) and d)):
            raise UserError(
                f"shapes: {name!r} has {d!r}, expected a list of sizes from 0, names, or None",
                code="bad-shapes",
            )


def _given(d: int | str | None) -> Dim:
    return Dim(param=d) if isinstance(d, str) else Dim(value=d)


def input_type(v: ValueInfo, plain: set[str], dims: Dims) -> tuple[TensorType, Format | None]:
    """The type of an input, and its format if its elements are only stored; NodeProblem if it is
    not a tensor of known rank and supported dtype.

    `plain` holds the dimension names that some input has as a whole extent, so that a call
    determines them: `batch` and `seq` of an input [batch, seq], for another of [batch*seq].
    """
    if v.type is None or v.type.tensor is None:
        raise NodeProblem(
            "dtype", f"input {v.name!r} is not a tensor", "only tensors can be inputs"
        )
    t = v.type.tensor
    elem_type = element_type(t.elem_type, f"input {v.name!r}")
    format = elem_type if isinstance(elem_type, Format) else None
    dtype = elem_type if isinstance(elem_type, str) else elem_type.row.storage
    if t.shape is None:
        raise NodeProblem(
            "malformed",
            f"input {v.name!r} declares no shape",
            "nodes do not tell how many dimensions it has: "
            f"from_onnx(..., shapes={{{v.name!r}: ('n', 3)}}), "
            f"or --shape {v.name}=n,3, or shapes in a manifest",
        )
    shape = [_dim(d, f"{v.name}_d{i}", plain, dims) for i, d in enumerate(t.shape.dim)]
    return TensorType(tuple(shape), DType(dtype)), format


def _dim(d: Dim, fresh: str, plain: set[str], dims: Dims) -> Expr:
    """An extent: a number, the variable of a shared name, an expression over such variables, or,
    for a dimension without value and name, a variable called `fresh`."""
    if d.value is not None and d.value >= 0 and not d.param:
        return as_expr(d.value)
    if not d.param:
        return dims.named(fresh)
    parsed = parse_dim(d.param)
    # An expression needs each name in it to be a whole extent of some input, or frozen. Otherwise
    # its text is one opaque name: `past + 1` is one if no input has the extent `past`.
    shared_names = plain | set(dims.freeze)
    if parsed is not None and set(parsed[1]) <= shared_names and d.param not in dims.freeze:
        return dims.simplify(build_dim(parsed[0], dims))
    return dims.named(d.param)
