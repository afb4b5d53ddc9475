"""EfficientNet-B0 (Tan and Le 2019): depthwise 3x3 and 5x5, squeeze-and-excitation, SiLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

# expansion, kernel, stride of the first, output channels, repeats
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def conv_bn_silu(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.SiLU())


class SqueezeExcitation(nn.Module):
    """Scales each channel by what two 1x1 layers make of the means of all."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.fc2(nn.functional.silu(self.fc1(scale))))


class MBConv(nn.Module):
    """Expand 1x1, depthwise, squeeze-and-excitation, project 1x1; a shortcut where it fits."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int):
        super().__init__()
        hidden = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        layers: list[nn.Module] = [] if expansion == 1 else [conv_bn_silu(inputs, hidden, 1)]
        layers.append(conv_bn_silu(hidden, hidden, kernel, stride, hidden))
        layers.append(SqueezeExcitation(hidden, max(1, inputs // 4)))
        last = nn.BatchNorm2d(outputs)
        layers += [
            nn.Conv2d(hidden, outputs, 1, bias=False),
            residual(last) if self.shortcut else last,
        ]
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.shortcut else self.block(x)


class EfficientNet(nn.Module):
    """[N, 3, H, W] -> [N, 1000]; 5.3 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [conv_bn_silu(3, 32, 3, 2)]
        inputs = 32
        for expansion, kernel, stride, outputs, repeats in STAGES:
            for index in range(repeats):
                step = stride if index == 0 else 1
                features.append(MBConv(inputs, outputs, expansion, kernel, step))
                inputs = outputs
        features.append(conv_bn_silu(inputs, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
