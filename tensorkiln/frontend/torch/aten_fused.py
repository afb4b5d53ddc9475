"""Whole layers that torch runs as one operator where no gradients are recorded."""

from __future__ import annotations

from tensorkiln.frontend.graph.attention import attention, split_heads
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_nn import linear_of
from tensorkiln.frontend.torch.context import AtenContext
from tensorkiln.frontend.torch.dispatch import AtenTable
from tensorkiln.ir.expr import as_expr

# What the number `mask_type` of torch says of a mask: [L, L], [B, L] of padding, or all four.
_OF_POSITIONS, _OF_PADDING = 0, 1


def _bias(g: AtenContext, mask: Val | None, kind: int | None) -> Val | None:
    """A mask that broadcasts with scores [B, H, L, L]: true where a key is seen, or added."""
    if mask is None:
        return None
    shape = g.shape(mask)
    if kind == _OF_PADDING:
        mask = g.reshape(mask, (shape[0], 1, 1, shape[1]))
    elif kind == _OF_POSITIONS:
        mask = g.reshape(mask, (1, 1, *shape))
    elif g.rank(mask) != 4:
        raise unsupported(f"a mask of {g.rank(mask)} dimensions")
    return g.emit("logical_not", mask) if g.type(mask).dtype.is_bool else mask


def _attention(
    g: AtenContext,
    operands: tuple[Val, Val, Val],
    heads: int,
    packed: tuple[Val, Val],
    projection: tuple[Val, Val],
    mask: Val | None,
) -> Val:
    """Attention of several heads; the weights of queries, keys and values lie in one tensor."""
    width = g.dims.divide(g.shape(packed[0])[0], as_expr(3))
    assert width is not None
    parts = []
    for k, x in enumerate(operands):
        w, b = (g.sliced(v, 0, g.dims.simplify(width * k), width) for v in packed)
        parts.append(split_heads(g, linear_of(g, x, w, b), heads))
    head_outputs, _ = attention(g, parts[0], parts[1], parts[2], mask)
    samples, h, length, depth = g.shape(head_outputs)
    turned = g.transpose(head_outputs, (0, 2, 1, 3))
    joined = g.reshape(turned, (samples, length, g.dims.product((h, depth))))
    return linear_of(g, joined, *projection)


def encoder_layer(
    g: AtenContext,
    x: Val,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Val,
    qkv_bias: Val,
    proj_weight: Val,
    proj_bias: Val,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Val,
    norm_bias_1: Val,
    norm_weight_2: Val,
    norm_bias_2: Val,
    ffn_weight_1: Val,
    ffn_bias_1: Val,
    ffn_weight_2: Val,
    ffn_bias_2: Val,
    mask: Val | None = None,
    mask_type: int | None = None,
) -> Val:
    """nn.TransformerEncoderLayer: attention, then two linear layers, each added to its input, with
    a normalisation before or after each."""

    def attended(y: Val) -> Val:
        weights, projection = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
        return _attention(g, (y, y, y), num_heads, weights, projection, _bias(g, mask, mask_type))

    def widened(y: Val) -> Val:
        wide = g.emit("gelu" if use_gelu else "relu", linear_of(g, y, ffn_weight_1, ffn_bias_1))
        return linear_of(g, wide, ffn_weight_2, ffn_bias_2)

    for part, gamma, beta in (
        (attended, norm_weight_1, norm_bias_1),
        (widened, norm_weight_2, norm_bias_2),
    ):
        if norm_first:
            x = g.emit("add", x, part(g.emit("layer_norm", x, gamma, beta, axis=-1, eps=eps)))
        else:
            total = g.emit("add", x, part(x))
            x = g.emit("layer_norm", total, gamma, beta, axis=-1, eps=eps)
    return x


def multi_head_attention(
    g: AtenContext,
    query: Val,
    key: Val,
    value: Val,
    embed_dim: int,
    num_head: int,
    qkv_weight: Val,
    qkv_bias: Val,
    proj_weight: Val,
    proj_bias: Val,
    mask: Val | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> list[Val | None]:
    """nn.MultiheadAttention, batch first, without the weights of attention as a result."""
    output = _attention(
        g,
        (query, key, value),
        num_head,
        (qkv_weight, qkv_bias),
        (proj_weight, proj_bias),
        _bias(g, mask, mask_type),
    )
    return [output, None]


TABLE: AtenTable = {
    "_transformer_encoder_layer_fwd": encoder_layer,
    "_native_multi_head_attention": multi_head_attention,
}
