"""SqueezeNet 1.1 (Iandola et al. 2016), layer names as torchvision publishes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# squeezed channels, channels of each of the two expanding convolutions; None is a pool
FIRES = (
    (16, 64),
    (16, 64),
    None,
    (32, 128),
    (32, 128),
    None,
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)


class Fire(nn.Module):
    """Squeeze by 1x1, expand by 1x1 and 3x3 side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.expand1x1(x)), torch.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """[N, 3, H, W] -> [N, 1000]; 1.2 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        features: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool]
        inputs = 64
        for fire in FIRES:
            if fire is None:
                features.append(pool)
            else:
                features.append(Fire(inputs, *fire))
                inputs = 2 * fire[1]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)
