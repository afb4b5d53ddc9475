"""Networks whose results are pictures, pixels or waves: most have transposed convolutions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from bench.networks.layers import Bottleneck, convolutions, stem


class UNet(nn.Module):
    """Ronneberger et al. 2015, of fewer channels: 2x2 transposed convolutions of stride 2."""

    def __init__(self, width: int = 32, depth: int = 4):
        super().__init__()
        sizes = [width << k for k in range(depth + 1)]
        self.down = nn.ModuleList(map(convolutions, [3, *sizes[:-1]], sizes))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(convolutions(a, b) for a, b in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of each pixel."""
        skips = []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


def dcgan(width: int = 64) -> nn.Module:
    """The generator of Radford et al. 2016: 4x4 transposed convolutions of stride 2."""
    sizes = [100, width * 8, width * 4, width * 2, width]
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(pairwise(sizes)):
        stride = (1, 0) if k == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(a, b, 4, *stride, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


class Translator(nn.Module):
    """Johnson et al. 2016, CycleGAN's generator: 3x3 transposed convolutions of stride 2."""

    def __init__(self, width: int = 32, blocks: int = 3):
        super().__init__()

        def layer(conv: nn.Module, c: int) -> list[nn.Module]:
            return [conv, nn.BatchNorm2d(c), nn.ReLU()]

        w = width
        self.encode = nn.Sequential(
            *layer(nn.Conv2d(3, w, 7, padding=3), w),
            *layer(nn.Conv2d(w, 2 * w, 3, 2, 1), 2 * w),
            *layer(nn.Conv2d(2 * w, 4 * w, 3, 2, 1), 4 * w),
        )
        self.blocks = nn.ModuleList(convolutions(4 * w, 4 * w) for _ in range(blocks))
        self.decode = nn.Sequential(
            *layer(nn.ConvTranspose2d(4 * w, 2 * w, 3, 2, 1, 1), 2 * w),
            *layer(nn.ConvTranspose2d(2 * w, w, 3, 2, 1, 1), w),
            nn.Conv2d(w, 3, 7, padding=3),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """An image of the same size."""
        x = self.encode(x)
        for block in self.blocks:
            x = x + block(x)
        return self.decode(x)


class Vocoder(nn.Module):
    """The generator of HiFi-GAN (Kong et al. 2020), with one residual block per scale."""

    def __init__(self, width: int = 128):
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        rates = ((16, 8), (16, 8), (4, 2), (4, 2))
        sizes = [width >> k for k in range(len(rates) + 1)]
        pairs = zip(sizes, sizes[1:], rates, strict=False)
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(a, b, k, s, (k - s) // 2) for a, b, (k, s) in pairs
        )
        self.mix = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(c, c, 3, padding=d, dilation=d) for d in (1, 3, 5))
            for c in sizes[1:]
        )
        self.last = nn.Conv1d(sizes[-1], 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A wave of 256 samples per frame."""
        x = self.first(x)
        for up, mix in zip(self.up, self.mix, strict=True):
            x = up(nn.functional.leaky_relu(x, 0.1))
            for conv in mix:
                x = x + conv(nn.functional.leaky_relu(x, 0.1))
        return torch.tanh(self.last(nn.functional.leaky_relu(x)))


class DeepLab(nn.Module):
    """Chen et al. 2017, DeepLabV3: a ResNet whose last stages are dilated, and atrous pooling."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        a = 64
        for b, stride, dilation in ((256, 1, 1), (512, 2, 1), (1024, 1, 2), (2048, 1, 4)):
            for k in range(2):
                stages.append(Bottleneck(a, b, b // 4, stride if k == 0 else 1, dilation))
                a = b
        self.backbone = nn.Sequential(*stem(64), nn.MaxPool2d(3, 2, 1), *stages)
        self.atrous = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, 256, 3 if d else 1, padding=d, dilation=max(d, 1), bias=False),
                nn.BatchNorm2d(256),
                nn.ReLU(),
            )
            for d in (0, 12, 24, 36)
        )
        self.head = nn.Sequential(nn.Conv2d(1024, 256, 1), nn.ReLU(), nn.Conv2d(256, 21, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of each pixel."""
        y = self.backbone(x)
        y = self.head(torch.cat([branch(y) for branch in self.atrous], 1))
        return nn.functional.interpolate(y, scale_factor=8.0, mode="bilinear")


class Decoder(nn.Module):
    """An FPN-like decoder: laterals of four scales, each enlarged by a transposed convolution."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = (64, 128, 256, 512)
        ends = [64, *sizes[:-1]]
        self.stem = nn.Sequential(*stem(64))
        self.stages = nn.ModuleList(
            Bottleneck(a, b, b // 4, 2) for a, b in zip(ends, sizes, strict=True)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in sizes)
        self.up = nn.ModuleList(nn.ConvTranspose2d(width, width, 4, 2, 1) for _ in sizes[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in sizes[1:])
        self.head = nn.ConvTranspose2d(width, 32, 3, 2, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features at half of the size."""
        x, features = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        y = self.lateral[-1](features[-1])
        for k, (up, smooth) in enumerate(zip(self.up, self.smooth, strict=True)):
            y = smooth(up(y) + self.lateral[-2 - k](features[-2 - k]))
        return torch.relu(self.head(y))
