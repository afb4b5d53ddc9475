"""A topological order of a graph's nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from tensorkiln.frontend.onnx.proto import NodeProto, OnnxGraph


def execution_order(nodes: Sequence[NodeProto]) -> tuple[list[NodeProto], list[NodeProto]]:
    """(nodes in topological order, nodes on a cycle or that depend on one).

    Of the nodes that are ready, the first in the file comes first. A name that no node defines
    imposes no order; the import of the node that reads it reports it if it is no input either.
    """
    maker = {out: i for i, n in enumerate(nodes) for out in n.output if out}
    waits = [{maker[name] for name in reads(n) if name in maker} for n in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(waits):
        for j in before:
            users[j].append(i)
    wait_counts = [len(w) for w in waits]
    ready = [i for i, count in enumerate(wait_counts) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            wait_counts[j] -= 1
            if wait_counts[j] == 0:
                heapq.heappush(ready, j)
    order_set = set(order)
    return [nodes[i] for i in order], [n for i, n in enumerate(nodes) if i not in order_set]


def reads(node: NodeProto) -> list[str]:
    """Names that a node reads: its operands, and the free names of its subgraphs (of `If`)."""
    names = [n for n in node.input if n]
    for attr in node.attribute:
        if attr.g is not None:
            names.extend(_free_names(attr.g))
    return names


def _free_names(graph: OnnxGraph) -> list[str]:
    local_names = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    local_names |= {out for n in graph.node for out in n.output}
    read_names = [name for n in graph.node for name in reads(n)] + [o.name for o in graph.output]
    return [name for name in read_names if name not in local_names]


def made_twice(nodes: Sequence[NodeProto], outer: Iterable[str]) -> Iterator[tuple[NodeProto, str]]:
    """Each node that makes a value which is known or another node makes too, and the value's name:
    ONNX graphs have single assignments."""
    names = set(outer)
    for node in nodes:
        for out in node.output:
            if out and out in names:
                yield node, out
            names.add(out)
