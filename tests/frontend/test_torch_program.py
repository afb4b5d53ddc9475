"""What the direct importer keeps of a PyTorch program: names, sizes, state, memory, places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorkiln as tk  # noqa: E402 - after the skip
from tensorkiln.base.errors import UnsupportedError, UserError  # noqa: E402
from tensorkiln.frontend import from_torch  # noqa: E402
from tensorkiln.ir.relax import Constant  # noqa: E402
from tensorkiln.ops.evaluate import evaluate  # noqa: E402
from tests.frontend.onnx_models import main  # noqa: E402

nn, Dim = torch.nn, torch.export.Dim
X = torch.arange(6.0).reshape(2, 3)


@dataclass
class Answer:
    logits: Any
    hidden: Any = None


torch.export.register_dataclass(Answer)


class Returns(nn.Module):
    """A module that returns what a function makes of its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, others: Any = None, *, scale: Any = None) -> Any:
        return self.function(x, others, scale)


def names(module: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    attrs = main(module).attrs
    return attrs["input_names"], attrs["output_names"]


OUTPUTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "one": (lambda x, o, s: x + 1, ("output",)),
    "tuple": (lambda x, o, s: (x + 1, x * 2), ("output_0", "output_1")),
    "list": (lambda x, o, s: [x + 1], ("output_0",)),
    "nested": (lambda x, o, s: (x + 1, (x * 2, x)), ("output_0", "output_1.0", "output_1.1")),
    "dict": (lambda x, o, s: {"b": x + 1, "a": x * 2}, ("b", "a")),
    "none": (lambda x, o, s: {"b": x + 1, "c": None}, ("b",)),
    "deep": (lambda x, o, s: {"kv": [(x, x + 1)]}, ("kv.0.0", "kv.0.1")),
    "dataclass": (lambda x, o, s: Answer(x + 1, (x,)), ("logits", "hidden.0")),
    "fields": (lambda x, o, s: Answer(x + 1), ("logits",)),
    "numbers": (lambda x, o, s: (x + 1, x.shape[0], 2.5), ("output_0", "output_1", "output_2")),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_names_of_outputs(case: str) -> None:
    function, expected = OUTPUTS[case]
    assert names(from_torch(Returns(function), (X,))) == (("x",), expected)


def test_names_of_inputs_and_new_ones() -> None:
    net = Returns(lambda x, o, s: x + o[0] + o[1]["k"] + s)
    args = (X, (X, {"k": X}))
    module = from_torch(net, args, {"scale": X})
    assert names(module) == (("x", "others_0", "others_1_k", "scale"), ("output",))
    options = {"input_names": ["a", "b"], "output_names": ["c"]}
    assert names(from_torch(net, args, {"scale": X}, **options)) == (
        ("a", "b", "others_1_k", "scale"),
        ("c",),
    )
    with pytest.raises(UserError, match="'scale' is the name of two"):
        from_torch(net, args, {"scale": X}, input_names=["scale"])


def test_arguments_that_are_no_tensors_are_constants() -> None:
    net = Returns(lambda x, o, s: x * o[0] if o[1] else x)
    module = from_torch(net, (X, (3, True)))
    assert names(module)[0] == ("x",)
    (output,) = evaluate(module, {"x": X.numpy()})
    np.testing.assert_array_equal(output, X.numpy() * 3)


# -- sizes ----------------------------------------------------------------------------------------


def shapes(module: Any) -> list[str]:
    return [
        str([getattr(d, "name", getattr(d, "value", d)) for d in p.type.shape])
        for p in main(module).params
    ]


def test_dimensions_have_the_names_of_their_dims() -> None:
    net = Returns(lambda x, o, s: x @ o)
    args = (torch.ones(4, 5), torch.ones(5, 6))
    for dims in (
        {"x": {0: Dim("rows"), 1: Dim("inner")}, "others": {0: Dim("inner")}},
        ({0: "rows", 1: "inner"}, ("inner", None)),
    ):
        module = from_torch(net, args, dynamic_shapes=dims)
        assert shapes(module) == ["['rows', 'inner']", "['inner', 6]"]
    module = from_torch(net, args, dynamic_shapes=({0: Dim.DYNAMIC}, None))
    assert shapes(module) == ["['x_d0', 5]", "[5, 6]"]
    frozen = from_torch(net, args, dynamic_shapes=({0: "rows"}, None), freeze={"rows": 9})
    assert shapes(frozen) == ["[9, 5]", "[5, 6]"]
    with pytest.raises(UserError, match="no symbolic dimension 'row'"):
        from_torch(net, args, dynamic_shapes=({0: "rows"}, None), freeze={"row": 9})


# What a program makes of a symbolic size, beside torch at other sizes than the example's.
SIZES: dict[str, Any] = {
    "arange": lambda x: torch.arange(x.shape[0], 2 * x.shape[0]) + x.sum(),
    "front": lambda x: x[: x.shape[0] - 1],
    "last": lambda x: x[-1:] + x[x.shape[0] - 1],
    "flat": lambda x: x.reshape(-1),
    "product": lambda x: x * x.shape[0] / x.numel(),
    "root": lambda x: x / x.shape[0] ** 0.5 - x.shape[0] / 7,
    "repeat": lambda x: x.repeat(x.shape[0], 2),
    "expand": lambda x: x[:, None].expand(-1, x.shape[0], -1),
    "full": lambda x: torch.full((x.shape[0], 2), x.shape[0]),
    "mask": lambda x: torch.ones(x.shape[0], x.shape[0]).tril(),
    "pad": lambda x: nn.functional.pad(x, (1, 2, 0, 3)),
    "concat": lambda x: torch.cat([x, x[1:], x.new_zeros(2, 3)]),
    "mean": lambda x: x.mean(0) + x.std(0),
    "softmax": lambda x: (x @ x.T).softmax(0),
    "roll": lambda x: x.roll(1, 0) - x.flip(0),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "nearest": lambda x: nn.functional.interpolate(x[None], scale_factor=2.0),
    "linear": lambda x: nn.functional.interpolate(x.T[None], scale_factor=2.0, mode="linear"),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True
    ),
    "stack": lambda x: torch.stack([x, x + 1], 1).transpose(0, 2),
    "where": lambda x: torch.where(torch.arange(x.shape[0])[:, None] > 1, x, -x),
    "diagonal": lambda x: (x @ x.T).diagonal(),
    "cumsum": lambda x: x.cumsum(0),
    "even": lambda x: x[::2],
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 0, 1),
}


@pytest.mark.parametrize("case", SIZES)
def test_symbolic_sizes(case: str) -> None:
    net = Returns(lambda x, o, s: SIZES[case](x))
    options = {"dynamic_shapes": ({0: Dim("rows", min=3, max=64)},)}
    module = from_torch(net, (torch.randn(5, 3),), **options)
    assert shapes(module) == ["['rows', 3]"]
    for rows in (3, 4, 8):
        x = torch.randn(rows, 3)
        (output,) = evaluate(module, {"x": x.numpy()})
        want = SIZES[case](x)
        assert output.shape == tuple(want.shape)
        assert str(output.dtype) == str(want.dtype)[6:]
        np.testing.assert_allclose(output, want.numpy(), rtol=1e-5, atol=1e-5)


def test_extents_that_are_multiples_of_a_dim() -> None:
    """Half of 2 * n rows are n rows; a number of rows that is odd or too large is refused."""
    net = Returns(lambda x, o, s: x[: x.shape[0] // 2])
    module = from_torch(net, (torch.ones(6, 3),), dynamic_shapes=({0: 2 * Dim("n", max=8)},))
    run = tk.runtime.Executor(tk.compile(module))["main"]
    for rows in (2, 16):
        assert run(np.ones((rows, 3), np.float32)).shape == (rows // 2, 3)
    for rows in (3, 18):
        with pytest.raises(ValueError, match="expected"):
            run(np.ones((rows, 3), np.float32))


# -- state ----------------------------------------------------------------------------------------


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_buffer("fixed", torch.ones(3))

    def forward(self, x: Any) -> Any:
        self.seen.add_(x.sum(0))
        return x + self.seen + self.fixed


def test_buffers_that_change_are_refused_by_name_or_are_arguments() -> None:
    with pytest.raises(UnsupportedError) as caught:
        from_torch(Cache(), (X,))
    (issue,) = caught.value.issues
    assert (issue.kind, issue.node) == ("state", "seen")
    assert 'state="arguments"' in issue.hint
    module = from_torch(Cache(), (X,), state="arguments")
    assert names(module) == (("x", "seen"), ("output", "new_seen"))
    net, state = Cache(), np.zeros(3, np.float32)
    for _ in range(3):
        output, state = evaluate(module, {"x": X.numpy(), "seen": state})
        np.testing.assert_array_equal(output, net(X).numpy())
        np.testing.assert_array_equal(state, net.seen.numpy())


def test_inputs_that_change_are_refused() -> None:
    net = Returns(lambda x, o, s: x.add_(1) * 2)
    with pytest.raises(UnsupportedError, match="the model changes it"):
        from_torch(net, (X.clone(),))


def test_training_is_not_imported() -> None:
    """Modules are set to evaluation; a program that was exported in training is refused."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    from_torch(net, (X,))
    assert net.training and net[1].training
    with torch.no_grad():
        program = torch.export.export(net.train(), (X,))
    with pytest.raises(UnsupportedError, match="random numbers without a seed"):
        from_torch(program)
    with torch.no_grad():
        program = torch.export.export(nn.BatchNorm1d(3).train(), (X,))
    with pytest.raises(UnsupportedError, match="training|changes it"):
        from_torch(program, state="arguments")


# -- memory ---------------------------------------------------------------------------------------


def test_weights_are_views() -> None:
    """Of every element type and layout, also transposed, tied, sliced, and not stored."""
    net = nn.Module()
    base = torch.randn(40, 50)
    net.w = nn.Parameter(base.T)
    net.narrow = nn.Parameter(torch.randn(30, 40).bfloat16())
    net.register_buffer("part", torch.randn(60, 50)[20:], persistent=False)
    net.tied = net.w

    def forward(x: Any) -> Any:
        return x @ net.tied @ net.part, x.bfloat16() @ net.w.bfloat16() @ net.narrow.T

    net.forward = forward
    module = from_torch(net, (torch.ones(2, 50),))
    places = {
        arg.array.__array_interface__["data"][0]
        for binding in main(module).bindings
        for arg in getattr(binding.value, "args", ())
        if isinstance(arg, Constant) and arg.array.size > 1000
    }
    assert places == {t.data_ptr() for t in (net.w, net.narrow, net.part)}


# -- programs, places, refusals -------------------------------------------------------------------


def test_an_exported_program() -> None:
    program = torch.export.export(nn.Linear(3, 2), (X,), dynamic_shapes=({0: Dim("rows", max=9)},))
    module = from_torch(program, freeze=None, input_names=["a"])
    assert names(module) == (("a",), ("output",))
    assert from_torch(program.run_decompositions()).script() is not None
    for options in ({"example_inputs": (X,)}, {"dynamic_shapes": (None,)}, {"via": "onnx"}):
        with pytest.raises(UserError, match="has no use for an ExportedProgram"):
            from_torch(program, **options)


class Inner(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svdvals(x) + torch.fft.rfft(x).tan().real.sum()


def test_refusals_name_the_module_and_the_line() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Inner()))
    with pytest.raises(UnsupportedError) as caught:
        from_torch(net, (torch.ones(3, 3),))
    messages = {issue.op: issue.message for issue in caught.value.issues}
    assert "aten._linalg_svd.default" in messages
    for message in messages.values():
        assert "1.0 (Inner), test_torch_program.py:" in message
    assert any("complex" in message for message in messages.values())


def test_numbers_of_python_that_data_makes() -> None:
    module = from_torch(Returns(lambda x, o, s: x * x.sum().item() + x.max().item()), (X,))
    (output,) = evaluate(module, {"x": X.numpy()})
    np.testing.assert_allclose(output, X.numpy() * 15 + 5)


REFUSED: dict[str, tuple[Any, str]] = {
    "random": (lambda x: x + torch.rand(3), "random numbers without a seed"),
    "complex": (lambda x: torch.complex(x, x).tan().abs(), "complex"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported(case: str) -> None:
    function, says = REFUSED[case]
    with pytest.raises(UnsupportedError, match=says):
        from_torch(Returns(lambda x, o, s: function(x)), (X,))


@pytest.mark.parametrize("space", ["aten", "transformers"])
@pytest.mark.parametrize("rows,ends", [(6, (2, 2, 6)), (3, (0, 1, 3, 3)), (5, (1, 3)), (0, (0,))])
def test_products_of_groups(rows: int, ends: tuple[int, ...], space: str) -> None:
    """Of experts, whose rows are sorted: with empty groups, rows of no group, none at all, and
    fewer rows than groups. The operator of transformers is declared here as there."""
    if space == "transformers" and not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        declared = "transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs)"
        torch.library.define("transformers::grouped_mm_fallback", declared[33:] + " -> Tensor")
        shape = torch.library.register_fake("transformers::grouped_mm_fallback")
        shape(lambda a, b, offs: a.new_empty(a.shape[0], b.shape[2]))

    class Experts(torch.nn.Module):
        def forward(self, a: Any, b: Any, offs: Any) -> Any:
            if space == "transformers":
                return torch.ops.transformers.grouped_mm_fallback(a, b, offs)
            return torch._grouped_mm(a, b, offs=offs)

    # That of ATen is exported for bfloat16 alone.
    dtype = torch.bfloat16 if space == "aten" else torch.float32
    a, b = torch.randn(rows, 8, dtype=dtype), torch.randn(len(ends), 8, 16, dtype=dtype)
    offs = torch.tensor(ends, dtype=torch.int32)
    want = torch.zeros(rows, 16, dtype=torch.float64)
    for k, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
        want[start:end] = a[start:end].double() @ b[k].double()
    arrays = {name: np.from_dlpack(x) for name, x in {"a": a.float(), "b": b.float()}.items()}
    arrays = {name: x.astype(str(dtype).removeprefix("torch.")) for name, x in arrays.items()}
    (output,) = evaluate(from_torch(Experts(), (a, b, offs)), {**arrays, "offs": offs.numpy()})
    loose = 2e-2 if space == "aten" else 1e-5
    np.testing.assert_allclose(output.astype("float64"), want.numpy(), rtol=loose, atol=loose)
