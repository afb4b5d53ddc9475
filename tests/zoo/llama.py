"""A small decoder of Llama's kind (Touvron et al. 2023, grouped heads as in its second version).

RMS norm, rotary positions, grouped-query attention and a SiLU-gated layer, without biases.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

VOCABULARY, WIDTH, HIDDEN, HEADS, GROUPS = 32000, 768, 2048, 12, 4
HEAD = WIDTH // HEADS
BASE = 10000.0


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2)) * weight over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (i, i + HEAD / 2) of each head by angles of their position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Causal; HEADS / GROUPS heads of queries share one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.o_proj = residual(nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, length, count, HEAD).transpose(1, 2)

        query = rotate(heads(self.q_proj(x), HEADS), cos, sin)
        key = rotate(heads(self.k_proj(x), GROUPS), cos, sin)
        value = heads(self.v_proj(x), GROUPS)
        key, value = (_repeat(y, HEADS // GROUPS) for y in (key, value))
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, WIDTH))


def _repeat(x: Tensor, times: int) -> Tensor:
    """[N, G, S, D] -> [N, G * times, S, D], each group `times` in a row."""
    batch, groups, length, head = x.shape
    x = x[:, :, None].expand(batch, groups, times, length, head)
    return x.reshape(batch, groups * times, length, head)


class Layer(nn.Module):
    """Pre-norm attention, pre-norm gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn = Attention()
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = residual(nn.Linear(HIDDEN, WIDTH, bias=False))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """Token ids [N, S] int64 -> logits [N, S, vocabulary]; 99 M parameters with 8 layers."""

    def __init__(self, layers: int = 8, vocabulary: int = VOCABULARY):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = RMSNorm()
        self.lm_head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        inverse = BASE ** (-torch.arange(0, HEAD, 2, device=input_ids.device) / HEAD)
        angles = torch.outer(positions.float(), inverse)
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))
