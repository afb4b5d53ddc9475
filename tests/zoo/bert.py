"""BERT-base uncased (Devlin et al. 2018), names and mask arithmetic as in HF exports."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

VOCABULARY, POSITIONS, TYPES = 30522, 512, 2
WIDTH, HEADS, HIDDEN = 768, 12, 3072


class Embeddings(nn.Module):
    """Word, position and token-type tables, summed and normalised."""

    position_ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(TYPES, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(POSITIONS).expand((1, -1)))

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = self.position_ids[:, : input_ids.size(1)]
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.LayerNorm(x + self.position_embeddings(positions))


class SelfAttention(nn.Module):
    """Matmul, division, added mask, softmax; with `sdpa` torch's fused operator."""

    def __init__(self, sdpa: bool):
        super().__init__()
        self.sdpa = sdpa
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def heads(self, x: Tensor) -> Tensor:
        """[N, S, 768] -> [N, 12, S, 64]."""
        return x.view(x.size(0), x.size(1), HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        if self.sdpa:
            out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
            weights = self.dropout(nn.functional.softmax(scores + mask, dim=-1))
            out = torch.matmul(weights, value)
        out = out.permute(0, 2, 1, 3).contiguous()
        return out.view(out.size(0), out.size(1), WIDTH)


class Layer(nn.Module):
    """Post-norm transformer block with an exact-GELU MLP."""

    def __init__(self, sdpa: bool):
        super().__init__()
        self.attention = SelfAttention(sdpa)
        self.attention_output = residual(nn.Linear(WIDTH, WIDTH))
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = nn.Linear(WIDTH, HIDDEN)
        self.output = residual(nn.Linear(HIDDEN, WIDTH))
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(self.attention_output(self.attention(x, mask)) + x)
        hidden = nn.functional.gelu(self.intermediate(x))
        return self.output_norm(self.output(hidden) + x)


class Bert(nn.Module):
    """Ids, mask, types, each [N, S] int64 -> last hidden [N, S, 768], pooled [N, 768]."""

    def __init__(self, layers: int = 12, sdpa: bool = False):
        super().__init__()
        self.sdpa = sdpa
        self.embeddings = Embeddings()
        self.layer = nn.ModuleList(Layer(sdpa) for _ in range(layers))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def extended_mask(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        """0 where attended, the most negative float where not; HF's two spellings of it."""
        lowest = torch.finfo(dtype).min
        if not self.sdpa:
            return (1.0 - attention_mask[:, None, None, :].to(dtype)) * lowest
        batch, length = attention_mask.shape
        expanded = attention_mask[:, None, None, :].expand(batch, 1, length, length).to(dtype)
        inverted = 1.0 - expanded
        return inverted.masked_fill(inverted.to(torch.bool), lowest)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self.embeddings(input_ids, token_type_ids)
        mask = self.extended_mask(attention_mask, x.dtype)
        for layer in self.layer:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))
