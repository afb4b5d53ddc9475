"""Real models: every exporter's form of a network ends as the same operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tensorkiln.frontend import from_onnx
from tensorkiln.ir.module import IRModule
from tensorkiln.ops.evaluate import evaluate
from tests.transform.graphs import main
from tests.transform.test_random_graphs import PASSES
from tests.zoo.registry import EXPORTS, NETWORKS, inputs

pytest.importorskip("torch")
pytest.importorskip("onnx")

GONE = ("erf", "softmax", "batch_norm", "matmul", "div", "pow", "sqrt", "isnan", "full")
TRANSFORMER = {"attention": 12, "layer_norm": 25, "gelu": 12}
SMALL = {"attention": 2, "layer_norm": 5, "gelu": 2}
BERT = SMALL | {"linear": 13}
GPT2 = SMALL | {"linear": 13, "tanh": 0, "slice": 0, "where": 0}
VIT = SMALL | {"linear": 13, "conv2d": 1, "slice": 1}
CONVNEXT = {"conv2d": 8, "layer_norm": 9, "gelu": 4, "linear": 9, "mul": 0, "mean": 1}
# model -> operators and how often; GONE must not occur at all
COUNTS: dict[str, dict[str, int]] = {
    "mlp": {"linear": 3, "relu": 2},
    "mlp-legacy11": {"linear": 3, "relu": 2},
    "resnet18": {"conv2d": 20, "linear": 1, "relu": 17, "add": 8, "mean": 1},
    "resnet18-legacy11": {"conv2d": 20, "linear": 1, "relu": 17, "add": 8, "mean": 1},
    "resnet18-legacy17-batch": {"conv2d": 20, "linear": 1, "relu": 17, "add": 8, "mean": 1},
    "resnet50-legacy17": {"conv2d": 53, "linear": 1, "relu": 49, "add": 16, "mean": 1},
    "mobilenetv2": {"conv2d": 52, "linear": 1, "clip": 35, "add": 10, "mean": 1},
    "mobilenetv2-legacy11": {"conv2d": 52, "linear": 1, "clip": 35, "add": 10, "mean": 1},
    "convnext_t": {"conv2d": 22, "layer_norm": 23, "gelu": 18, "linear": 37, "mul": 0},
    "convnext_small": CONVNEXT,
    "convnext_small-legacy13": CONVNEXT,
    "convnext_small-legacy17": CONVNEXT,
    "bert": TRANSFORMER | {"linear": 73},
    "bert-dynamic": TRANSFORMER | {"linear": 73},
    "bert_2": BERT,
    "bert_2-dynamic": BERT,
    "bert_2-legacy11": BERT,
    "bert_2-legacy13-dynamic": BERT,
    "bert_2-legacy17": BERT,
    "bert_2_sdpa": BERT,
    "bert_2_sdpa-dynamic": BERT,
    "bert_2_sdpa-legacy17-dynamic": BERT,
    "bert_2_sdpa-opset23": BERT,
    "gpt2": TRANSFORMER | {"linear": 73, "tanh": 0, "slice": 0},
    "gpt2_2": GPT2,
    "gpt2_2-dynamic": GPT2,
    "gpt2_2-legacy14": GPT2,
    "gpt2_2-legacy17": GPT2,
    "gpt2_2-legacy17-dynamic": GPT2,
    "gpt2_2-opset23": GPT2,
    "vit_b16": TRANSFORMER | {"linear": 73, "conv2d": 1, "slice": 1},
    "vit_2": VIT,
    "vit_2-batch": VIT,
    "vit_2-legacy14": VIT,
    "vit_2-legacy17": VIT,
}
LIGHT: dict[str, dict[str, int]] = {
    "densenet121": {"conv2d": 121, "mul": 62, "add": 62},
    "inception_v2": {"conv2d": 69, "mul": 0, "add": 0},
    "resnet50": {"conv2d": 53, "linear": 1, "add": 16, "mul": 0},
    "shufflenet": {"conv2d": 49, "linear": 1, "add": 13, "mul": 0},
    "squeezenet": {"conv2d": 26, "mean": 1, "avg_pool2d": 0},
}
# One of each family, run before and after.
COMPUTED = (
    "bert_2-legacy13-dynamic",
    "bert_2_sdpa-legacy17-dynamic",
    "gpt2_2-dynamic",
    "gpt2_2-legacy17-dynamic",
    "vit_2-batch",
    "vit_2-legacy14",
    "convnext_small-legacy13",
)


def optimised(mod: IRModule) -> IRModule:
    """After every pass, in order."""
    for apply in PASSES:
        mod = apply(mod)
    return mod


def operators(mod: IRModule) -> Counter[str]:
    """How often each operator is called."""
    return Counter(b.value.op for b in main(mod).bindings)  # type: ignore[union-attr]


def assert_counts(
    mod: IRModule, expected: dict[str, int], remaining_ops: tuple[str, ...] = ()
) -> None:
    """`expected` counts; operators of GONE only where `kept` names them."""
    counts = operators(mod)
    assert {op: counts[op] for op in expected} == expected
    assert not [op for op in GONE if counts[op] and op not in remaining_ops], counts


def load(name: str) -> IRModule:
    """An export of the zoo, imported."""
    from tests.zoo.export import model_path

    return from_onnx(model_path(name))


def whole(name: str) -> bool:
    """Whether the model is a full-size one, whose export takes seconds."""
    return EXPORTS[name].network in ("bert", "gpt2", "vit_b16", "convnext_t", "resnet50")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if whole(n) else n for n in COUNTS]
)
def test_counts(name: str) -> None:
    mod = load(name)
    out = optimised(mod)
    assert_counts(out, COUNTS[name])
    causal = [
        b.value.attrs.causal
        for b in main(out).bindings  # type: ignore[union-attr]
        if b.value.op == "attention"
    ]  # type: ignore[union-attr]
    assert set(causal) <= {EXPORTS[name].network.startswith("gpt2")}
    masks = {
        len(b.value.args)
        for b in main(out).bindings  # type: ignore[union-attr]
        if b.value.op == "attention"
    }  # type: ignore[union-attr]
    assert masks <= ({4} if EXPORTS[name].network.startswith("bert") else {3})


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_counts(name: str) -> None:
    from tests.zoo.light import light_path

    assert_counts(optimised(from_onnx(light_path(name))), LIGHT[name], remaining_ops=("softmax",))


@pytest.mark.in_turn()
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
def test_values(name: str) -> None:
    mod = load(name)
    network = NETWORKS[EXPORTS[name].network]
    sizes = {"batch": 2, "sequence": 9} if EXPORTS[name].dynamic else {}
    feeds = inputs(network, 1, **sizes)
    before, after = evaluate(mod, feeds), evaluate(optimised(mod), feeds)
    for a, b in zip(before, after, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-5 * float(np.abs(a).max()))
