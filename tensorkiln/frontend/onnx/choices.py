"""Operators whose axes data decides: a branch for each set of axes that there may be.

A graph has an operator for each axis, or each set of axes, and an `If` for each but the last. Of 4
dimensions and one axis that are 4 operators, of which a call runs one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb

from tensorkiln.base.errors import UserError
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.control_flow import branches
from tensorkiln.frontend.graph.data_extents import is_computed, require
from tensorkiln.frontend.graph.issues import NodeProblem, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.graph_values import GraphValue
from tensorkiln.frontend.onnx.ops_reduce import COMPOSED, OURS
from tensorkiln.ir.expr import int_value

MOST_CHOICES = 64


@dataclass(frozen=True, slots=True)
class Axes:
    """Operand number `operand`, called `name`, holds axes, in any order, of the first operand. With
    `inserts` they are places in the result, which has so many more dimensions; the last `others`
    dimensions cannot be among them."""

    operand: int
    inserts: bool = False
    others: int = 0
    name: str = "axes"


AXES = {
    **{name: Axes(1) for name in (*OURS, *COMPOSED)},
    "CumSum": Axes(1, name="axis"),
    "CumProd": Axes(1, name="axis"),
    "DFT": Axes(2, others=1, name="axis"),
    "Squeeze": Axes(1),
    "Unsqueeze": Axes(1, inserts=True),
}

Importer = Callable[..., GraphValue | Sequence[GraphValue]]


def over_axes(g: Context, op: str, call: Importer) -> Importer:
    """The importer of an operator, for axes that data decides too."""
    row = AXES.get(op)

    def run(*args: GraphValue | None) -> GraphValue | Sequence[GraphValue]:
        axes = args[row.operand] if row is not None and len(args) > row.operand else None
        if row is None or not isinstance(axes, Val) or not is_computed(g, axes):
            return call(*args)
        return _branches(g, row, call, args, axes)

    return run


def _branches(
    g: Context, row: Axes, call: Importer, args: Sequence[GraphValue | None], axes: Val
) -> list[Val]:
    x = args[0]
    assert isinstance(x, Val)
    count = int_value(g.dims.product(g.shape(axes)))
    if count is None:
        raise unsupported("the number of axes is computed from data")
    total = g.rank(x) + count if row.inserts else g.rank(x)
    if comb(total - row.others, count) > MOST_CHOICES:
        raise unsupported(
            f"data decides {count} axes of {total}", f"up to {MOST_CHOICES} sets of axes"
        )
    hot = one_hot_axes(g, axes, total)
    named = g.emit("sum", hot, axes=(0,), keepdims=False)
    powers = g.const([1 << i for i in range(total)], "int64")
    code = g.emit("sum", g.emit("mul", named, powers), axes=(0,), keepdims=False)

    def of(chosen: Sequence[int]) -> list[Val]:
        """The results for a set of axes."""
        constant = g.reshape(g.const(list(chosen), "int64"), g.shape(axes))
        outputs = call(*args[: row.operand], constant, *args[row.operand + 1 :])
        out = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        if not all(isinstance(v, Val) for v in out):
            raise unsupported("data decides the axes of a tensor that is only stored")
        return [v for v in out if isinstance(v, Val)]

    sets = [s for s in combinations(range(total - row.others), count) if _fits(g, partial(of, s))]
    if not sets:
        of(tuple(range(count)))  # raises why none fits
    codes = [sum(1 << i for i in s) for s in sets]
    require_one_of(g, code, codes, row.name, axes, _expected(row, sets, total))

    def from_number(k: int) -> list[Val]:
        if k == len(sets) - 1:
            return of(sets[k])
        is_code = g.emit("equal", code, g.const(codes[k], "int64"))
        return branches(g, is_code, [partial(of, sets[k]), partial(from_number, k + 1)])

    return from_number(0)


def _fits(g: Context, call: Callable[[], object]) -> bool:
    """Whether the importer takes a set of axes: Squeeze only those of extent 1."""
    assumed, bound_sizes = len(g.dims.assumed), dict(g.bound_sizes)
    try:
        with g.builder.inner():
            call()
    except (NodeProblem, UserError):
        return False
    finally:
        del g.dims.assumed[assumed:]
        g.bound_sizes = bound_sizes
    return True


def one_hot_axes(g: Context, axes: Val, rank: int) -> Val:
    """Axes, which may be counted from the end, as a matrix [number of axes, rank] of int64: 1 in
    each row at the axis, and nowhere for one that there is not."""
    count = g.dims.product(g.shape(axes))
    indices = g.reshape(g.cast(axes, "int64"), (count, 1))
    below = g.emit("less", indices, g.const(0, "int64"))
    indices = g.emit("where", below, g.emit("add", indices, g.const(rank, "int64")), indices)
    places = g.const([list(range(rank))], "int64")
    return g.cast(g.emit("equal", indices, places), "int64")


def require_one_of(
    g: Context, code: Val, codes: Sequence[int], subject: str, subject_value: Val, expected: str
) -> None:
    """Refuse a call in which a code, which stands for what operand `subject` says, is unknown."""
    hits = g.emit("equal", g.reshape(code, (1,)), g.const(list(codes), "int64"))
    best = g.emit("max", g.cast(hits, "int64"), axes=(0,), keepdims=False)
    require(g, best, subject, subject_value, expected)


def _expected(row: Axes, sets: Sequence[Sequence[int]], total: int) -> str:
    """What axes a call may have, in words: all that there are, or those of extent 1."""
    count = len(sets[0])
    if len(sets) == comb(total - row.others, count):
        return axes_of_rank(count, total, row.others)
    return f"{' or '.join(str(s[0] if count == 1 else list(s)) for s in sets)}, of extent 1"


def axes_of_rank(count: int, rank: int, inner_rank: int = 0) -> str:
    """What is expected of `count` axes of a tensor, in words."""
    numbers = f"{-rank} to {rank - 1 - inner_rank}"
    return numbers if count == 1 else f"{count} different axes from {numbers}"


__all__ = ["AXES", "Axes", "one_hot_axes", "over_axes"]
