"""Random weights of sensible scale, the same for the same seed on every machine."""

from __future__ import annotations

import math
import zlib
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def randomise(model: nn.Module, seed: int = 0, residual_gain: float = 0.5) -> nn.Module:
    """Fills every parameter and buffer statistic in place; returns the model in eval mode.

    Weights are fan-in scaled so that activations neither vanish nor explode. A module whose class
    sets `kiln_residual = True` on it (the last one of a residual branch) is scaled by
    `residual_gain`, which keeps deep sums of branches near unit variance.
    """
    with torch.no_grad():
        for name, module in model.named_modules():
            source = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
            gain = residual_gain if getattr(module, "kiln_residual", False) else 1.0
            _fill_module(module, gain, source)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def residual(module: M) -> M:
    """Marks the module that ends a residual branch."""
    setattr(module, "kiln_residual", True)  # noqa: B010  nn.Module has typed attributes
    return module


def _fill_module(module: nn.Module, gain: float, source: torch.Generator) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        fan_in = module.weight[0].numel()
        relu_gain = math.sqrt(2.0) if isinstance(module, nn.Conv2d) else 1.0
        module.weight.normal_(0.0, gain * relu_gain / math.sqrt(fan_in), generator=source)
        if module.bias is not None:
            module.bias.normal_(0.0, 0.1, generator=source)
    elif isinstance(module, nn.BatchNorm2d):
        module.weight.uniform_(0.6 * gain, 1.4 * gain, generator=source)
        module.bias.normal_(0.0, 0.1, generator=source)
        assert module.running_mean is not None and module.running_var is not None
        module.running_mean.normal_(0.0, 0.2, generator=source)
        module.running_var.uniform_(0.6, 1.8, generator=source)
    elif isinstance(module, nn.LayerNorm):
        module.weight.uniform_(0.6, 1.4, generator=source)
        module.bias.normal_(0.0, 0.1, generator=source)
    elif isinstance(module, nn.Embedding):
        module.weight.normal_(0.0, 0.04, generator=source)
    else:
        _fill_own_parameters(module, source)


def _fill_own_parameters(module: nn.Module, source: torch.Generator) -> None:
    """Parameters a network defines itself: LayerScale, class token, position table, Conv1D."""
    for name, parameter in module.named_parameters(recurse=False):
        if name == "layer_scale":
            parameter.uniform_(0.1, 0.5, generator=source)
        elif name == "weight" and parameter.dim() == 2:  # GPT-2's Conv1D: [in, out]
            gain = 0.5 if getattr(module, "kiln_residual", False) else 1.0
            parameter.normal_(0.0, gain / math.sqrt(parameter.shape[0]), generator=source)
        elif name == "bias":
            parameter.normal_(0.0, 0.1, generator=source)
        else:
            parameter.normal_(0.0, 0.3, generator=source)
