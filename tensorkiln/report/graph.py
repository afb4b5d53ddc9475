"""The imported graph as a picture: its operators, and the kernel that each became part of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Tuple,
)
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.passes import Step
from tensorkiln.report.layers import Edge, Placed, place

# Beyond this many operators a picture shows nothing, and placing them takes minutes.
MOST_NODES = 1500
_LETTER = 6.6  # width of a letter of a label


@dataclass(frozen=True, slots=True)
class Node:
    """An input, an operator or a result. `span` names the model's node; `kernel` is "" for what
    was folded into others, and for inputs and results."""

    kind: str
    label: str
    note: str
    span: str
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """Nodes in the order of the program, edges between them; `placed` None when too many."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    placed: Placed | None


def graph_picture(mod: IRModule, kernels: Mapping[str, str]) -> GraphPicture:
    """The picture of an imported module; `kernels` by the names of the model's nodes."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    for f in mod.graphs:
        _graph(f, kernels, nodes, edges)
    placed = None
    if len(nodes) <= MOST_NODES:
        widths = [24 + _LETTER * max(len(n.label), len(n.note) * 0.85) for n in nodes]
        placed = place(widths, edges)
    return GraphPicture(tuple(nodes), tuple(edges), placed)


def _graph(f: Function, kernels: Mapping[str, str], nodes: list[Node], edges: list[Edge]) -> None:
    made: dict[RVar, int] = {}
    for p in f.params:
        made[p] = len(nodes)
        nodes.append(Node("input", p.name, type_text(p.type), p.name))
    for b in f.bindings:
        if isinstance(b.value, Call):
            call = b.value
            callee = call.callee
            label = call.op or (callee.name if isinstance(callee, GlobalRef) else str(callee))
            kernel = kernels.get(call.span, "") if call.op else label
            nodes.append(Node("op", label, type_text(b.var.type), call.span, kernel))
        else:
            label = type(b.value).__name__
            nodes.append(Node("op", label, type_text(b.var.type), b.var.name))
        number = len(nodes) - 1
        edges += [(made[v], number) for v in _reads(b) if v in made]
        made[b.var] = number
    fields = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    for i, v in enumerate(fields):
        nodes.append(Node("result", f"result {i}" if len(fields) > 1 else "result", "", f.name))
        if isinstance(v, RVar) and v in made:
            edges.append((made[v], len(nodes) - 1))


def _reads(b: Binding) -> list[RVar]:
    """The variables that a binding mentions, once each; those inside of branches as well."""
    found: dict[RVar, None] = {}
    stack: list[object] = [b.value]
    while stack:
        x = stack.pop()
        if isinstance(x, RVar):
            found[x] = None
        elif isinstance(x, Call):
            stack += [*x.args, x.callee]
        elif isinstance(x, tuple | list):
            stack += x
        elif isinstance(x, Binding):
            stack.append(x.value)
        elif hasattr(x, "__dataclass_fields__") and not isinstance(x, Constant):
            stack += [getattr(x, name) for name in x.__dataclass_fields__ if name != "type"]
    return list(found)


def kernels_of_spans(
    steps: Sequence[Step], lowered: IRModule, kernels: Collection[str]
) -> dict[str, str]:
    """The kernel that computes a node of the model, by the node's name.

    A fused group lists the nodes it was made of; its variable in the graph leads on to the kernel
    that it was lowered to.
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
                own = spans.setdefault(b.var, [])
                if b.value.span:
                    own.append(b.value.span)
                if isinstance(callee, Function):
                    own += [c.value.span for c in callee.bindings if isinstance(c.value, Call)]
    out: dict[str, str] = {}
    for var, names in spans.items():
        for name in filter(None, names):
            if var in kernel:
                out.setdefault(name, kernel[var])
    return out


def type_text(t: object) -> str:
    """`1x64x56x56` for a float32 tensor; other types with their dtype."""
    if not isinstance(t, TensorType):
        return type(t).__name__.removesuffix("Type").lower()
    shape = "×".join(print_expr(d).replace("T.int64", "") for d in t.shape) or "scalar"
    return shape if t.dtype.name == "float32" else f"{shape} {t.dtype.name}"
