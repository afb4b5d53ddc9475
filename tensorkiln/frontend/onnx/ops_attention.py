"""Attention and RotaryEmbedding."""

from __future__ import annotations

import math

from tensorkiln.frontend.graph.agreement import stretched
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Float, Int, Table
from tensorkiln.ir.expr import Expr, IntImm, int_value


def attention(
    g: Context,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    past_k: Val | None = None,
    past_v: Val | None = None,
    nonpad: Val | None = None,
    *,
    is_causal: Int = 0,
    kv_num_heads: Int | None = None,
    left_window_size: Int = -1,
    q_num_heads: Int | None = None,
    qk_matmul_output_mode: Int = 0,
    right_window_size: Int = -1,
    scale: Float | None = None,
    softcap: Float = 0.0,
    softmax_precision: Int | None = None,
) -> tuple[Val, ...]:
    """softmax(q k^T * scale + mask) v, with optional past keys and values, cap and window.

    q is [B, H, S, D], or [B, S, H*D] with `q_num_heads` = H; k and v likewise, with
    `kv_num_heads`. Results: y in the form of q, then the keys and values with the past, 4-D, then
    (if the node has a fourth output) the scores that `qk_matmul_output_mode` chooses.
    """
    if nonpad is not None:
        raise unsupported("the operand nonpad_kv_seqlen")
    flat = g.rank(q) == 3
    if flat:
        if not q_num_heads or not kv_num_heads:
            raise malformed("operands of 3 dimensions need q_num_heads and kv_num_heads")
        if not g.rank(k) == g.rank(v) == 3:
            raise malformed("operands must all have 3 or all 4 dimensions")
        q, k, v = _heads(g, q, q_num_heads), _heads(g, k, kv_num_heads), _heads(g, v, kv_num_heads)
    if not g.rank(q) == g.rank(k) == g.rank(v) == 4:
        raise malformed("operands must all have 3 or all 4 dimensions")
    if any(past is not None and g.rank(past) != 4 for past in (past_k, past_v)):
        raise malformed("past keys and values must have 4 dimensions")
    offset: Expr = IntImm(0)
    if past_k is not None and past_v is not None:
        offset = g.shape(past_k)[2]
        k = g.emit("concat", past_k, k, axis=2)
        v = g.emit("concat", past_v, v, axis=2)
    present = (k, v)
    q = _one_number_of_heads(g, q, k)
    k, v = _repeat_heads(g, k, q), _repeat_heads(g, v, q)
    if mask is not None:
        mask, q, k, v = _fitting(g, mask, q, k, v)
    if scale is None:
        depth = int_value(g.shape(q)[3])
        if not depth:
            raise unsupported("the head size is symbolic or 0 and no scale is given")
        scale = 1 / math.sqrt(depth)
    # In ONNX, query i has position i + offset among the T keys, where offset is the length of the
    # past. Our `causal` aligns the last of the S queries with the last key: the same iff
    # offset = T - S.
    s, t = g.shape(q)[2], g.shape(k)[2]
    causal = bool(is_causal)
    scores = any(g.outputs[3:])
    spelled = bool(softcap) or scores
    window = (left_window_size, 0 if causal and right_window_size != 0 else right_window_size)
    aligned = g.dims.same(s + offset, t)
    if causal and aligned and not spelled and left_window_size < 0:
        pass
    elif max(window) >= 0:
        mask, causal = _window_mask(g, mask, q, k, offset, window), False
    if spelled:
        y, seen = _spelled_out(g, q, k, v, mask, scale, softcap, qk_matmul_output_mode)
    else:
        args = [q, k, v] + ([mask] if mask is not None else [])
        y, seen = g.emit("attention", *args, scale=scale, causal=causal), q
    if flat:
        b, h, s, d = g.shape(y)
        y = g.reshape(g.transpose(y, (0, 2, 1, 3)), (b, s, h * d))
    return (y, *present, seen) if scores else (y, *present)


def _window_mask(
    g: Context, mask: Val | None, q: Val, k: Val, offset: Expr, window: tuple[int, int]
) -> Val:
    """`mask` restricted to the window in which query i sees keys i + offset - left to
    i + offset + right; a bound of -1 is no bound."""
    s, t = g.shape(q)[2], g.shape(k)[2]
    at = g.emit("arange", start=offset, step=1, count=s, dtype="int64")
    at = g.reshape(at, (s, 1))
    key = g.reshape(g.emit("arange", start=0, step=1, count=t, dtype="int64"), (1, t))
    left, right = window
    seen: list[Val] = []
    if right >= 0:
        seen.append(g.emit("less_equal", key, g.emit("add", at, g.const(right, "int64"))))
    if left >= 0:
        seen.append(g.emit("greater_equal", key, g.emit("sub", at, g.const(left, "int64"))))
    keep = seen[0] if len(seen) == 1 else g.emit("logical_and", *seen)
    if mask is None:
        return keep
    if g.type(mask).dtype.is_bool:
        return g.emit("logical_and", mask, keep)
    return g.emit("where", keep, mask, g.like(-math.inf, mask))


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


def _heads(g: Context, x: Val, heads: int) -> Val:
    """[B, S, H*D] -> [B, H, S, D]"""
    b, s, width = g.shape(x)
    depth = g.dims.divide(width, IntImm(heads))
    if depth is None:
        raise malformed(f"{heads} heads do not divide a width of {int_value(width)}")
    return g.transpose(g.reshape(x, (b, s, heads, depth)), (0, 2, 1, 3))


def _one_number_of_heads(g: Context, q: Val, k: Val) -> Val:
    """q with as many heads as k, if its number is not known: groups need numbers that are."""
    b, h, s, d = g.shape(q)
    if int_value(h) is None and int_value(g.shape(k)[1]) is not None:
        return g.fitted(q, (b, g.shape(k)[1], s, d), "Q")
    return q


def _fitting(g: Context, mask: Val, q: Val, k: Val, v: Val) -> tuple[Val, Val, Val, Val]:
    """A mask that broadcasts to [B, H, S, T], and operands of which it does not make more."""
    b, h, s, t = *g.shape(q)[:3], g.shape(k)[2]
    own = g.shape(mask)
    if not 0 < len(own) <= 4:
        return mask, q, k, v
    sizes = [b, h, s, t]
    for back, extent in enumerate(reversed(own), 1):
        if int_value(sizes[-back]) is None and int_value(extent) not in (None, 1):
            sizes[-back] = extent
    b, h, s, t = sizes
    q = g.fitted(q, (b, h, s, g.shape(q)[3]), "Q")
    k, v = (g.fitted(x, (b, h, t, g.shape(x)[3]), name) for x, name in ((k, "K"), (v, "V")))
    # Of fewer keys than there are, a mask hides the others: 1 is no extent for all of them.
    mask = g.fitted(mask, (*own[:-1], t if int_value(own[-1]) != 1 else own[-1]), "the mask")
    wide = zip(g.shape(mask), sizes[4 - len(own) :], strict=True)
    return stretched(g, mask, tuple(e if int_value(e) == 1 else d for e, d in wide)), q, k, v


def _repeat_heads(g: Context, x: Val, q: Val) -> Val:
    """Repeat each head of keys or values for the query heads that share it (grouped-query
    attention): 2 heads for 8 of q are repeated 4 times each."""
    b, h, t, d = g.shape(x)
    have, want = int_value(h), int_value(g.shape(q)[1])
    if have == want:
        return x
    if have is None:
        return g.fitted(x, (b, g.shape(q)[1], t, d), "K and V")
    if want is None or want % have:
        raise malformed(f"{want} query heads are not a multiple of {have} key heads")
    each = want // have
    wide = g.emit("broadcast_to", g.reshape(x, (b, h, 1, t, d)), shape=(b, h, IntImm(each), t, d))
    return g.reshape(wide, (b, want, t, d))


def rotary(
    g: Context,
    x: Val,
    cos: Val,
    sin: Val,
    positions: Val | None = None,
    *,
    interleaved: Int = 0,
    num_heads: Int = 0,
    rotary_embedding_dim: Int = 0,
) -> Val:
    """Rotate pairs of the first `rotary_embedding_dim` (0: all) elements of each head.

    x is [B, H, S, D], or [B, S, H*D] with `num_heads`. A pair is elements i and i + half, or with
    `interleaved` 2i and 2i + 1: (a, b) becomes (a cos - b sin, a sin + b cos).
    """
    flat = g.rank(x) == 3
    if flat and not num_heads:
        raise malformed("an operand of 3 dimensions needs num_heads")
    y = _heads(g, x, num_heads) if flat else x
    b, h, s, d = g.shape(y)
    depth = int_value(d)
    if depth is None:
        raise unsupported("the head size is symbolic")
    turned = rotary_embedding_dim or depth
    if positions is not None:
        positions = g.inside(positions, g.shape(cos)[0], negative=False)
        cos, sin = (g.emit("take", t, positions, axis=0) for t in (cos, sin))
    half = turned // 2
    cos, sin = (g.reshape(t, (g.shape(t)[0], 1, s, half)) for t in (cos, sin))
    body = _cut(g, y, 0, turned)
    if interleaved:
        pairs = g.reshape(body, (b, h, s, half, 2))
        first, second = (g.reshape(_cut(g, pairs, i, i + 1), (b, h, s, half)) for i in (0, 1))
    else:
        first, second = _cut(g, body, 0, half), _cut(g, body, half, turned)
    real = g.emit("sub", g.emit("mul", first, cos), g.emit("mul", second, sin))
    imag = g.emit("add", g.emit("mul", first, sin), g.emit("mul", second, cos))
    if interleaved:
        both = [g.reshape(t, (b, h, s, half, 1)) for t in (real, imag)]
        out = g.reshape(g.emit("concat", *both, axis=4), (b, h, s, turned))
    else:
        out = g.emit("concat", real, imag, axis=3)
    if turned != depth:
        out = g.emit("concat", out, _cut(g, y, turned, depth), axis=3)
    return g.reshape(g.transpose(out, (0, 2, 1, 3)), (b, s, h * d)) if flat else out


def _cut(g: Context, x: Val, lo: int, hi: int) -> Val:
    """Elements lo to hi - 1 of the last dimension."""
    rank, dims = g.rank(x), g.shape(x)
    if lo == 0 and int_value(dims[-1]) == hi:
        return x
    begin = (0,) * (rank - 1) + (lo,)
    shape = (*dims[:-1], IntImm(hi - lo))
    return g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=shape)


TABLE: Table = {
    "Attention": {23: attention},
    "RotaryEmbedding": {23: rotary},
}
