"""Walks of samples through trees: the plain program that `schedule.py` schedules.

A step of a walk waits for three loads, each for the one before. So several walks are made at a
time, whose steps do not wait for each other: of a sample through several trees, few enough for
their nodes to stay in the first-level cache while the samples of a chunk pass; of several samples
where there are few trees.

What a step costs is its instructions, so those that can be made before are: a sample is copied to a
row that holds all that a node can name, the features and their negatives.

Roles of loops: "chunk", over chunks of samples; "trees", over groups of trees; "sample", over
groups of samples; "step"; "walk", over the walks of a group of trees and samples; "element", over
what is copied.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import INT32, INT64, DType
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Unary,
    Var,
    binary,
    cast,
    const,
    int_value,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Let, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.tiles import tiles
from tensorkiln.schedule.build import PARALLEL_WORK, loop, within
from tensorkiln.schedule.group import Group

# Walks at a time. With 8, a step takes 1.15 times as long as with 12; 16 are no faster.
TOGETHER = 12
# Scalar operations of a step.
STEP = 6
# Samples are cut into _CHUNKS chunks, so that threads get equal shares, but a chunk has _FEWEST to
# _MOST samples: enough work for a thread, and enough uses for the nodes of a group of trees, which
# are loaded once per chunk.
_CHUNKS, _FEWEST, _MOST = 16, 8, 64
# Most elements of a sample that are copied to a row: copying more takes as long as the steps.
_ROW = 256


def forest_program(group: Group, rows: bool = True) -> PrimFunc:
    """for chunk: for group of trees: for group of samples: for step: for walk: at = next(at).

    Without `rows`, features are read in place, and the walks at a time are of different trees.
    """
    return PrimFunc(group.name, group.params, _Forest(group, rows).stmt())


class _Forest:
    """A `tree_leaves` of known trees and features, and unknown samples."""

    def __init__(self, group: Group, rows: bool):
        call = group.anchor
        assert call is not None
        self.group, self.call = group, call
        self.samples, trees = group.out_type.shape
        self.trees = int_value(trees) or 0
        self.x, self.roots, self.levels, self.nodes, self.limits = map(group.element, call.args)
        x, nodes = call.args[0].type, call.args[3].type
        assert isinstance(x, TensorType) and isinstance(nodes, TensorType)
        self.dtype, self.features = x.dtype, int_value(x.shape[1]) or 1
        self.node = DType(f"uint{nodes.dtype.bits}")
        self.last = (int_value(nodes.shape[0]) or 1) - 1
        self.bits, self.most = int(call.attrs.bits), int(call.attrs.most)
        self.rows = rows and 1 << self.bits <= _ROW
        self.together = max(1, TOGETHER // max(1, self.trees)) if self.rows else 1

    def chunk(self) -> Expr:
        """Samples of a chunk: whole groups, of which at least two chunks are worth two threads."""
        n, work = self.together, max(1, self.trees * self.most * STEP)
        fewest = max(_FEWEST, -(-PARALLEL_WORK // (2 * work)))
        fewest, largest = (-(-k // n) * n for k in (fewest, max(fewest, _MOST)))
        return simplify(minimum(maximum(self.samples // (_CHUNKS * n) * n, fewest), largest))

    def stmt(self) -> Stmt:
        """The loops."""
        size = self.chunk()
        chunks = simplify((self.samples + (size - 1)) // size)

        def chunk(c: Expr) -> Stmt:
            first = simplify(c * size)
            return self._chunk(first, simplify(minimum(size, self.samples - first)))

        return loop("c", chunks, chunk, "chunk", keep=True)

    def _chunk(self, first: Expr, count: Expr) -> Stmt:
        stmts = []
        for start, many, trees in tiles(self.trees, TOGETHER):

            def group(g: Expr, start: int = start, trees: int = trees) -> Stmt:
                n, tree = self.together, simplify(g * trees + start)
                whole = simplify(count // n * n)
                tail_count = simplify(count - whole)
                return seq(
                    self._samples(first, simplify(count // n), n, tree, trees),
                    None if n == 1 else self._samples(first + whole, tail_count, 1, tree, trees),
                )

            stmts.append(loop("g", many, group, "trees"))
        return seq(*stmts)

    def _samples(self, first: Expr, count: Expr, n: int, tree: Expr, trees: int) -> Stmt:
        """Walks of n groups of `count` samples, from sample `first` on, through `trees` trees from
        `tree` on."""
        deepest = self.levels(tree)
        for k in range(1, trees):
            deepest = maximum(deepest, self.levels(simplify(tree + k)))
        steps = minimum(cast(deepest, INT64), IntImm(self.most))
        places = buffer("at", (n, trees), "uint32", "register")
        row = buffer("row", (n, 1 << self.bits), self.dtype, "local")

        def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return loop("w", n, lambda i: loop("t", trees, lambda t: body(i, t), "walk"), "walk")

        def walk(of: Expr) -> Stmt:
            sample = simplify(first + of * n)

            def begin(i: Expr, t: Expr) -> Stmt:
                root = cast(self.roots(simplify(tree + t)), places.dtype)
                return Store(places, (i, t), self._within(root))

            def end(i: Expr, t: Expr) -> Stmt:
                index = self.group.store_index((simplify(sample + i), simplify(tree + t)))
                return Store(self.group.out, index, cast(Load(places, (i, t)), INT32))

            def step(i: Expr, t: Expr) -> Stmt:
                def value(compared: Expr) -> Expr:
                    if self.rows:
                        return Load(row, (i, cast(compared, INT64)))
                    return self._compared(simplify(sample + i), compared)

                return self._step(places, (i, t), value)

            copied = loop("i", n, lambda i: self._copied(row, i, simplify(sample + i)))
            return seq(
                copied if self.rows else None,
                each(begin),
                loop("s", steps, lambda _: each(step), "step"),
                each(end),
            )

        return within([row, places] if self.rows else [places], loop("n", count, walk, "sample"))

    def _copied(self, row: Buffer, i: Expr, sample: Expr) -> Stmt:
        """row[i] = the i-th value that nodes can refer to: features of the sample, their negatives,
        zeros."""
        k, all_ = self.features, 1 << self.bits
        feature_count, negatives = min(k, all_), min(k, max(all_ - k, 0))

        def feature(f: Expr) -> Stmt:
            return Store(row, (i, f), self.x(sample, f))

        def negative(f: Expr) -> Stmt:
            return Store(row, (i, simplify(f + k)), Unary("neg", self.x(sample, f)))

        def zero(f: Expr) -> Stmt:
            return Store(row, (i, simplify(f + 2 * k)), const(0, self.dtype))

        return seq(
            loop("f", feature_count, feature, "element"),
            loop("f", negatives, negative, "element"),
            loop("f", max(all_ - 2 * k, 0), zero, "element"),
        )

    def _compared(self, sample: Expr, number: Expr) -> Expr:
        """The value of a sample that nodes refer to by `number`: a feature or, after all of them, a
        negative."""
        # In the type of nodes: devices may have no other integers than those of 32 bits.
        k, first_negative = self.features, const(self.features, number.dtype)
        if 1 << self.bits <= k:
            return self.x(sample, cast(number, INT64))
        over = binary("ge", number, first_negative)
        feature = select(over, number - first_negative, number)
        if 1 << self.bits > 2 * k:
            feature = minimum(feature, const(k - 1, number.dtype))
        value = self.x(sample, cast(feature, INT64))
        return select(over, Unary("neg", value), value)

    def _step(self, places: Buffer, walk: tuple[Expr, Expr], value: Callable[[Expr], Expr]) -> Stmt:
        """One step of a walk: replace the node in `places` by its child that the comparison
        selects. Whatever is compared, NaN included, the result is a node of the buffer."""
        node_number = cast(Load(places, walk), INT64)
        node = Var("node", self.node)
        number = binary("bitand", node, const((1 << self.bits) - 1, self.node))
        under = value(number) <= self.limits(node_number)
        child = cast(binary("shr", node, const(self.bits, self.node)), places.dtype)
        further = child + select(under, const(0, places.dtype), const(1, places.dtype))
        return Let(
            node,
            cast(self.nodes(node_number), self.node),
            Store(places, walk, self._within(further)),
        )

    def _within(self, node: Expr) -> Expr:
        return minimum(node, const(self.last, node.dtype))
