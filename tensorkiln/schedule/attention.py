"""Fused attention: scores never leave the first-level cache.

For a tile of query rows and a block of keys: scores = q k^T into a local buffer, running maximum
and sum per row (Milakov and Gimelshein, 2018), then scores times v added to the local output.
Keys come packed by lanes, [B][H][T/v][D][v], so that the product runs over lanes of keys.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.expr import (
    Expr,
    int_value,
)
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, seq
from tensorkiln.schedule.attention_tile import Attention, Tile
from tensorkiln.schedule.build import fused, loop
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.tile import row_tiles
from tensorkiln.target import Target


def supports_attention(call: Call, target: Target) -> bool:
    """float32, and heads that are whole vectors wide with keys packed by lanes."""
    q, k = call.args[0].type, call.args[1].type
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    depth = int_value(q.shape[3])
    lanes = target.vector_lanes("float32")
    return (
        q.dtype.name == "float32"
        and depth is not None
        and depth % lanes == 0
        and k.layout is not None
    )


def schedule_attention(group: Group, target: Target) -> PrimFunc:
    """attention with injective prologues (split heads) and epilogues (merge heads)."""
    c = Attention(group, target)

    def head(b: Expr, h: Expr) -> Stmt:
        parts = []
        for start, count, size in row_tiles(c.rows, c.limit):

            def tile(t: Expr, start: Expr = start, size: int = size) -> Stmt:
                return Tile(c, b, h, simplify(start + t * size), size).stmt()

            parts.append(loop("t", count, tile))
        return seq(*parts)

    body = fused([c.batch, c.heads], head)
    return PrimFunc(group.name, group.params, simplify_stmt(body, {}), op_class="attention_fused")
