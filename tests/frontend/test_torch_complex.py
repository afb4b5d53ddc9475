"""Complex numbers of torch's programs: each operator on them, and models that have them, against
torch in complex128."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.export import Dim  # noqa: E402 - after the skip
from torch.fx import Graph  # noqa: E402

import tensorkiln as tk  # noqa: E402
from tensorkiln.base.errors import UnsupportedError  # noqa: E402
from tensorkiln.frontend.torch import aten_complex  # noqa: E402
from tensorkiln.frontend.torch.importer import GraphInterface, import_graph  # noqa: E402
from tensorkiln.ops.evaluate import evaluate  # noqa: E402

F = torch.nn.functional
_RNG = np.random.default_rng(3)


def c(*shape: int) -> Any:
    """Complex numbers."""
    return torch.complex(r(*shape), r(*shape))


def r(*shape: int) -> Any:
    return torch.from_numpy(np.asarray(_RNG.normal(size=shape)))


def i(*values: Any) -> Any:
    return torch.tensor(values)


def m(*shape: int) -> Any:
    return torch.from_numpy(np.asarray(_RNG.random(shape) < 0.5))


SPECIAL = torch.tensor(
    [0, 1, -1, 1j, -1j, -2 - 0.5j, 3e200 + 4e200j, 3e-200j], dtype=torch.complex128
)
WIDE: dict[str, Any] = {"dtype": torch.complex128}

# Arguments by operator; a dictionary at the end has options.
CASES: dict[str, list[tuple[Any, ...]]] = {
    "view_as_complex": [(r(3, 2),), (r(2, 3, 4, 2),), (r(2),)],
    "view_as_real": [(c(3, 4),), (c(),)],
    "complex": [(r(3), r(3)), (r(2, 1), r(3)), (r(), r(2))],
    "polar": [(r(3).abs(), r(3)), (r(2, 1).abs(), r(3))],
    "_conj": [(c(2, 3),)],
    "_conj_physical": [(c(2, 3),)],
    "conj_physical": [(c(2, 3),), (r(4),)],
    "angle": [(c(2, 3),), (r(4),), (SPECIAL,), (torch.tensor([0.0, -1, torch.nan]).double(),)],
    "sgn": [(c(2, 3),), (SPECIAL[:6],)],
    "_fft_r2c": [
        (r(3, 8), [1], 0, True),
        (r(3, 7), [1], 1, False),
        (r(3, 7), [1], 2, True),
        (r(3, 6), [0], 0, True),
        (r(2, 4, 5), [1, 2], 1, True),
        (r(2, 4, 5), [2, 0, 1], 0, False),
        (r(2, 1), [1], 0, True),
    ],
    "_fft_c2c": [
        (c(3, 8), [1], 0, True),
        (c(3, 8), [1], 2, False),
        (c(2, 4, 5), [0, 2], 1, True),
        (c(2, 4, 5), [0, 1, 2], 2, False),
    ],
    "_fft_c2r": [
        (c(3, 5), [1], 2, 8),
        (c(3, 5), [1], 0, 9),
        (c(4, 3, 5), [0, 2], 2, 8),
        (c(4, 3, 5), [1], 1, 4),
        (c(4, 1), [1], 2, 1),
    ],
    "abs": [
        (c(2, 3),),
        (SPECIAL,),
        (torch.tensor([complex(torch.inf, -torch.inf), complex(torch.inf, 1), torch.nan]),),
    ],
    "_to_copy": [(c(3), WIDE), (r(3), WIDE), (i(1, 2), WIDE), (c(3), {"dtype": torch.float64})],
    "mul.Tensor": [
        (c(2, 3), c(3)),
        (c(2, 3), r(3)),
        (r(2, 3), c(3)),
        (c(2), 2),
        (r(2), 1 + 2j),
        (c(2), 1 - 2j),
        (c(2), i(2, 3)),
    ],
    "mul.Scalar": [(c(2), 2.5), (c(2), 1j)],
    "div.Tensor": [
        (c(2, 3), c(3)),
        (c(2, 3), r(3)),
        (r(3), c(3)),
        (c(2), 2),
        (SPECIAL[1:], SPECIAL[1:]),
    ],
    "div.Scalar": [(c(2), 2.5), (c(2), 1 - 3j)],
    "reciprocal": [(c(3),)],
    "mm": [(c(2, 3), c(3, 4)), (c(2, 0), c(0, 4))],
    "bmm": [(c(5, 2, 3), c(5, 3, 4))],
    "matmul": [(c(5, 2, 3), c(3, 4)), (c(3), c(3, 4))],
    "mv": [(c(2, 3), c(3))],
    "dot": [(c(3), c(3))],
    "addmm": [(c(4), c(2, 3), c(3, 4)), (c(4), c(2, 3), c(3, 4), {"beta": 2, "alpha": 0.5 - 1j})],
    "baddbmm": [(c(1, 1, 4), c(5, 2, 3), c(5, 3, 4), {"alpha": 3})],
    "linear": [(c(5, 3), c(4, 3), c(4)), (c(5, 3), c(4, 3))],
    "linalg_vector_norm": [(c(2, 3), 2, [1]), (c(2, 3), 1)],
    "eq.Tensor": [(SPECIAL, SPECIAL.flip(0)), (SPECIAL, SPECIAL.clone())],
    "eq.Scalar": [(SPECIAL, 1j), (SPECIAL, 1)],
    "ne.Tensor": [(SPECIAL, SPECIAL.flip(0))],
    "ne.Scalar": [(SPECIAL, 0)],
    "isnan": [(torch.tensor([torch.nan, 1 + torch.nan * 1j, 1j]),)],
    "exp": [(c(2, 3),)],
    "log": [(c(2, 3),)],
    "sqrt": [(c(2, 3),), (SPECIAL[:6],)],
    "pow.Tensor_Scalar": [(c(3), 2), (c(3), 3.0), (c(3), -1), (c(3), 0.5), (c(3), 0)],
    "ones": [([2, 3], WIDE)],
    "ones_like": [(c(2, 3),)],
    "new_ones": [(c(2), [3])],
    "view": [(c(2, 3), [3, 2])],
    "_unsafe_view": [(c(2, 3), [6])],
    "reshape": [(c(2, 3), [6])],
    "squeeze": [(c(2, 1),)],
    "squeeze.dim": [(c(2, 1), 1)],
    "squeeze.dims": [(c(2, 1, 1), [1, 2])],
    "unsqueeze": [(c(2, 3), 1)],
    "permute": [(c(2, 3, 4), [2, 0, 1])],
    "transpose.int": [(c(2, 3), 0, 1)],
    "t": [(c(2, 3),)],
    "expand": [(c(2, 1), [2, 4])],
    "cat": [([c(2, 3), c(2, 1)], 1), ([c(2), r(3)],)],
    "stack": [([c(2), c(2)], 1)],
    "slice.Tensor": [(c(5), 0, 1, 4, 2)],
    "select.int": [(c(2, 3), 1, -1)],
    "split_with_sizes": [(c(5), [2, 3])],
    "split.Tensor": [(c(5), 2)],
    "unbind.int": [(c(2, 3), 1)],
    "flip": [(c(2, 3), [1])],
    "roll": [(c(2, 3), [1, 1], [0, 1])],
    "repeat": [(c(2), [2, 2])],
    "diagonal": [(c(3, 3),)],
    "as_strided": [(c(6), [2, 2], [2, 1], 1)],
    "unfold": [(c(6), 0, 3, 1)],
    "clone": [(c(2),)],
    "alias": [(c(2),)],
    "detach": [(c(2),)],
    "lift_fresh_copy": [(c(2),)],
    "index_select": [(c(3, 2), 0, i(2, 0))],
    "index.Tensor": [(c(3, 2), [i(2, 0)])],
    "_unsafe_index.Tensor": [(c(3, 2), [i(2, 0)])],
    "gather": [(c(3, 2), 1, i([0], [1], [1]))],
    "embedding": [(c(3, 2), i(2, 0))],
    **{
        f"{kind}_pad{n}d": [(c(*[2, 3, 4, 5][: n + 1]), [1] * 2 * n)]
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    "neg": [(c(2),)],
    "_neg_view": [(c(2),)],
    "sum": [(c(2, 3),)],
    "sum.dim_IntList": [(c(2, 3), [1], True)],
    "mean": [(c(2, 3),)],
    "mean.dim": [(c(2, 3), [0])],
    "cumsum": [(c(2, 3), 1)],
    "add.Tensor": [(c(2, 3), c(3)), (c(1, 3), r(2, 3)), (c(2), 1 + 2j), (c(2), 3, {"alpha": 2})],
    "add.Scalar": [(c(2), 1j), (r(2), 1 + 1j)],
    "sub.Tensor": [(r(2, 3), c(3)), (c(2), 1 + 2j)],
    "sub.Scalar": [(c(2), 1j)],
    "rsub.Tensor": [(c(2), c(2))],
    "rsub.Scalar": [(c(2), 1j)],
    "copy": [(c(2, 3), c(3)), (c(2), r(2))],
    "slice_scatter": [(c(5), c(2), 0, 1, 3)],
    "select_scatter": [(c(2, 3), c(2), 1, 0)],
    "full_like": [(c(2), 1 + 2j)],
    "fill.Scalar": [(c(2), 1 + 2j)],
    "fill.Tensor": [(c(2), c())],
    "zeros": [([2], WIDE)],
    "zeros_like": [(c(2),)],
    "new_zeros": [(c(2), [3])],
    "constant_pad_nd": [(c(2, 3), [1, 2]), (c(3), [1, 0], 1 - 2j)],
    "where.self": [(m(2, 3), c(2, 3), c(3))],
    "masked_fill.Scalar": [(c(2, 3), m(2, 3), 0), (c(3), m(3), 2j)],
    "masked_fill.Tensor": [(c(2, 3), m(2, 3), c())],
    "index_put": [(c(4, 2), [i(2, 0)], c(2))],
    "_unsafe_index_put": [(c(4, 2), [i(2, 2)], c(2, 2), True)],
    "scatter.src": [(c(3, 2), 0, i([2, 1]), c(1, 2))],
    "scatter_add": [(c(3, 2), 0, i([2, 1]), c(1, 2))],
    "index_add": [(c(3, 2), 0, i(2, 2), c(2, 2))],
    "index_copy": [(c(3, 2), 0, i(2, 0), c(2, 2))],
    "full": [([2, 2], 1 + 2j), ([2], 3, WIDE)],
    "new_full": [(c(2), [3], 2j)],
    "scalar_tensor": [(2 - 1j, WIDE)],
}
# What new memory holds is not specified.
UNSPECIFIED = {"empty.memory_format", "empty_strided", "empty_permuted", "empty_like", "new_empty"}


def target_of(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def of_type(value: Any, wide: bool) -> Any:
    """Arguments in complex128, or with all of it as complex64."""
    narrow = {torch.complex128: torch.complex64, torch.float64: torch.float32}
    if isinstance(value, list):
        return [of_type(v, wide) for v in value]
    if isinstance(value, dict):
        return {k: v if wide else narrow.get(v, v) for k, v in value.items()}
    if isinstance(value, torch.Tensor) and not wide:
        return value.to(narrow.get(value.dtype, value.dtype))
    return value


def results(
    name: str, args: list[Any], options: dict[str, Any]
) -> tuple[list[np.ndarray], list[Any]]:
    """What the import of one call computes, and torch's results; complex tensors are passed and
    returned as their parts."""
    graph, feeds = Graph(), {}

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        name = f"x{len(feeds)}"
        node = graph.placeholder(name)
        feeds[name] = torch.view_as_real(value) if value.is_complex() else value
        node.meta["val"] = feeds[name]
        return called("view_as_complex", node, value) if value.is_complex() else node

    def called(op: str, node: Any, value: Any) -> Any:
        call_node = graph.call_function(target_of(op), (node,))
        call_node.meta["val"] = value
        return call_node

    places = [put(a) for a in args]
    call = graph.call_function(target_of(name), tuple(places), options)
    call.meta["val"] = target_of(name)(*args, **options)
    call_value = call.meta["val"]
    several, outs = list(call_value) if isinstance(call_value, tuple | list) else [call_value], []
    for k, value in enumerate(several):
        out = call
        if len(several) > 1 or isinstance(call_value, tuple | list):
            out = graph.call_function(operator.getitem, (call, k))
            out.meta["val"] = value
        if value.is_complex():
            several[k] = torch.view_as_real(value.resolve_conj().resolve_neg())
            out = called("view_as_real", out, several[k])
        outs.append(out)
    graph.output(tuple(outs))
    names = {n: n for n in feeds}
    interface = GraphInterface({}, names, {k: f"y{k}" for k in range(len(outs))})
    module = import_graph(SimpleNamespace(graph=graph), interface, name="one")
    return evaluate(module, {n: x.resolve_neg().numpy() for n, x in feeds.items()}), several


@pytest.mark.parametrize("wide", [True, False], ids=["complex128", "complex64"])
def test_operators(wide: bool) -> None:
    for name, rows in CASES.items():
        for row in rows:
            options = row[-1] if isinstance(row[-1], dict) else {}
            args = list(row[:-1] if options else row)
            if not wide and any(a is SPECIAL or getattr(a, "_base", None) is SPECIAL for a in args):
                continue  # beyond the range of float32
            mine, torch_results = results(name, of_type(args, wide), of_type(options, wide))
            for output, want in zip(mine, torch_results, strict=True):
                assert str(output.dtype) == str(want.dtype).removeprefix("torch."), name
                tolerance = 1e-12 if wide else 2e-5
                np.testing.assert_allclose(
                    output,
                    want.resolve_neg().numpy(),
                    rtol=tolerance,
                    atol=tolerance,
                    err_msg=f"{name}{row}",
                )


def test_every_operator_on_complex_numbers_is_in_the_table() -> None:
    tables = (aten_complex.TABLE, aten_complex.OVERLOADS, aten_complex.PART_WISE)
    other_operators = {"prims::convert_element_type"}
    assert CASES.keys() | UNSPECIFIED | other_operators == set().union(*tables)


# -- models ---------------------------------------------------------------------------------------


class Calls(torch.nn.Module):
    """Several functions of one tensor."""

    def __init__(self, functions: list[Callable[[Any], Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Any) -> Any:
        return tuple(f(x) for f in self.functions)


WEIGHTS = c(4, 4, 5)
WEIGHTS_2 = c(4, 4, 3, 3)
WINDOW = torch.hann_window(8, dtype=torch.float64)
TURNS = torch.polar(
    torch.ones(6, 4).double(), torch.outer(torch.arange(6), 0.5 ** torch.arange(4)).double()
)


def like(x: Any, value: Any) -> Any:
    """A constant of the model in the precision of its input."""
    if value.is_complex():
        return value.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)
    return value.to(x.dtype)


def fnet(x: Any) -> Any:
    """FNet's mixing of tokens, and a layer behind it."""
    mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
    return F.layer_norm(x + mixed, x.shape[-1:])


def fno(x: Any) -> Any:
    """A layer of a Fourier Neural Operator along one dimension."""
    spectrum = torch.fft.rfft(x)
    out = torch.zeros(2, 4, 9, dtype=spectrum.dtype)
    out[:, :, :5] = torch.einsum("bix,iox->box", spectrum[:, :, :5], like(x, WEIGHTS))
    return torch.fft.irfft(out, n=x.shape[-1])


def fno_2(x: Any) -> Any:
    """And along two, with low frequencies of both signs."""
    images = x.reshape(2, 4, 4, 4)
    spectrum = torch.fft.rfft2(images, norm="ortho")
    out = torch.zeros_like(spectrum)
    product = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -3:, :3], like(x, WEIGHTS_2))
    out[:, :, -3:, :3] = product
    return torch.fft.irfft2(out, s=(4, 4), norm="ortho")


def rope(x: Any) -> Any:
    """Llama's rotary embedding as it was published first."""
    rows = x.reshape(2, -1)[:, :48].reshape(2, 6, 8)
    pairs = torch.view_as_complex(rows.reshape(2, 6, 4, 2))
    return torch.view_as_real(pairs * like(x, TURNS)).flatten(2)


def spectrogram(x: Any) -> Any:
    """Short transforms, their scaled magnitudes, and the signal that they give back."""
    window = like(x, WINDOW)
    spectrum = torch.stft(x[0], 8, 4, window=window, return_complex=True)
    size, angle = spectrum.abs(), spectrum.angle()
    back = torch.istft(torch.polar(size * 0.5, angle), 8, 4, window=window, length=16)
    return size, back


def masked(x: Any) -> Any:
    """A filter by a mask of frequencies, with a shift."""
    spectrum = torch.fft.fftshift(torch.fft.fftn(x, dim=(1, 2)), dim=(1, 2))
    mask = (torch.arange(16) % 3 != 0).to(x.dtype)
    return torch.fft.ifftn(torch.fft.ifftshift(spectrum * mask, dim=(1, 2)), dim=(1, 2)).real


def correlation(x: Any) -> Any:
    """Autoformer's correlation of a series with itself."""
    a, b = torch.fft.rfft(x), torch.fft.rfft(x.flip(-1))
    return torch.fft.irfft(a * torch.conj(b), n=16), a.conj().imag, (a / (b.abs() + 1)).real


MODELS = (fnet, fno, fno_2, rope, spectrogram, masked, correlation)


def flat(value: Any) -> list[Any]:
    return [v for part in value for v in flat(part)] if isinstance(value, tuple) else [value]


def test_models() -> None:
    """In float64 to the last digits, and compiled in float32 to its precision."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 16)))
    net = Calls(list(MODELS))
    with torch.no_grad():
        expected = [v.resolve_neg().numpy() for v in flat(net(x))]
    exact = evaluate(tk.frontend.from_torch(net, (x,)), {"x": x.numpy()})
    for output, want in zip(exact, expected, strict=True):
        np.testing.assert_allclose(output, want, rtol=1e-9, atol=1e-10)
    narrow = x.float()
    run = tk.runtime.Executor(tk.compile(tk.frontend.from_torch(net, (narrow,))))["main"]
    for output, want in zip(run(narrow.numpy()), expected, strict=True):
        np.testing.assert_allclose(np.asarray(output.numpy()), want, rtol=1e-4, atol=1e-4)


def test_open_sizes() -> None:
    """Batches and lengths of a rotary embedding stay open, with its turns a buffer."""

    class Rotary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turns", TURNS.to(torch.complex64))

        def forward(self, x: Any) -> Any:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(2)

    net = Rotary()
    shapes = {"x": {0: Dim("batch"), 1: Dim("length", max=6)}}
    module = tk.frontend.from_torch(net, (torch.ones(2, 4, 8),), dynamic_shapes=shapes)
    for batch, length in ((2, 4), (3, 6), (1, 1)):
        x = torch.randn(batch, length, 8)
        (output,) = evaluate(module, {"x": x.numpy()})
        np.testing.assert_allclose(output, net(x).numpy(), rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    """At the boundary, of operators without a rule, and of lengths that are not known."""
    x = torch.ones(4, 8)
    n = Dim("n")
    for function, args, shapes, says in (
        (torch.fft.rfft, (x,), None, "the element type complex64 is not supported here"),
        (lambda x: x.real + 1, (x * 1j,), None, "the element type complex64 is not supported here"),
        (lambda x: torch.fft.rfft(x).cosh().real, (x,), None, "cosh is not supported for complex"),
        (lambda x: torch.fft.fft(x).real, (x,), ({1: n},), "transform of symbolic length"),
    ):
        net = Calls([function])
        with pytest.raises(UnsupportedError, match=says):
            tk.frontend.from_torch(net, args, dynamic_shapes=shapes)
