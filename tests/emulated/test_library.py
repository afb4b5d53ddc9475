"""A library of another machine: its entries, its errors, its demands on the processor."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.kernels.case import rand
from tensorkiln.target import riscv
from tests.emulated.machine import AARCH64, RISCV64, Emulated, Machine, riscv_processor
from tests.link import sample
from tests.transform.graphs import graph

pytestmark = pytest.mark.emulated
ROOT = Path(__file__).parents[2]
F = np.float32


@dataclass(frozen=True, slots=True)
class Processors:
    """Of a machine: qemu's name of a plain processor; a target with a feature that it lacks, and
    qemu's name of a processor that has it."""

    machine: Machine
    plain: str
    feature: str
    target: Mapping[str, object]
    newer: str

    @property
    def triple(self) -> str:
        """That of libraries for the machine."""
        return f"{self.machine.arch}-unknown-linux-gnu"


PROCESSORS = {
    "aarch64": Processors(AARCH64, "cortex-a53", "dotprod", {"mcpu": "neoverse-n1"}, "neoverse-n1"),
    "riscv64": Processors(
        RISCV64,
        riscv_processor(0),
        "v",
        {"mattr": [*riscv.DEFAULT_64, "+v"]},
        riscv_processor(128),
    ),
}


@pytest.fixture(scope="module", params=PROCESSORS)
def processors(request: pytest.FixtureRequest) -> Processors:
    processors = PROCESSORS[request.param]
    processors.machine.require()
    return processors


@pytest.fixture(scope="module")
def library(processors: Processors, tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    path = tmp_path_factory.mktemp("sample") / "mlp.so"
    sample.build(path, triple=processors.triple)
    return Emulated(processors.machine, path, processors.plain)


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


def test_a_processor_that_lacks_a_feature(processors: Processors, tmp_path: Path) -> None:
    """Refused before the first kernel, not ended by an illegal instruction."""
    machine = processors.machine
    target = {"mtriple": processors.triple, **processors.target}
    exe = tk.compile(graph(lambda g, x: g.exp(x), x=(9,)), target)
    path = exe.export_library(tmp_path / "new.so")
    np.testing.assert_allclose(
        Emulated(machine, path, processors.newer)["main"](floats(9)), np.exp(floats(9)), rtol=1e-6
    )
    words = f"this processor lacks '{processors.feature}', which library"
    with pytest.raises(RuntimeError, match=words):
        Emulated(machine, path, processors.plain)["main"](floats(9))


def test_a_c_program(processors: Processors, tmp_path: Path) -> None:
    """The example for C, built for the machine, runs a model without Python."""
    machine = processors.machine
    w, b = rand(784, 10), rand(10)
    module = graph(lambda g, x: g.linear(x, w, b), x=(1, 784))
    exe = tk.compile(module, {"mtriple": processors.triple})
    path = exe.export_library(tmp_path / "net.so")
    host = machine.build(tmp_path / "host", ROOT / "examples/c_host/main.c")
    x = floats(1, 784)
    (tmp_path / "in").write_bytes(x.tobytes())
    places = [str(tmp_path / "in"), str(tmp_path / "out")]
    program = [host, path, f"{exe.name}_main", "784", "10", *places]
    subprocess.run(machine.command(processors.plain, *program), check=True)
    got = np.frombuffer((tmp_path / "out").read_bytes(), F)
    want = x.astype(np.float64) @ w.array + b.array
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)


ROUNDING = """
#include "@NAME@.h"
#include <fenv.h>
#include <stdio.h>
#include <string.h>
static float x[64 * 300], one[64 * 40], several[64 * 40], usual[64 * 40];
int main(void)
{
    for (int i = 0; i < 64 * 300; i++)
        x[i] = 1.0f / (float)(i + 3);
    @NAME@_set_num_threads(4);
    int code = @NAME@_main(x, usual);
    fesetround(FE_UPWARD);
    code |= @NAME@_main(x, several);
    @NAME@_set_num_threads(1);
    code |= @NAME@_main(x, one);
    printf("%d %d %d\\n", code, memcmp(one, several, sizeof one) == 0,
           memcmp(one, usual, sizeof one) == 0);
    return 0;
}
"""


def test_threads_round_as_their_caller(processors: Processors, tmp_path: Path) -> None:
    """The state in which a thread computes goes with the loop to the threads of the pool."""
    w = rand(300, 40)
    module = graph(lambda g, x: g.linear(x, w), x=(64, 300))
    exe = tk.compile(module, {"mtriple": processors.triple})
    archive = exe.export_library(tmp_path / "net.a")
    (tmp_path / f"{exe.name}.h").write_text(exe.header())
    (tmp_path / "main.c").write_text(ROUNDING.replace("@NAME@", exe.name))
    machine = processors.machine
    arguments = (tmp_path / "main.c", archive, "-I", tmp_path, "-lm")
    program = machine.build(tmp_path / "program", *arguments)
    process = subprocess.run(
        machine.command(processors.plain, program), check=True, capture_output=True, text=True
    )
    assert process.stdout == "0 1 0\n"


def test_weights_beside_the_library(processors: Processors, tmp_path: Path) -> None:
    """Pages may be larger there; what is mapped must begin at one."""
    path = sample.build(tmp_path / "mlp.so", triple=processors.triple, beside=())
    load = functools.partial(Emulated, processors.machine, path, processors.plain)
    x = floats(3, 8)
    np.testing.assert_allclose(load()["main"](x), sample.expected(x), rtol=1e-5, atol=1e-5)
    (tmp_path / "mlp.safetensors").unlink()
    with pytest.raises(RuntimeError, match="weights in .*mlp.safetensors, which cannot be opened"):
        load()["main"](x)
