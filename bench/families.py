"""`python -m bench.families`: networks of the families whose kernels are rare, beside ONNX Runtime
and OpenVINO.

Decoders with transposed convolutions, dilated, grouped and shuffled convolutions, pooling as a
token mixer, points, short sequences. Weights are random, those of normalisations near the usual.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.beside import BESIDE_BOTH, Model, main
from bench.contenders import Array
from bench.measure import mismatch
from tests.zoo.export import cache_folder
from tests.zoo.initialise import randomise

_DRAW = np.random.default_rng(7)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with a batch norm and a ReLU."""
    layers: list[nn.Module] = []
    for c in (inputs, outputs):
        layers += [nn.Conv2d(c, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015, of fewer channels: 2x2 transposed convolutions of stride 2."""

    def __init__(self, width: int = 32, depth: int = 4):
        super().__init__()
        sizes = [width << k for k in range(depth + 1)]
        self.down = nn.ModuleList(map(_block, [3, *sizes[:-1]], sizes))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(_block(a, b) for a, b in pairs)
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
        self.blocks = nn.ModuleList(_block(4 * w, 4 * w) for _ in range(blocks))
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


class PointNet(nn.Module):
    """Qi et al. 2017, the classifier without input transforms: 1x1 convolutions over points."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 64, 64, 64, 128, 1024]
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 40)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of classes."""
        return self.head(self.points(x).max(2).values)


class Bottleneck(nn.Module):
    """A residual block of ResNet, ResNeXt and RegNet: 1x1, 3x3 (dilated or grouped), 1x1."""

    def __init__(
        self, a: int, b: int, mid: int, stride: int = 1, dilation: int = 1, width: int = 0
    ):
        super().__init__()
        groups = mid // width if width else 1
        self.body = nn.Sequential(
            nn.Conv2d(a, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, mid, 3, stride, dilation, dilation, groups, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, b, 1, bias=False),
            nn.BatchNorm2d(b),
        )
        short = [nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)]
        self.short = nn.Sequential(*(short if a != b or stride > 1 else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return torch.relu(self.body(x) + self.short(x))


def _stem(width: int) -> list[nn.Module]:
    return [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]


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
        self.backbone = nn.Sequential(*_stem(64), nn.MaxPool2d(3, 2, 1), *stages)
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
        self.stem = nn.Sequential(*_stem(64))
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


class PoolMixer(nn.Module):
    """A block of PoolFormer (Yu et al. 2022): average pooling minus its operand, then an MLP."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(1, c) for _ in range(2))
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Conv2d(c, 4 * c, 1), nn.GELU(), nn.Conv2d(4 * c, c, 1))
        self.scales = nn.ParameterList(torch.full((c, 1, 1), 0.1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        y = self.norms[0](x)
        x = x + self.scales[0] * (self.pool(y) - y)
        return x + self.scales[1] * self.mlp(self.norms[1](x))


def poolformer() -> nn.Module:
    """PoolFormer-S12."""
    layers: list[nn.Module] = []
    a = 3
    for k, (c, blocks) in enumerate(((64, 2), (128, 2), (320, 6), (512, 2))):
        layers.append(nn.Conv2d(a, c, 7, 4, 2) if k == 0 else nn.Conv2d(a, c, 3, 2, 1))
        layers += [PoolMixer(c) for _ in range(blocks)]
        a = c
    ends = [nn.GroupNorm(1, a), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 1000)]
    return nn.Sequential(*layers, *ends)


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2 (Ma et al. 2018): half of the channels, then a shuffle."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 1
        c, inputs = b // 2, a // 2 if stride == 1 else a
        self.left = nn.Sequential(
            *()
            if self.halves
            else (
                nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False),
                nn.BatchNorm2d(a),
                nn.Conv2d(a, c, 1, bias=False),
                nn.BatchNorm2d(c),
                nn.ReLU(),
            )
        )
        self.right = nn.Sequential(
            nn.Conv2d(inputs, c, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False),
            nn.BatchNorm2d(c),
            nn.Conv2d(c, c, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both halves, their channels alternating."""
        x_left, x_right = x.chunk(2, 1) if self.halves else (x, x)
        y = torch.cat([self.left(x_left), self.right(x_right)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    """ShuffleNetV2 x1.0."""
    layers: list[nn.Module] = [*_stem(24), nn.MaxPool2d(3, 2, 1)]
    a = 24
    for b, blocks in ((116, 4), (232, 8), (464, 4)):
        for k in range(blocks):
            layers.append(Shuffled(a, b, 2 if k == 0 else 1))
            a = b
    layers += [nn.Conv2d(a, 1024, 1, bias=False), nn.BatchNorm2d(1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


class Inception(nn.Module):
    """A block of GoogLeNet (Szegedy et al. 2015): four ways, one behind a max pooling."""

    def __init__(self, a: int, sizes: tuple[int, ...]) -> None:
        super().__init__()

        def layer(i: int, o: int, k: int) -> nn.Sequential:
            conv = nn.Conv2d(i, o, k, padding=k // 2, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU())

        width1, r3, width3, r5, width5, pooled = sizes
        self.ways = nn.ModuleList(
            (
                layer(a, width1, 1),
                nn.Sequential(layer(a, r3, 1), layer(r3, width3, 3)),
                nn.Sequential(layer(a, r5, 1), layer(r5, width5, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), layer(a, pooled, 1)),
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All ways side by side."""
        return torch.cat([branch(x) for branch in self.ways], 1)


def googlenet() -> nn.Module:
    """The first three stages of GoogLeNet; pooling before normalisation and activation between."""
    between = [nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(480), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 192, 3, padding=1),
        nn.MaxPool2d(3, 2, 1),
        nn.BatchNorm2d(192),
        nn.ReLU(),
        Inception(192, (64, 96, 128, 16, 32, 32)),
        Inception(256, (128, 128, 192, 32, 96, 64)),
        *between,
        Inception(480, (192, 96, 208, 16, 48, 64)),
        Inception(512, (160, 112, 224, 24, 64, 64)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def regnet(width: int, sizes: tuple[int, ...], blocks: tuple[int, ...]) -> nn.Module:
    """RegNetX (Radosavovic et al. 2020): groups of `width` channels."""
    layers: list[nn.Module] = _stem(32)
    a = 32
    for c, count in zip(sizes, blocks, strict=True):
        for k in range(count):
            layers.append(Bottleneck(a, c, c, 2 if k == 0 else 1, width=width))
            a = c
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 1000))


class Mixer(nn.Module):
    """A block of Segformer: attention to fewer keys, then an MLP with a depthwise convolution."""

    def __init__(self, c: int, heads: int, fewer: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        self.fewer = nn.Conv2d(c, c, fewer, fewer) if fewer > 1 else None
        self.q, self.kv, self.out = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.deep = nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        n, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        y = self.norms[0](t)
        keys = y
        if self.fewer is not None:
            keys = self.fewer(y.transpose(1, 2).reshape(n, c, h, w))
            keys = self.norms[1](keys.flatten(2).transpose(1, 2))
        q = self.q(y).view(n, h * w, self.heads, -1).transpose(1, 2)
        k, v = self.kv(keys).view(n, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        t = t + self.out(a.transpose(1, 2).reshape(n, h * w, c))
        y = self.up(self.norms[2](t)).transpose(1, 2).reshape(n, 4 * c, h, w)
        y = nn.functional.gelu(self.deep(y).flatten(2).transpose(1, 2))
        return (t + self.down(y)).transpose(1, 2).reshape(n, c, h, w)


def segformer() -> nn.Module:
    """The encoder of Segformer-B0 (Xie et al. 2021)."""
    layers: list[nn.Module] = []
    a = 3
    for k, (c, heads, fewer) in enumerate(((32, 1, 8), (64, 2, 4), (160, 5, 2), (256, 8, 1))):
        layers.append(nn.Conv2d(a, c, 7, 4, 3) if k == 0 else nn.Conv2d(a, c, 3, 2, 1))
        layers += [Mixer(c, heads, fewer) for _ in range(2)]
        a = c
    return nn.Sequential(*layers)


def _gpt2() -> nn.Module:
    from tests.zoo.gpt2 import Gpt2

    return Gpt2(layers=12)


Make = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "unet": (UNet, (1, 3, 128, 128)),
    "dcgan": (dcgan, (4, 100, 1, 1)),
    "translator": (Translator, (1, 3, 128, 128)),
    "vocoder": (Vocoder, (1, 80, 32)),
    "decoder": (Decoder, (1, 3, 224, 224)),
    "deeplab": (DeepLab, (1, 3, 224, 224)),
    "poolformer": (poolformer, (1, 3, 224, 224)),
    "shufflenet": (shufflenet, (1, 3, 224, 224)),
    "googlenet": (googlenet, (1, 3, 224, 224)),
    "pointnet": (PointNet, (1, 3, 1024)),
    "regnet 16": (lambda: regnet(16, (64, 128, 288, 672), (1, 3, 7, 5)), (1, 3, 224, 224)),
    "regnet 8": (lambda: regnet(8, (24, 56, 152, 368), (1, 1, 4, 7)), (1, 3, 224, 224)),
    "regnet 24": (lambda: regnet(24, (72, 168, 408, 912), (2, 4, 10, 2)), (1, 3, 224, 224)),
    "segformer": (segformer, (1, 3, 224, 224)),
    "gpt2": (_gpt2, (1, 64)),
}


def _scaled(model: nn.Module) -> nn.Module:
    """The model with weights of transposed convolutions that keep the scale of what they read."""
    source = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d):
            w = layer.weight
            terms = w.shape[0] * np.prod(layer.kernel_size) / np.prod(layer.stride)
            w.normal_(0.0, float(terms) ** -0.5, generator=source)
    return model


def _onnx(name: str) -> tuple[bytes, dict[str, Array]]:
    """The file of a network, exported on first use, and its input."""
    make, shape = NETWORKS[name]
    ids = name == "gpt2"
    x = _DRAW.integers(0, 50257, shape) if ids else _DRAW.standard_normal(shape).astype(np.float32)
    source = torch.__version__.encode() + Path(__file__).read_bytes()
    key = hashlib.sha256(source).hexdigest()[:12]
    path = cache_folder() / f"families-{name.replace(' ', '-')}-{key}.onnx"
    if not path.exists():
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        model = _scaled(randomise(make(), 0))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (torch.from_numpy(x),),
                str(path),
                input_names=["x"],
                output_names=["y"],
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    return path.read_bytes(), {"x": x}


def near(outputs: Sequence[Array], peer_outputs: Sequence[Array]) -> str:
    """A sentence on how they differ; empty if they do not."""
    return mismatch(list(peer_outputs), list(outputs))


def models(only: str) -> Iterator[Model]:
    """Every network whose name contains a text."""
    for name in NETWORKS:
        if only.lower() in name:
            data, inputs = _onnx(name)
            yield Model("families", name, data, inputs, near)


if __name__ == "__main__":
    main("bench.families", models, BESIDE_BOTH)
