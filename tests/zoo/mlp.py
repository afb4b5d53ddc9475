"""The smallest network: 784-256-128-10 with ReLU."""

from __future__ import annotations

from torch import nn


def mlp() -> nn.Module:
    """[N, 784] -> [N, 10]."""
    return nn.Sequential(
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
