"""The order in which a graph's nodes run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tensorkiln.frontend.onnx.proto import Graph, Node


def execution_order(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """(nodes with producers first, nodes on or behind a cycle).

    Nodes keep their order in the file as far as possible; names that no node makes are left to
    the importer of their user.
    """
    maker = {out: i for i, n in enumerate(nodes) for out in n.output if out}
    waits = [{maker[name] for name in reads(n) if name in maker} for n in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(waits):
        for j in before:
            users[j].append(i)
    left = [len(w) for w in waits]
    ready = [i for i, count in enumerate(left) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            left[j] -= 1
            if left[j] == 0:
                heapq.heappush(ready, j)
    done = set(order)
    return [nodes[i] for i in order], [n for i, n in enumerate(nodes) if i not in done]


def reads(node: Node) -> list[str]:
    """Names that a node uses: its operands, and what its bodies take from outside."""
    names = [n for n in node.input if n]
    for attr in node.attribute:
        if attr.g is not None:
            names.extend(_free_names(attr.g))
    return names


def _free_names(graph: Graph) -> list[str]:
    own = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    own |= {out for n in graph.node for out in n.output}
    used = [name for n in graph.node for name in reads(n)] + [o.name for o in graph.output]
    return [name for name in used if name not in own]
