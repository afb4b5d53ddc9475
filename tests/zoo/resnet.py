"""ResNet-18 and ResNet-50 (He et al. 2015), names and strides as torchvision's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.initialise import residual


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.Module]:
    """An unbiased convolution that keeps the size (up to its stride) and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(inputs, width, 3, stride)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv_bn(width, width, 3, 1)
        residual(self.bn2)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with the stride on the 3x3 (ResNet v1.5)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(inputs, width, 1, 1)
        self.conv2, self.bn2 = conv_bn(width, width, 3, stride)
        self.conv3, self.bn3 = conv_bn(width, width * 4, 1, 1)
        residual(self.bn3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """[N, 3, H, W] -> [N, 1000]."""

    def __init__(self, block: type[BasicBlock | Bottleneck], layers: tuple[int, ...]):
        super().__init__()
        self.inplanes = 64
        self.conv1, self.bn1 = conv_bn(3, 64, 7, 2)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(block, 64, layers[0], 1)
        self.layer2 = self._stage(block, 128, layers[1], 2)
        self.layer3 = self._stage(block, 256, layers[2], 2)
        self.layer4 = self._stage(block, 512, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, 1000)

    def _stage(
        self, block: type[BasicBlock | Bottleneck], width: int, count: int, stride: int
    ) -> nn.Sequential:
        outputs = width * block.expansion
        downsample = None
        if stride != 1 or self.inplanes != outputs:
            downsample = nn.Sequential(*conv_bn(self.inplanes, outputs, 1, stride))
        blocks = [block(self.inplanes, width, stride, downsample)]
        blocks += [block(outputs, width, 1, None) for _ in range(count - 1)]
        self.inplanes = outputs
        return nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18() -> nn.Module:
    """ResNet-18: 11.7 M parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50() -> nn.Module:
    """ResNet-50: 25.6 M parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3))
