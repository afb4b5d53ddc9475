"""GPT-2 small (Radford et al. 2019) with language-model head, names as the published weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

VOCABULARY, POSITIONS, WIDTH, HEADS = 50257, 1024, 768, 12


class Conv1D(nn.Module):
    """A linear layer whose weight is stored [in, out], as GPT-2's are."""

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.size()[:-1], self.bias.numel())
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


def gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, spelled as GPT-2 does."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Attention(nn.Module):
    """Causal self-attention over a fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = Conv1D(3 * WIDTH, WIDTH)
        self.c_proj = residual(Conv1D(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], HEADS, WIDTH // HEADS)
        parts = self.c_attn(x).split(WIDTH, dim=2)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Pre-norm transformer block with a tanh-GELU MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, eps=1e-5)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-5)
        self.c_fc = Conv1D(4 * WIDTH, WIDTH)
        self.c_proj = residual(Conv1D(WIDTH, 4 * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(gelu_new(self.c_fc(self.ln_2(x))))


class Gpt2(nn.Module):
    """Token ids [N, S] int64 -> logits [N, S, 50257]; the head shares the token table."""

    def __init__(self, layers: int = 12):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(POSITIONS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH, eps=1e-5)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0)
        x = self.wte(input_ids) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        return nn.functional.linear(self.ln_f(x), self.wte.weight)
