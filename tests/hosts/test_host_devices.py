"""Choosing a device from C, C++ and Rust: the results and the sentences of each are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.capabilities import opencl_devices
from tests.hosts.build import run
from tests.hosts.conftest import in_each, program
from tests.runtime import device_library

DEVICES = in_each("devices")


@pytest.fixture(scope="session")
def on_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with devices 1 and 2, both OpenCL."""
    return device_library.build(tmp_path_factory.mktemp("devices") / "gpu.so")


@pytest.mark.parametrize("language", DEVICES)
def test_choosing_a_device(language: str, programs: Path, library: Path, on_devices: Path) -> None:
    host = program(DEVICES, language, programs)

    def said(path: Path, device: int, index: int) -> str:
        # A driver keeps memory until the process ends.
        process = run(host, path, str(device), str(index), ASAN_OPTIONS="detect_leaks=0")
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    assert said(library, 1, 0) == f"7 '{library}' has no devices, there is no number 1"
    words = "has 2 devices, there is no number 3"
    assert said(on_devices, 3, 0).startswith("7 library ") and words in said(on_devices, 3, 0)
    if not opencl_devices():
        assert said(on_devices, 1, 0).split()[0] in ("21", "22")
        pytest.skip("no device of OpenCL")
    numbers = [float(word) for word in said(on_devices, 1, 0).split()]
    ones_vector = np.ones(7, np.float32)
    np.testing.assert_allclose(numbers, device_library.expected(ones_vector), atol=1e-5)
    assert said(on_devices, 1, 99).startswith("22 there is no device opencl:99")
