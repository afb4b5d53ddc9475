"""Attention of any form, by the operator `attention` where it can do it, else spelled out."""

from __future__ import annotations

import math

from tensorkiln.frontend.graph.agreement import stretch
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, IntImm, int_value

_START: Expr = IntImm(0)


def attention(
    g: Context,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: Expr = _START,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    stage: int | None = None,
) -> tuple[Val, Val | None]:
    """softmax(q k^T * scale + mask) v of q [B, H, S, D], k [B, G, T, D] and v [B, G, T, E], where G
    divides H, and the scores at a stage, if one is given.

    Query i has position i + `offset` among the keys. Where `causal` it sees none behind its own,
    and it sees those from `window[0]` before to `window[1]` behind, where -1 is no bound. With
    `softcap` c a score s is c * tanh(s / c). Stages of scores are 0 scaled, 1 capped, 2 masked,
    3 after softmax.
    """
    q = _one_number_of_heads(g, q, k)
    k, v = _repeat_heads(g, k, q), _repeat_heads(g, v, q)
    if mask is not None:
        mask, q, k, v = _fitting(g, mask, q, k, v)
    scale = _usual_scale(g, q) if scale is None else scale
    # The operator's `causal` aligns the last of the S queries with the last of the T keys, which is
    # the same iff offset = T - S.
    before, after = window
    window = (before, 0 if causal and after != 0 else after)
    aligned = g.dims.same(g.shape(q)[2] + offset, g.shape(k)[2])
    spelled = bool(softcap) or stage is not None
    exact = causal and aligned and not spelled and before < 0
    if not exact and max(window) >= 0:
        mask, causal = _window_mask(g, mask, q, k, offset, window), False
    if spelled:
        return _spelled_out(g, q, k, v, mask, scale, softcap, stage or 0)
    args = [q, k, v] + ([mask] if mask is not None else [])
    return g.emit("attention", *args, scale=scale, causal=causal), None


def _usual_scale(g: Context, q: Val) -> float:
    """1 / sqrt(D)"""
    depth = int_value(g.shape(q)[3])
    if not depth:
        raise unsupported("the head size is symbolic or 0 and no scale is given")
    return 1 / math.sqrt(depth)


def _window_mask(
    g: Context, mask: Val | None, q: Val, k: Val, offset: Expr, window: tuple[int, int]
) -> Val:
    """`mask` restricted to the window in which query i sees keys i + offset - before to
    i + offset + after; a bound of -1 is no bound."""
    s, t = g.shape(q)[2], g.shape(k)[2]
    query = g.emit("arange", start=offset, step=1, count=s, dtype="int64")
    query = g.reshape(query, (s, 1))
    key = g.reshape(g.emit("arange", start=0, step=1, count=t, dtype="int64"), (1, t))
    before, after = window
    conditions: list[Val] = []
    if after >= 0:
        conditions.append(g.emit("less_equal", key, g.emit("add", query, g.const(after, "int64"))))
    if before >= 0:
        conditions.append(
            g.emit("greater_equal", key, g.emit("sub", query, g.const(before, "int64")))
        )
    visible = conditions[0] if len(conditions) == 1 else g.emit("logical_and", *conditions)
    if mask is None:
        return visible
    if g.type(mask).dtype.is_bool:
        return g.emit("logical_and", mask, visible)
    return g.emit("where", visible, mask, g.like(-math.inf, mask))


def _spelled_out(
    g: Context, q: Val, k: Val, v: Val, mask: Val | None, scale: float, softcap: float, mode: int
) -> tuple[Val, Val]:
    """softmax(cap(q k^T * scale) + mask) v, and the scores at the stage that `mode` selects:
    0 scaled, 1 capped, 2 masked, 3 after softmax."""
    raw = g.emit("mul", g.emit("matmul", q, k, transpose_b=True), g.like(scale, q))
    capped = raw
    if softcap:
        cap = g.like(softcap, q)
        capped = g.emit("mul", g.emit("tanh", g.emit("div", raw, cap)), cap)
    masked = capped
    if mask is not None and g.type(mask).dtype.is_bool:
        masked = g.emit("where", mask, capped, g.like(-math.inf, q))
    elif mask is not None:
        masked = g.emit("add", capped, mask)
    weights = g.emit("softmax", masked, axis=3)
    if mask is not None:
        # A query that sees no key has weights 0; softmax alone gives it NaN, from 0/0.
        top = g.emit("max", masked, axes=(3,), keepdims=True)
        nothing = g.emit("equal", top, g.like(-math.inf, top))
        weights = g.emit("where", nothing, g.like(0, weights), weights)
    if mode not in (0, 1, 2, 3):
        raise malformed(f"qk_matmul_output_mode={mode}")
    return g.emit("matmul", weights, v), (raw, capped, masked, weights)[mode]


def _one_number_of_heads(g: Context, q: Val, k: Val) -> Val:
    """q with as many heads as k, if its number is not known: groups need numbers that are."""
    b, h, s, d = g.shape(q)
    if int_value(h) is None and int_value(g.shape(k)[1]) is not None:
        return g.fitted(q, (b, g.shape(k)[1], s, d), "Q")
    return q


def _fitting(g: Context, mask: Val, q: Val, k: Val, v: Val) -> tuple[Val, Val, Val, Val]:
    """A mask that broadcasts to [B, H, S, T], and operands of which it does not make more."""
    b, h, s, t = *g.shape(q)[:3], g.shape(k)[2]
    extents = g.shape(mask)
    if not 0 < len(extents) <= 4:
        return mask, q, k, v
    sizes = [b, h, s, t]
    for back, extent in enumerate(reversed(extents), 1):
        if int_value(sizes[-back]) is None and int_value(extent) not in (None, 1):
            sizes[-back] = extent
    b, h, s, t = sizes
    q = g.fitted(q, (b, h, s, g.shape(q)[3]), "Q")
    k, v = (g.fitted(x, (b, h, t, g.shape(x)[3]), name) for x, name in ((k, "K"), (v, "V")))
    # Of fewer keys than there are, a mask hides the others: 1 is no extent for all of them.
    mask = g.fitted(
        mask, (*extents[:-1], t if int_value(extents[-1]) != 1 else extents[-1]), "the mask"
    )
    pairs = zip(g.shape(mask), sizes[4 - len(extents) :], strict=True)
    return stretch(g, mask, tuple(e if int_value(e) == 1 else d for e, d in pairs)), q, k, v


def _repeat_heads(g: Context, x: Val, q: Val) -> Val:
    """Repeat each head of keys or values for the query heads that share it (grouped-query
    attention): 2 heads for 8 of q are repeated 4 times each."""
    b, h, t, d = g.shape(x)
    key_heads, query_heads = int_value(h), int_value(g.shape(q)[1])
    if key_heads == query_heads:
        return x
    if key_heads is None:
        return g.fitted(x, (b, g.shape(q)[1], t, d), "K and V")
    if query_heads is None or query_heads % key_heads:
        raise malformed(f"{query_heads} query heads are not a multiple of {key_heads} key heads")
    share = query_heads // key_heads
    repeated = g.emit(
        "broadcast_to", g.reshape(x, (b, h, 1, t, d)), shape=(b, h, IntImm(share), t, d)
    )
    return g.reshape(repeated, (b, query_heads, t, d))


def split_heads(g: Context, x: Val, heads: int) -> Val:
    """[B, S, H*D] -> [B, H, S, D]"""
    b, s, width = g.shape(x)
    depth = g.dims.divide(width, IntImm(heads))
    if depth is None:
        raise malformed(f"{heads} heads do not divide a width of {int_value(width)}")
    return g.transpose(g.reshape(x, (b, s, heads, depth)), (0, 2, 1, 3))
