"""MobileViT-S: convolutions whose later stages attend among pixels at the same place of patches."""

from __future__ import annotations

import torch
from torch import nn

from bench.networks.transformers import Layer
from tests.zoo.initialise import residual

PATCH = 2


def convolution(a: int, b: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """With a batch norm and SiLU."""
    conv = nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), nn.SiLU())


class Inverted(nn.Module):
    """MobileNetV2's block with four times the channels inside."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.added, hidden = a == b and stride == 1, 4 * a
        self.body = nn.Sequential(
            convolution(a, hidden),
            convolution(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, b, 1, bias=False),
            residual(nn.BatchNorm2d(b)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Added where the shape is kept."""
        return x + self.body(x) if self.added else self.body(x)


class Global(nn.Module):
    """Layers of a transformer between convolutions; each of the pixels of a patch is a batch."""

    def __init__(self, c: int, width: int, layers: int) -> None:
        super().__init__()
        self.before = nn.Sequential(convolution(c, c, 3), nn.Conv2d(c, width, 1, bias=False))
        self.layers = nn.Sequential(
            *(Layer(width, 4, 2 * width, nn.SiLU) for _ in range(layers)), nn.LayerNorm(width)
        )
        self.after, self.merge = convolution(width, c), convolution(2 * c, c, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W], of the same shape."""
        y = self.before(x)
        n, c, h, w = y.shape
        rows, columns = h // PATCH, w // PATCH
        y = y.reshape(n * c * rows, PATCH, columns, PATCH).transpose(1, 2)
        y = y.reshape(n, c, rows * columns, PATCH * PATCH).transpose(1, 3)
        y = self.layers(y.reshape(n * PATCH * PATCH, rows * columns, c))
        y = y.reshape(n, PATCH * PATCH, rows * columns, c).transpose(1, 3)
        y = y.reshape(n * c * rows, columns, PATCH, PATCH).transpose(1, 2)
        return self.merge(torch.cat([x, self.after(y.reshape(n, c, h, w))], 1))


def mobilevit() -> nn.Module:
    """Mehta and Rastegari 2021, small."""
    layers: list[nn.Module] = [convolution(3, 16, 3, 2)]
    shapes = ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1))
    layers += [Inverted(a, b, stride) for a, b, stride in shapes]
    a = 64
    for b, width, count in ((96, 144, 2), (128, 192, 4), (160, 240, 3)):
        layers += [Inverted(a, b, 2), Global(b, width, count)]
        a = b
    layers += [convolution(a, 640), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, 1000)]
    return nn.Sequential(*layers)
