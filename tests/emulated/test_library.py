"""A library of another machine: its entries, its errors, its demands on the processor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.kernels.case import rand
from tests.codegen.kernels import TARGETS
from tests.emulated.machine import AARCH64, Emulated
from tests.link import sample
from tests.transform.graphs import graph

pytestmark = pytest.mark.emulated
ROOT = Path(__file__).parents[2]
F = np.float32


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    AARCH64.require()
    path = tmp_path_factory.mktemp("sample") / "mlp.so"
    sample.build(path, triple="aarch64-unknown-linux-gnu")
    return Emulated(AARCH64, path, "cortex-a53")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(F)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1, 3, 200])
def test_graph_functions(library: Emulated, rows: int, threads: int) -> None:
    library.set_num_threads(threads)
    x = floats(rows, 8)
    np.testing.assert_allclose(library["main"](x), sample.expected(x), rtol=1e-5, atol=1e-5)
    if rows > 0:
        left, right = library["split"](x)
        np.testing.assert_array_equal(left, 2 * x[:, :4])
        np.testing.assert_array_equal(right, 2 * x[:, 4:].reshape(-1))


def test_tensor_functions(library: Emulated) -> None:
    x, y = floats(7), np.zeros(7, F)
    library["add_one"](x, y)
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("main", [floats(8)], "main: input 'x' must have 2 dimensions, [n, 8], received 1: [8]"),
        (
            "pair",
            [floats(3), floats(4)],
            "pair: input 'b' must have shape [n], received [4]: dimension 0 is 4, expected 3",
        ),
        (
            "nothing",
            [],
            "library mlp has no function 'nothing'; "
            "it has main, fixed, split, pair, add_one, scale",
        ),
    ],
)
def test_errors(library: Emulated, name: str, arguments: list[np.ndarray], words: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        library[name](*arguments)
    assert str(caught.value) == words
    np.testing.assert_array_equal(library["pair"](floats(2), np.zeros(2, F)), floats(2))


def test_a_processor_that_lacks_a_feature(tmp_path: Path) -> None:
    """Refused before the first kernel, not ended by an illegal instruction."""
    AARCH64.require()
    exe = tk.compile(graph(lambda g, x: g.exp(x), x=(9,)), TARGETS["dotprod"])
    path = exe.export_library(tmp_path / "new.so")
    np.testing.assert_allclose(
        Emulated(AARCH64, path, "neoverse-n1")["main"](floats(9)), np.exp(floats(9)), rtol=1e-6
    )
    with pytest.raises(RuntimeError, match="this processor lacks 'dotprod', which library"):
        Emulated(AARCH64, path, "cortex-a72")["main"](floats(9))


def test_a_c_program(tmp_path: Path) -> None:
    """The example for C, built for the machine, runs a model without Python."""
    AARCH64.require()
    w, b = rand(784, 10), rand(10)
    exe = tk.compile(graph(lambda g, x: g.linear(x, w, b), x=(1, 784)), TARGETS["neon"])
    path = exe.export_library(tmp_path / "net.so")
    host = AARCH64.build(tmp_path / "host", ROOT / "examples/c_host/main.c")
    x = floats(1, 784)
    (tmp_path / "in").write_bytes(x.tobytes())
    places = [str(tmp_path / "in"), str(tmp_path / "out")]
    program = [host, path, f"{exe.name}_main", "784", "10", *places]
    subprocess.run(AARCH64.command("cortex-a72", *program), check=True)
    got = np.frombuffer((tmp_path / "out").read_bytes(), F)
    want = x.astype(np.float64) @ w.array + b.array
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)


def test_weights_beside_the_library(tmp_path: Path) -> None:
    """Pages may be larger there; what is mapped must begin at one."""
    AARCH64.require()
    path = sample.build(tmp_path / "mlp.so", triple="aarch64-unknown-linux-gnu", beside=())
    x = floats(3, 8)
    found = Emulated(AARCH64, path, "cortex-a53")["main"](x)
    np.testing.assert_allclose(found, sample.expected(x), rtol=1e-5, atol=1e-5)
    (tmp_path / "mlp.safetensors").unlink()
    with pytest.raises(RuntimeError, match="weights in .*mlp.safetensors, which cannot be opened"):
        Emulated(AARCH64, path, "cortex-a53")["main"](x)
