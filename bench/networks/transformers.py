"""Encoders of text and sound, with attention among all positions."""

from __future__ import annotations

import torch
from torch import nn

from tests.zoo.initialise import residual


class Attention(nn.Module):
    """Attention of `heads` heads; of those keys only that a mask, [N, 1, 1, S], says."""

    def __init__(self, c: int, heads: int, key_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(c, c), nn.Linear(c, c, bias=key_bias), nn.Linear(c, c)
        self.out = residual(nn.Linear(c, c))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[N, S, C], of the same shape."""
        n, s, c = x.shape
        q, k, v = (
            f(x).view(n, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(n, s, c))


def mlp(c: int, hidden: int, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    """The second half of a layer, which ends a residual branch."""
    return nn.Sequential(nn.Linear(c, hidden), activation(), residual(nn.Linear(hidden, c)))


class Layer(nn.Module):
    """Attention and an MLP, each after its normalisation."""

    def __init__(
        self,
        c: int,
        heads: int,
        hidden: int,
        activation: type[nn.Module] = nn.GELU,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2))
        self.attention = Attention(c, heads, key_bias)
        self.mlp = mlp(c, hidden, activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, C], of the same shape."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class DistilBert(nn.Module):
    """Sanh et al. 2019: six layers of BERT, without types; id 0 pads. Normalisations come after."""

    def __init__(self, c: int = 768, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, c), nn.Embedding(512, c)
        self.attention = nn.ModuleList(Attention(c, c // 64) for _ in range(layers))
        self.mlps = nn.ModuleList(mlp(c, 4 * c) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(c, eps=1e-12) for _ in range(2 * layers + 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N, S] int64 to the last layer's [N, S, C]."""
        mask = (ids != 0)[:, None, None]
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norms[0](self.words(ids) + self.places(places))
        for k, (attention, dense) in enumerate(zip(self.attention, self.mlps, strict=True)):
            x = self.norms[2 * k + 1](x + attention(x, mask))
            x = self.norms[2 * k + 2](x + dense(x))
        return x


class Whisper(nn.Module):
    """The encoder of Radford et al. 2022, tiny: 30 seconds of 80 bands, halved by a convolution."""

    def __init__(self, c: int = 384, layers: int = 4, positions: int = 1500) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, c, 3, padding=1)
        self.second = nn.Conv1d(c, c, 3, 2, 1)
        rates = torch.exp(torch.arange(c // 2) * (-9.210340371976184 / (c // 2 - 1)))
        angles = torch.arange(positions)[:, None] * rates
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        self.layers = nn.Sequential(
            *(Layer(c, c // 64, 4 * c, key_bias=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 80, 3000] to [N, 1500, C]."""
        x = nn.functional.gelu(self.first(x))
        x = nn.functional.gelu(self.second(x)).transpose(1, 2)
        return self.norm(self.layers(x + self.places))
