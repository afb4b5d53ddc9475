"""Classifiers of pictures and points, by convolutions and pooling."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from bench.networks.layers import Bottleneck, stem


class PointNet(nn.Module):
    """Qi et al. 2017, the classifier without input transforms: 1x1 convolutions over points."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 64, 64, 64, 128, 1024]
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 40)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of classes."""
        return self.head(self.points(x).max(2).values)


class PoolMixer(nn.Module):
    """A block of PoolFormer (Yu et al. 2022): average pooling minus its operand, then an MLP."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(1, c) for _ in range(2))
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Conv2d(c, 4 * c, 1), nn.GELU(), nn.Conv2d(4 * c, c, 1))
        self.scales = nn.ParameterList(torch.full((c, 1, 1), 0.1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        y = self.norms[0](x)
        x = x + self.scales[0] * (self.pool(y) - y)
        return x + self.scales[1] * self.mlp(self.norms[1](x))


def poolformer() -> nn.Module:
    """PoolFormer-S12."""
    layers: list[nn.Module] = []
    a = 3
    for k, (c, blocks) in enumerate(((64, 2), (128, 2), (320, 6), (512, 2))):
        layers.append(nn.Conv2d(a, c, 7, 4, 2) if k == 0 else nn.Conv2d(a, c, 3, 2, 1))
        layers += [PoolMixer(c) for _ in range(blocks)]
        a = c
    ends = [nn.GroupNorm(1, a), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 1000)]
    return nn.Sequential(*layers, *ends)


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2 (Ma et al. 2018): half of the channels, then a shuffle."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 1
        c, inputs = b // 2, a // 2 if stride == 1 else a
        self.left = nn.Sequential(
            *()
            if self.halves
            else (
                nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False),
                nn.BatchNorm2d(a),
                nn.Conv2d(a, c, 1, bias=False),
                nn.BatchNorm2d(c),
                nn.ReLU(),
            )
        )
        self.right = nn.Sequential(
            nn.Conv2d(inputs, c, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False),
            nn.BatchNorm2d(c),
            nn.Conv2d(c, c, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both halves, their channels alternating."""
        x_left, x_right = x.chunk(2, 1) if self.halves else (x, x)
        y = torch.cat([self.left(x_left), self.right(x_right)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    """ShuffleNetV2 x1.0."""
    layers: list[nn.Module] = [*stem(24), nn.MaxPool2d(3, 2, 1)]
    a = 24
    for b, blocks in ((116, 4), (232, 8), (464, 4)):
        for k in range(blocks):
            layers.append(Shuffled(a, b, 2 if k == 0 else 1))
            a = b
    layers += [nn.Conv2d(a, 1024, 1, bias=False), nn.BatchNorm2d(1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


class Inception(nn.Module):
    """A block of GoogLeNet (Szegedy et al. 2015): four ways, one behind a max pooling."""

    def __init__(self, a: int, sizes: tuple[int, ...]) -> None:
        super().__init__()

        def layer(i: int, o: int, k: int) -> nn.Sequential:
            conv = nn.Conv2d(i, o, k, padding=k // 2, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU())

        width1, r3, width3, r5, width5, pooled = sizes
        self.ways = nn.ModuleList(
            (
                layer(a, width1, 1),
                nn.Sequential(layer(a, r3, 1), layer(r3, width3, 3)),
                nn.Sequential(layer(a, r5, 1), layer(r5, width5, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), layer(a, pooled, 1)),
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All ways side by side."""
        return torch.cat([branch(x) for branch in self.ways], 1)


def googlenet() -> nn.Module:
    """The first three stages of GoogLeNet; pooling before normalisation and activation between."""
    between = [nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(480), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 192, 3, padding=1),
        nn.MaxPool2d(3, 2, 1),
        nn.BatchNorm2d(192),
        nn.ReLU(),
        Inception(192, (64, 96, 128, 16, 32, 32)),
        Inception(256, (128, 128, 192, 32, 96, 64)),
        *between,
        Inception(480, (192, 96, 208, 16, 48, 64)),
        Inception(512, (160, 112, 224, 24, 64, 64)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def regnet(width: int, sizes: tuple[int, ...], blocks: tuple[int, ...]) -> nn.Module:
    """RegNetX (Radosavovic et al. 2020): groups of `width` channels."""
    layers: list[nn.Module] = stem(32)
    a = 32
    for c, count in zip(sizes, blocks, strict=True):
        for k in range(count):
            layers.append(Bottleneck(a, c, c, 2 if k == 0 else 1, width=width))
            a = c
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 1000))
