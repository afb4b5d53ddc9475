"""MobileNetV2 (Sandler et al. 2018), width 1.0, layer names as torchvision publishes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual

# expansion, output channels, repeats, stride of the first
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Module:
    """Convolution, batch norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1; a shortcut when the shape allows it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        self.use_res_connect = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(conv_bn_relu6(inputs, hidden, 1, 1, 1))
        last = nn.BatchNorm2d(outputs)
        if self.use_res_connect:
            residual(last)
        layers.append(conv_bn_relu6(hidden, hidden, 3, stride, hidden))
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), last]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    """[N, 3, H, W] -> [N, 1000]; 3.5 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [conv_bn_relu6(3, 32, 3, 2, 1)]
        inputs = 32
        for expansion, outputs, repeats, stride in STAGES:
            for index in range(repeats):
                step = stride if index == 0 else 1
                features.append(InvertedResidual(inputs, outputs, step, expansion))
                inputs = outputs
        features.append(conv_bn_relu6(inputs, 1280, 1, 1, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
