"""Walks of samples through trees: the plain program that `schedule.py` schedules.

A step of a walk waits for three loads, each for the one before. So several trees are walked at a
time, whose steps do not wait for each other; they are few enough for their nodes to stay in the
first-level cache while the samples of a chunk pass.

Roles of loops: "chunk", over chunks of samples; "trees", over groups of trees; "sample"; "step";
"tree", over the trees of a group.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import INT32, INT64
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    binary,
    cast,
    const,
    int_value,
    intrin,
    logical_and,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import loop, tiles, within
from tensorkiln.schedule.group import Group

TOGETHER = 8
CHUNK = 64


def forest_program(group: Group) -> PrimFunc:
    """for chunk: for group of trees: for sample: for step: for tree: at = next(at)."""
    call = group.anchor
    assert call is not None
    samples, trees = group.out_type.shape
    chunks = simplify((samples + (CHUNK - 1)) // CHUNK)

    def chunk(c: Expr) -> Stmt:
        first = simplify(c * CHUNK)
        count = simplify(minimum(IntImm(CHUNK), samples - first))
        made = []
        for start, many, size in tiles(int_value(trees) or 0, TOGETHER):

            def one(g: Expr, start: int = start, size: int = size) -> Stmt:
                return _group(group, first, count, simplify(g * size + start), size)

            made.append(loop("g", many, one, "trees"))
        return seq(*made)

    body = loop("c", chunks, chunk, "chunk", keep=True)
    return PrimFunc(group.name, group.params, body)


def _group(group: Group, first: Expr, count: Expr, tree: Expr, size: int) -> Stmt:
    """The walks of samples first .. first + count - 1 in trees tree .. tree + size - 1."""
    call = group.anchor
    assert call is not None
    roots, levels = map(group.element, call.args[1:3])
    deepest = levels(tree)
    for k in range(1, size):
        deepest = maximum(deepest, levels(simplify(tree + k)))
    steps = minimum(cast(deepest, INT64), IntImm(int(call.attrs.most)))
    node_type = call.args[3].type
    assert isinstance(node_type, TensorType)
    places = buffer("at", (size, 1), "int32", "register")  # as the results are

    def sample(n: Expr) -> Stmt:
        row = simplify(first + n)
        begin = loop(
            "t",
            size,
            lambda t: Store(
                places, (t, IntImm(0)), _within(cast(roots(simplify(tree + t)), INT64), node_type)
            ),
            "tree",
        )
        walk = loop(
            "s",
            steps,
            lambda s: loop("t", size, lambda t: _step(group, places, t, row), "tree"),
            "step",
        )
        end = loop(
            "t",
            size,
            lambda t: Store(
                group.out,
                group.store_index((row, simplify(tree + t))),
                Load(places, (t, IntImm(0))),
            ),
            "tree",
        )
        return seq(begin, walk, end)

    return within([places], loop("n", count, sample, "sample"))


def _step(group: Group, places: Buffer, t: Expr, row: Expr) -> Stmt:
    """at[t] = the node to which the node at[t] leads; no number leads out of a buffer."""
    call = group.anchor
    assert call is not None
    x, _, _, nodes, limits = map(group.element, call.args)
    bits = int(call.attrs.bits)
    here = cast(Load(places, (t, IntImm(0))), INT64)
    node_type, features = (a.type for a in (call.args[3], call.args[0]))
    assert isinstance(node_type, TensorType) and isinstance(features, TensorType)
    node, value = Var("node", node_type.dtype), Var("value", features.dtype)
    width = int_value(features.shape[1]) or 1
    feature = binary("bitand", node, const((1 << bits) - 1, node.dtype))
    if width < 1 << bits:
        feature = minimum(feature, const(width - 1, node.dtype))
    missing = binary(
        "ne", binary("bitand", node, const(1 << bits, node.dtype)), const(0, node.dtype)
    )
    lost = logical_and(intrin("isnan", value), missing)
    under = binary("or", value <= limits(here), lost)
    child = cast(binary("shr", node, const(bits + 1, node.dtype)), INT64)
    further = child + select(under, const(0, INT64), const(1, INT64))
    store = Store(places, (t, IntImm(0)), _within(further, node_type))
    return Let(node, nodes(here), Let(value, x(row, cast(feature, INT64)), store))


def _within(at: Expr, nodes: TensorType) -> Expr:
    return cast(minimum(maximum(at, IntImm(0)), nodes.shape[0] - 1), INT32)
