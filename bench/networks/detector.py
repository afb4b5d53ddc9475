"""A detector like YOLOv8's smallest: three scales, boxes as distributions of distances."""

from __future__ import annotations

import torch
from torch import nn

from bench.networks.mobilevit import convolution

CLASSES, BINS, STRIDES = 80, 16, (8, 16, 32)


class Split(nn.Module):
    """C2f: blocks of two 3x3 convolutions of half of the channels; all their results, merged."""

    def __init__(self, a: int, b: int, blocks: int, added: bool) -> None:
        super().__init__()
        half, self.added = b // 2, added
        self.first = convolution(a, b)
        self.blocks = nn.ModuleList(
            nn.Sequential(convolution(half, half, 3), convolution(half, half, 3))
            for _ in range(blocks)
        )
        self.last = convolution((2 + blocks) * half, b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, A, H, W] to [N, B, H, W]."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            y = block(parts[-1])
            parts.append(parts[-1] + y if self.added else y)
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """SPPF: three max poolings of 5x5 in a row, and all of their results."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last = convolution(c, c // 2), convolution(2 * c, c)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


def head(a: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions and a 1x1 of one scale."""
    layers = (convolution(a, hidden, 3), convolution(hidden, hidden, 3))
    return nn.Sequential(*layers, nn.Conv2d(hidden, outputs, 1))


class Detector(nn.Module):
    """Backbone, neck in both directions, heads of boxes and of classes."""

    def __init__(self, side: int = 320) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 16, 3, 2), convolution(16, 32, 3, 2), Split(32, 32, 1, True)
        )
        self.stages = nn.ModuleList(
            nn.Sequential(convolution(a, 2 * a, 3, 2), Split(2 * a, 2 * a, blocks, True))
            for a, blocks in ((32, 2), (64, 2), (128, 1))
        )
        self.pyramid = Pyramid(256)
        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
        self.up = nn.ModuleList((Split(384, 128, 1, False), Split(192, 64, 1, False)))
        self.smaller = nn.ModuleList(convolution(c, c, 3, 2) for c in (64, 128))
        self.down = nn.ModuleList((Split(192, 128, 1, False), Split(384, 256, 1, False)))
        self.boxes = nn.ModuleList(head(c, 64, 4 * BINS) for c in (64, 128, 256))
        self.classes = nn.ModuleList(head(c, CLASSES, CLASSES) for c in (64, 128, 256))
        grids = [torch.arange(side // s) + 0.5 for s in STRIDES]
        points = [torch.stack(torch.meshgrid(g, g, indexing="xy")).flatten(1) for g in grids]
        sizes = [torch.full((len(g) ** 2,), float(s)) for g, s in zip(grids, STRIDES, strict=True)]
        self.register_buffer("points", torch.cat(points, 1))
        self.register_buffer("sizes", torch.cat(sizes))
        self.register_buffer("distances", torch.arange(BINS).float().view(1, BINS, 1, 1))

    def features(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Of three scales, the largest first."""
        x, ways = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            ways.append(x)
        ways[2] = self.pyramid(x)
        ways[1] = middle = self.up[0](torch.cat([self.enlarge(ways[2]), ways[1]], 1))
        ways[0] = self.up[1](torch.cat([self.enlarge(middle), ways[0]], 1))
        for k, (smaller, down) in enumerate(zip(self.smaller, self.down, strict=True)):
            ways[k + 1] = down(torch.cat([smaller(ways[k]), ways[k + 1]], 1))
        return ways

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4 + classes, places]: centre and size in pixels, then probabilities."""
        scales = [
            torch.cat([boxes(y), classes(y)], 1).flatten(2)
            for boxes, classes, y in zip(self.boxes, self.classes, self.features(x), strict=True)
        ]
        boxes, classes = torch.cat(scales, 2).split((4 * BINS, CLASSES), 1)
        n, _, places = boxes.shape
        bins = boxes.view(n, 4, BINS, places).transpose(1, 2).softmax(1)
        near, far = nn.functional.conv2d(bins, self.distances).view(n, 4, places).chunk(2, 1)
        low, high = self.points - near, self.points + far
        box = torch.cat([(low + high) / 2, high - low], 1) * self.sizes
        return torch.cat([box, classes.sigmoid()], 1)
