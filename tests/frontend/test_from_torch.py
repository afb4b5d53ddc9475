"""PyTorch modules by way of the exporter."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.frontend import from_torch
from tests.frontend.onnx_models import main, ours


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError) as caught:
        from_torch(object(), ())
    assert caught.value.code == "missing-package"
    assert "tensorkiln[torch]" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("large", [1 << 29, 0])
def test_a_module_and_its_training_flag(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small modules go through memory, large ones through a file."""
    monkeypatch.setattr("tensorkiln.frontend.torch._LARGE", large)
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5)
    )
    net[0].eval()
    x = torch.randn(3, 4)
    rows = torch.export.Dim("rows", min=1)
    module = from_torch(net, (x,), dynamic_shapes=({0: rows},), input_names=["x"])
    assert [m.training for m in net] == [False, True, True, True]
    net.eval()
    for count in (1, 5):
        data = torch.randn(count, 4)
        (got,) = ours(module, {"x": data.numpy()})
        np.testing.assert_allclose(got, net(data).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert main(module).attrs["input_names"] == ("x",)


@pytest.mark.slow
def test_sizes_out_of_the_range_of_their_dim() -> None:
    """By name, by hint, of an expression, of two inputs; one that is frozen."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    dim = torch.export.Dim

    class Add(torch.nn.Module):
        def forward(self, x, y):  # noqa: ANN001, ANN202
            return x.sum(dim=1) + y

    def check(dims, good, bad, words: str) -> None:  # noqa: ANN001
        inputs = (
            tuple(torch.ones(4, 6) for _ in range(2)) if len(dims) == 2 else (torch.ones(4, 6),)
        )
        inputs = inputs if len(dims) == 1 else (inputs[0], torch.ones(()))
        net = torch.nn.ReLU() if len(dims) == 1 else Add()
        run = tk.runtime.Executor(tk.compile(from_torch(net, inputs, dynamic_shapes=dims)))["main"]
        rest = [np.float32(1)] if len(dims) == 2 else []
        for shape in good:
            run(np.ones(shape, np.float32), *rest)
        for shape in bad:
            with pytest.raises(ValueError, match=words) as caught:
                run(np.ones(shape, np.float32), *rest)
            assert isinstance(caught.value, UserError)

    rows = dim("rows", max=64)
    check(({0: rows},), [(1, 6), (64, 6)], [(65, 6), (999, 6)], "rows is .*; expected rows <= 64")
    rows = dim("rows", min=3)
    check(({0: rows},), [(3, 6), (64, 6)], [(1, 6), (2, 6)], "expected rows >= 3")
    both = {0: dim("rows", min=2, max=8), 1: dim.DYNAMIC(max=7)}
    check((both,), [(2, 7), (8, 1)], [(9, 7), (1, 1), (2, 8)], "expected .* (<=|>=) [278]")
    check(({0: 2 * dim("r", max=4)},), [(2, 6), (8, 6)], [(10, 6)], "<= 8")
    check(({0: dim("rows", max=5)}, {}), [(5, 6)], [(6, 6)], "expected rows <= 5")
    with pytest.raises(UserError, match="frozen to 9, which its Dim does not allow: .* at most 8"):
        from_torch(
            torch.nn.ReLU(),
            (torch.ones(4),),
            dynamic_shapes=({0: dim("n", max=8)},),
            freeze={"n": 9},
        )


def test_wrong_arguments() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match="got Tensor"):
        from_torch(torch.ones(2), ())

    class Branch(torch.nn.Module):
        def forward(self, x):  # noqa: ANN001, ANN202
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(UserError, match="torch cannot export Branch") as caught:
        from_torch(Branch(), (torch.ones(2),))
    assert caught.value.code == "export-failed"
