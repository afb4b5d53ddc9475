"""Attention and RotaryEmbedding."""

from __future__ import annotations

from tensorkiln.frontend.graph import attention as attentions
from tensorkiln.frontend.graph.attention import split_heads
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import Float, Int, Table
from tensorkiln.ir.expr import Expr, IntImm, int_value


def attention(
    g: OnnxContext,
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
        q, k, v = _split(g, (q, k, v), q_num_heads, kv_num_heads)
    if not g.rank(q) == g.rank(k) == g.rank(v) == 4:
        raise malformed("operands must all have 3 or all 4 dimensions")
    if any(past is not None and g.rank(past) != 4 for past in (past_k, past_v)):
        raise malformed("past keys and values must have 4 dimensions")
    offset: Expr = IntImm(0)
    if past_k is not None and past_v is not None:
        offset = g.shape(past_k)[2]
        k = g.emit("concat", past_k, k, axis=2)
        v = g.emit("concat", past_v, v, axis=2)
    scored = any(g.outputs[3:])
    y, scores = attentions.attention(
        g,
        q,
        k,
        v,
        mask,
        scale=scale,
        causal=bool(is_causal),
        offset=offset,
        window=(left_window_size, right_window_size),
        softcap=softcap,
        stage=qk_matmul_output_mode if softcap or scored else None,
    )
    if flat:
        b, h, s, d = g.shape(y)
        y = g.reshape(g.transpose(y, (0, 2, 1, 3)), (b, s, h * d))
    return (y, k, v, scores) if scored and scores is not None else (y, k, v)


def _split(
    g: Context, operands: tuple[Val, Val, Val], q_heads: int | None, kv_heads: int | None
) -> tuple[Val, Val, Val]:
    """Queries, keys and values of 3 dimensions, split into heads."""
    if not q_heads or not kv_heads:
        raise malformed("operands of 3 dimensions need q_num_heads and kv_num_heads")
    q, k, v = operands
    if not g.rank(k) == g.rank(v) == 3:
        raise malformed("operands must all have 3 or all 4 dimensions")
    return split_heads(g, q, q_heads), split_heads(g, k, kv_heads), split_heads(g, v, kv_heads)


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
    y = split_heads(g, x, num_heads) if flat else x
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
    body = g.sliced(y, 3, 0, turned)
    if interleaved:
        pairs = g.reshape(body, (b, h, s, half, 2))
        first, second = (g.reshape(g.sliced(pairs, 4, i, 1), (b, h, s, half)) for i in (0, 1))
    else:
        first, second = g.sliced(body, 3, 0, half), g.sliced(body, 3, half, turned - half)
    real = g.emit("sub", g.emit("mul", first, cos), g.emit("mul", second, sin))
    imag = g.emit("add", g.emit("mul", first, sin), g.emit("mul", second, cos))
    if interleaved:
        components = [g.reshape(t, (b, h, s, half, 1)) for t in (real, imag)]
        out = g.reshape(g.emit("concat", *components, axis=4), (b, h, s, turned))
    else:
        out = g.emit("concat", real, imag, axis=3)
    if turned != depth:
        out = g.emit("concat", out, g.sliced(y, 3, turned, depth - turned), axis=3)
    return g.reshape(g.transpose(out, (0, 2, 1, 3)), (b, s, h * d)) if flat else out


TABLE: Table = {
    "Attention": {23: attention},
    "RotaryEmbedding": {23: rotary},
}
