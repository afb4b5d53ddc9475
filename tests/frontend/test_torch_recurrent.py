"""Recurrent modules of torch, of given and of symbolic lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorkiln as tk  # noqa: E402 - after the skip
from tensorkiln.frontend import from_torch  # noqa: E402
from tensorkiln.ops.evaluate import evaluate  # noqa: E402

nn = torch.nn
STEPS, SAMPLES, IN, SIZE = 4, 3, 5, 2
MODULES = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}

# Of layers, directions, biases and samples first, each pair of values at least once.
PAIRWISE = ((1, False, True, False), (1, True, False, True), (2, False, False, False))
PAIRWISE += ((2, True, True, True), (2, True, False, False))


class Whole(nn.Module):
    """A recurrent module with all of its results, and states that are given or not."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        make, extra_options = MODULES[kind]
        torch.manual_seed(0)
        self.inner = make(IN, SIZE, **extra_options, **options)

    def forward(self, x: Any, *state: Any) -> Any:
        state_arguments = (state,) if len(state) == 2 else state
        y, last = self.inner(x, *state_arguments)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def close(result: Any, want: Any) -> None:
    for a, b in zip(result, want, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(np.asarray(a), b.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", MODULES)
def test_every_option(kind: str) -> None:
    """Layers, directions, biases, where samples are, one sample without a dimension, states."""
    for layers, bidirectional, bias, first in PAIRWISE:
        options = {
            "num_layers": layers,
            "bidirectional": bidirectional,
            "bias": bias,
            "batch_first": first,
        }
        net = Whole(kind, options).eval()
        alone, stated = layers == 2 and not bidirectional, bidirectional or bias
        shape = (STEPS, IN) if alone else (SAMPLES, STEPS, IN) if first else (STEPS, SAMPLES, IN)
        states = (layers * (2 if bidirectional else 1), *(() if alone else (SAMPLES,)), SIZE)
        count = (2 if kind == "lstm" else 1) if stated else 0
        args = (torch.randn(shape), *(torch.randn(states) for _ in range(count)))
        module = from_torch(net, args)
        names = module["main"].params
        feeds = {p.name: a.numpy() for p, a in zip(names, args, strict=True)}
        close(evaluate(module, feeds), net(*args))


@pytest.mark.parametrize("kind", MODULES)
def test_lengths_and_samples_that_are_symbolic(kind: str) -> None:
    """One import for all of them; torch would export a copy of the cell for each step."""
    net = Whole(kind, {"num_layers": 2, "bidirectional": True}).eval()
    steps, samples = torch.export.Dim("steps", max=999), torch.export.Dim("samples", max=99)
    sizes = ({0: steps, 1: samples},)
    module = from_torch(net, (torch.randn(7, 3, IN),), dynamic_shapes=sizes)
    call = tk.runtime.Executor(tk.compile(module, "native"))["main"]
    for t, n in ((7, 3), (2, 1), (150, 4), (1, 2)):
        x = torch.randn(t, n, IN)
        close(call(x), net(x))


def test_projections_stay_as_torch_unrolls_them() -> None:
    net = Whole("lstm", {"proj_size": 1}).eval()
    x = torch.randn(STEPS, SAMPLES, IN)
    close(evaluate(from_torch(net, (x,)), {"x": x.numpy()}), net(x))


def test_functions_of_torch_are_what_they_were() -> None:
    """After an import, and after one that failed."""
    before = {name: getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    from_torch(Whole("gru", {}).eval(), (torch.randn(2, 1, IN),))
    with pytest.raises(tk.base.errors.UserError):
        from_torch(Whole("gru", {}).eval(), (torch.randn(2, 1, IN + 1),))
    assert {name: getattr(torch._VF, name) for name in before} == before
