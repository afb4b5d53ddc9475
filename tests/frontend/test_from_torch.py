"""PyTorch modules by way of the exporter."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
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
    pytest.importorskip("torch")
    monkeypatch.setattr("tensorkiln.frontend.torch.via_onnx._LARGE", large)
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5)
    )
    net[0].eval()
    x = torch.randn(3, 4)
    rows = torch.export.Dim("rows", min=1)
    options = {"dynamic_shapes": ({0: rows},), "input_names": ["x"]}
    module = from_torch(net, (x,), via="onnx", **options)
    assert [m.training for m in net] == [False, True, True, True]
    net.eval()
    for count in (1, 5):
        data = torch.randn(count, 4)
        (output,) = ours(module, {"x": data.numpy()})
        np.testing.assert_allclose(output, net(data).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert main(module).attrs["input_names"] == ("x",)


@pytest.mark.slow
@pytest.mark.parametrize("via", ["export", "onnx"])
def test_sizes_out_of_the_range_of_their_dim(via: str) -> None:
    """By name, by hint, of an expression, of two inputs; one that is frozen."""
    torch = pytest.importorskip("torch")
    if via == "onnx":
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
        imported = from_torch(net, inputs, dynamic_shapes=dims, via=via)
        run = tk.runtime.Executor(tk.compile(imported))["main"]
        further_arguments = [np.float32(1)] if len(dims) == 2 else []
        for shape in good:
            run(np.ones(shape, np.float32), *further_arguments)
        for shape in bad:
            with pytest.raises(ValueError, match=words) as caught:
                run(np.ones(shape, np.float32), *further_arguments)
            assert isinstance(caught.value, UserError)

    rows = dim("rows", max=64)
    check(({0: rows},), [(1, 6), (64, 6)], [(65, 6), (999, 6)], "rows is .*; expected rows <= 64")
    rows = dim("rows", min=3)
    check(({0: rows},), [(3, 6), (64, 6)], [(1, 6), (2, 6)], "expected rows >= 3")
    bounds = {0: dim("rows", min=2, max=8), 1: dim.DYNAMIC(max=7)}
    check((bounds,), [(2, 7), (8, 1)], [(9, 7), (1, 1), (2, 8)], "expected .* (<=|>=) [278]")
    check(({0: 2 * dim("r", max=4)},), [(2, 6), (8, 6)], [(10, 6)], "<= 8")
    check(({0: dim("rows", max=5)}, {}), [(5, 6)], [(6, 6)], "expected rows <= 5")
    with pytest.raises(UserError, match="frozen to 9, which its Dim does not allow: .* at most 8"):
        from_torch(
            torch.nn.ReLU(),
            (torch.ones(4),),
            dynamic_shapes=({0: dim("n", max=8)},),
            freeze={"n": 9},
            via=via,
        )


# -- what is wrong ---------------------------------------------------------------------------------

torch = pytest.importorskip("torch")
nn, Dim = torch.nn, torch.export.Dim
X = torch.ones(2, 3)
LINEAR = nn.Linear(3, 2)


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1


class Repeats(nn.Module):
    def forward(this, x: Any) -> Any:
        while x.sum() < 10:
            x = x * 2
        return x


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(3, 3), Branch())

    def forward(self, x: Any) -> Any:
        return self.parts(x)


class Named(nn.Module):
    def forward(self, x: Any, *, scale: Any) -> Any:
        return x * scale


class Sum(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


class Raises(nn.Module):
    def forward(self, x: Any) -> Any:
        raise RuntimeError("\x1b[31mno such thing\x1b[0m\nFor more information, ask")


class Values(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svdvals(x)


class Reads(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * float(Path("/no/such/file").read_text())


def nowhere() -> Any:
    return nn.Linear(3, 2, device="meta")


# Refused before torch is asked: module, example inputs, options; code, what is said, the hint.
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str, str, str]] = {
    "a function": (len, (X,), {}, "bad-model", "got a builtin_function", ""),
    "a class": (nn.ReLU, (X,), {}, "bad-model", "got ReLU", "pass an instance, ReLU(...)"),
    "a tensor": (X, (X,), {}, "bad-model", "got a Tensor", ""),
    "no values": (nowhere(), (X,), {}, "bad-model", "weight of Linear is on the", "to_empty"),
    "no sequence": (LINEAR, X, {}, "bad-inputs", "example_inputs is a Tensor", "(x,)"),
    "nothing": (LINEAR, None, {}, "bad-inputs", "example_inputs is a NoneType", "(x,)"),
    "a dict": (LINEAR, {"x": X}, {}, "bad-inputs", "example_inputs is a dict", "(x,)"),
    "an array": (LINEAR, (X.numpy(),), {}, "bad-inputs", "[0] is a ndarray", "from_numpy"),
    "arrays": (Sum(), (X, [X.numpy()]), {}, "bad-inputs", "[1] is a ndarray", "from_numpy"),
    "too few": (Sum(), (X,), {}, "bad-inputs", "Sum.forward(x, y) does not take 1", "one call"),
    "too many": (LINEAR, (X, X), {}, "bad-inputs", "too many positional", "one call"),
    "by name only": (Named(), (X,), {}, "bad-inputs", "argument: 'scale'", "kwargs those"),
    **{
        case_name: (Named() if "kwargs" in settings else LINEAR, (X,), settings, *further_options)
        for case_name, settings, *further_options in [
            ("kwargs, a list", {"kwargs": [X]}, "bad-inputs", "kwargs is a list", ""),
            (
                "kwargs, an array",
                {"kwargs": {"scale": X.numpy()}},
                "bad-inputs",
                "kwargs['scale'] is a ndarray",
                "from_numpy",
            ),
            ("kwargs, a name", {"kwargs": {"scal": X}}, "bad-inputs", "and scal: ", ""),
            ("via", {"via": "onx"}, "bad-option", "via is 'onx'", "did you mean 'onnx'"),
            ("state", {"state": 5}, "bad-option", "state is 5", ""),
            (
                "state by onnx",
                {"state": "arguments", "via": "onnx"},
                "bad-option",
                'needs via="export"',
                "",
            ),
            (
                "shapes for names",
                {"kwargs": {"scale": X}, "dynamic_shapes": ({0: "b"},)},
                "bad-dynamic-shapes",
                "a dict by the names",
                "",
            ),
            (
                "no identifier",
                {"dynamic_shapes": ({0: "a b"},)},
                "bad-dynamic-shapes",
                "'a b' is no identifier",
                "",
            ),
        ]
    },
    "names, a number": (LINEAR, (X,), {"input_names": 5}, "bad-names", "input_names is 5", ""),
    "names, a text": (LINEAR, (X,), {"output_names": "y"}, "bad-names", "names is 'y'", ""),
    "names twice": (Sum(), (X, X), {"input_names": ["a", "a"]}, "bad-names", "'a' twice", ""),
    **{
        f"shapes {case_name}": (
            Sum(),
            (X, X),
            {"dynamic_shapes": settings},
            "bad-dynamic-shapes",
            says,
            hint,
        )
        for case_name, settings, says, hint in [
            ("type", 5, "got a int", ""),
            ("name", {"xx": {0: Dim("b")}}, "no argument 'xx'", "did you mean 'x'"),
            ("too many", ({0: Dim("b")},) * 3, "3 entries for 2", ""),
            ("too few", ({0: Dim("b")},), "1 entries for 2", ""),
            ("axis", (None, {2: Dim("b")}), "dynamic_shapes[1]: there is no axis 2", ""),
            ("axis by name", {"y": {-3: "b"}}, "dynamic_shapes['y']: there is no axis -3", ""),
            ("axis, a text", ({"b": 0}, None), "there is no axis 'b'", ""),
            ("rank", ((None, None, "b"), None), "there is no axis 2", ""),
        ]
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments(case: str) -> None:
    module, inputs, options, code, says, hint = REFUSED[case]
    with pytest.raises(UserError) as caught:
        from_torch(module, inputs, **options)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert hint in caught.value.hint


# Failures of torch's own steps: module, inputs, options; what is said, the cause.
FAILURES: dict[str, tuple[Any, Any, dict[str, Any], str, str]] = {
    "branch": (Branch(), (X,), {}, "in forward, test_from_torch.py:", "GuardOnDataDependent"),
    "loop": (Repeats(), (X,), {}, "in forward, test_from_torch.py:", "GuardOnDataDependent"),
    "submodule": (Deep(), (X,), {}, "in parts.1 (Branch), forward, test_from", "GuardOnData"),
    "raises": (Raises(), (X,), {}, "RuntimeError: no such thing\n  hint", "RuntimeError"),
    "reads": (Reads(), (X,), {}, "FileNotFoundError: ", "FileNotFoundError"),
    "shape": (LINEAR, (torch.ones(2, 4),), {}, "Linear: in forward, linear.py:", "RuntimeError"),
    "text": (LINEAR, ("x",), {}, "must be Tensor, not str", "TypeError"),
    "none": (LINEAR, (None,), {}, "must be Tensor, not NoneType", "TypeError"),
    "devices": (Sum(), (X, X.to("meta")), {}, "at least two devices", "Device"),
    "script": (torch.jit.trace(LINEAR, X), (X,), {}, "ScriptModule", "Error"),
    "shapes entry": (LINEAR, (X,), {"dynamic_shapes": (5,)}, "dynamic_shapes", "Error"),
}


@pytest.mark.slow
@pytest.mark.parametrize("via", ["export", "onnx"])
@pytest.mark.parametrize("case", FAILURES)
def test_failures_of_torch(
    case: str, via: str, capfd: Any, recwarn: pytest.WarningsRecorder
) -> None:
    if via == "onnx":
        pytest.importorskip("onnxscript")
    module, inputs, options, says, cause = FAILURES[case]
    with pytest.raises(UserError, match="torch cannot export") as caught:
        from_torch(module, inputs, via=via, **options)
    assert caught.value.code == "export-failed"
    text = str(caught.value)
    assert says in text
    assert cause in type(caught.value.__cause__).__name__
    assert type(caught.value.__cause__).__module__.partition(".onnx")[1] == ""
    assert "\x1b" not in text and "This is step" not in text and len(text.splitlines()) < 7
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


class Halves(torch.nn.Module):
    """Refuses odd sizes, as networks do that halve a picture and join it with itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(nn.functional.max_pool2d(x, 2), scale_factor=2) + x


def test_sizes_that_torch_suggests() -> None:
    options: dict[str, Any] = {"dynamic_shapes": ({3: Dim("w", min=4)},)}
    with pytest.raises(UserError, match="torch cannot export Halves") as caught:
        from_torch(Halves(), (torch.ones(1, 1, 8, 8),), **options)
    assert caught.value.hint.startswith("torch suggests _w = Dim('_w'")
    assert "w = 2*_w; this error's __cause__" in caught.value.hint
    assert "oo" not in caught.value.hint and "Suggested" not in str(caught.value)
    options = {"dynamic_shapes": ({3: 2 * Dim("_w", min=2)},)}
    assert from_torch(Halves(), (torch.ones(1, 1, 8, 8),), **options)["main"]


@pytest.mark.slow
def test_an_operator_that_torch_cannot_export(recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("onnxscript")
    for module, dtype in (
        (Values(), torch.float32),
        (nn.Linear(3, 2, dtype=torch.complex64), torch.complex64),
    ):
        with pytest.raises(UnsupportedError) as caught:
            from_torch(module, (X.to(dtype),), via="onnx")
        (issue,) = caught.value.issues
        assert (issue.kind, issue.op[:5]) == ("operator", "aten.")
        assert "torch cannot export it to ONNX" in issue.message
        assert "No ONNX function" in str(caught.value.__cause__)
    assert not recwarn.list


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dynamic_shapes": ({1: Dim("b")},)}, "'b' cannot stay open: the module takes 3"),
        ({"input_names": ["a", "b"]}, "input_names holds 2 names, expected at most 1: 'b'"),
        ({"output_names": ["a", "b"]}, "output_names holds 2 names, expected at most 1: 'b'"),
    ],
)
@pytest.mark.parametrize("via", ["export", "onnx"])
def test_what_the_module_has_no_use_for(options: dict[str, Any], says: str, via: str) -> None:
    if via == "onnx":
        pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match=re.escape(says)):
        from_torch(LINEAR, (X,), via=via, **options)


@pytest.mark.slow
@pytest.mark.parametrize("via", ["export", "onnx"])
def test_success_says_nothing(via: str, capfd: Any, recwarn: pytest.WarningsRecorder) -> None:
    if via == "onnx":
        pytest.importorskip("onnxscript")
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), Branchless()
    )
    from_torch(net, [torch.ones(1, 3, 8, 8)], via=via)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert not logging.root.manager.disable


class Branchless(nn.Module):
    def forward(self, x: Any) -> Any:
        warnings.warn("not of anybody's interest", stacklevel=1)
        print("neither is this")
        return torch.where(x.sum() > 0, x + 1, x - 1)


def test_without_the_exporter_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*args: Any, **options: Any) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")

    monkeypatch.setattr(torch.onnx, "export", lacking)
    with pytest.raises(UserError, match="not installed: onnxscript") as caught:
        from_torch(LINEAR, (X,), via="onnx")
    assert caught.value.code == "missing-package"
    assert "tensorkiln[torch]" in caught.value.hint
