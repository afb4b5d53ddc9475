"""Reductions, ArgMax/ArgMin, softmax and cumulative sums."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.cumulative import cumulative as running_reduction
from tensorkiln.frontend.graph.movement import flip
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Importer, Int, Ints, Table


def _reduce(g: Context, name: str, x: Val, axes: tuple[int, ...], keepdims: bool) -> Val:
    """An ONNX reduction over normalised axes, composed of our five (`OURS`)."""

    def over(op: str, y: Val, keep: bool = keepdims) -> Val:
        return g.emit(op, y, axes=axes, keepdims=keep)

    if g.type(x).dtype.is_bool:
        return g.cast(_reduce(g, name, g.cast(x, "uint8"), axes, keepdims), "bool")
    match name:
        case "ReduceL1":
            return over("sum", g.emit("abs", x))
        case "ReduceL2":
            return g.emit("sqrt", over("sum", g.emit("mul", x, x)))
        case "ReduceSumSquare":
            return over("sum", g.emit("mul", x, x))
        case "ReduceLogSum":
            return g.emit("log", over("sum", x))
        case "ReduceLogSumExp":
            top = over("max", x, True)
            total = g.emit("log", over("sum", g.emit("exp", g.emit("sub", x, top))))
            return g.emit("add", total, top if keepdims else g.reshape(top, g.shape(total)))
    return over(OURS[name], x)


def _run(g: Context, name: str, x: Val, axes: tuple[int, ...] | None, keepdims: int) -> Val:
    rank = g.rank(x)
    checked = tuple(range(rank)) if axes is None else g.axes(axes, rank)
    if name in OURS and (rank == 0 or not checked):
        return x
    return _reduce(g, name, x, tuple(sorted(checked)), bool(keepdims))


def reduce_attr(name: str) -> Importer:
    """The importer of a reduction with its axes as an attribute: until opset 17, and for ReduceSum
    until opset 12."""

    def run(g: Context, x: Val, *, axes: Ints | None = None, keepdims: Int = 1) -> Val:
        return _run(g, name, x, axes or None, keepdims)

    return run


def reduce_input(name: str) -> Importer:
    """The importer of a reduction with its axes as an operand.

    Absent or empty axes mean all dimensions, or with `noop_with_empty_axes` no dimension.
    """

    def run(
        g: Context,
        x: Val,
        axes: Val | None = None,
        *,
        keepdims: Int = 1,
        noop_with_empty_axes: Int = 0,
    ) -> Val:
        dimensions = g.ints(axes, "axes") if axes is not None else ()
        if not dimensions and noop_with_empty_axes:
            return _run(g, name, x, (), keepdims)
        return _run(g, name, x, dimensions or None, keepdims)

    return run


def arg(name: str) -> Importer:
    """The importer of ArgMax or ArgMin, which give int64; of equal elements the first counts, or
    with `select_last_index` the last."""

    def run(
        g: Context, x: Val, *, axis: Int = 0, keepdims: Int = 1, select_last_index: Int = 0
    ) -> Val:
        dimension = g.axis(axis, g.rank(x))
        if not select_last_index:
            return g.emit(name, x, axis=dimension, keepdims=bool(keepdims))
        last = g.dims.simplify(g.shape(x)[dimension] - 1)
        index = g.emit(name, flip(g, x, dimension), axis=dimension, keepdims=bool(keepdims))
        return g.emit("sub", g.reshape(g.shape_value([last]), ()), index)

    return run


def softmax_1(name: str) -> Importer:
    """The importer of a softmax until opset 12: over the dimensions from `axis` on, flattened."""

    def run(g: Context, x: Val, *, axis: Int = 1) -> Val:
        rank, shape = g.rank(x), g.shape(x)
        axis = rank if axis == rank else g.axis(axis, rank)
        if axis == rank - 1:
            return g.emit(name, x, axis=axis)
        rows, columns = g.dims.product(shape[:axis]), g.dims.product(shape[axis:])
        return g.reshape(g.emit(name, g.reshape(x, (rows, columns)), axis=1), shape)

    return run


def softmax_13(name: str) -> Importer:
    """The importer of a softmax from opset 13: over one dimension."""

    def run(g: Context, x: Val, *, axis: Int = -1) -> Val:
        return g.emit(name, x, axis=g.axis(axis, g.rank(x)))

    return run


def cumulative(name: str) -> Importer:
    """The importer of CumSum or CumProd, the reduction `name` of the elements up to each one."""

    def run(g: Context, x: Val, axis: Val, *, exclusive: Int = 0, reverse: Int = 0) -> Val:
        number = int(g.scalar(axis, "axis"))
        return running_reduction(
            g, name, x, number, exclusive=bool(exclusive), reverse=bool(reverse)
        )

    return run


def hardmax_1(g: Context, x: Val, *, axis: Int = 1) -> Val:
    """Hardmax until opset 12: over the dimensions from `axis` on, flattened."""
    rank, shape = g.rank(x), g.shape(x)
    dimension = rank if axis == rank else g.axis(axis, rank)
    rows, columns = g.dims.product(shape[:dimension]), g.dims.product(shape[dimension:])
    return g.reshape(hardmax_13(g, g.reshape(x, (rows, columns)), axis=1), shape)


def hardmax_13(g: Context, x: Val, *, axis: Int = -1) -> Val:
    """1 at the first of the greatest elements along a dimension, else 0."""
    dimension = g.axis(axis, g.rank(x))
    best = g.emit("argmax", x, axis=dimension, keepdims=True)
    n = g.shape(x)[dimension]
    return g.cast(g.emit("equal", best, g.iota(n, g.rank(x), dimension)), g.dtype(x))


OURS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
}
COMPOSED = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")

TABLE: Table = {
    **{
        name: {1: reduce_attr(name), (13 if name == "ReduceSum" else 18): reduce_input(name)}
        for name in (*OURS, *COMPOSED)
    },
    "ArgMax": {1: arg("argmax")},
    "ArgMin": {1: arg("argmin")},
    "Softmax": {1: softmax_1("softmax"), 13: softmax_13("softmax")},
    "LogSoftmax": {1: softmax_1("log_softmax"), 13: softmax_13("log_softmax")},
    "Hardmax": {1: hardmax_1, 13: hardmax_13},
    "CumSum": {11: cumulative("sum")},
    "CumProd": {26: cumulative("prod")},
}
