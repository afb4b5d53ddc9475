"""ViT-B/16 (Dosovitskiy et al. 2020), layer names as torchvision publishes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

WIDTH, HEADS, HIDDEN, PATCH, IMAGE = 768, 12, 3072, 16, 224


class SelfAttention(nn.Module):
    """Fused query/key/value projection, scaled dot-product attention, output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.out_proj = residual(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.in_proj(x).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, WIDTH))


class EncoderBlock(nn.Module):
    """Pre-norm transformer block with an exact-GELU MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.self_attention = SelfAttention()
        self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-6)
        last = residual(nn.Linear(HIDDEN, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    """[N, 3, 224, 224] -> [N, 1000]; 86.6 M parameters with 12 layers."""

    def __init__(self, layers: int = 12):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embedding = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.layers = nn.Sequential(*(EncoderBlock() for _ in range(layers)))
        self.ln = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = self.conv_proj(x).reshape(batch, WIDTH, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(batch, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        return self.head(x[:, 0])
