"""`python -m bench.families`: networks of the families whose kernels are rare, beside ONNX Runtime
and OpenVINO.

Decoders with transposed convolutions, dilated, grouped and shuffled convolutions, pooling as a
token mixer, points, short sequences, attention in windows, a detector. Weights are random, those of
normalisations near the usual.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.beside import BESIDE_BOTH, Model, main
from bench.contenders import Array
from bench.measure import mismatch
from bench.networks.classifiers import PointNet, googlenet, poolformer, regnet, shufflenet
from bench.networks.decoders import Decoder, DeepLab, Translator, UNet, Vocoder, dcgan
from bench.networks.detector import Detector
from bench.networks.mobilevit import mobilevit
from bench.networks.segformer import segformer
from bench.networks.swin import Swin
from bench.networks.transformers import DistilBert, Whisper
from tests.zoo.export import cache_folder
from tests.zoo.initialise import randomise

_DRAW = np.random.default_rng(7)


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
    "swin": (Swin, (1, 3, 224, 224)),
    "distilbert": (DistilBert, (1, 128)),
    "mobilevit": (mobilevit, (1, 3, 256, 256)),
    "detector": (Detector, (1, 3, 320, 320)),
    "whisper": (Whisper, (1, 80, 3000)),
}
WORDS = {"gpt2": 50257, "distilbert": 30522}  # ids of words below this, instead of numbers


def _scaled(model: nn.Module) -> nn.Module:
    """The model with weights that keep the scale of what they read, where `randomise` has none."""
    source = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d | nn.ConvTranspose2d):
            w = layer.weight
            terms = layer.in_channels // layer.groups * np.prod(layer.kernel_size)
            if not isinstance(layer, nn.Conv1d):
                terms /= np.prod(layer.stride)
            w.normal_(0.0, float(terms) ** -0.5, generator=source)
    return model


def _onnx(name: str) -> tuple[bytes, dict[str, Array]]:
    """The file of a network, exported on first use, and its input."""
    make, shape = NETWORKS[name]
    words = WORDS.get(name)
    x = _DRAW.integers(1, words, shape) if words else _DRAW.standard_normal(shape, np.float32)
    files = (Path(__file__), *sorted((Path(__file__).parent / "networks").glob("*.py")))
    source = torch.__version__.encode() + b"".join(path.read_bytes() for path in files)
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
