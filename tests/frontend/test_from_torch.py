"""PyTorch modules by way of the exporter."""

from __future__ import annotations

import sys

import numpy as np
import pytest

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
