"""`kiln` with models on OpenCL: compile, inspect, run, bench, explain; and where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from examples.make_mlp import make_mlp
from tests.cli.test_end_to_end import kiln
from tests.codegen.opencl.device import device

TARGETS = {
    "alone": "opencl",
    "beside_a_cpu": json.dumps({"devices": [{"kind": "opencl", "operators": ["linear"]}, "llvm"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_commands(name: str, tmp_path: Path) -> None:
    device()  # skips where there is none
    (tmp_path / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    model, library, out = (str(tmp_path / x) for x in ("mlp.onnx", "mlp.so", "out"))
    x = np.random.default_rng(3).standard_normal((5, 784)).astype(np.float32)
    np.save(tmp_path / "image.npy", x)

    def done(*argv: str, **environment: str) -> str:
        made = kiln(*argv, **environment)
        assert made.returncode == 0, made.stderr
        return made.stdout + made.stderr

    done("compile", model, "-o", library, "--target", TARGETS[name], "-q")
    assert "kernels.cl" in done("inspect", library)
    run = ["run", library, "--input", str(tmp_path / "image.npy"), "--output-dir", out]
    done(*run)
    onnxruntime = pytest.importorskip("onnxruntime")
    (want,) = onnxruntime.InferenceSession(model).run(None, {"image": x})
    np.testing.assert_allclose(np.load(f"{out}/logits.npy"), want, rtol=1e-4, atol=1e-4)
    bench = ["bench", library, "--model", model, "--seconds", "0.05", "--dim", "batch=3"]
    assert "results agree" in done(*bench)
    lacking = kiln(*run, OCL_ICD_VENDORS=str(tmp_path / "none"))
    assert lacking.returncode != 0 and "OpenCL" in lacking.stderr
    done("explain", model, "--target", TARGETS[name], "-o", str(tmp_path / "page.html"))
