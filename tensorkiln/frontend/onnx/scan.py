"""Scan: a body for each element of a dimension."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph import scan as scans
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.movement import element, stack
from tensorkiln.frontend.graph.scan import MAX_STEPS, Step
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Body, Int, Ints
from tensorkiln.ir.expr import int_value


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
    stack_count = len(body.output) - len(states)
    if stack_count < 0:
        raise malformed(f"the body has {len(body.output)} outputs for {len(states)} states")
    axes = _listed(scan_input_axes, num_scan_inputs, "scan_input_axes")
    turned = _listed(scan_input_directions, num_scan_inputs, "scan_input_directions", 2)
    out_axes = _listed(scan_output_axes, stack_count, "scan_output_axes")
    out_turned = _listed(scan_output_directions, stack_count, "scan_output_directions", 2)
    axes = [g.axis(a, g.rank(x), "scan_input_axes") for a, x in zip(axes, inputs, strict=True)]
    return scans.scan(g, step, states, inputs, axes, turned, out_axes, out_turned)


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
        parts = [element(g, x, 0, b) for x in operands]
        number = b * MAX_STEPS
        sample_outputs = scan(
            g,
            lambda t, args, number=number: step(number + t, args),  # type: ignore[misc]
            *parts,
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        results.append(sample_outputs)
    return [stack(g, column, 0) for column in zip(*results, strict=True)]


def _listed(values: Sequence[int] | None, count: int, subject: str, below: int = 0) -> list[int]:
    """An attribute of `count` entries, 0 if absent; each is less than `below`, if that is given."""
    entries = [0] * count if values is None else list(values)
    if len(entries) != count or (below and not all(0 <= v < below for v in entries)):
        raise malformed(f"{subject}={entries} for {count}")
    return entries
