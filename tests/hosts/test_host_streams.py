"""Streams and graphs of CUDA from C, C++ and Rust: the results and the sentences of each are the
same. Always by the stand-in for the driver, whose log says which stream got what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.hosts.build import run
from tests.hosts.conftest import in_each, program
from tests.runtime import device_library
from tests.runtime.device_stand import Stand

STREAMS = in_each("streams")


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("streams"), "cuda", "none")


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_library.build(tmp_path_factory.mktemp("opencl") / "cl.so")


@pytest.mark.parametrize("language", STREAMS)
def test_streams_and_graphs(
    language: str, programs: Path, library: Path, opencl: Path, stand: Stand, tmp_path: Path
) -> None:
    host = program(STREAMS, language, programs)
    trace = tmp_path / "trace"

    def said(path: Path, *numbers: int) -> list[str]:
        trace.unlink(missing_ok=True)
        place = {"LD_LIBRARY_PATH": str(stand.folder), "LOOKALIKE_DIR": str(stand.folder)}
        process = run(host, path, *map(str, numbers), LOOKALIKE_TRACE=str(trace), **place)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip().split(" ", 7 if process.stdout[1] == "." else 1)

    for stream in (0, 1):  # the library's own, and CUDA's default stream
        for graphs in (0, 1):
            *result_words, graph_counts = said(stand.library, 1, stream, graphs)
            ones_vector = np.ones(7, np.float32)
            have = [float(word) for word in result_words]
            np.testing.assert_allclose(have, device_library.expected(ones_vector), atol=1e-5)
            assert graph_counts == ("2 1" if graphs else "0 0")
            queued = [line.split() for line in trace.read_text().splitlines()]
            kernels = [line for line in queued if line[-1] in ("add", "scale")]
            names = [line[-1] for line in kernels]
            assert names and names == len(names) // 2 * ["add", "scale"]
            assert all(("graph" in line) == bool(graphs) for line in kernels)
            assert all((line[0] == "0") == bool(stream) for line in kernels)
    assert said(library, 1, 1, 0) == ["7", f"'{library}' has no devices, so it takes no stream"]
    words = f"'{library}' has no devices, so its runs cannot be graphs"
    assert said(library, 1, 1, 1) == ["7", words]
    assert said(stand.library, 3, 1, 0)[1].endswith("has 2 devices, there is no number 3")
    assert said(opencl, 1, 1, 0) == ["7", "devices of opencl take no streams of the host"]
    assert said(opencl, 1, 1, 1)[1].endswith("graphs are of cuda, its devices are opencl, opencl")
