"""ConvNeXt (Liu et al. 2022) tiny, layer names as torchvision publishes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (96, 192, 384, 768)
TINY = (3, 3, 9, 3)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of NCHW."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    """A permutation as a layer."""

    def __init__(self, dims: tuple[int, ...]):
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class CNBlock(nn.Module):
    """Depthwise 7x7, layer norm, 4x MLP with exact GELU in NHWC, LayerScale, shortcut."""

    def __init__(self, width: int):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Permute((0, 2, 3, 1)),
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            Permute((0, 3, 1, 2)),
        )
        self.layer_scale = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    """[N, 3, H, W] -> [N, 1000]; 28.6 M parameters with the tiny depths."""

    def __init__(self, depths: tuple[int, ...] = TINY):
        super().__init__()
        layers: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, WIDTHS[0], 4, 4), LayerNorm2d(WIDTHS[0], eps=1e-6))
        ]
        for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True)):
            layers.append(nn.Sequential(*(CNBlock(width) for _ in range(depth))))
            if stage + 1 < len(WIDTHS):
                norm = LayerNorm2d(width, eps=1e-6)
                layers.append(nn.Sequential(norm, nn.Conv2d(width, WIDTHS[stage + 1], 2, 2)))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            LayerNorm2d(WIDTHS[-1], eps=1e-6),
            nn.Flatten(1),
            nn.Linear(WIDTHS[-1], 1000),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))
