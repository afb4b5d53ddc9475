"""Every network of the zoo and every export of it, as literal tables. Needs no torch to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Array = np.ndarray
Role = Literal["image", "ids", "mask", "types", "features"]


@dataclass(frozen=True, slots=True)
class Input:
    """One model input: `shape` entries that are strings are symbols bound by `Network.sizes`."""

    name: str
    role: Role
    shape: tuple[int | str, ...]
    limit: int = 0  # ids are drawn below it


@dataclass(frozen=True, slots=True)
class Network:
    """A torch class, what it takes and returns; `sizes` are the defaults of symbols."""

    name: str
    module: str
    factory: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    arguments: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Export:
    """One ONNX file of a network: exporter, opset (None: its default), what is symbolic.

    `dynamic` maps an input's name to axis -> symbol; None exports static shapes.
    """

    name: str
    network: str
    dynamo: bool = True
    opset: int | None = None
    dynamic: Mapping[str, Mapping[int, str]] | None = None


def _image(
    name: str, module: str, factory: str, arguments: dict[str, object] | None = None
) -> Network:
    image = Input("x", "image", ("batch", 3, 224, 224))
    return Network(name, module, factory, (image,), ("logits",), {"batch": 1}, arguments or {})


_BERT_INPUTS = (
    Input("input_ids", "ids", ("batch", "sequence"), 30522),
    Input("attention_mask", "mask", ("batch", "sequence")),
    Input("token_type_ids", "types", ("batch", "sequence"), 2),
)
_BERT_OUTPUTS = ("last_hidden_state", "pooler_output")
_GPT2_INPUTS = (Input("input_ids", "ids", ("batch", "sequence"), 50257),)


def _bert(name: str, layers: int, sdpa: bool) -> Network:
    arguments = {"layers": layers, "sdpa": sdpa}
    sizes = {"batch": 1, "sequence": 128}
    return Network(name, "bert", "Bert", _BERT_INPUTS, _BERT_OUTPUTS, sizes, arguments)


def _gpt2(name: str, layers: int) -> Network:
    sizes = {"batch": 1, "sequence": 64}
    return Network(name, "gpt2", "Gpt2", _GPT2_INPUTS, ("logits",), sizes, {"layers": layers})


def _llama(name: str, layers: int, vocabulary: int, sequence: int) -> Network:
    ids = Input("input_ids", "ids", ("batch", "sequence"), vocabulary)
    sizes = {"batch": 1, "sequence": sequence}
    arguments = {"layers": layers, "vocabulary": vocabulary}
    return Network(name, "llama", "Llama", (ids,), ("logits",), sizes, arguments)


_MLP_INPUT = Input("x", "features", ("batch", 784))
NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("mlp", "mlp", "mlp", (_MLP_INPUT,), ("logits",), {"batch": 1}),
        _image("resnet18", "resnet", "resnet18"),
        _image("resnet50", "resnet", "resnet50"),
        _image("mobilenetv2", "mobilenet", "MobileNetV2"),
        _image("convnext_t", "convnext", "ConvNeXt"),
        _image("convnext_small", "convnext", "ConvNeXt", {"depths": (1, 1, 1, 1)}),
        _image("vit_b16", "vit", "VisionTransformer"),
        _image("vit_2", "vit", "VisionTransformer", {"layers": 2}),
        _bert("bert", 12, sdpa=False),
        _bert("bert_2", 2, sdpa=False),
        _bert("bert_2_sdpa", 2, sdpa=True),
        _gpt2("gpt2", 12),
        _gpt2("gpt2_2", 2),
        _image("squeezenet", "squeezenet", "SqueezeNet"),
        _image("densenet121", "densenet", "DenseNet"),
        _image("efficientnet_b0", "efficientnet", "EfficientNet"),
        _llama("llama_1", 8, 32000, sequence=1),
        _llama("llama_128", 8, 32000, sequence=128),
        _llama("llama_2", 2, 1000, sequence=24),
    )
}

_BATCH = {"x": {0: "batch"}}
_TOKENS = {entry.name: {0: "batch", 1: "sequence"} for entry in _BERT_INPUTS}
_GPT2_TOKENS = {"input_ids": {0: "batch", 1: "sequence"}}

EXPORTS: dict[str, Export] = {
    export.name: export
    for export in (
        *(Export(name, name) for name in NETWORKS),
        Export("mlp-batch", "mlp", dynamic=_BATCH),
        Export("resnet18-batch", "resnet18", dynamic=_BATCH),
        Export("bert-dynamic", "bert", dynamic=_TOKENS),
        Export("bert_2-dynamic", "bert_2", dynamic=_TOKENS),
        Export("bert_2_sdpa-dynamic", "bert_2_sdpa", dynamic=_TOKENS),
        Export("gpt2_2-dynamic", "gpt2_2", dynamic=_GPT2_TOKENS),
        Export("vit_2-batch", "vit_2", dynamic=_BATCH),
        Export("bert_2_sdpa-opset23", "bert_2_sdpa", opset=23),
        Export("gpt2_2-opset23", "gpt2_2", opset=23),
        Export("mlp-legacy11", "mlp", dynamo=False, opset=11),
        Export("resnet18-legacy11", "resnet18", dynamo=False, opset=11),
        Export(
            "resnet18-legacy17-batch",
            "resnet18",
            dynamo=False,
            opset=17,
            dynamic=_BATCH,
        ),
        Export("resnet50-legacy17", "resnet50", dynamo=False, opset=17),
        Export("mobilenetv2-legacy11", "mobilenetv2", dynamo=False, opset=11),
        Export("convnext_small-legacy13", "convnext_small", dynamo=False, opset=13),
        Export("convnext_small-legacy17", "convnext_small", dynamo=False, opset=17),
        Export("vit_2-legacy14", "vit_2", dynamo=False, opset=14),
        Export("vit_2-legacy17", "vit_2", dynamo=False, opset=17),
        Export("bert_2-legacy11", "bert_2", dynamo=False, opset=11),
        Export("bert_2-legacy13-dynamic", "bert_2", dynamo=False, opset=13, dynamic=_TOKENS),
        Export("bert_2-legacy17", "bert_2", dynamo=False, opset=17),
        Export("bert_2_sdpa-legacy17-dynamic", "bert_2_sdpa", False, 17, _TOKENS),
        Export("gpt2_2-legacy14", "gpt2_2", dynamo=False, opset=14),
        Export("gpt2_2-legacy17", "gpt2_2", dynamo=False, opset=17),
        Export("gpt2_2-legacy17-dynamic", "gpt2_2", False, 17, _GPT2_TOKENS),
    )
}


def inputs(network: Network, seed: int, **sizes: int) -> dict[str, Array]:
    """Random inputs in the model's order; `sizes` override the default value of a symbol."""
    sizes_by_symbol = {**network.sizes, **sizes}
    generator = np.random.default_rng(seed)
    return {
        entry.name: _fill(entry, _shape(entry, sizes_by_symbol), generator)
        for entry in network.inputs
    }


def _shape(entry: Input, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[d] if isinstance(d, str) else d for d in entry.shape)


def _fill(entry: Input, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if entry.role in ("ids", "types"):
        return generator.integers(0, entry.limit, shape, dtype=np.int64)
    if entry.role == "mask":  # every row attends to a prefix of at least half of its positions
        lengths = generator.integers(max(1, shape[1] // 2), shape[1] + 1, (shape[0], 1))
        return (np.arange(shape[1])[None, :] < lengths).astype(np.int64)
    return generator.standard_normal(shape, dtype=np.float32)
