"""`torch.compile(backend="tensorkiln")`: values, graph breaks, sizes, weights, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensorkiln.base.errors import UnsupportedError, UserError  # noqa: E402 - after the skip
from tensorkiln.dynamo import FallbackWarning, _Graph, backend, report  # noqa: E402
from tensorkiln.runtime.failures import IndexOutsideError  # noqa: E402

nn = torch.nn
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing of other graphs is kept, and warnings are not swallowed as repeated."""
    torch._dynamo.reset()
    report(reset=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        yield
    torch._dynamo.reset()


def close(result: Any, want: Any) -> None:
    torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-5)


def attention_block() -> Any:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Embedding(50, 16), layer, nn.Linear(16, 50))


NETWORKS: dict[str, tuple[Any, Any]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)),
        lambda: torch.randn(4, 5),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        lambda: torch.randn(2, 3, 17, 17),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    ),
    "attention": (attention_block, lambda: torch.randint(0, 50, (2, 6))),
    "after": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True),
        lambda: torch.randn(3, 5, 8),
    ),
    "normalised": (
        lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(2, 4), nn.Softplus()),
        lambda: torch.randn(2, 4, 9),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    """One graph each, right at two inputs, compiled once; results lie in memory as torch's do."""
    torch.manual_seed(0)
    make, example = NETWORKS[name]
    net = make().eval()
    compiled = torch.compile(net, backend=backend)
    for _ in range(2):
        x = example()
        result, want = compiled(x), net(x)
        close(result, want)
        assert result.stride() == want.stride()
    summary = report()
    assert (summary.graphs, summary.compiled, summary.fallbacks) == (1, 1, [])


class Broken(nn.Module):
    """Three graph breaks: one that is asked for, a branch, and a check of a number from data."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Any) -> Any:
        first, second, third, fourth = self.layers
        x = torch.relu(first(x))
        torch._dynamo.graph_break()
        x = torch.tanh(second(x))
        if x.sum() > 1e9:
            x = x * 2
        x = torch.sigmoid(third(x))
        assert not torch.isnan(x).any().item()
        x = fourth(x)
        return {"x": x, "sum": x.sum(1)}


@pytest.mark.slow
def test_three_graph_breaks() -> None:
    net = Broken().eval()
    compiled = torch.compile(net, backend=backend)
    x = torch.randn(3, 6)
    for _ in range(2):
        result, want = compiled(x), net(x)
        close(result["x"], want["x"])
        close(result["sum"], want["sum"])
    summary = report()
    assert (summary.graphs, summary.compiled, summary.fallbacks) == (4, 4, [])


@pytest.mark.slow
def test_sizes_change_and_nothing_is_compiled_again() -> None:
    """Of the batch, of a sequence in attention, and of sizes that are computed from them."""

    def forward(x: Any, y: Any) -> Any:
        joined = torch.cat([x, y]) * x.shape[0]
        scores = torch.softmax(joined @ joined.T, -1)
        return scores @ joined, joined.reshape(-1)[: joined.shape[0]], x.shape[0] + y.shape[0]

    compiled = torch.compile(forward, backend=backend, dynamic=True)
    for a, b in ((2, 3), (5, 4), (7, 2), (4, 9)):
        x, y = torch.randn(a, 4), torch.randn(b, 4)
        result, want = compiled(x, y), forward(x, y)
        close(result[:2], want[:2])
        assert result[2] == want[2]
    summary = report()
    assert (summary.graphs, summary.compiled, summary.fallbacks) == (1, 1, [])


@pytest.mark.parametrize("freezing", [False, True])
def test_weights_are_constants(freezing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that dynamo leaves in its module: kernels of constant weights are a hundred times
    as fast, and a function has at most 256 parameters."""
    import torch._inductor.config as config

    graph_sizes: list[tuple[int, int]] = []
    imported = _Graph._imported

    def watched(graph: _Graph, args: list[Any]) -> Any:
        imported_graph = imported(graph, args)
        graph_sizes.append((len(graph.weights), len(graph.inputs)))
        return imported_graph

    monkeypatch.setattr(_Graph, "_imported", watched)
    make, example = NETWORKS["convolutions"]
    net, x = make().eval(), example()
    compiled = torch.compile(net, backend=backend)
    with config.patch(freezing=freezing):
        for _ in range(2):
            close(compiled(x), net(x))
    # two convolutions and a linear layer, and the four of BatchNorm that inference reads
    assert graph_sizes == [(10, 1)]


@pytest.mark.slow
def test_weights_that_change() -> None:
    """Weights are constants; a change that torch sees compiles again, a second makes arguments."""
    net = nn.Linear(4, 4)
    compiled = torch.compile(net, backend=backend)
    x = torch.randn(2, 4)
    counts = []
    for _ in range(5):
        close(compiled(x), net(x))
        counts.append(report().compiled)
        net.weight.mul_(1.5)
    assert counts == [1, 2, 3, 3, 3]
    net.load_state_dict({"weight": torch.eye(4), "bias": torch.zeros(4)})
    close(compiled(x), x)


@pytest.mark.slow
def test_mutation_views_and_aliases() -> None:
    """What AOTAutograd takes apart is put together again: buffers and inputs that change, results
    that are inputs and views of inputs."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any, y: Any) -> Any:
            self.seen.add_(1)
            y.mul_(2)
            z = x + self.seen
            return z, z.T, x[1:], y, x

    compiled_net, eager_net = Counts(), Counts()
    compiled = torch.compile(compiled_net, backend=backend)
    for _ in range(3):
        x = torch.randn(2, 3)
        y = torch.randn(3)
        mine, own_y = x.clone(), y.clone()
        results, want = compiled(mine, own_y), eager_net(x, y)
        close(list(results), list(want))
        close([own_y, compiled_net.seen], [y, eager_net.seen])
        assert (
            results[2].data_ptr() == mine[1:].data_ptr()
            and results[4].data_ptr() == mine.data_ptr()
        )


@pytest.mark.slow
def test_numbers_types_and_operands_that_are_not_dense() -> None:
    def forward(x: Any, m: Any, n: int, scale: float) -> Any:
        half = x.bfloat16()
        torch._dynamo.graph_break()
        return torch.where(m, x * scale, x.T.flip(0)), half + n, m.sum(), x > n

    compiled = torch.compile(forward, backend=backend)
    for n in (1, 2, 3):
        x = torch.randn(8, 6)[::2, ::2][:3].mT.contiguous().mT
        m = torch.rand(3, 3) > 0.5
        results, want = compiled(x, m, n, 0.5 * n), forward(x, m, n, 0.5 * n)
        for a, b in zip(results, want, strict=True):
            assert a.dtype == b.dtype
            close(a, b)
    assert report().fallbacks == []


# -- what is refused, and what torch runs ---------------------------------------------------------


def test_classes_outside_are_refused() -> None:
    f = torch.compile(lambda x: nn.functional.one_hot(x, 4), backend="tensorkiln")
    x = torch.tensor([[1, 3], [0, 2]])
    assert torch.equal(f(x), nn.functional.one_hot(x, 4))
    for number in (-1, 4):
        with pytest.raises(IndexOutsideError, match=rf"index {number} at \[1, 0\] .* 0 to 3"):
            f(torch.tensor([[1, 3], [number, 2]]))


def test_training_is_refused() -> None:
    net = nn.Linear(4, 4)
    compiled = torch.compile(net, backend=backend)
    x = torch.randn(2, 4)
    with torch.enable_grad(), pytest.raises(UserError, match="inference") as caught:
        compiled(x)
    assert caught.value.code == "training"
    assert "torch.no_grad()" in caught.value.hint


@pytest.mark.slow
def test_training_is_refused_only_where_torch_would_record() -> None:
    net = nn.Linear(4, 4).requires_grad_(False)
    x = torch.randn(2, 4)
    with torch.enable_grad():
        close(torch.compile(net, backend=backend)(x), net(x))


def test_a_graph_that_torch_runs_is_counted_and_named() -> None:
    def forward(x: Any) -> Any:
        return torch.linalg.svdvals(x) + torch.rand(2) * 0

    compiled = torch.compile(forward, backend=backend)
    x = torch.randn(2, 2)
    with pytest.warns(FallbackWarning, match="_linalg_svd"):
        close(compiled(x), forward(x))
    close(compiled(x), forward(x))
    summary = report()
    (fallback,) = summary.fallbacks
    assert {i.op for i in fallback.issues} == {
        "aten._linalg_svd.default",
        "aten.rand.default",
    }
    assert "test_torch_compile.py:" in str(summary)
    assert str(report(reset=True)) == str(summary)
    assert str(report()) == "0 graphs, compiled 0 times"


def test_strict_is_an_error() -> None:
    compiled = torch.compile(
        lambda x: torch.linalg.svdvals(x), backend=backend, options={"strict": True}
    )
    with pytest.raises(UnsupportedError, match="_linalg_svd"):
        compiled(torch.randn(2, 2))


@pytest.mark.parametrize("options", [{"targets": "llvm"}, {"strikt": True}])
def test_options_that_are_not_known(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="there is no") as caught:
        backend(None, (), options=options)
    assert "did you mean" in caught.value.hint


@pytest.mark.slow
def test_the_target_is_an_option() -> None:
    compiled = torch.compile(torch.relu, backend=backend, options={"target": "c"})
    x = torch.randn(5)
    close(compiled(x), torch.relu(x))
    assert report().compiled == 1


# -- how torch finds it ---------------------------------------------------------------------------

_SCRIPT = """
import torch
assert "tensorkiln" in torch.compiler.list_backends(exclude_tags=())
from tensorkiln.dynamo import report
with torch.no_grad():
    x = torch.ones(3)
    assert torch.compile(lambda x: x + 1, backend="tensorkiln")(x).tolist() == [2, 2, 2]
assert report().compiled == 1, report()
"""


@pytest.mark.slow
def test_torch_finds_it_by_the_entry_point(tmp_path: Path) -> None:
    """As installed: the metadata of the package, in a process of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    group = "torch_dynamo_backends"
    (name, place), *other_rows = project["entry-points"][group].items()
    assert (name, other_rows) == ("tensorkiln", [])
    module, _, attribute = place.partition(":")
    assert getattr(import_module(module), attribute) is backend
    info = tmp_path / "tensorkiln-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorkiln\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
