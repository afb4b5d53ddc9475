"""Layers that several networks share."""

from __future__ import annotations

import torch
from torch import nn


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with a batch norm and a ReLU."""
    layers: list[nn.Module] = []
    for c in (inputs, outputs):
        layers += [nn.Conv2d(c, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def stem(width: int) -> list[nn.Module]:
    """A 3x3 convolution of pictures at half of the size, with a batch norm and a ReLU."""
    return [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]


class Bottleneck(nn.Module):
    """A residual block of ResNet, ResNeXt and RegNet: 1x1, 3x3 (dilated or grouped), 1x1."""

    def __init__(
        self, a: int, b: int, mid: int, stride: int = 1, dilation: int = 1, width: int = 0
    ):
        super().__init__()
        groups = mid // width if width else 1
        self.body = nn.Sequential(
            nn.Conv2d(a, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, mid, 3, stride, dilation, dilation, groups, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, b, 1, bias=False),
            nn.BatchNorm2d(b),
        )
        short = [nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)]
        self.short = nn.Sequential(*(short if a != b or stride > 1 else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return torch.relu(self.body(x) + self.short(x))
