"""A whole network on every CPU level, against ONNX Runtime."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import numpy as np  # noqa: E402

import tensorkiln as tk  # noqa: E402
from tensorkiln.artifact import Artifact  # noqa: E402
from tests.codegen.kernels import EVERY_LEVEL, TARGETS  # noqa: E402
from tests.emulated.machine import load  # noqa: E402
from tests.schedule.battery import ALLOWED, undefined_symbols  # noqa: E402
from tests.zoo.light import input_spec, light_model  # noqa: E402


def _kernels(executable: tk.Executable) -> list[Artifact]:
    return [a for a in executable.artifacts if a.file_name.endswith(".o")]


@pytest.mark.slow
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_shufflenet(level: str) -> None:
    model = light_model("shufflenet")
    executable = tk.compile(tk.frontend.from_onnx(model), TARGETS[level])
    needed = set().union(*(undefined_symbols(bytes(a.view)) for a in _kernels(executable)))
    assert needed <= ALLOWED and "kiln_parallel_for" in needed
    generator = np.random.default_rng(0)
    shapes = input_spec(model)
    inputs = {k: generator.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, inputs)
    output = np.asarray(load(executable)["main"](*inputs.values()))
    assert np.abs(output - want).max() <= 1e-4 * np.abs(want).max()
