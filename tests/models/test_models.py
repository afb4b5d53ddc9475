# ruff: noqa: E402  what is not installed must be named before it is imported
"""Every model of the zoo: compiled, exported, loaded, right, and as precise as ONNX Runtime.

The default set is small but covers every construct; full-size networks carry the marker
`conformance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import onnx

from tests.models.check import Reference, compare
from tests.models.library import compiled
from tests.rotation import rows_in_turn
from tests.zoo import light
from tests.zoo.export import model_path
from tests.zoo.registry import EXPORTS, NETWORKS, inputs

Array = np.ndarray
INPUTS_EACH = 3

FAST = (
    "mlp",
    "resnet18",
    "mobilenetv2",
    "light_squeezenet",
    "convnext_small",
    "vit_2",
    "bert_2",
    "bert_2-legacy11",
    "gpt2_2",
    "llama_2",
)
BIG = (
    "resnet50",
    "convnext_t",
    "vit_b16",
    "bert",
    "gpt2",
    "squeezenet",
    "densenet121",
    "efficientnet_b0",
    "llama_1",
    "llama_128",
    *(f"light_{name}" for name in light.NAMES if name != "squeezenet"),
    # The same networks as other exporters and opsets write them.
    "mlp-legacy11",
    "resnet18-legacy11",
    "resnet50-legacy17",
    "mobilenetv2-legacy11",
    "convnext_small-legacy13",
    "convnext_small-legacy17",
    "vit_2-legacy14",
    "vit_2-legacy17",
    "bert_2-legacy17",
    "bert_2_sdpa",
    "bert_2_sdpa-opset23",
    "gpt2_2-legacy14",
    "gpt2_2-legacy17",
    "gpt2_2-opset23",
)

# One library, ten shapes: export -> the sizes it is called with, in this order.
BATCHES = tuple({"batch": n} for n in (1, 2, 3, 4, 5, 8, 7, 16, 6, 9))
TOKENS = tuple(
    {"batch": batch, "sequence": sequence}
    for batch, sequence in (
        (1, 128),
        (1, 1),
        (2, 128),
        (3, 17),
        (1, 64),
        (4, 32),
        (1, 100),
        (2, 5),
        (1, 333),
        (8, 16),
    )
)
SHAPES: dict[str, tuple[dict[str, int], ...]] = {
    "resnet18-batch": BATCHES,
    "bert_2-dynamic": TOKENS,
}
BIG_SHAPES: dict[str, tuple[dict[str, int], ...]] = {
    "bert-dynamic": TOKENS,
    "mlp-batch": BATCHES,
    "vit_2-batch": BATCHES,
    "bert_2_sdpa-dynamic": TOKENS,
    "gpt2_2-dynamic": TOKENS,
    "resnet18-legacy17-batch": BATCHES,
    "bert_2-legacy13-dynamic": TOKENS,
    "bert_2_sdpa-legacy17-dynamic": TOKENS,
    "gpt2_2-legacy17-dynamic": TOKENS,
}


def fetch(name: str) -> Path:
    """The ONNX file of a model, exported or filled on first use."""
    return light.light_path(name[len("light_") :]) if name in LIGHT else model_path(name)


LIGHT = frozenset(f"light_{name}" for name in light.NAMES)


def random_inputs(name: str, seed: int, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs of a model in its order."""
    if name not in LIGHT:
        return inputs(NETWORKS[EXPORTS[name].network], seed, **sizes)
    model = onnx.load(fetch(name))
    generator = np.random.default_rng(seed)
    return {
        key: generator.standard_normal(shape, dtype=np.float32)
        for key, shape in light.input_spec(model).items()
    }


def params(fast: Iterable[str], big: Iterable[str]) -> list[object]:
    return [*fast, *(pytest.param(name, marks=pytest.mark.conformance) for name in big)]


def _kind(name: str) -> str:
    """Networks of images or of words, and that of neither: of each some are in every run."""
    images = ("resnet", "mobilenet", "light", "convnext")
    return "images" if name.startswith(images) else "mlp" if name == "mlp" else "words"


@pytest.mark.slow
@pytest.mark.parametrize("name", params(rows_in_turn(FAST, family=_kind), BIG))
def test_model(name: str, tmp_path: Path) -> None:
    """Three random inputs, close to ONNX Runtime; no less precise than 4x its error in the first,
    for networks of conformance in each: float64 takes 20 times as long."""
    path = fetch(name)
    feeds = [random_inputs(name, seed, {}) for seed in range(INPUTS_EACH)]
    precise = 1 if name in FAST else INPUTS_EACH
    library, reference = compiled(path, tmp_path), Reference(path)
    for figures in (
        *compare(library, reference, feeds[:precise]),
        *compare(library, reference, feeds[precise:], float64=False),
    ):
        print(figures.text())


@pytest.mark.slow
@pytest.mark.parametrize("name", params(tuple(SHAPES), tuple(BIG_SHAPES)))
def test_one_library_ten_shapes(name: str, tmp_path: Path) -> None:
    """A library with symbolic dimensions is compiled once and right at ten shapes."""
    path = fetch(name)
    shapes = {**SHAPES, **BIG_SHAPES}[name]
    assert len(shapes) == 10
    feeds = [random_inputs(name, seed, sizes) for seed, sizes in enumerate(shapes)]
    for figures in compare(compiled(path, tmp_path), Reference(path), feeds, float64=False):
        print(figures.text())


def test_zoo_is_covered() -> None:
    """Every export that the zoo registers is tested here, and nothing else is named."""
    named = {*FAST, *BIG, *SHAPES, *BIG_SHAPES}
    assert named == {*EXPORTS, *LIGHT}
