"""Control flow: branches that are taken and loops that are unrolled where their course is known at
import, else branches and loops of host code (`graph/control_flow.py`).

A graph function has neither, so the nodes of a body are imported in its place, once for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tensorkiln.base.errors import Issue
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.control_flow import branches, loop
from tensorkiln.frontend.graph.issues import (
    BodyRefused,
    NodeProblem,
    RanksDiffer,
    malformed,
    unsupported,
)
from tensorkiln.frontend.graph.movement import stack
from tensorkiln.frontend.graph.scan import MAX_STEPS
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import dispatch
from tensorkiln.frontend.onnx.body_formats import BodyFormats, stored, with_formats
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.graph_values import GraphValue, TensorList
from tensorkiln.frontend.onnx.inputs import declared
from tensorkiln.frontend.onnx.load import ParsedModel
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.proto import AttributeProto, NodeProto, OnnxGraph, ValueInfo
from tensorkiln.frontend.onnx.scan import scan, scan_8
from tensorkiln.frontend.onnx.scope import UNKNOWN, GraphScope, Unknown
from tensorkiln.ir.relax import Constant

MAX_DEPTH = 33  # of bodies and functions; files nest no deeper (`MAX_DEPTH` of wire.py)
# Of all loops of a model: a file of a few bytes must not keep the importer busy for hours.
MOST_STEPS = 1 << 14
# What follows branches of different ranks is imported once for each; so many may follow each other.
MOST_SPLITS = 4
Outputs = Sequence[GraphValue | Unknown]


class Host(Protocol):
    """The import of a model, as bodies need it: `importer.Importer`."""

    g: OnnxContext
    source: ParsedModel
    issues: list[Issue]
    unrolled: int
    splits: int

    def nodes(self, nodes: Sequence[NodeProto], scope: GraphScope, results: Sequence[str]) -> None:
        """Import nodes, whose values `results` are read, into the scope."""

    def node_issue(
        self, kind: str, node: NodeProto, scope: GraphScope, message: str, hint: str = ""
    ) -> None:
        """Record why a node cannot be imported."""

    def in_order(
        self, nodes: Sequence[NodeProto], scope: GraphScope, results: Sequence[str]
    ) -> None:
        """Import nodes that are in topological order."""

    def enter(self, node: NodeProto, scope: GraphScope) -> None:
        """Let the context describe the node."""

    def operand(self, name: str, scope: GraphScope) -> GraphValue | Unknown | None:
        """What an operand's name stands for, None for one that is left out."""

    def inner_result(self, name: str, scope: GraphScope) -> GraphValue | Unknown:
        """What a result of a body stands for."""


class _OperandUnknown(BodyRefused):
    """A refused node computes an operand."""


class _Computed(NodeProblem):
    """The course of a loop is known when the function runs."""


def _branch(
    host: Host, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
) -> Outputs:
    """Import an `If`; if its condition is constant, as the nodes of the branch that is taken."""
    bodies = {a.name: a.g for a in attributes}
    if bodies.get("then_branch") is None or bodies.get("else_branch") is None:
        raise malformed("If needs then_branch and else_branch")
    if len(node.input) != 1:
        raise malformed(f"If takes one condition, got {len(node.input)}")
    cond = host.operand(node.input[0], scope)
    if isinstance(cond, Unknown) or cond is None:
        return _behind_unknown(host, node, attributes, scope)
    sides = [body for name in ("then_branch", "else_branch") if (body := bodies[name])]
    if isinstance(cond, Constant) and cond.array.size == 1:
        body = sides[0 if cond.array.item() else 1]
        return _body(host, body, scope, f"{scope.prefix}{node.label}/", ())
    if not isinstance(cond, Val):
        raise malformed("the condition of If is no tensor")
    host.enter(node, scope)
    body_formats = BodyFormats()
    steps = [body_formats.over(_step(host, node, body, scope, False)) for body in sides]
    try:
        outputs = branches(host.g, cond, [partial(step, 0, ()) for step in steps])
        return with_formats(outputs, body_formats.results)
    except BodyRefused:
        return [UNKNOWN] * len(node.output)


def in_both(
    host: Host,
    node: NodeProto,
    later_nodes: Sequence[NodeProto],
    scope: GraphScope,
    results: Sequence[str],
    problem: RanksDiffer,
) -> None:
    """Import an `If` whose branches differ in rank with the `later_nodes` behind it in both: the
    results of the scope are then those of the branches. `problem` is the issue of another node, and
    where too many follow each other."""
    host.splits += 1
    try:
        if node.op_type != "If" or host.splits > MOST_SPLITS:
            raise problem
        _continued(host, node, later_nodes, scope, results)
    except BodyRefused:
        pass
    except NodeProblem as reason:
        host.node_issue(reason.kind, node, scope, reason.message, reason.hint)
    finally:
        host.splits -= 1
    names = [o for n in (node, *later_nodes) for o in n.output if o]
    scope.values.update({name: UNKNOWN for name in names if name not in scope.values})


def _continued(
    host: Host,
    node: NodeProto,
    later_nodes: Sequence[NodeProto],
    scope: GraphScope,
    results: Sequence[str],
) -> None:
    cond = host.operand(node.input[0], scope)
    bodies = {a.name: a.g for a in node.attribute}
    names = [name for name in dict.fromkeys(results) if name and name not in scope.values]
    before = len(host.issues)

    def side(body: OnnxGraph, *_: object) -> Sequence[object]:
        outer = dict(scope.values)
        try:
            branch_outputs = _body(host, body, scope, f"{scope.prefix}{node.label}/", ())
            scope.values.update(zip(node.output, branch_outputs, strict=False))
            host.in_order(later_nodes, scope, results)
            operands = [host.operand(name, scope) for name in names]
        finally:
            scope.values = outer
        if len(host.issues) != before:
            raise BodyRefused
        return operands

    assert isinstance(cond, Val)
    body_formats = BodyFormats()
    sides = [body for k in ("then_branch", "else_branch") if (body := bodies[k]) is not None]
    steps = [body_formats.over(partial(side, body)) for body in sides]
    outputs = branches(host.g, cond, [partial(step, 0, ()) for step in steps])
    scope.values.update(zip(names, with_formats(outputs, body_formats.results), strict=True))


def _behind_unknown(
    host: Host, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
) -> Outputs:
    """Import the bodies of a node with an operand of which nothing is known, for their issues."""
    for body in (a.g for a in attributes):
        if isinstance(body, OnnxGraph) and scope.depth < MAX_DEPTH:
            args = [UNKNOWN] * len(body.input)
            _body(host, body, scope, f"{scope.prefix}{node.label}/", args)
    return [UNKNOWN] * len(node.output)


def _body(
    host: Host,
    body: OnnxGraph,
    scope: GraphScope,
    prefix: str,
    args: Sequence[GraphValue | Unknown],
) -> Outputs:
    """The results of a body, whose nodes are imported in a scope of their own."""
    if scope.depth >= MAX_DEPTH:
        raise malformed("bodies are nested too deep")
    if len(body.input) != len(args):
        raise malformed(f"a body of {len(body.input)} operands for {len(args)}")
    inner = GraphScope(
        scope.opsets, prefix, scope.depth + 1, scope, scope.attrs, infos=body.value_info
    )
    inner.values.update({t.name: t for t in body.initializer})
    inner.values.update(zip((v.name for v in body.input), args, strict=True))
    host.nodes(body.node, inner, [o.name for o in body.output])
    return [_as_declared(host.g, host.inner_result(o.name, inner), o) for o in body.output]


def _as_declared(g: Context, x: GraphValue | Unknown, output: ValueInfo) -> GraphValue | Unknown:
    """A result of a body, whose computed extents are checked to be what the body declares."""
    dims = declared(output)
    if not isinstance(x, Val) or len(dims) != g.rank(x):
        return x
    pairs = zip(g.shape(x), dims, strict=True)
    return g.checked(
        x, [d.value if d.value and g.dims.is_computed(e) and not d.param else e for e, d in pairs]
    )


def _step(
    host: Host, node: NodeProto, body: OnnxGraph, scope: GraphScope, numbered: bool = True
) -> Callable[[int, Sequence[GraphValue]], list[GraphValue]]:
    """From the number of a step and the body's operands to its results; raises BodyRefused."""
    before = len(host.issues)

    def step(number: int, args: Sequence[GraphValue]) -> list[GraphValue]:
        step_prefix = f"{number}/" if numbered else ""
        host.unrolled += numbered
        if numbered and host.unrolled > MOST_STEPS:
            raise _Computed(
                "operator", f"loops of more than {MOST_STEPS} steps in all", "they are unrolled"
            )
        outputs = _body(host, body, scope, f"{scope.prefix}{node.label}/{step_prefix}", args)
        host.enter(node, scope)
        if before != len(host.issues):
            raise BodyRefused
        return [v for v in outputs if not isinstance(v, Unknown)]

    return step


def _given_operands(host: Host, node: NodeProto, scope: GraphScope, first: int) -> list[GraphValue]:
    """The operands from number `first` on; _OperandUnknown if one is unknown."""
    operands = [host.operand(name, scope) for name in node.input[first:]]
    if any(v is None for v in operands):
        raise malformed("an operand is left out, but all are required")
    if any(isinstance(v, Unknown) for v in operands):
        raise _OperandUnknown
    return [v for v in operands if v is not None and not isinstance(v, Unknown)]


def _scan(
    host: Host, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
) -> Outputs:
    """Import a `Scan` as the nodes of its body, for one element after another."""
    older = scope.opsets[""] <= 8
    run = scan_8 if older else scan
    values = dispatch.attributes(run, attributes, host.source.files)
    try:
        if older and node.input and node.input[0]:
            raise unsupported("sequence_lens", "the sequences of all samples must be whole")
        operands = _given_operands(host, node, scope, int(older))
        tensors, formats = stored(operands)
        state_count = max(len(operands) - int(values["num_scan_inputs"]), 0)
        body_formats = BodyFormats(formats, formats[:state_count])
        step = body_formats.over(_step(host, node, values["body"], scope))
        host.enter(node, scope)
        outputs = with_formats(run(host.g, step, *tensors, **values), body_formats.results)
    except _OperandUnknown:
        return _behind_unknown(host, node, attributes, scope)
    except BodyRefused:
        return [UNKNOWN] * len(node.output)
    return _fitting(node, outputs)


def _fitting(node: NodeProto, outputs: Sequence[GraphValue]) -> Sequence[GraphValue]:
    if len(node.output) > len(outputs):
        raise malformed(f"it has {len(node.output)} outputs, expected {len(outputs)}")
    return outputs


def _loop(
    host: Host, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
) -> Outputs:
    """Import a `Loop`; if its trips are known and few, as the nodes of its body, one after another.

    Its operands are the greatest number of trips and the condition, of which each may be left out,
    and the states. The body takes the trip's number, the condition and the states; its results are
    the condition, the states, and what is stacked over the trips.
    """
    bodies = {a.name: a.g for a in attributes}
    body = bodies.pop("body", None)
    if body is None or bodies:
        raise malformed("Loop needs the attribute body, and takes no other")
    names = (*node.input, "", "")[:2]
    limits = [host.operand(name, scope) for name in names]
    try:
        states = _given_operands(host, node, scope, 2)
        if any(isinstance(v, Unknown) for v in limits):
            raise _OperandUnknown
        return _fitting(node, _any_loop(host, node, scope, body, (limits[0], limits[1]), states))
    except _OperandUnknown:
        return _behind_unknown(host, node, attributes, scope)
    except BodyRefused:
        return [UNKNOWN] * len(node.output)


def _any_loop(
    host: Host,
    node: NodeProto,
    scope: GraphScope,
    body: OnnxGraph,
    limits: tuple[GraphValue | Unknown | None, GraphValue | Unknown | None],
    states: Sequence[GraphValue],
) -> Sequence[GraphValue]:
    """The results of a loop that is unrolled or, where that cannot be, one of host code."""
    if len(body.input) != 2 + len(states) or len(body.output) < 1 + len(states):
        raise malformed(
            f"a body of {len(body.input)} operands and {len(body.output)} results for "
            f"{len(states)} states"
        )
    g, assumed = host.g, len(host.g.dims.assumed)
    bound_sizes = dict(g.bound_sizes)
    try:
        with g.builder.inner() as bindings:
            outputs = _unrolled(host, node, scope, body, limits, states)
        g.builder.bindings += bindings
        return outputs
    except _Computed as problem:
        g.bound_sizes = bound_sizes
        del g.dims.assumed[assumed:]
        if not all(isinstance(v, Val | None) for v in limits) or not all(
            isinstance(v, Val | Narrow) for v in states
        ):
            raise problem  # what is no tensor cannot be the state of a loop of host code
    trips, cond = (v if isinstance(v, Val) else None for v in limits)
    state_tensors, formats = stored(states)
    body_formats = BodyFormats((None, None, *formats), (None, *formats))
    host.enter(node, scope)
    step = body_formats.over(_step(host, node, body, scope, False))

    def one(args: Sequence[Val]) -> list[Val]:
        """A step, with a row of each stack."""
        results = step(0, args)
        now, added = results[: 1 + len(states)], results[1 + len(states) :]
        return [*now, *(g.reshape(v, (1, *g.shape(v))) for v in added)]

    outputs = loop(g, one, trips, cond, state_tensors, len(body.output) - 1 - len(states))
    return with_formats(outputs, body_formats.results[1:])


def _unrolled(
    host: Host,
    node: NodeProto,
    scope: GraphScope,
    body: OnnxGraph,
    limits: tuple[GraphValue | Unknown | None, GraphValue | Unknown | None],
    states: Sequence[GraphValue],
) -> Sequence[GraphValue]:
    max_trips = None if limits[0] is None else _decided(limits[0], "its number of trips")
    host.enter(node, scope)
    g = host.g
    cond: GraphValue | Unknown = g.const(True, "bool") if limits[1] is None else limits[1]
    step, trip = _step(host, node, body, scope), 0
    rows: list[Sequence[GraphValue]] = []
    count = len(states)
    while max_trips is None or trip < max_trips:
        if isinstance(cond, Unknown) or not _decided(cond, "its condition"):
            break
        if trip == MAX_STEPS or (max_trips or 0) > MAX_STEPS:
            raise _Computed(
                "operator", f"it makes more than {MAX_STEPS} trips", "up to that are unrolled"
            )
        outputs = step(trip, (g.const(trip, "int64"), cond, *states))
        cond, states = outputs[0], outputs[1 : 1 + count]
        rows.append(outputs[1 + count :])
        trip += 1
    row_count = len(body.output) - 1 - count
    if row_count and not rows:
        raise _Computed("operator", "it makes no trip, but results of trips are stacked")
    return (*states, *(_stacked(g, column) for column in zip(*rows, strict=True)))


def _stacked(g: Context, column: Sequence[GraphValue]) -> Val | Narrow:
    """What a loop makes in its trips, as rows of one tensor."""
    tensors, formats = stored(column)
    if len(set(formats)) != 1:
        raise malformed("what is stacked over the trips is of different element types")
    return with_formats([stack(g, tensors, 0)], formats[:1])[0]


def _decided(value: GraphValue | Unknown, subject: str) -> int:
    """The one element of a constant; NodeProblem if it is computed."""
    if not isinstance(value, Constant) or value.array.size != 1:
        raise _Computed(
            "operator",
            f"{subject} is computed from data",
            "loops of sequences must have trips that are known at import",
        )
    return int(value.array.item())


def _sequence_map(
    host: Host, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
) -> Outputs:
    """Import a `SequenceMap`: its body for each tensor of the first sequence, with those of further
    sequences, and tensors as they are; its results are sequences."""
    bodies = {a.name: a.g for a in attributes}
    body = bodies.pop("body", None)
    if body is None or bodies:
        raise malformed("SequenceMap needs the attribute body, and takes no other")
    try:
        operands = _given_operands(host, node, scope, 0)
        lengths = {len(v.items) for v in operands if isinstance(v, TensorList)}
        if len(lengths) != 1 or not isinstance(operands[0], TensorList):
            raise malformed("the first operand must be a sequence, and all of one length")
        if len(body.input) != len(operands):
            raise malformed(f"a body of {len(body.input)} operands for {len(operands)}")
        step = _step(host, node, body, scope)
        rows = [
            step(k, [v.items[k] if isinstance(v, TensorList) else v for v in operands])
            for k in range(lengths.pop())
        ]
    except _OperandUnknown:
        return _behind_unknown(host, node, attributes, scope)
    except BodyRefused:
        return [UNKNOWN] * len(node.output)
    columns = [[row[k] for row in rows] for k in range(len(body.output))]
    if not all(isinstance(v, Val | Narrow) for column in columns for v in column):
        raise malformed("a result of the body is no tensor")
    sequences = [TensorList(tuple(v for v in c if isinstance(v, Val | Narrow))) for c in columns]
    return _fitting(node, sequences)


Control = Callable[[Host, NodeProto, Sequence[AttributeProto], GraphScope], Outputs]
OPERATORS: Mapping[str, Control] = {
    "If": _branch,
    "Scan": _scan,
    "Loop": _loop,
    "SequenceMap": _sequence_map,
}
