"""Types of a graph's inputs; equal names of symbolic dimensions share one variable."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.onnx.dims import Dims, build_dim, parse_dim
from tensorkiln.frontend.onnx.issues import NodeProblem
from tensorkiln.frontend.onnx.narrow import Format
from tensorkiln.frontend.onnx.proto import Dim, ValueInfo
from tensorkiln.frontend.onnx.tensors import element_type
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.ir.relax import TensorType


def declared(v: ValueInfo) -> Sequence[Dim]:
    """The declared dimensions of an input; empty if it is not a tensor or its rank is unknown."""
    t = v.type.tensor if v.type is not None else None
    return t.shape.dim if t is not None and t.shape is not None else ()


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
    found = element_type(t.elem_type, f"input {v.name!r}")
    format = found if isinstance(found, Format) else None
    dtype = found if isinstance(found, str) else found.storage
    if t.shape is None:
        raise NodeProblem(
            "malformed",
            f"input {v.name!r} declares no shape",
            "onnx.shape_inference, or export it with a shape; dimensions may be symbolic",
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
    known = plain | set(dims.freeze)
    if parsed is not None and set(parsed[1]) <= known and d.param not in dims.freeze:
        return dims.simplify(build_dim(parsed[0], dims))
    return dims.named(d.param)
