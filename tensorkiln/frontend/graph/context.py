"""What the importer of a node works with: it emits operators and queries types and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np

from tensorkiln import ops
from tensorkiln.arith import Bounds
from tensorkiln.frontend.graph.agreement import agreeing_operands, fit
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.shape_arithmetic import evaluate
from tensorkiln.frontend.graph.values import (
    LARGEST_SHAPE_CONSTANT,
    SymbolicTensor,
    Val,
    constant_expressions,
    expression_tensor,
    object_array,
)
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, binary, int_value, select
from tensorkiln.ir.relax import Constant, MatchCast, RVar, TensorType, Value, constant
from tensorkiln.ir.visit import free_vars
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.need import shortest
from tensorkiln.ops.rules import extents, show_shape
from tensorkiln.ops.wide import GROWING, STATISTICS

# Calls on constants of up to this many elements are folded at import, since shapes may depend on
# them; the pass `fold_constants` folds larger ones.
FOLD_LIMIT = 1024


class Context:
    """The first argument, `g`, of every importer."""

    def __init__(self, dims: Dims) -> None:
        self.builder = GraphBuilder()
        self.dims = dims
        # Sizes that were read from tensors, and dimensions in place of long expressions, in the
        # function or branch that is being imported.
        self.bound_sizes: dict[RVar | Expr, tuple[Expr, ...]] = {}

    @property
    def span(self) -> str:
        """The name of the node that is imported, with those around it."""
        return self.dims.node

    @span.setter
    def span(self, name: str) -> None:
        self.dims.node = name

    # -- queries --------------------------------------------------------------------------

    def type(self, x: Val) -> TensorType:
        """The type (shape and dtype) of an operand."""
        return x.tensor

    def shape(self, x: Val) -> tuple[Expr, ...]:
        """The extents of an operand; they may be symbolic."""
        return x.tensor.shape

    def rank(self, x: Val) -> int:
        """The number of an operand's dimensions."""
        return len(x.tensor.shape)

    def dtype(self, x: Val) -> str:
        """The dtype name of an operand, such as "float32"."""
        return x.tensor.dtype.name

    def axis(self, axis: int, rank: int, subject: str = "axis") -> int:
        """`axis` as 0 .. rank-1, counted from the end when negative; NodeProblem if out of range.

        A scalar (rank 0) has the axis 0.
        """
        if not -rank <= axis < max(rank, 1):
            raise malformed(f"{subject}={axis} is outside [{-rank}, {max(rank, 1) - 1}]")
        return axis % rank if rank else 0

    def axes(self, axes: Sequence[int], rank: int, subject: str = "axes") -> tuple[int, ...]:
        """`axes` as distinct numbers 0 .. rank-1, in the given order; NodeProblem otherwise."""
        out = tuple(self.axis(a, rank, subject) for a in axes)
        if len(set(out)) != len(out):
            raise malformed(f"{subject}={list(axes)} names a dimension twice")
        return out

    def expressions(self, x: Val) -> np.ndarray | None:
        """The elements of a small integer or boolean tensor as an object array of Expr.

        None if they are computed from data, or if a constant has more than
        `LARGEST_SHAPE_CONSTANT` elements.
        """
        if isinstance(x, SymbolicTensor):
            return x.array
        small = isinstance(x, Constant) and x.array.size <= LARGEST_SHAPE_CONSTANT
        if isinstance(x, Constant) and small and not x.type.dtype.is_float:
            return constant_expressions(x)
        empty = isinstance(x, RVar) and any(int_value(d) == 0 for d in x.tensor.shape)
        if empty and not x.tensor.dtype.is_float and (shape := x.tensor.static_shape()) is not None:
            return object_array((), shape)  # of no elements all are known
        return None

    def extents(self, x: Val, subject: str) -> tuple[Expr, ...]:
        """The elements of a 1-D integer operand such as a shape; they may be symbolic.

        NodeProblem if they are computed from data or the operand is not 1-D and of integers.
        """
        array = self.expressions(x)
        if array is None:
            raise unsupported(
                f"{subject} is computed from data", "it must follow from shapes and constants"
            )
        if array.ndim != 1 or not x.tensor.dtype.is_int:
            raise malformed(f"{subject} must be a 1-D integer tensor, got {_show(x.tensor)}")
        return tuple(array)

    def ints(self, x: Val, subject: str) -> tuple[int, ...]:
        """Like `extents`, but NodeProblem if an element is symbolic; a scalar gives one element."""
        if self.rank(x) == 0:
            x = self.reshape(x, (1,))
        values = [int_value(e) for e in self.extents(x, subject)]
        if None in values:
            raise unsupported(
                f"{subject} depends on a symbolic dimension", "freeze={name: size} makes it static"
            )
        return tuple(v for v in values if v is not None)

    def array(self, x: Val, subject: str) -> np.ndarray:
        """The value of a constant operand; NodeProblem if the operand is computed."""
        if not isinstance(x, Constant):
            raise unsupported(f"{subject} must be a constant")
        return x.array

    def scalar(self, x: Val, subject: str) -> float:
        """The value of a constant operand with one element; NodeProblem otherwise."""
        array = self.array(x, subject)
        if array.size != 1:
            raise malformed(f"{subject} must have one element, got shape {list(array.shape)}")
        value: float = array.reshape(()).item()
        return value

    def static(self, x: Val, subject: str) -> tuple[int, ...]:
        """The shape of an operand as numbers; NodeProblem if a dimension is symbolic."""
        shape = x.tensor.static_shape()
        if shape is None:
            raise unsupported(
                f"{subject} has symbolic dimensions {_show(x.tensor)}",
                "freeze={name: size} makes them static",
            )
        return shape

    # -- values ---------------------------------------------------------------------------

    def const(self, value: object, dtype: str | DType) -> Constant:
        """A constant of the given element type."""
        return constant(np.asarray(value, dtype=str(dtype)))

    def like(self, value: float, x: Val) -> Constant:
        """A scalar constant with the dtype of `x`."""
        return self.const(value, x.tensor.dtype)

    def shape_value(self, extents: Sequence[ExprLike]) -> SymbolicTensor | Constant:
        """A 1-D int64 tensor with these extents as elements: a Constant if all are numbers."""
        flat = [self.dims.simplify(as_expr(e)) for e in extents]
        return expression_tensor(object_array(flat, (len(flat),)), DType("int64"))

    def emit(self, name: str, *args: Val, **attrs: AttrValue) -> Val:
        """Apply an operator; the call is evaluated here if its operands are known and small."""
        folded = self._fold(name, args, attrs)
        if folded is not None:
            return folded
        operands = agreeing_operands(self, name, args, attrs)
        if name == "reshape":
            operands = [self._filling(args[0], extents(cast(tuple[Expr, ...], attrs["shape"])))]
        return self.builder.emit(name, *map(self.value, operands), span=self.span, **attrs)

    def require(self, x: Val, condition: Expr, expected: str) -> Val:
        """`x`, for whose use the sizes must meet `condition`: in words, what is `expected`.

        Where it is not known, it is checked before anything is computed from the result.
        NodeProblem if it does not hold for any size.
        """
        bounds = Bounds.dims(free_vars(condition))
        unproved = shortest(condition, bounds)
        if int_value(unproved) == 0:
            raise malformed(f"expected {expected}")
        if int_value(unproved) == 1:
            return x
        if not isinstance(x, RVar):
            self.dims.assume(unproved, expected)
            return x
        return self.builder.emit("require", x, span=self.span, condition=unproved, reason=expected)

    def _filling(self, x: Val, shape: Sequence[Expr]) -> Val:
        """The operand of a reshape to `shape`, whose extent along one axis must be such that it has
        as many elements: h steps are (h // 2) * 2, for pairs of them."""
        dims = self.shape(x)
        count = self.dims.product(shape)
        if self.dims.same(self.dims.product(dims), count):
            return x
        for axis, extent in enumerate(dims):
            fixed_count = self.dims.product((*dims[:axis], *dims[axis + 1 :]))
            filler = self.dims.divide(count, fixed_count)
            if filler is None or not self.dims.same(filler * fixed_count, count):
                continue
            if int_value(filler) is None and set(free_vars(filler)) & set(free_vars(extent)):
                return self.fitted(x, (*dims[:axis], filler, *dims[axis + 1 :]))
        return x

    def fitted(self, x: Val, shape: Sequence[ExprLike], subject: str = "the operand") -> Val:
        """`x` as a tensor of this shape, of as many dimensions: a call in which it has another is
        refused. NodeProblem if extents are different numbers."""
        target = tuple(map(as_expr, shape))
        dims = self.shape(x)
        if any(int_value(binary("ne", a, b)) == 1 for a, b in zip(dims, target, strict=True)):
            type_text = _show(x.tensor)
            raise malformed(f"{subject} must have shape {show_shape(target)}, received {type_text}")
        return fit(self, x, target)

    def checked(self, x: Val, shape: Sequence[ExprLike]) -> Val:
        """`x` as a tensor of this shape, which is checked when the function runs."""
        type_ = TensorType(tuple(map(as_expr, shape)), x.tensor.dtype)
        if type_.shape == self.shape(x):
            return x
        return self.builder.bind(MatchCast(self.value(x), type_), type_, "checked")

    def value(self, x: Val) -> Value:
        """The operand as a graph value; a `SymbolicTensor` is built from `arange` and constants."""
        return self._materialize(x) if isinstance(x, SymbolicTensor) else x

    def runtime_value(self, x: SymbolicTensor) -> Val:
        """The tensor `x`, computed when the function runs, whose elements nothing knows before."""
        return cast(Val, self._materialize(x))

    def _fold(self, name: str, args: Sequence[Val], attrs: dict[str, AttrValue]) -> Val | None:
        if not args or any(isinstance(a, RVar) for a in args):
            return None
        if name == "dequantize":
            return None  # `match_integer` needs the quantised weights
        if name in ("reshape", "transpose", "slice") and isinstance(args[0], Constant):
            return self._view(name, args[0], attrs)
        if not all(a.tensor.dtype.row.in_numpy for a in args):
            return None  # NumPy itself cannot compute in bfloat16
        if name in GROWING | STATISTICS and any(a.tensor.dtype.is_half for a in args):
            return None  # it may not fit: `fold_constants` follows a pass that widens statistics
        op = ops.get(name)
        if any(isinstance(a, SymbolicTensor) for a in args):
            arrays = [self.expressions(a) for a in args]
            if any(a is None for a in arrays):
                return None
            types = [a.tensor for a in args]
            all_attrs = op.complete(attrs)
            result = op.infer(types, all_attrs)
            if result.static_shape() is None:
                return None
            return evaluate(name, arrays, all_attrs, result.dtype, self.dims)  # type: ignore[arg-type]
        constants = [a for a in args if isinstance(a, Constant)]
        if sum(c.array.size for c in constants) > FOLD_LIMIT:
            return None
        all_attrs = op.complete(attrs)
        result = op.infer([c.type for c in constants], all_attrs)
        shape = result.static_shape()
        if shape is None or prod(shape) > FOLD_LIMIT:
            return None
        with np.errstate(all="ignore"):
            array = op.numpy([c.array for c in constants], _numbers(all_attrs))
        return constant(np.asarray(array, result.dtype.name).reshape(shape))

    def _view(self, name: str, x: Constant, attrs: dict[str, AttrValue]) -> Val | None:
        """Reshape, transpose or slice a constant of any size, as a view of its memory where
        possible."""
        op = ops.get(name)
        full = op.complete(attrs)
        result = op.infer([x.type], full)
        shape = result.static_shape()
        if shape is None:
            return None
        if name == "slice":
            first = [int_value(i) for i in full.begin]
            if None in first or 0 in shape:
                return None
            ends = (b + s * n for b, s, n in zip(first, full.strides, shape, strict=True))
            cuts = zip(first, ends, full.strides, strict=True)
            array = x.array[tuple(slice(b, e if e >= 0 else None, s) for b, e, s in cuts)]
        elif name == "transpose":
            array = x.array.transpose(full.axes)
        else:
            array = x.array.reshape(shape)
        return Constant(array, result, x.name and f"{x.name}.{name}")

    def _materialize(self, x: SymbolicTensor) -> Value:
        dtype = x.dtype.name
        parts: list[Val] = []
        for e in x.array.ravel():
            value = int_value(e)
            if value is not None:
                parts.append(self.const([value], dtype))
            elif x.dtype.is_bool:
                parts.append(self.emit("cast", self._number(select(e, 1, 0), "int64"), dtype=dtype))
            else:
                parts.append(self._number(e, dtype))
        flat = parts[0] if len(parts) == 1 else self.emit("concat", *parts, axis=0)
        out = flat if x.array.ndim == 1 else self.emit("reshape", flat, shape=x.array.shape)
        assert not isinstance(out, SymbolicTensor)
        return out

    def _number(self, e: Expr, dtype: str) -> Val:
        """A tensor of one element, which is computed from dimensions."""
        return self.builder.emit("arange", span=self.span, start=e, step=1, count=1, dtype=dtype)

    # -- operators that most importers need -----------------------------------------------

    def inside(self, indices: Val, extent: Expr, negative: bool = True) -> Val:
        """Indices of a dimension of `extent`; a call in which one is outside fails. Where
        `negative`, negative ones count from its end, else they are outside. NodeProblem for
        constants that are outside."""
        size = int_value(extent)
        if isinstance(indices, SymbolicTensor):
            return indices
        if isinstance(indices, Constant):
            return indices if size is None else self._inside(indices, size, negative)
        return self.emit("bounds_check", indices, extent=extent, negative=negative)

    def _inside(self, indices: Constant, size: int, negative: bool) -> Constant:
        array = indices.array
        outside = (array < (-size if negative else 0)) | (array >= size)
        if outside.any():
            raise malformed(f"index {array[outside].flat[0]} is outside of a dimension of {size}")
        return indices

    def reshape(self, x: Val, shape: Sequence[ExprLike]) -> Val:
        """Reshape `x` to a shape without -1; `x` itself if it has that shape."""
        new = tuple(self.dims.simplify(as_expr(d)) for d in shape)
        return x if new == self.shape(x) else self.emit("reshape", x, shape=new)

    def transpose(self, x: Val, axes: Sequence[int]) -> Val:
        """Permute dimensions; `x` itself if `axes` is the identity."""
        return (
            x
            if tuple(axes) == tuple(range(len(axes)))
            else self.emit("transpose", x, axes=tuple(axes))
        )

    def cast(self, x: Val, dtype: str) -> Val:
        """Convert to an element type; `x` itself if it has that type."""
        return x if self.dtype(x) == dtype else self.emit("cast", x, dtype=dtype)

    def sliced(self, x: Val, axis: int, begin: ExprLike, count: ExprLike, step: int = 1) -> Val:
        """`count` elements of one dimension, from `begin` on."""
        rank, shape = self.rank(x), list(self.shape(x))
        first = [as_expr(0)] * rank
        first[axis], shape[axis] = as_expr(begin), self.dims.simplify(as_expr(count))
        if first[axis] == as_expr(0) and step == 1 and tuple(shape) == self.shape(x):
            return x
        steps = tuple(step if i == axis else 1 for i in range(rank))
        return self.emit("slice", x, begin=tuple(first), strides=steps, shape=tuple(shape))

    def iota(self, count: ExprLike, rank: int = 1, axis: int = 0, dtype: str = "int64") -> Val:
        """0, 1, ... along one dimension of `rank`, the others of extent 1."""
        line = self.emit("arange", start=0, step=1, count=as_expr(count), dtype=dtype)
        return self.reshape(line, [as_expr(count if i == axis else 1) for i in range(rank)])


def _numbers(attrs: Attrs) -> Attrs:
    """Attributes with IntImm replaced by Python integers, which the NumPy references expect."""

    def plain(v: AttrValue) -> AttrValue:
        if isinstance(v, tuple):
            return tuple(plain(x) for x in v)
        number = int_value(v) if isinstance(v, Expr) else None
        return v if number is None else number

    return Attrs.of(**{k: plain(v) for k, v in attrs.items()})


def _show(t: TensorType) -> str:
    dims = ", ".join(str(int_value(d) if int_value(d) is not None else d) for d in t.shape)
    return f"{t.dtype}[{dims}]"
