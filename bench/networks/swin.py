"""Swin-T: attention within windows of 7x7 pixels, shifted in every second block."""

from __future__ import annotations

import torch
from torch import nn

from bench.networks.transformers import mlp
from tests.zoo.initialise import residual

WINDOW = 7


def windows(x: torch.Tensor) -> torch.Tensor:
    """[N, H, W, C] to [N * H/7 * W/7, 49, C]."""
    n, h, w, c = x.shape
    x = x.view(n, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.transpose(2, 3).reshape(-1, WINDOW * WINDOW, c)


def picture(x: torch.Tensor, h: int, w: int) -> torch.Tensor:
    """The inverse of `windows`."""
    x = x.view(-1, h // WINDOW, w // WINDOW, WINDOW, WINDOW, x.shape[-1])
    return x.transpose(2, 3).reshape(x.shape[0], h, w, -1)


def pair_offsets() -> torch.Tensor:
    """[49 * 49]: for each pair of pixels of a window, the row of a table by their distance."""
    places = torch.stack(torch.meshgrid(*[torch.arange(WINDOW)] * 2, indexing="ij")).flatten(1)
    distance = places[:, :, None] - places[:, None] + WINDOW - 1
    return (distance[0] * (2 * WINDOW - 1) + distance[1]).flatten()


def shifted_mask(side: int, shift: int) -> torch.Tensor:
    """[windows, 1, 49, 49]: -100 between pixels that the roll made neighbours, otherwise 0."""
    region = torch.zeros(side)
    region[-WINDOW:-shift], region[-shift:] = 1, 2
    x = windows((3 * region[:, None] + region)[None, :, :, None])
    return ((x != x.transpose(1, 2)) * -100.0)[:, None]


class Block(nn.Module):
    """Attention within windows of a picture of side by side pixels, then an MLP."""

    def __init__(self, c: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift = heads, shift
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2))
        self.qkv, self.out, self.mlp = nn.Linear(c, 3 * c), residual(nn.Linear(c, c)), mlp(c, 4 * c)
        self.table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads))
        self.register_buffer("offsets", pair_offsets())
        if shift:
            self.register_buffer("mask", shifted_mask(side, shift))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """[N * windows, 49, C], of the same shape."""
        n, s, c = x.shape
        q, k, v = self.qkv(x).view(n, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.offsets].view(s, s, -1).permute(2, 0, 1)
        if self.shift:
            scores = scores.view(-1, self.mask.shape[0], self.heads, s, s) + self.mask
            scores = scores.view(n, self.heads, s, s)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, s, c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, H, W, C], of the same shape."""
        h, w, shift = *x.shape[1:3], self.shift
        y = self.norms[0](x)
        if shift:
            y = y.roll((-shift, -shift), (1, 2))
        y = picture(self.attend(windows(y)), h, w)
        if shift:
            y = y.roll((shift, shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norms[1](x))


class Merge(nn.Module):
    """Four neighbours as one pixel of twice the channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(4 * c), nn.Linear(4 * c, 2 * c, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, H, W, C] to [N, H/2, W/2, 2 C]."""
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.dense(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Liu et al. 2021, tiny: pictures of 224x224."""

    def __init__(self, c: int = 96, blocks: tuple[int, ...] = (2, 2, 6, 2)) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, c, 4, 4), nn.LayerNorm(c)
        layers: list[nn.Module] = []
        side = 56
        for k, count in enumerate(blocks):
            if k:
                layers.append(Merge(c))
                c, side = 2 * c, side // 2
            shift = WINDOW // 2 if side > WINDOW else 0
            layers += [Block(c, c // 32, side, shift * (j % 2)) for j in range(count)]
        self.layers = nn.Sequential(*layers)
        self.last, self.head = nn.LayerNorm(c), nn.Linear(c, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of classes."""
        x = self.layers(self.first(self.patches(x).permute(0, 2, 3, 1)))
        return self.head(self.last(x).mean((1, 2)))
