"""Is a compiled library right? Against ONNX Runtime, and against float64 for the size of errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tests.models.float64 import run_float64

Array = np.ndarray
Library = Callable[..., Sequence[Array]]

RTOL, ATOL_OF_SCALE = 1e-3, 1e-4
TIMES_ONNX_RUNTIME = 4.0
# An error below this many float32 ulp of the output's scale is rounding, whoever makes it:
# without a floor a model that ONNX Runtime happens to hit exactly could not be passed at all.
FLOOR_ULP = 8.0
FLOAT32_ULP = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class Figures:
    """Largest absolute errors of one output for one input, and the largest exact value."""

    output: str
    number: int
    scale: float
    against_onnxruntime: float
    ours_float64: float
    onnxruntime_float64: float

    def text(self) -> str:
        """One line for the test's log."""
        return (
            f"{self.output} of input {self.number}: scale {self.scale:.3g},"
            f" off ONNX Runtime {self.against_onnxruntime:.3g},"
            f" off float64: ours {self.ours_float64:.3g},"
            f" ONNX Runtime {self.onnxruntime_float64:.3g}"
        )


class Reference:
    """ONNX Runtime and float64 results of one model; the session is made once."""

    def __init__(self, path: Path, threads: int = 2):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.path = path
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = [entry.name for entry in self.session.get_outputs()]

    def float32(self, inputs: Mapping[str, Array]) -> list[Array]:
        """ONNX Runtime's outputs."""
        return [np.asarray(value) for value in self.session.run(None, dict(inputs))]

    def float64(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Outputs in double precision; the model is read anew so that no copy stays behind."""
        return run_float64(onnx.load(self.path), inputs)


def compare(
    library: Library,
    reference: Reference,
    inputs: Sequence[Mapping[str, Array]],
    *,
    float64: bool = True,
) -> list[Figures]:
    """Asserts that `library(*arrays)` is right on every one of `inputs`; returns the figures.

    Each output of each input must be within RTOL and ATOL_OF_SCALE x its scale of ONNX Runtime's.
    Its error against float64 must be at most TIMES_ONNX_RUNTIME x ONNX Runtime's, or FLOOR_ULP ulp
    of its scale.
    """
    found: list[Figures] = []
    for number, feeds in enumerate(inputs):
        ours = list(library(*feeds.values()))
        theirs = reference.float32(feeds)
        exact = reference.float64(feeds) if float64 else theirs
        assert len(ours) == len(theirs), f"{len(ours)} outputs, expected {len(theirs)}"
        for name, have, want, true in zip(reference.outputs, ours, theirs, exact, strict=True):
            figures = assert_close(name, number, have, want, true)
            if float64:
                assert_precise(figures)
            found.append(figures)
    return found


def assert_close(name: str, number: int, ours: Array, theirs: Array, exact: Array) -> Figures:
    """Same dtype and shape, finite, and within tolerance of ONNX Runtime's output."""
    where = f"{name} of input {number}"
    assert ours.dtype == theirs.dtype, f"{where}: dtype {ours.dtype}, expected {theirs.dtype}"
    assert ours.shape == theirs.shape, f"{where}: shape {ours.shape}, expected {theirs.shape}"
    assert exact.shape == theirs.shape, f"{where}: the float64 reference has shape {exact.shape}"
    assert np.isfinite(theirs).all(), f"{where}: the zoo's weights make the model overflow"
    scale = float(np.abs(exact).max()) or 1.0
    distances = _distance(ours, theirs), _distance(ours, exact), _distance(theirs, exact)
    figures = Figures(name, number, scale, *distances)
    close = np.allclose(ours, theirs, rtol=RTOL, atol=ATOL_OF_SCALE * scale)
    assert close, f"not close to ONNX Runtime: {figures.text()}"
    return figures


def assert_precise(figures: Figures) -> None:
    """The error against float64 is of the size of ONNX Runtime's."""
    floor = FLOOR_ULP * FLOAT32_ULP * figures.scale
    allowed = max(TIMES_ONNX_RUNTIME * figures.onnxruntime_float64, floor)
    precise = figures.ours_float64 <= allowed
    assert precise, f"less precise than allowed ({allowed:.3g}): {figures.text()}"


def _distance(left: Array, right: Array) -> float:
    return float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max(initial=0.0))
