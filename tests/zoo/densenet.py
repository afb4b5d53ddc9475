"""DenseNet-121 (Huang et al. 2016), layer names as torchvision publishes them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

GROWTH, BOTTLENECK, BLOCKS = 32, 4, (6, 12, 24, 16)


def bn_relu_conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Batch norm, ReLU, then an unbiased convolution that keeps the size."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), conv)


class DenseLayer(nn.Module):
    """Appends GROWTH channels, made of all before them by a 1x1 and a 3x3 convolution."""

    def __init__(self, inputs: int):
        super().__init__()
        self.first = bn_relu_conv(inputs, BOTTLENECK * GROWTH, 1)
        self.second = bn_relu_conv(BOTTLENECK * GROWTH, GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.second(self.first(x))], 1)


class DenseNet(nn.Module):
    """[N, 3, H, W] -> [N, 1000]; 8 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=stem, norm0=nn.BatchNorm2d(64), relu0=nn.ReLU(), pool0=nn.MaxPool2d(3, 2, 1)
        )
        width = 64
        for i, count in enumerate(BLOCKS, 1):
            block = [DenseLayer(width + j * GROWTH) for j in range(count)]
            layers[f"denseblock{i}"] = nn.Sequential(*block)
            width += count * GROWTH
            if i < len(BLOCKS):
                halved = bn_relu_conv(width, width // 2, 1)
                layers[f"transition{i}"] = nn.Sequential(halved, nn.AvgPool2d(2, 2))
                width //= 2
        layers["norm5"] = nn.BatchNorm2d(width)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.features(x))
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(x, (1, 1)), 1))
