"""A body for each element of a dimension.

Over a few elements the body is imported once for each, which gives one graph function without host
steps. A long or symbolic dimension becomes a loop of host code (`control_flow.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.control_flow import loop
from tensorkiln.frontend.graph.data_extents import dynamic_results, with_shape
from tensorkiln.frontend.graph.indexing import gather
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.movement import element, stack
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, as_expr, int_value

MAX_STEPS = 64
# Steps in an iteration of host code. With one, an LSTM of 128 takes 1.5 times as long as with ten.
_BLOCK = 8

# From a step's number and the body's operands to its results.
Step = Callable[[int, Sequence[Val]], Sequence[Val]]


def scan(
    g: Context,
    step: Step,
    states: Sequence[Val],
    inputs: Sequence[Val],
    axes: Sequence[int],
    backward: Sequence[int],
    out_axes: Sequence[int],
    out_backward: Sequence[int],
) -> Sequence[Val]:
    """The last states, then for each further result of `step` those of all steps, stacked.

    `axes` and `backward` have an entry for each of `inputs`: the dimension that is scanned, not
    negative, and whether from its end; `out_axes` and `out_backward` have one for each stack.
    """
    extent, stack_count = _extent(g, inputs, axes), len(out_axes)
    count = int_value(extent)
    if count is None or not 1 <= count <= MAX_STEPS:
        stacks = _looped(g, step, states, inputs, axes, backward, extent, stack_count)
        rows = [
            _placed(g, x, axis, bool(back))
            for x, axis, back in zip(stacks[len(states) :], out_axes, out_backward, strict=True)
        ]
        return (*stacks[: len(states)], *rows)
    results: list[Sequence[Val]] = []
    for t in range(count):
        parts = [
            element(g, x, axis, count - 1 - t if back else t)
            for x, axis, back in zip(inputs, axes, backward, strict=True)
        ]
        outs = step(t, (*states, *parts))
        states = tuple(outs[: len(states)])
        results.append(outs[len(states) :])
    joined = [
        stack(
            g,
            [r[k] for r in results][:: -1 if out_backward[k] else 1],
            out_axes[k],
            "scan_output_axes",
        )
        for k in range(stack_count)
    ]
    return (*states, *joined)


def _extent(g: Context, inputs: Sequence[Val], axes: Sequence[int]) -> Expr:
    """The extent that all scanned dimensions have."""
    first, *extents = [g.shape(x)[a] for x, a in zip(inputs, axes, strict=True)]
    for extent in extents:
        if not g.dims.same(first, extent):
            numbers = [d if int_value(d) is None else int_value(d) for d in (first, extent)]
            raise malformed(f"the scanned dimensions have different extents: {numbers}")
    return first


def _looped(
    g: Context,
    step: Step,
    states: Sequence[Val],
    inputs: Sequence[Val],
    axes: Sequence[int],
    backward: Sequence[int],
    extent: Expr,
    stack_count: int,
) -> list[Val]:
    """The last states, then the results of all steps in order, stacked along a first dimension.

    An iteration of host code is a block of several steps.
    """
    last = g.reshape(g.shape_value([extent - 1]), ())
    if int_value(extent) == 0:  # there is nothing to take
        inputs = [_nothing(g, x, axis) for x, axis in zip(inputs, axes, strict=True)]

    def block(first: Val, size: int, current: Sequence[Val]) -> list[Val]:
        """The states after `size` steps, and their rows."""
        rows: list[Sequence[Val]] = []
        for t in range(size):
            position = g.emit("add", first, g.const(t, "int64")) if t else first
            parts = [
                gather(g, x, g.emit("sub", last, position) if from_end else position, axis=axis)
                for x, axis, from_end in zip(inputs, axes, backward, strict=True)
            ]
            outs = step(t, (*current, *parts))
            current = outs[: len(states)]
            rows.append(outs[len(states) :])
        return [*current, *(_rows(g, column) for column in zip(*rows, strict=True))]

    def blocks(
        start: Expr, size: int, count: Expr, start_states: Sequence[Val], stacks: Sequence[Val]
    ) -> list[Val]:
        """`count` blocks from step `start` on."""

        def body(args: Sequence[Val]) -> list[Val]:
            number, _, *current = args
            first = g.emit("mul", number, g.const(size, "int64")) if size > 1 else number
            if int_value(start) != 0:
                first = g.emit("add", first, g.reshape(g.shape_value([start]), ()))
            return [g.const(True, "bool"), *block(first, size, current)]

        return loop(g, body, g.shape_value([count]), None, start_states, stack_count, stacks)

    size = _block_size(extent)
    block_count = g.dims.simplify(extent // size)
    block_end = g.dims.simplify(block_count * size)
    remainder = g.dims.simplify(extent - block_count * size)
    results = blocks(as_expr(0), size, block_count, states, ())
    leftover = int_value(remainder)
    if leftover == 0:
        return results
    states, stacks = results[: len(states)], results[len(states) :]
    if leftover is None:
        results = blocks(block_end, 1, remainder, states, stacks)
        rows = results[len(states) :]
        whole_stacks = [
            with_shape(g, g.value(v), (extent, *g.shape(v)[1:]), g.type(v).dtype) for v in rows
        ]
    else:
        results = block(g.reshape(g.shape_value([block_end]), ()), leftover, states)
        rows = results[len(states) :]
        whole_stacks = [
            dynamic_results(g, "append", v, row, shapes=[(extent, *g.shape(row)[1:])])[0]
            for v, row in zip(stacks, rows, strict=True)
        ]
    return [*results[: len(states)], *whole_stacks]


def _block_size(extent: Expr) -> int:
    """How many steps are an iteration of host code: as many as leave the fewest over."""
    count = int_value(extent)
    if count == 0:
        return 1
    return _BLOCK if count is None else min(range(_BLOCK, 2 * _BLOCK), key=lambda k: count % k)


def _rows(g: Context, rows: Sequence[Val]) -> Val:
    """What the steps of a block add to a stack."""
    for row in rows:
        equal_rank = len(g.shape(row)) == len(g.shape(rows[0]))
        if not equal_rank or not all(map(g.dims.same, g.shape(row), g.shape(rows[0]))):
            raise unsupported("what an iteration adds to a stacked output has no fixed shape")
    return stack(g, rows, 0)


def _nothing(g: Context, x: Val, axis: int) -> Val:
    """Zeros in place of an empty tensor, with one element along `axis`."""
    shape = tuple(as_expr(1) if i == axis else d for i, d in enumerate(g.shape(x)))
    return g.emit("full", shape=shape, value=0, dtype=g.dtype(x))


def _placed(g: Context, x: Val, axis: int, backward: bool) -> Val:
    """A stack with its first dimension moved to `axis`, and reversed if `backward`."""
    rank, shape = g.rank(x), g.shape(x)
    if backward:
        begin = (as_expr(shape[0] - 1), *[as_expr(0)] * (rank - 1))
        strides = (-1, *[1] * (rank - 1))
        x = g.emit("slice", x, begin=begin, strides=strides, shape=shape)
    axis = g.axis(axis, rank, "scan_output_axes")
    order = list(range(1, rank))
    order.insert(axis, 0)
    return g.transpose(x, order)
