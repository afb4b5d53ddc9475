"""Whole networks on CUDA, alone and beside CPUs and externals: the results of a CPU. Through the
stand-in for the driver a minute and more each, since all threads of all kernels run one after the
other; `make conformance`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tests.cuda.emulator.build import build_all
from tests.cuda.lookalike import require_cuda
from tests.devices.test_opencl import BERT, run

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is the baseline"),
    pytest.mark.conformance,
]


def cuda(target: Any) -> Any:
    """A target of OpenCL's tests with CUDA in its place."""
    if isinstance(target, str):
        return target.replace("opencl", "cuda")
    if isinstance(target, Sequence):
        return [cuda(t) for t in target]
    return {k: cuda(v) for k, v in target.items()} if isinstance(target, dict) else target


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((n, "nvidia/a100") for n in ("mlp", "mobilenetv2", "bert_2", "resnet18")),
        ("bert_2", "nvidia/h100"),
        *(("bert_2", key) for key in BERT if "opencl" in key),
    ],
)
def test_networks(name: str, target: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from tests.models.test_models import fetch, random_inputs

    mod = tk.frontend.from_onnx(str(fetch(name)))
    exe = tk.compile(mod, cuda(BERT[target]) if target in BERT else target)
    if not require_cuda():
        for path in build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"])):
            ctypes.CDLL(str(path)).emulator_watch(0)  # races in buffers: ten times as long
    inputs = random_inputs(name, 0, {}).values()
    for have, want in zip(run(exe, *inputs), run(tk.compile(mod), *inputs), strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        scale = np.abs(want.astype(np.float64)).max(initial=1e-6)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5 * scale)
    used = {p.device for p in exe.placement()}
    assert used == {"cuda"} if target not in BERT else len(used) == len(BERT[target]["devices"])
