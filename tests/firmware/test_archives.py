# ruff: noqa: E402  what is not installed must be named before it is imported
"""Archives of the four networks, built unedited for microcontrollers and run there.

Results are the host's: integers to the bit; float32 within the rounding of a multiply-add, which is
one operation or two as a processor has it. What an archive's metadata says of memory is what the
linker map and the run show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing to compare")

import tensorkiln as tk
from tests.firmware.archives import Archive
from tests.firmware.boards import BOARDS
from tests.firmware.models import NETWORKS, PRECISIONS, inputs, model

Array = np.ndarray
# Of the largest result, for float32. Sums of 640 products whose multiply-adds are rounded once or
# twice differ by 7e-7 of it (measured, `anomaly`); a wrong weight by more than 1e-3.
TOLERANCE = 5e-6
# Bytes of the frames of run function, kernel, helpers and the compiler's library, with spills: they
# come on top of the kernels' own buffers, which are all that the metadata can know.
FRAMES = 512
FIGURES = 0.05  # how far figures of the linker map may be from those of the metadata
# A few of each kind in `make test`, every one in `make firmware`.
FAST = {
    ("keywords", "float32", "cortex-m4"),
    ("keywords", "int8", "cortex-m4"),
    ("keywords", "int8", "cortex-m0plus"),
    ("anomaly", "int8", "cortex-m55"),
    ("anomaly", "int8", "rv32imac"),
}


def rows() -> Iterator[object]:
    for network in NETWORKS:
        for precision in PRECISIONS:
            for board in BOARDS:
                row = (network, precision, board)
                marks = () if row in FAST else pytest.mark.firmware
                yield pytest.param(*row, id="-".join(row), marks=marks)


@cache
def expected(network: str, precision: str) -> tuple[tuple[Array, Array], ...]:
    """Inputs, and the results of the library for this machine."""
    module = tk.frontend.from_onnx(model(network, precision))
    executable = tk.compile(module)
    given = [inputs(network, precision, seed) for seed in (0, 1)]
    return tuple((x, executable(x)) for x in given)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Archive]:
    """The unpacked archive of a network in a precision for a board."""

    @cache
    def made(network: str, precision: str, board: str) -> Archive:
        folder = tmp_path_factory.mktemp("archive") / network
        module = tk.frontend.from_onnx(model(network, precision))
        executable = tk.compile(module, tk.Target(BOARDS[board].target))
        executable.export_model_library_format(folder, network)
        return Archive(folder, network)

    return made


@pytest.mark.parametrize(
    ("network", "precision"),
    [
        pytest.param(n, p, id=f"{n}-{p}", marks=() if n == "keywords" else pytest.mark.firmware)
        for n in NETWORKS
        for p in PRECISIONS
    ],
)
def test_the_host_agrees_with_onnx_runtime(network: str, precision: str) -> None:
    made: onnx.ModelProto = model(network, precision)
    options = ort.SessionOptions()
    # Its optimisations round biases and sums in another order, for int8 by up to a step or more.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for x, found in expected(network, precision):
        (reference,) = session.run(None, {"input": x})
        assert found.dtype == reference.dtype and found.shape == reference.shape
        assert np.ptp(found.astype(float)) > 0
        _compare(found, reference)


@pytest.mark.in_turn()
@pytest.mark.parametrize(("network", "precision", "board"), list(rows()))
def test_it_runs_on_a_board(
    network: str,
    precision: str,
    board: str,
    archive: Callable[[str, str, str], Archive],
    tmp_path: Path,
) -> None:
    BOARDS[board].require()
    made = archive(network, precision, board)
    image = made.build(BOARDS[board], tmp_path)
    cases = expected(network, precision)
    runs = image.run([x for x, _ in cases])
    for (_, reference), run in zip(cases, runs, strict=True):
        _compare(np.frombuffer(run.output, reference.dtype).reshape(reference.shape), reference)
        assert run.stack_bytes <= made.function["stack_buffers_bytes"] + FRAMES
        workspace = made.function["workspace_size_bytes"]
        assert workspace - 64 < run.memory_bytes <= workspace  # a pool is a multiple of 64 bytes
    # Nothing refers to the heap: the functions that would end the run are not even linked.
    assert not [f for f in image.map.files() if "traps" in f or "malloc" in f]
    own = r"\d+-.*"
    constants, ram = image.map.bytes(".rodata", files=own), image.map.ram(own) - 2 * 64
    assert constants == pytest.approx(made.constants_bytes, rel=FIGURES)
    assert ram == pytest.approx(made.ram_bytes, rel=FIGURES)


def _compare(found: Array, reference: Array) -> None:
    if reference.dtype.kind == "i":
        np.testing.assert_array_equal(found, reference)
        return
    scale = float(np.abs(reference).max())
    np.testing.assert_allclose(found, reference, rtol=0, atol=TOLERANCE * scale)
