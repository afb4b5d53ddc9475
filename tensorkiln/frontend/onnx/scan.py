"""Scan: a body for each element of a dimension.

Over a few elements the body is imported once for each, which gives one graph function without host
steps. A long or symbolic dimension becomes a loop of host code (`control.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.control_flow import loop
from tensorkiln.frontend.graph.data_extents import dynamic, shaped
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Body, Int, Ints
from tensorkiln.frontend.onnx.ops_index import gather
from tensorkiln.ir.expr import Expr, as_expr, int_value

MAX_STEPS = 64
# Steps in an iteration of host code. With one, an LSTM of 128 takes 1.5 times as long as with ten.
_BLOCK = 8

# From a step's number and the body's operands to its results; it may raise BodyRefused.
Step = Callable[[int, Sequence[Val]], Sequence[Val]]


class BodyRefused(Exception):
    """The body cannot be imported, of which there are issues already."""


def scan(
    g: Context,
    step: Step,
    *operands: Val,
    body: Body,
    num_scan_inputs: Int,
    scan_input_axes: Ints | None = None,
    scan_input_directions: Ints | None = None,
    scan_output_axes: Ints | None = None,
    scan_output_directions: Ints | None = None,
) -> Sequence[Val]:
    """The last states, then for each further output of the body its results in all steps, stacked.

    The first operands are the states, the others are read element by element. Directions are 0, or
    1 for from the end.
    """
    states, inputs = operands[: len(operands) - num_scan_inputs], operands[-num_scan_inputs:]
    if not 1 <= num_scan_inputs <= len(operands) or len(body.input) != len(operands):
        raise malformed(
            f"{len(operands)} operands, of which num_scan_inputs={num_scan_inputs} are scanned, "
            f"for a body of {len(body.input)}"
        )
    made = len(body.output) - len(states)
    if made < 0:
        raise malformed(f"the body has {len(body.output)} outputs for {len(states)} states")
    axes = _listed(scan_input_axes, num_scan_inputs, "scan_input_axes")
    turned = _listed(scan_input_directions, num_scan_inputs, "scan_input_directions", 2)
    out_axes = _listed(scan_output_axes, made, "scan_output_axes")
    out_turned = _listed(scan_output_directions, made, "scan_output_directions", 2)
    axes = [g.axis(a, g.rank(x), "scan_input_axes") for a, x in zip(axes, inputs, strict=True)]
    return scanned(g, step, states, inputs, axes, turned, out_axes, out_turned)


def scanned(
    g: Context,
    step: Step,
    states: Sequence[Val],
    inputs: Sequence[Val],
    axes: Sequence[int],
    turned: Sequence[int],
    out_axes: Sequence[int],
    out_turned: Sequence[int],
) -> Sequence[Val]:
    """The results of a scan whose attributes have one entry for each input or stacked output; axes
    of inputs are not negative."""
    extent, made = _extent(g, inputs, axes), len(out_axes)
    count = int_value(extent)
    if count is None or not 1 <= count <= MAX_STEPS:
        stacks = _looped(g, step, states, inputs, axes, turned, extent, made)
        rows = [
            _placed(g, x, axis, bool(back))
            for x, axis, back in zip(stacks[len(states) :], out_axes, out_turned, strict=True)
        ]
        return (*stacks[: len(states)], *rows)
    results: list[Sequence[Val]] = []
    for t in range(count):
        parts = [
            _element(g, x, axis, count - 1 - t if back else t)
            for x, axis, back in zip(inputs, axes, turned, strict=True)
        ]
        outs = step(t, (*states, *parts))
        states = tuple(outs[: len(states)])
        results.append(outs[len(states) :])
    joined = [
        stacked(g, [r[k] for r in results][:: -1 if out_turned[k] else 1], out_axes[k])
        for k in range(made)
    ]
    return (*states, *joined)


def scan_8(
    g: Context,
    step: Step,
    *operands: Val,
    body: Body,
    num_scan_inputs: Int,
    directions: Ints | None = None,
) -> Sequence[Val]:
    """Scan of opset 8: all operands have a dimension of samples, which are scanned one by one."""
    samples = {int_value(g.shape(x)[0]) for x in operands if g.rank(x)}
    (count,) = samples if len(samples) == 1 else (None,)
    if count is None:
        raise unsupported("the number of samples is symbolic, or not the same for all operands")
    results = []
    for b in range(count):
        parts = [_element(g, x, 0, b) for x in operands]
        number = b * MAX_STEPS
        found = scan(
            g,
            lambda t, args, number=number: step(number + t, args),  # type: ignore[misc]
            *parts,
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        results.append(found)
    return [stacked(g, column, 0) for column in zip(*results, strict=True)]


def _listed(values: Sequence[int] | None, count: int, what: str, below: int = 0) -> list[int]:
    """An attribute of `count` entries, 0 if absent; each is less than `below`, if that is given."""
    given = [0] * count if values is None else list(values)
    if len(given) != count or (below and not all(0 <= v < below for v in given)):
        raise malformed(f"{what}={given} for {count}")
    return given


def _extent(g: Context, inputs: Sequence[Val], axes: Sequence[int]) -> Expr:
    """The extent that all scanned dimensions have."""
    first, *others = [g.shape(x)[a] for x, a in zip(inputs, axes, strict=True)]
    for other in others:
        if not g.dims.same(first, other):
            shown = [d if int_value(d) is None else int_value(d) for d in (first, other)]
            raise malformed(f"the scanned dimensions have different extents: {shown}")
    return first


def _looped(
    g: Context,
    step: Step,
    states: Sequence[Val],
    inputs: Sequence[Val],
    axes: Sequence[int],
    turned: Sequence[int],
    extent: Expr,
    made: int,
) -> list[Val]:
    """The last states, then the results of all steps in order, stacked along a first dimension.

    An iteration of host code is a block of several steps.
    """
    last = g.reshape(g.shape_value([extent - 1]), ())
    if int_value(extent) == 0:  # there is nothing to take
        inputs = [_nothing(g, x, axis) for x, axis in zip(inputs, axes, strict=True)]

    def block(first: Val, many: int, now: Sequence[Val]) -> list[Val]:
        """The states after `many` steps, and their rows."""
        rows: list[Sequence[Val]] = []
        for t in range(many):
            at = g.emit("add", first, g.const(t, "int64")) if t else first
            parts = [
                gather(g, x, g.emit("sub", last, at) if back else at, axis=axis)
                for x, axis, back in zip(inputs, axes, turned, strict=True)
            ]
            outs = step(t, (*now, *parts))
            now = outs[: len(states)]
            rows.append(outs[len(states) :])
        return [*now, *(_rows(g, column) for column in zip(*rows, strict=True))]

    def blocks(
        start: Expr, many: int, count: Expr, begun: Sequence[Val], stacks: Sequence[Val]
    ) -> list[Val]:
        """`count` blocks from step `start` on."""

        def body(args: Sequence[Val]) -> list[Val]:
            number, _, *now = args
            first = g.emit("mul", number, g.const(many, "int64")) if many > 1 else number
            if int_value(start) != 0:
                first = g.emit("add", first, g.reshape(g.shape_value([start]), ()))
            return [g.const(True, "bool"), *block(first, many, now)]

        return loop(g, body, g.shape_value([count]), None, begun, made, stacks)

    many = _block_size(extent)
    whole = g.dims.simplify(extent // many)
    done, rest = g.dims.simplify(whole * many), g.dims.simplify(extent - whole * many)
    found = blocks(as_expr(0), many, whole, states, ())
    few = int_value(rest)
    if few == 0:
        return found
    states, stacks = found[: len(states)], found[len(states) :]
    if few is None:
        found = blocks(done, 1, rest, states, stacks)
        rows = found[len(states) :]
        whole_stacks = [
            shaped(g, g.value(v), (extent, *g.shape(v)[1:]), g.type(v).dtype) for v in rows
        ]
    else:
        found = block(g.reshape(g.shape_value([done]), ()), few, states)
        rows = found[len(states) :]
        whole_stacks = [
            dynamic(g, "append", v, row, shapes=[(extent, *g.shape(row)[1:])])[0]
            for v, row in zip(stacks, rows, strict=True)
        ]
    return [*found[: len(states)], *whole_stacks]


def _block_size(extent: Expr) -> int:
    """How many steps are an iteration of host code: as many as leave the fewest over."""
    count = int_value(extent)
    if count == 0:
        return 1
    return _BLOCK if count is None else min(range(_BLOCK, 2 * _BLOCK), key=lambda k: count % k)


def _rows(g: Context, rows: Sequence[Val]) -> Val:
    """What the steps of a block add to a stack."""
    for row in rows:
        same = len(g.shape(row)) == len(g.shape(rows[0]))
        if not same or not all(map(g.dims.same, g.shape(row), g.shape(rows[0]))):
            raise unsupported("what an iteration adds to a stacked output has no fixed shape")
    return stacked(g, rows, 0)


def _nothing(g: Context, x: Val, axis: int) -> Val:
    """Zeros in place of an empty tensor, with one element along `axis`."""
    shape = tuple(as_expr(1) if i == axis else d for i, d in enumerate(g.shape(x)))
    return g.emit("full", shape=shape, value=0, dtype=g.dtype(x))


def _placed(g: Context, x: Val, axis: int, back: bool) -> Val:
    """A stack with its first dimension moved to `axis`, from the last to the first if `back`."""
    rank, shape = g.rank(x), g.shape(x)
    if back:
        begin = (as_expr(shape[0] - 1), *[as_expr(0)] * (rank - 1))
        strides = (-1, *[1] * (rank - 1))
        x = g.emit("slice", x, begin=begin, strides=strides, shape=shape)
    at = g.axis(axis, rank, "scan_output_axes")
    order = list(range(1, rank))
    order.insert(at, 0)
    return g.transpose(x, order)


def _element(g: Context, x: Val, axis: int, at: int) -> Val:
    shape, rank = g.shape(x), g.rank(x)
    begin = tuple(at if i == axis else 0 for i in range(rank))
    one = tuple(as_expr(1) if i == axis else d for i, d in enumerate(shape))
    part = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=one)
    return g.reshape(part, (*shape[:axis], *shape[axis + 1 :]))


def stacked(g: Context, parts: Sequence[Val], axis: int) -> Val:
    """Tensors of one shape side by side along a new dimension."""
    shape = g.shape(parts[0])
    at = g.axis(axis, len(shape) + 1, "scan_output_axes")
    wide = [g.reshape(part, (*shape[:at], 1, *shape[at:])) for part in parts]
    return wide[0] if len(wide) == 1 else g.emit("concat", *wide, axis=at)
