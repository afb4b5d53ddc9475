"""Segformer: attention to fewer keys than queries."""

from __future__ import annotations

import torch
from torch import nn


class Mixer(nn.Module):
    """A block of Segformer: attention to fewer keys, then an MLP with a depthwise convolution."""

    def __init__(self, c: int, heads: int, fewer: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        self.fewer = nn.Conv2d(c, c, fewer, fewer) if fewer > 1 else None
        self.q, self.kv, self.out = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.deep = nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        n, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        y = self.norms[0](t)
        keys = y
        if self.fewer is not None:
            keys = self.fewer(y.transpose(1, 2).reshape(n, c, h, w))
            keys = self.norms[1](keys.flatten(2).transpose(1, 2))
        q = self.q(y).view(n, h * w, self.heads, -1).transpose(1, 2)
        k, v = self.kv(keys).view(n, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        t = t + self.out(a.transpose(1, 2).reshape(n, h * w, c))
        y = self.up(self.norms[2](t)).transpose(1, 2).reshape(n, 4 * c, h, w)
        y = nn.functional.gelu(self.deep(y).flatten(2).transpose(1, 2))
        return (t + self.down(y)).transpose(1, 2).reshape(n, c, h, w)


def segformer() -> nn.Module:
    """The encoder of Segformer-B0 (Xie et al. 2021)."""
    layers: list[nn.Module] = []
    a = 3
    for k, (c, heads, fewer) in enumerate(((32, 1, 8), (64, 2, 4), (160, 5, 2), (256, 8, 1))):
        layers.append(nn.Conv2d(a, c, 7, 4, 3) if k == 0 else nn.Conv2d(a, c, 3, 2, 1))
        layers += [Mixer(c, heads, fewer) for _ in range(2)]
        a = c
    return nn.Sequential(*layers)
