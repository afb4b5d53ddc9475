"""The imported graph as a picture: its operators, and the kernel that each became part of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    Value,
)
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.passes import Step
from tensorkiln.report.layers import Edge, PlacedGraph, cell_count, place

# Nodes and waypoints of the largest picture: its layout takes some seconds.
MOST_CELLS = 60_000
_LETTER = 6.6  # width of a label's character, in SVG units
LONGEST_LABEL = 36  # characters that are drawn


@dataclass(frozen=True, slots=True)
class PictureNode:
    """An input, an operator or a result (`kind` input, op or result). `note` is its shape. `span`
    names the model's node. `kernel` is the kernel that computes it, empty for inputs, results and
    operators that were folded into others."""

    kind: str
    label: str
    note: str
    span: str
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """Nodes in the order of the program, edges as pairs of their numbers, and their layout, in
    which nodes are `widths` wide; None where that takes more than MOST_CELLS."""

    nodes: tuple[PictureNode, ...]
    edges: tuple[Edge, ...]
    widths: tuple[float, ...]
    placed: PlacedGraph | None


def graph_picture(mod: IRModule, kernels: Mapping[str, str]) -> GraphPicture:
    """The picture of an imported module. `kernels`: name of a node of the model -> kernel."""
    drawing = _Drawing(kernels)
    for f in mod.functions:
        if isinstance(f, Function) and not f.is_primitive:
            drawing.function(f, f.name)
    nodes, edges = tuple(drawing.nodes), tuple(drawing.edges)
    widths = tuple(map(_width, nodes))
    is_small = cell_count(len(nodes), edges) <= MOST_CELLS
    return GraphPicture(nodes, edges, widths, place(widths, edges) if is_small else None)


def _width(n: PictureNode) -> float:
    label, note = (min(len(text), LONGEST_LABEL) for text in (n.label, n.note))
    return round(18 + _LETTER * max(label, note * 0.85), 1)


class _Drawing:
    """The nodes and edges of a module so far. `number_of` has the number of a variable's node."""

    def __init__(self, kernels: Mapping[str, str]):
        self.kernels = kernels
        self.nodes: list[PictureNode] = []
        self.edges: list[Edge] = []
        self.number_of: dict[RVar, int] = {}

    def function(self, f: Function, span: str) -> None:
        """Add the parameters, body and results of a function. `span`: the function's name, or the
        variable of a closure."""
        for p in f.params:
            self._add(p, PictureNode("input", p.name, type_text(p.type), span))
        self._body(f.bindings)
        fields = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
        for i, v in enumerate(fields):
            label = f"result {i}" if len(fields) > 1 else "result"
            self._result(v, PictureNode("result", label, "", span))

    def _body(self, bindings: Sequence[Binding]) -> None:
        for b in bindings:
            match b.value:
                case Call() as call:
                    self._add(b.var, self._call_node(b, call), [*call.args, call.callee])
                case If(cond, then_body, orelse):
                    self._body((*then_body.bindings, *orelse.bindings))
                    reads = [cond, then_body.result, orelse.result]
                    self._add(
                        b.var, PictureNode("op", "if", type_text(b.var.type), b.var.name), reads
                    )
                case Lambda(function):
                    self.function(function, b.var.name)
                    self._add(b.var, PictureNode("op", "closure", "", b.var.name))
                case MatchCast(value):
                    note = type_text(b.var.type)
                    self._add(b.var, PictureNode("op", "match_cast", note, b.var.name), [value])
                case TupleItem(value, index):
                    note = type_text(b.var.type)
                    self._add(b.var, PictureNode("op", f"item {index}", note, b.var.name), [value])
                case value:
                    self._add(
                        b.var,
                        PictureNode("op", "value", type_text(b.var.type), b.var.name),
                        [value],
                    )

    def _call_node(self, b: Binding, call: Call) -> PictureNode:
        callee = call.callee
        label = call.op or (callee.name if isinstance(callee, GlobalRef) else str(callee))
        key = call.span or unnamed(b.var)
        kernel = self.kernels.get(key, "") if call.op else label
        return PictureNode("op", label, type_text(b.var.type), call.span or b.var.name, kernel)

    def _add(self, var: RVar, node: PictureNode, reads: Sequence[object] = ()) -> None:
        number = len(self.nodes)
        self.nodes.append(node)
        self.edges += [
            (self.number_of[v], number) for v in _variables(reads) if v in self.number_of
        ]
        self.number_of[var] = number

    def _result(self, value: Value, node: PictureNode) -> None:
        self.nodes.append(node)
        number = len(self.nodes) - 1
        self.edges += [
            (self.number_of[v], number) for v in _variables([value]) if v in self.number_of
        ]


def unnamed(var: RVar) -> str:
    """The key, `%` and its variable, of an operator without a name in the model."""
    return f"%{var.name}"


def _variables(values: Sequence[object]) -> list[RVar]:
    """The variables among values, including those in tuples, each once, in order."""
    variables: dict[RVar, None] = {}
    for v in values:
        if isinstance(v, RVar):
            variables[v] = None
        elif isinstance(v, Tuple):
            variables |= dict.fromkeys(_variables(v.fields))
    return list(variables)


def kernels_of_spans(
    steps: Sequence[Step], lowered: IRModule, kernels: Collection[str]
) -> dict[str, str]:
    """Name of a node of the model -> the kernel that computes it.

    The bindings of a fused group give the nodes that it was made of. The group's call binds the
    same variable before and after lowering, where it calls the kernel.
    """
    spans: dict[RVar, list[str]] = {}
    kernel: dict[RVar, str] = {}
    modules = [s.after for s in steps if s.after is not None and s.changed]
    for mod in [*modules, lowered]:
        for f in mod.graphs:
            for b in f.bindings:
                if not isinstance(b.value, Call) or not isinstance(b.value.callee, GlobalRef):
                    continue
                if b.value.callee.name in kernels:
                    kernel[b.var] = b.value.callee.name
                callee = mod.get(b.value.callee.name)
                nodes = spans.setdefault(b.var, [])
                if b.value.span:
                    nodes.append(b.value.span)
                if isinstance(callee, Function) and callee.is_primitive:
                    nodes += [
                        c.value.span or unnamed(c.var)
                        for c in callee.bindings
                        if isinstance(c.value, Call)
                    ]
    out: dict[str, str] = {}
    unsure: list[str] = []
    for var, names in spans.items():
        for name in names if var in kernel else ():
            if out.setdefault(name, kernel[var]) != kernel[var] and name.startswith("%"):
                unsure.append(name)  # several variables have this name
    return {name: k for name, k in out.items() if name not in unsure}


def type_text(t: object) -> str:
    """`1×64×56×56` for a float32 tensor; of another dtype `10 int64`, of a scalar `scalar`."""
    if not isinstance(t, TensorType):
        return type(t).__name__.removesuffix("Type").lower()
    shape = "×".join(print_expr(d).replace("T.int64", "") for d in t.shape) or "scalar"
    return shape if t.dtype == FLOAT32 else f"{shape} {t.dtype.name}"
